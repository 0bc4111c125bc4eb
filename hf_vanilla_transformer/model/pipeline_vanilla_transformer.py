"""The translation pipeline that is saved with a model and used as `pipeline("translation")`.

transformers 5 has removed its own translation pipeline.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
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
    """The pipeline that translates sentences, created with `pipeline("translation", model=...)`.

    It also works with other encoder-decoder models of transformers that need no language tokens or prefixes. The
    installed package registers a subclass that supports multilingual models.

    Args:
        model (`PreTrainedModel`): a model with `generate()`.
        tokenizer (`PreTrainedTokenizerBase`): the model's tokenizer.
        batch_size (`int`, defaults to 1): number of sentences per batch.
        **kwargs: arguments of [`~transformers.Pipeline`], such as `device`, and of `generate()`, such as `num_beams`.
            Their defaults are in the model's `generation_config`.

    Raises:
        ValueError: if the tokenizer is missing, lacks a pad token or belongs to a different model, or if the model has
            no `generate()`.
    """

    # Pipeline declares these attributes with other types. Of the four parts that a pipeline may load with a model, a
    # translation pipeline needs only the tokenizer.
    model: Any
    tokenizer: Any
    _load_processor = False  # type: ignore[assignment]
    _load_image_processor = False  # type: ignore[assignment]
    _load_feature_extractor = False  # type: ignore[assignment]
    _load_tokenizer = True  # type: ignore[assignment]

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
        """Translate one sentence, a list of sentences, or a stream of sentences.

        A sentence without visible characters is copied instead of translated. A sentence without letters is copied if
        hardly any training pairs of the model translate such a text.

        Args:
            inputs (`str`, or an iterable of them): the sentences. Iterators and torch datasets (such as `KeyDataset` of
                transformers) are read lazily.
            return_tensors (`bool`, defaults to `False`): whether to return token ids.
            return_text (`bool`, defaults to `not return_tensors`): whether to return text.
            return_type (`int`, *optional*): 0 for token ids, 1 for text; replaces `return_tensors`.
            clean_up_tokenization_spaces (`bool`, *optional*), truncation (`bool` or `str`, *optional*): arguments of
                the tokenizer.
            src_lang (`str`, *optional*), tgt_lang (`str`, *optional*): arguments of the installed package's pipeline.
            stop_sequence (`str`, *optional*): text that ends a translation.
            batch_size (`int`, *optional*): number of sentences per batch.
            **kwargs: arguments of `generate()`.

        Returns:
            A list with one dictionary per sentence, even for one string. For an iterator or a dataset, an iterator over
            dictionaries. A dictionary has `translation_text` (`str`), `translation_token_ids` (`torch.LongTensor` of
            shape `(target,)`, without padding), or both. If `num_return_sequences` is above 1, a list of dictionaries
            replaces each dictionary.

        Raises:
            TypeError: if a sentence is not a string.
            ValueError: if a sentence has lone surrogates, if a translation is empty because weights are NaN or
                infinite, if a language is passed, or if neither text nor token ids are to be returned.
        """
        # The first branch that matches decides. Other iterables come last, because strings, datasets, iterators, tables
        # and bytes can be iterated over, too.
        if isinstance(inputs, str):
            translations = super().__call__(inputs, **kwargs)
            # transformers returns a list only if `num_return_sequences` is above 1.
            if isinstance(translations, list):
                return translations
            return [translations]
        if isinstance(inputs, torch.utils.data.Dataset):
            # transformers reads datasets lazily.
            return super().__call__(inputs, **kwargs)
        if isinstance(inputs, Iterator):
            # transformers streams generators, but no other iterators.
            return super().__call__((sentence for sentence in inputs), **kwargs)
        # A table is a dictionary of columns, or a data frame. The data frames of pandas and polars share no base class,
        # but both have the attribute `columns`.
        is_table = isinstance(inputs, Mapping) or hasattr(inputs, "columns")
        if is_table or isinstance(inputs, bytes) or not isinstance(inputs, Iterable):
            # None of these is a sequence of sentences, so `preprocess` raises a TypeError that names the type.
            return super().__call__([inputs], **kwargs)
        sentences = list(inputs)
        if not sentences:
            # transformers would raise an error.
            return []
        return super().__call__(sentences, **kwargs)

    def _sanitize_parameters(
        self,
        truncation: bool | str | None = None,
        src_lang: str | None = None,
        tgt_lang: str | None = None,
        return_tensors: bool | None = None,
        return_text: bool | None = None,
        clean_up_tokenization_spaces: bool | None = None,
        return_type: Any = None,
        stop_sequence: str | None = None,
        **generate_kwargs: Any,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Split the arguments of a call into the arguments for `preprocess`, `_forward` and `postprocess`.

        The arguments without a parameter here are for `generate()`, which `_forward` calls. `return_type`, 0 for token
        ids or 1 for text, takes precedence over `return_tensors`.

        transformers also calls this method when the pipeline is created. The arguments of a call then replace those
        from the creation of the pipeline. Therefore, a parameter that is None, which means that it was not passed, has
        no entry in the dictionaries.
        """
        preprocess_kwargs = self.language_parameters(src_lang, tgt_lang)
        if truncation is not None:
            preprocess_kwargs["truncation"] = truncation

        if return_type is not None:
            # From here on, `return_tensors` has what `return_type` says.
            return_tensors = _selects_tensors(return_type)
        postprocess_kwargs: dict[str, Any] = {}
        if return_tensors is not None:
            postprocess_kwargs["return_tensors"] = return_tensors
        if return_text is not None:
            postprocess_kwargs["return_text"] = return_text
        if clean_up_tokenization_spaces is not None:
            postprocess_kwargs["clean_up_tokenization_spaces"] = clean_up_tokenization_spaces

        if stop_sequence == "":
            raise InputError("stop_sequence is empty, which ends every text; give a text, or leave it out.")
        if stop_sequence is not None:
            # `generate()` needs the tokenizer to find the text in the generated tokens.
            _, target_tokenizer = sides_of(self.tokenizer)
            generate_kwargs["stop_strings"] = [stop_sequence]
            generate_kwargs["tokenizer"] = target_tokenizer
        return preprocess_kwargs, generate_kwargs, postprocess_kwargs

    def language_parameters(self, src_lang: str | None, tgt_lang: str | None) -> dict[str, Any]:
        """Return the arguments for `preprocess` that select a source and a target language.

        Raises:
            ValueError: if a language is passed, because only the installed package's pipeline supports languages.
        """
        if src_lang is not None or tgt_lang is not None:
            raise InputError(
                "src_lang and tgt_lang need the package hf_vanilla_transformer; install it, and write "
                "`import hf_vanilla_transformer` before you make the pipeline."
            )
        return {}

    def preprocess(self, input_: Any, **kwargs: Any) -> dict[str, Any]:
        """Check that a sentence is valid text, and tokenize it into tensors of shape `(1, source)`.

        Raises:
            TypeError: if the input is not a string.
            ValueError: if the input has lone surrogates.
        """
        if not isinstance(input_, str):
            raise TypeError(
                f"the input is of type {type(input_).__name__}; give strings, for example the column "
                'dataset["source"] of a dataset.'
            )
        if _has_surrogates(input_):
            raise InputError(f"the input is {input_!r}, which is not UTF-8 text; decode it with its encoding.")
        # A subclass may override `tokenize`, and put the code of a language before the text for the model.
        return self.tokenize(input_, text_for_model=input_, **kwargs)

    def tokenize(self, text: str, text_for_model: str, **kwargs: Any) -> dict[str, Any]:
        """Tokenize a sentence, and decide whether it is copied instead of translated.

        Args:
            text (`str`): the sentence.
            text_for_model (`str`): the sentence as the model reads it, for example with a code for the target language
                in front.
            **kwargs: arguments of the tokenizer.

        Returns:
            The model's inputs, and `copied`: the text if it is copied, and None if it is translated.
        """
        encoded = self.tokenizer(text_for_model, return_tensors="pt", verbose=False, **kwargs)
        # The model also reads copied sentences, because the batch needs a row for each sentence. Their output is
        # dropped.
        copied = text if self.is_copied(text) else None
        return {**encoded, "copied": copied}

    def is_copied(self, text: str) -> bool:
        """Return True if a sentence is copied instead of translated, by the rules in the docstring of `__call__`."""
        if is_blank(text):
            return True
        return copies_letterless(self.tokenizer, otherwise=False) and not has_letters(text)

    def _forward(self, input_tensors: dict[str, Any], **generate_kwargs: Any) -> dict[str, Any]:
        """Generate translations for a batch.

        Returns:
            `token_ids`, `(batch, translations, target)`, and `copied`, which is passed on to `postprocess` unchanged.
            It holds the text of each sentence that is copied, and None for every other sentence.

        Raises:
            ValueError: if a translation is empty because weights are NaN or infinite.
        """
        # `preprocess` has added this entry. It is removed from the inputs, because generate() does not accept it. For
        # one sentence, it is the text or None. If `batch_size` was set, transformers has collected the entries of all
        # sentences in a list.
        copied_entry = input_tensors.pop("copied")
        # The list has one text, or None, for each sentence.
        copied_texts = [copied_entry]
        if isinstance(copied_entry, list):
            copied_texts = copied_entry
        output = self.model.generate(**input_tensors, **generate_kwargs)
        # With `return_dict_in_generate`, the output has the token ids in the field `sequences`.
        sequences = getattr(output, "sequences", output)
        # (batch * translations, target) becomes (batch, translations, target).
        token_ids = sequences.unflatten(0, (len(copied_texts), -1))
        # What the model generates for a copied sentence is dropped, so it need not be checked.
        is_translated = [text is None for text in copied_texts]
        check_generated(self.model, self.tokenizer, token_ids[is_translated])
        # The entry is returned as it came, because transformers splits a list into the entries of the sentences again.
        return {"token_ids": token_ids, "copied": copied_entry}

    def postprocess(
        self,
        model_outputs: dict[str, Any],
        return_tensors: bool = False,
        return_text: bool | None = None,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> Any:
        """Decode a sentence's token ids, `(1, translations, target)`, into the dictionaries that `__call__` returns."""
        if return_text is None:
            return_text = not return_tensors
        if not return_text and not return_tensors:
            raise InputError("return_tensors and return_text are both False, so nothing is returned; give one of them.")

        # The text of a copied sentence, or None if the sentence is translated.
        copied_text = model_outputs["copied"]
        rows = self._remove_padding(model_outputs["token_ids"][0], is_copied=copied_text is not None)
        # For a copied sentence, all translations are its own text. If no text is returned, `texts` is not used.
        texts = [copied_text] * len(rows)
        if return_text and copied_text is None:
            texts = self.tokenizer.batch_decode(
                rows, skip_special_tokens=True, clean_up_tokenization_spaces=clean_up_tokenization_spaces
            )

        translations = []
        for row, text in zip(rows, texts, strict=True):
            translation: dict[str, Any] = {}
            if return_tensors:
                translation["translation_token_ids"] = row
            if return_text:
                translation["translation_text"] = text
            translations.append(translation)
        if len(translations) > 1:
            return translations
        return translations[0]

    def _remove_padding(self, padded_rows: Tensor, is_copied: bool) -> list[Tensor]:
        """Return the tokens of a sentence's translations without padding, each of shape `(length,)`.

        `padded_rows` has the shape `(translations, target)`. The tokens that were generated for a copied sentence are
        dropped, so its rows are empty.
        """
        rows: list[Tensor] = []
        for padded_row in padded_rows:
            if is_copied:
                rows.append(padded_row[:0])
            else:
                rows.append(padded_row[padded_row != self.tokenizer.pad_token_id])
        return rows


def _selects_tensors(return_type: Any) -> bool:
    """Return True if a pipeline's argument `return_type` selects token ids, and False if it selects text.

    Raises ValueError if it is neither 0 nor 1.
    """
    # transformers 4 had an Enum for this argument.
    number = getattr(return_type, "value", return_type)
    if number not in (0, 1):
        raise InputError(f"return_type is {number!r}; give 0 for token ids, or 1 for text.")
    return number == 0


def _has_surrogates(text: str) -> bool:
    """Return True if a text contains a lone surrogate, which is half of a character and cannot be encoded."""
    return any("\ud800" <= character <= "\udfff" for character in text)
