"""`pipeline("translation")`, which transformers 5 removed."""

from typing import Any

from ..data.target_language import TargetCodes, check_language
from ..model.pipeline_vanilla_transformer import PlainTranslationPipeline
from .concurrent_use import encoding_alone, evaluating


class TranslationPipeline(PlainTranslationPipeline):
    """Translates sentences: `pipeline("translation", model=...)`.

    It also works with other encoder-decoder models of transformers that need no language tokens or prefixes, and with
    OPUS-MT's models of several target languages. Several threads may call it at once.

    Args:
        model (`PreTrainedModel`): a model with `generate()`.
        tokenizer (`PreTrainedTokenizerBase`): of the model.
        batch_size (`int`, defaults to 1): number of sentences per batch.
        **kwargs: arguments of [`~transformers.Pipeline`], such as `device`, and of `generate()`, such as `num_beams`;
            defaults come from the model's `generation_config`.

    When it is called, it takes the arguments of [`~.pipeline_vanilla_transformer.PlainTranslationPipeline`], and:

    - `src_lang` (`str`, *optional*): checked, because a model has one source language.
    - `tgt_lang` (`str`, *optional*): checked if the model has one target language. If it has several, as some of
      OPUS-MT, the code of this one, such as `>>fr<<`, is put before each sentence that has none.

    Raises:
        ValueError: if the tokenizer is missing, has no pad token, belongs to another model or names another language,
            or the model has no `generate()`, or has several target languages and gets none.
    """

    def save_pretrained(self, save_directory: Any, **kwargs: Any) -> None:
        """Save the model, with the pipeline that folders carry, and its tokenizer."""
        self.model.save_pretrained(save_directory, **kwargs)
        self.tokenizer.save_pretrained(save_directory, **kwargs)

    def language_parameters(self, src_lang: str | None, tgt_lang: str | None) -> dict[str, Any]:
        """Arguments of `preprocess` for a source and a target language; ValueError for others than the model's."""
        if src_lang is not None:
            check_language(self.tokenizer, "src_lang", src_lang)
        if tgt_lang is None:
            return {}
        # Raises for another language than the model's.
        TargetCodes(self.tokenizer, tgt_lang, "tgt_lang")
        return {"target_language": tgt_lang}

    def tokenize(
        self, text: str, text_for_model: str, target_language: str | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Tokenize a sentence with the code of its target language, if the model needs one."""
        codes = TargetCodes(self.tokenizer, target_language, "tgt_lang")
        source = codes.read(text)
        # A text that is copied needs no code.
        text_for_model = source.text if self.is_copied(source.text) else codes.join(source)
        with encoding_alone():
            return super().tokenize(source.text, text_for_model, **kwargs)

    def _forward(self, input_tensors: dict[str, Any], **generate_kwargs: Any) -> dict[str, Any]:
        with evaluating(self.model):
            return super()._forward(input_tensors, **generate_kwargs)
