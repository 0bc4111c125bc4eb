"""`pipeline("translation")`, which transformers 5 removed."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from transformers import Pipeline, PreTrainedConfig, PreTrainedTokenizerBase

from .configuration_vanilla_transformer import VanillaTransformerConfig
from .input_error import InputError
from .tokenization_two_vocabularies import sides_of


class TranslationPipeline(Pipeline):
    """Translates sentences: `pipeline("translation", model=...)`.

    It also works with other encoder-decoder models of transformers that need no language tokens or prefixes.

    Args:
        model (`PreTrainedModel`): a model with `generate()`.
        tokenizer (`PreTrainedTokenizerBase`): of the model.
        batch_size (`int`, defaults to 1): number of sentences per batch.
        **kwargs: arguments of [`~transformers.Pipeline`], such as `device`, and of `generate()`, such as `num_beams`;
            defaults come from the model's `generation_config`.

    Raises:
        ValueError: if the tokenizer is missing, has no pad token or belongs to another model, or the model has no
            `generate()`.
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
            raise InputError("a translation pipeline needs the model's tokenizer, with a pad token.")
        if not self.model.can_generate():
            raise InputError(
                f"{type(self.model).__name__} has no generate(); load an encoder-decoder by "
                "AutoModelForSeq2SeqLM.from_pretrained()."
            )
        check_vocabulary(self.model.config, self.tokenizer)

    def __call__(self, inputs: str | Iterable[str], **kwargs: Any) -> Any:
        """Translate.

        Args:
            inputs (`str`, or an iterable of them): sentences; an empty or blank one has an empty translation. Iterators
                and torch datasets (such as `KeyDataset` of transformers) are read lazily.
            return_tensors (`bool`, defaults to `False`): whether to return token ids instead of text.
            batch_size (`int`, *optional*): number of sentences per batch.
            **kwargs: arguments of `generate()`.

        Returns:
            A list with a dictionary per sentence (also for one string); for an iterator or a dataset, an iterator over
            dictionaries. A dictionary has `translation_text` (`str`), or with `return_tensors` `translation_token_ids`
            (`torch.LongTensor` of shape `(target,)`, without padding). With `num_return_sequences` above 1, a list of
            dictionaries per sentence.

        Raises:
            TypeError: if a sentence is not a string.
            ValueError: if a sentence has lone surrogates, or a translation is empty because weights are NaN or
                infinite.
        """
        if isinstance(inputs, str):
            translations = super().__call__(inputs, **kwargs)
            return translations if isinstance(translations, list) else [translations]
        if isinstance(inputs, torch.utils.data.Dataset):
            return super().__call__(inputs, **kwargs)
        if isinstance(inputs, Iterator):
            # transformers streams only generators, not other iterators.
            return super().__call__((sentence for sentence in inputs), **kwargs)
        # Iterating over a table yields the names of its columns.
        is_table = isinstance(inputs, Mapping) or hasattr(inputs, "columns")
        is_one = is_table or isinstance(inputs, bytes) or not isinstance(inputs, Iterable)
        sentences = [inputs] if is_one else list(inputs)
        return super().__call__(sentences, **kwargs) if sentences else []

    def _sanitize_parameters(
        self, return_tensors: bool | None = None, **generate_kwargs: Any
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        return {}, generate_kwargs, {} if return_tensors is None else {"return_tensors": return_tensors}

    def preprocess(self, input_: Any) -> dict[str, torch.Tensor]:
        """Tokenize a sentence into tensors `(1, source)`, and flag a blank one, `(1,)`."""
        if not isinstance(input_, str):
            raise TypeError(
                f"the input is of type {type(input_).__name__}; give strings, for example the column "
                'dataset["source"] of a dataset.'
            )
        if any("\ud800" <= character <= "\udfff" for character in input_):
            raise InputError(f"the input is {input_!r}, which is not UTF-8 text; decode it with its encoding.")
        # Otherwise a warning says that this model has a limit of length.
        encoded = self.tokenizer(input_, return_tensors="pt", verbose=False)
        return {**encoded, "is_blank": torch.tensor([not input_.strip()])}

    def _forward(self, input_tensors: dict[str, torch.Tensor], **generate_kwargs: Any) -> dict[str, torch.Tensor]:
        is_blank = input_tensors.pop("is_blank")
        with evaluating(self.model):
            output = self.model.generate(**input_tensors, **generate_kwargs)
        token_ids = getattr(output, "sequences", output).unflatten(0, (len(is_blank), -1))
        check_generated(self.model, self.tokenizer, token_ids[~is_blank])
        token_ids[is_blank] = self.tokenizer.pad_token_id
        return {"token_ids": token_ids}

    def postprocess(self, model_outputs: dict[str, torch.Tensor], return_tensors: bool = False) -> Any:
        """Decode a sentence's token ids `(1, translations, target)` into the dictionaries of `__call__`."""
        rows = [row[row != self.tokenizer.pad_token_id] for row in model_outputs["token_ids"][0]]
        if return_tensors:
            translations = [{"translation_token_ids": row} for row in rows]
        else:
            texts = self.tokenizer.batch_decode(rows, skip_special_tokens=True)
            translations = [{"translation_text": text} for text in texts]
        return translations if len(translations) > 1 else translations[0]


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Set evaluation mode, so that dropout is off, and restore the mode of each module afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, was_training in modes:
            module.training = was_training


def check_vocabulary(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ValueError if a tokenizer has more tokens than a model of ours has embeddings, or other special tokens."""
    if config.model_type != VanillaTransformerConfig.model_type:
        return
    if config.source_vocab_size is None:
        sizes = [("vocabulary", config.vocab_size)] * 2
    else:
        sizes = [("source vocabulary", config.source_vocab_size), ("target vocabulary", config.vocab_size)]
    source, target = sides_of(tokenizer)
    # MarianTokenizer with two vocabularies and FairseqTokenizer have the target's here.
    counts = (len(source), len(getattr(target, "target_encoder", target)))
    for (name, rows), count in zip(sizes, counts, strict=True):
        if count > rows:
            raise InputError(
                f"the tokenizer has {count} tokens, but the model's {name} {rows}; "
                "use a model with the tokenizer that it was trained with."
            )
    for token in ("pad_token_id", "eos_token_id"):
        of_the_model = getattr(config, token)
        if getattr(tokenizer, token) not in (of_the_model if isinstance(of_the_model, list) else [of_the_model]):
            raise InputError(
                f"{token} is {getattr(tokenizer, token)} in the tokenizer and {of_the_model} in the model; "
                "use a model with the tokenizer that it was trained with."
            )


def check_generated(model: Any, tokenizer: PreTrainedTokenizerBase, sequences: torch.Tensor) -> None:
    """Raise ValueError if a sequence `(..., target)` has only special tokens because weights are NaN or infinite."""
    # A special token that the vocabulary lacks has no id.
    ids = [token for token in tokenizer.all_special_ids if token is not None]
    special = torch.tensor(ids, device=sequences.device)
    if torch.isin(sequences, special).all(dim=-1).any():
        check_weights(model)


def check_weights(model: Any) -> None:
    """Raise ValueError if a weight is NaN or infinite."""
    for name, values in model.named_parameters():
        if values.is_floating_point() and not values.isfinite().all():
            raise InputError(f"{name} has values that are NaN or infinite; use an earlier checkpoint.")
