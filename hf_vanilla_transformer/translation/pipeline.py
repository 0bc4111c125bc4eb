"""Provide `pipeline("translation")`, which transformers 5 removed."""

from os import PathLike
from typing import Any

from ..data.target_language import TargetCodes, check_language
from ..model.pipeline_vanilla_transformer import PlainTranslationPipeline
from .concurrent_use import encoding_alone, evaluating


class TranslationPipeline(PlainTranslationPipeline):
    """A pipeline that translates sentences, as returned by `pipeline("translation", model=...)`.

    It also works with OPUS-MT models that have several target languages, and with other encoder-decoder models of
    transformers if they need no language tokens or prefixes. Several threads may call it concurrently.

    Args:
        model (`PreTrainedModel`): a model with `generate()`.
        tokenizer (`PreTrainedTokenizerBase`): tokenizer of the model.
        batch_size (`int`, defaults to 1): number of sentences per batch.
        **kwargs: arguments of [`~transformers.Pipeline`], such as `device`, and of `generate()`, such as `num_beams`.
            Their defaults come from the model's `generation_config`.

    Calls of the pipeline take the arguments of [`~.pipeline_vanilla_transformer.PlainTranslationPipeline`] and two
    additional ones:

    - `src_lang` (`str`, *optional*): source language. It is only checked, because a model has one source language.
    - `tgt_lang` (`str`, *optional*): target language. If the model has several, as some OPUS-MT models do, the code of
      this language, such as `>>fr<<`, is put before each sentence that has no code. Otherwise it is only checked.

    Raises:
        ValueError: if the tokenizer is missing, has no pad token, belongs to a different model or names a different
            language; if the model has no `generate()`; or if it has several target languages and none is given.
    """

    def save_pretrained(self, save_directory: str | PathLike, **kwargs: Any) -> None:
        """Save the model, its tokenizer, and the code of the model's pipeline to a folder."""
        self.model.save_pretrained(save_directory, **kwargs)
        self.tokenizer.save_pretrained(save_directory, **kwargs)

    def language_parameters(self, src_lang: str | None, tgt_lang: str | None) -> dict[str, Any]:
        """Check both languages, and return the argument of `preprocess` that selects the target language.

        The source language is only checked. Without a target language, there are no arguments.

        Raises:
            ValueError: if the model does not support one of the languages.
        """
        if src_lang is not None:
            check_language(self.tokenizer, "src_lang", src_lang)
        if tgt_lang is None:
            return {}
        # The object is not used. Creating it raises an error if the model does not translate into this language.
        TargetCodes(self.tokenizer, tgt_lang, "tgt_lang")
        return {"target_language": tgt_lang}

    def tokenize(
        self, text: str, text_for_model: str, target_language: str | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Tokenize a sentence, and put its target-language code before it if the model needs one.

        The argument `text_for_model` of the base class is not used, because this method determines the code itself.
        """
        codes = TargetCodes(self.tokenizer, target_language, "tgt_lang", advised_argument="tgt_lang")
        # `source` has the text without a code, and the code: the one at the beginning of the text or, without one, the
        # code of `target_language` or of the tokenizer's own target language.
        source = codes.read(text)
        if self.is_copied(source.text):
            # The translation of a copied sentence is `source.text`. The model's output is not used, so no code is
            # needed, and a missing code is no error.
            coded_text = source.text
        else:
            coded_text = codes.join(source)
        # Only one thread at a time may use the tokenizer.
        with encoding_alone():
            return super().tokenize(source.text, coded_text, **kwargs)

    def _forward(self, input_tensors: dict[str, Any], **generate_kwargs: Any) -> dict[str, Any]:
        with evaluating(self.model):
            return super()._forward(input_tensors, **generate_kwargs)
