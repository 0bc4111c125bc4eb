"""`pipeline("translation")`, which transformers 5 removed."""

import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from transformers import Pipeline, PreTrainedConfig, PreTrainedTokenizerBase

from .configuration_vanilla_transformer import VanillaTransformerConfig
from .input_error import InputError
from .target_language import TargetCodes, check_language
from .tokenization_two_vocabularies import sides_of


# Text without a visible character: white space, controls, and what Unicode calls default-ignorable.
_BLANK = re.compile(
    r"[\s\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    r"\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]*"
)
# The field of tokenizer_config.json in which `train` saves the share of its pairs whose source has no letter and whose
# target is a different text.
LETTERLESS_SHARE_FIELD = "translated_letterless_share"
# From this share on, a model has learned to translate texts without letters, for example numbers into words. Fewer such
# pairs are noise, or only change the punctuation of a number.
_TEACHING_SHARE = 0.01
# Tokenizers with a mode for targets, and those that truncate, change themselves while they encode.
_encoding = threading.RLock()
# Of modules that evaluating() has set to evaluation mode: how often, and the mode before.
_evaluated: dict[Any, tuple[int, bool]] = {}
_switching = threading.Lock()


class TranslationPipeline(Pipeline):
    """Translates sentences: `pipeline("translation", model=...)`.

    It also works with other encoder-decoder models of transformers that need no language tokens or prefixes, and with
    OPUS-MT's models of several target languages.

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
            src_lang (`str`, *optional*): checked, because a model has one source language.
            tgt_lang (`str`, *optional*): checked if the model has one target language. If it has several, as some of
                OPUS-MT, the code of this one, such as `>>fr<<`, is put before each sentence that has none.
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
                the tokenizer names another language, the model has several target languages and gets none, or neither
                text nor token ids are to be returned.
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
        **kwargs: Any,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        def given(*names: str) -> dict[str, Any]:
            return {name: value for name in names if (value := kwargs.pop(name, None)) is not None}

        if (source_language := kwargs.pop("src_lang", None)) is not None:
            check_language(self.tokenizer, "src_lang", source_language)
        target_language = kwargs.pop("tgt_lang", None)
        if target_language is not None:
            # Raises for another language than the model's.
            TargetCodes(self.tokenizer, target_language, "tgt_lang")
        decoding = given("return_tensors", "return_text", "clean_up_tokenization_spaces")
        if return_type is not None:
            return_type = getattr(return_type, "value", return_type)  # transformers 4 had an Enum.
            if return_type not in (0, 1):
                raise InputError(f"return_type is {return_type!r}; give 0 for token ids, or 1 for text.")
            decoding["return_tensors"] = return_type == 0
        encoding = given("truncation")
        if target_language is not None:
            encoding["target_language"] = target_language
        if stop_sequence == "":
            raise InputError("stop_sequence is empty, which ends every text; give a text, or leave it out.")
        if stop_sequence is not None:
            kwargs |= {"stop_strings": [stop_sequence], "tokenizer": sides_of(self.tokenizer)[1]}
        return encoding, kwargs, decoding

    def preprocess(self, input_: Any, target_language: str | None = None, **kwargs: Any) -> dict[str, Any]:
        """Tokenize a sentence into tensors `(1, source)`, and keep one that is its own translation in `copied`."""
        if not isinstance(input_, str):
            raise TypeError(
                f"the input is of type {type(input_).__name__}; give strings, for example the column "
                'dataset["source"] of a dataset.'
            )
        if any("\ud800" <= character <= "\udfff" for character in input_):
            raise InputError(f"the input is {input_!r}, which is not UTF-8 text; decode it with its encoding.")
        codes = TargetCodes(self.tokenizer, target_language, "tgt_lang")
        source = codes.read(input_)
        is_copied = is_blank(source.text)
        if copies_letterless(self.tokenizer, otherwise=False) and not has_letters(source.text):
            is_copied = True
        if is_copied:
            encoded = encode(self.tokenizer, source.text, return_tensors="pt", **kwargs)
            return {**encoded, "copied": source.text}
        encoded = encode(self.tokenizer, codes.join(source), return_tensors="pt", **kwargs)
        return {**encoded, "copied": None}

    def _forward(self, input_tensors: dict[str, Any], **generate_kwargs: Any) -> dict[str, Any]:
        # Of one sentence, or a list for those of a batch.
        copied = input_tensors.pop("copied")
        is_translated = [text is None for text in (copied if isinstance(copied, list) else [copied])]
        with evaluating(self.model):
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


def is_blank(text: str) -> bool:
    """Whether a text has no visible character, so that it is its own translation."""
    return _BLANK.fullmatch(text) is not None


def has_letters(text: str) -> bool:
    """Return True if a text has a letter of any script: a character of Unicode's categories L.

    Digits, roman numerals such as U+216B, punctuation, symbols, emoji and combining marks alone are no letters.
    """
    return any(map(str.isalpha, text))


def copies_letterless(tokenizer: Any, otherwise: bool) -> bool:
    """Return True if texts without letters, such as numbers, are their own translations for the tokenizer's model.

    They are if `train` counted hardly any pairs that translate such a text. If the model's folder does not say, because
    the model comes from elsewhere, the result is `otherwise`.
    """
    share = saved_letterless_share(tokenizer)
    if share is None:
        return otherwise
    return not teaches_letterless(share)


def saved_letterless_share(tokenizer: Any) -> float | None:
    """Return the share that `train` saved with a tokenizer, see [`teaches_letterless`]; None if there is no number."""
    share = getattr(tokenizer, "init_kwargs", {}).get(LETTERLESS_SHARE_FIELD)
    if isinstance(share, bool) or not isinstance(share, (int, float)):
        return None
    return float(share)


def teaches_letterless(share: float) -> bool:
    """Return True if a share of the training pairs is enough to teach a model how to translate texts without letters.

    These are pairs whose source has no letter and whose target is a different text.
    """
    return share >= _TEACHING_SHARE


def encode(tokenizer: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a tokenizer, one thread at a time, without its warning of texts that are longer than those of a training."""
    with _encoding:
        return tokenizer(*args, verbose=False, **kwargs)


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Set evaluation mode, so that dropout is off; the last thread to leave restores the mode of each module."""
    modules = list(model.modules())
    with _switching:
        for module in modules:
            times, was_training = _evaluated.get(module, (0, module.training))
            _evaluated[module] = times + 1, was_training
        model.eval()
    try:
        yield
    finally:
        with _switching:
            for module in modules:
                times, was_training = _evaluated.pop(module)
                if times > 1:
                    _evaluated[module] = times - 1, was_training
                else:
                    module.training = was_training


def check_vocabulary(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ValueError if a tokenizer has more tokens than a model of ours has embeddings, or other special tokens."""
    if not isinstance(tokenizer.model_max_length, (int, float)):
        raise InputError(f"model_max_length of the tokenizer is {tokenizer.model_max_length!r}; it must be a number.")
    if config.model_type != VanillaTransformerConfig.model_type:
        return
    if config.source_vocab_size is None:
        sizes = [("vocabulary", config.vocab_size)] * 2
    else:
        sizes = [("source vocabulary", config.source_vocab_size), ("target vocabulary", config.vocab_size)]
    source, target = sides_of(tokenizer)
    # As in `vocabularies_of`, but without making dictionaries for each call.
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
