"""`pipeline("translation")` of saved folders. transformers 5 removed its own."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from transformers import Pipeline

from .input_checks import (
    InputError,
    check_generated,
    check_vocabulary,
    copies_letterless,
    has_letters,
    is_blank,
    sides_of,
)


class PlainTranslationPipeline(Pipeline):
    """Translates sentences: `pipeline("translation", model=...)`.

    It also works with other encoder-decoder models of transformers that need no language tokens or prefixes. The
    installed package registers a subclass, which knows languages.

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
            inputs (`str`, or an iterable of them): sentences; one without visible characters is its own translation,
                and so is one without letters if the model's training pairs hardly ever translate such a text.
                Iterators and torch datasets (such as `KeyDataset` of transformers) are read lazily.
            return_tensors (`bool`, defaults to `False`), return_text (`bool`, defaults to `not return_tensors`):
                whether to return token ids, and text.
            return_type (`int`, *optional*): 0 for token ids, 1 for text, in the place of `return_tensors`.
            clean_up_tokenization_spaces (`bool`, *optional*), truncation (`bool` or `str`, *optional*): of the
                tokenizer.
            src_lang (`str`, *optional*), tgt_lang (`str`, *optional*): of the installed package's pipeline.
            stop_sequence (`str`, *optional*): text that ends a translation.
            batch_size (`int`, *optional*): number of sentences per batch.
            **kwargs: arguments of `generate()`.

        Returns:
            A list with a dictionary per sentence (also for one string); for an iterator or a dataset, an iterator over
            dictionaries. A dictionary has `translation_text` (`str`), `translation_token_ids` (`torch.LongTensor` of
            shape `(target,)`, without padding), or both. With `num_return_sequences` above 1, a list of dictionaries
            per sentence.

        Raises:
            TypeError: if a sentence is not a string.
            ValueError: if a sentence has lone surrogates, a translation is empty because weights are NaN or infinite,
                a language is given, or neither text nor token ids are to be returned.
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
        self,
        return_type: Any = None,
        stop_sequence: str | None = None,
        src_lang: str | None = None,
        tgt_lang: str | None = None,
        **kwargs: Any,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        def take(*names: str) -> dict[str, Any]:
            return {name: value for name in names if (value := kwargs.pop(name, None)) is not None}

        encoding = take("truncation") | self.language_parameters(src_lang, tgt_lang)
        decoding = take("return_tensors", "return_text", "clean_up_tokenization_spaces")
        if return_type is not None:
            # transformers 4 had an Enum.
            return_type = getattr(return_type, "value", return_type)
            if return_type not in (0, 1):
                raise InputError(f"return_type is {return_type!r}; give 0 for token ids, or 1 for text.")
            decoding["return_tensors"] = return_type == 0
        if stop_sequence == "":
            raise InputError("stop_sequence is empty, which ends every text; give a text, or leave it out.")
        if stop_sequence is not None:
            kwargs |= {"stop_strings": [stop_sequence], "tokenizer": sides_of(self.tokenizer)[1]}
        return encoding, kwargs, decoding

    def language_parameters(self, src_lang: str | None, tgt_lang: str | None) -> dict[str, Any]:
        """Arguments of `preprocess` for a source and a target language.

        Raises:
            ValueError: if one is given, because this class knows no languages.
        """
        if src_lang is not None or tgt_lang is not None:
            raise InputError(
                "src_lang and tgt_lang need the package hf_vanilla_transformer; install it, and write "
                "`import hf_vanilla_transformer` before you make the pipeline."
            )
        return {}

    def preprocess(self, input_: Any, **kwargs: Any) -> dict[str, Any]:
        """Tokenize a sentence into tensors `(1, source)`, and keep one that is its own translation in `copied`."""
        if not isinstance(input_, str):
            raise TypeError(
                f"the input is of type {type(input_).__name__}; give strings, for example the column "
                'dataset["source"] of a dataset.'
            )
        if any("\ud800" <= character <= "\udfff" for character in input_):
            raise InputError(f"the input is {input_!r}, which is not UTF-8 text; decode it with its encoding.")
        return self.tokenize(input_, input_, **kwargs)

    def tokenize(self, text: str, text_for_model: str, **kwargs: Any) -> dict[str, Any]:
        """Tokenize a sentence.

        Args:
            text (`str`): the sentence.
            text_for_model (`str`): the sentence as the model gets it, such as with the code of a language.
            **kwargs: arguments of the tokenizer.
        """
        encoded = self.tokenizer(text_for_model, return_tensors="pt", verbose=False, **kwargs)
        # A copied sentence goes through the model with the others of its batch, and what comes out is dropped.
        return {**encoded, "copied": text if self.is_copied(text) else None}

    def is_copied(self, text: str) -> bool:
        """Whether a sentence is its own translation."""
        if is_blank(text):
            return True
        return copies_letterless(self.tokenizer, otherwise=False) and not has_letters(text)

    def _forward(self, input_tensors: dict[str, Any], **generate_kwargs: Any) -> dict[str, Any]:
        # Of one sentence, or a list for those of a batch.
        copied = input_tensors.pop("copied")
        is_translated = [text is None for text in (copied if isinstance(copied, list) else [copied])]
        output = self.model.generate(**input_tensors, **generate_kwargs)
        token_ids = getattr(output, "sequences", output).unflatten(0, (len(is_translated), -1))
        check_generated(self.model, self.tokenizer, token_ids[is_translated])
        return {"token_ids": token_ids, "copied": copied}

    def postprocess(
        self,
        model_outputs: dict[str, Any],
        return_tensors: bool = False,
        return_text: bool | None = None,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> Any:
        """Decode a sentence's token ids `(1, translations, target)` into the dictionaries of `__call__`."""
        copied, pad = model_outputs["copied"], self.tokenizer.pad_token_id
        rows = [row[row != pad] if copied is None else row[:0] for row in model_outputs["token_ids"][0]]
        translations: list[dict[str, Any]] = [{"translation_token_ids": row} if return_tensors else {} for row in rows]
        if return_text or (return_text is None and not return_tensors):
            options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": clean_up_tokenization_spaces}
            texts = self.tokenizer.batch_decode(rows, **options) if copied is None else [copied] * len(rows)
            for translation, text in zip(translations, texts, strict=True):
                translation["translation_text"] = text
        if not translations[0]:
            raise InputError("return_tensors and return_text are both False, so nothing is returned; give one of them.")
        return translations if len(translations) > 1 else translations[0]
