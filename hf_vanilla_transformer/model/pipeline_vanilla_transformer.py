"""`pipeline("translation")`, which transformers 5 took away."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from transformers import Pipeline


class TranslationPipeline(Pipeline):
    """Sentences in, translations out: by `pipeline("translation", model=...)`, or by this class itself.

    It serves other encoder-decoders of transformers too, where languages are not chosen by special tokens or prefixes.

    Args:
        model (`PreTrainedModel`): with `generate()`.
        tokenizer (`PreTrainedTokenizerBase`): of the model.
        batch_size (`int`, defaults to 1): sentences that are translated at a time.
        **kwargs: arguments of [`~transformers.Pipeline`], such as `device`, and of `generate()`, such as `num_beams`.
            What is not given is as the model's `generation_config` says.

    Raises:
        ValueError: if there is no tokenizer that can pad, or the model has no `generate()`.
    """

    model: Any
    tokenizer: Any
    _load_processor: Any = False
    _load_image_processor: Any = False
    _load_feature_extractor: Any = False
    _load_tokenizer: Any = True

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if self.tokenizer is None or self.tokenizer.pad_token_id is None:
            raise ValueError("a translation pipeline needs the model's tokenizer, with a token for padding.")
        if not self.model.can_generate():
            raise ValueError(
                f"{type(self.model).__name__} has no generate(); give an encoder-decoder with a softmax, as "
                "AutoModelForSeq2SeqLM.from_pretrained() loads it."
            )

    def __call__(self, inputs: str | Iterable[str], **kwargs: Any) -> Any:
        """Translate.

        Args:
            inputs (`str`, or an iterable of them): sentences; an empty or blank one has an empty translation. Iterators
                and data sets of torch (such as `KeyDataset` of transformers) are read as translations are asked for.
            return_tensors (`bool`, defaults to `False`): whether to return token ids instead of text.
            batch_size (`int`, *optional*): sentences that are translated at a time.
            **kwargs: arguments of `generate()`.

        Returns:
            A list with a dictionary for each sentence, of one for a string; for an iterator or a data set, an iterator
            over them. A dictionary has `translation_text` (`str`), or with `return_tensors` `translation_token_ids`
            (`torch.LongTensor` of shape `(target,)`, without padding). With `num_return_sequences` above 1 there is a
            list of so many dictionaries for each sentence.

        Raises:
            TypeError: if a sentence is not a string.
        """
        if isinstance(inputs, str):
            translations = super().__call__(inputs, **kwargs)
            return translations if isinstance(translations, list) else [translations]
        if isinstance(inputs, torch.utils.data.Dataset):
            return super().__call__(inputs, **kwargs)
        if isinstance(inputs, Iterator):
            # Of all iterators transformers streams generators only.
            return super().__call__((sentence for sentence in inputs), **kwargs)
        # Iterating over a table gives the names of its columns.
        is_table = isinstance(inputs, Mapping) or hasattr(inputs, "columns")
        is_one = is_table or isinstance(inputs, bytes) or not isinstance(inputs, Iterable)
        sentences = [inputs] if is_one else list(inputs)
        return super().__call__(sentences, **kwargs) if sentences else []

    def _sanitize_parameters(
        self, return_tensors: bool | None = None, **generate_kwargs: Any
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        return {}, generate_kwargs, {} if return_tensors is None else {"return_tensors": return_tensors}

    def preprocess(self, input_: Any) -> dict[str, torch.Tensor]:
        """A sentence to tensors of shape `(1, source)`, and whether it is blank, `(1,)`."""
        if not isinstance(input_, str):
            raise TypeError(
                f"an object of type {type(input_).__name__} was given to translate; give strings, for example the "
                'column dataset["source"] of a data set.'
            )
        encoded = self.tokenizer(input_, return_tensors="pt")
        return {**encoded, "is_blank": torch.tensor([not input_.strip()])}

    def _forward(self, input_tensors: dict[str, torch.Tensor], **generate_kwargs: Any) -> dict[str, torch.Tensor]:
        is_blank = input_tensors.pop("is_blank")
        with evaluating(self.model):
            output = self.model.generate(**input_tensors, **generate_kwargs)
        token_ids = getattr(output, "sequences", output).unflatten(0, (len(is_blank), -1))
        token_ids[is_blank] = self.tokenizer.pad_token_id
        return {"token_ids": token_ids}

    def postprocess(self, model_outputs: dict[str, torch.Tensor], return_tensors: bool = False) -> Any:
        """A sentence's token ids, `(1, translations, target)`, to dictionaries, as `__call__` returns them."""
        rows = [row[row != self.tokenizer.pad_token_id] for row in model_outputs["token_ids"][0]]
        if return_tensors:
            translations = [{"translation_token_ids": row} for row in rows]
        else:
            texts = self.tokenizer.batch_decode(rows, skip_special_tokens=True)
            translations = [{"translation_text": text} for text in texts]
        return translations if len(translations) > 1 else translations[0]


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Evaluation mode, as after a training there is dropout, and afterwards the mode of each module from before."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, was_training in modes:
            module.training = was_training
