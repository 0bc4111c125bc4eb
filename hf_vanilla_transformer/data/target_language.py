"""The languages of a tokenizer, and the codes with which sources name their target language.

Some models, such as many of OPUS-MT, translate into several languages. Each of their sources begins with the code of
its target language, such as `>>fr<<`, which is one token of the vocabulary.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from transformers import PreTrainedTokenizerBase

from ..model.input_checks import sides_of
from ..support.language_codes import language_of
from ..support.user_errors import InputError


_CODE = re.compile(r">>[^\s<>]+<<")
_CODE_AT_BEGINNING = re.compile(rf"\s*({_CODE.pattern})\s*")
# The attributes in which tokenizers store their languages: first those of Marian's and of this package, then FSMT's.
_LANGUAGE_ATTRIBUTES = {"src_lang": ("source_lang", "src_lang"), "tgt_lang": ("target_lang", "tgt_lang")}
# Languages whose texts are often labelled with the code of a wider or equivalent language: the two written standards of
# Norwegian, and Filipino, which is standardized Tagalog.
_WIDER_LANGUAGES = {"nb": "no", "nn": "no", "fil": "tl"}


class Source(NamedTuple):
    """A text to translate, and the code of its target language.

    Args:
        text (`str`): the text without the code.
        code (`str`): a code such as `">>fr<<"`; empty if the model needs no code, or no code is known.
        written (`str`): the text as the user wrote it, which may begin with the code.
    """

    text: str
    code: str
    written: str


class TargetCodes:
    """Put the code of the target language before sources, for a model that needs one.

    For a model without such codes, texts stay as they are.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): the model's tokenizer.
        target_lang (`str`, *optional*): the language of texts that do not begin with a code, such as `"fr"`, or a code.
            By default, this is the tokenizer's target language, which `train` saves, if the model has exactly one code
            for it.
        argument (`str`): the name of `target_lang` in error messages.

    Raises:
        TypeError: if `target_lang` is not a string.
        ValueError: if the model does not translate into `target_lang`, or has several codes for it.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, target_lang: str | None = None, argument: str = "target_lang"
    ):
        if target_lang is not None and not isinstance(target_lang, str):
            raise TypeError(
                f"{argument} is of type {type(target_lang).__name__}; give the code of a language, such as fr."
            )
        self.codes = codes_of(tokenizer)
        # The code of texts that do not begin with one; empty if they must begin with one, or if the model has no codes.
        self.default = ""
        self._argument = argument
        if not self.codes:
            if target_lang is not None:
                check_language(tokenizer, "tgt_lang", target_lang, argument)
        elif target_lang is not None:
            self.default = find_code(self.codes, target_lang, argument)
        else:
            language = tokenizer_language(tokenizer, "tgt_lang")
            matching = [] if language is None else matching_codes(self.codes, language)
            if len(matching) == 1:
                self.default = matching[0]

    def read(self, text: str, default: str = "") -> Source:
        """Split a text into the code at its beginning and the text to translate.

        A text that does not begin with one of the model's codes gets the code `default`, or without it the code of
        `target_lang`.
        """
        if self.codes:
            beginning = _CODE_AT_BEGINNING.match(text)
            if beginning is not None and beginning[1] in self.codes:
                return Source(text[beginning.end() :], beginning[1], text)
        return Source(text, default or self.default, text)

    def join(self, source: Source) -> str:
        """Return the text to tokenize; raise ValueError if the model needs a code, and the source has none."""
        if not self.codes:
            return source.text
        if not source.code:
            argument = self._argument
            if argument == "target_lang":
                # Commands have an option of this name.
                argument = "target_lang (--target_lang)"
            raise InputError(
                f"the model translates into several languages; give {argument}, or begin each text with the code of "
                f"its target language, one of {', '.join(self.codes)}."
            )
        return f"{source.code} {source.text}"

    def put_before(self, text: str) -> str:
        """Return a text as it is tokenized, with the code at its beginning or else the code of `target_lang`."""
        return self.join(self.read(text))


def codes_of(tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """Return the sorted codes of target languages in the vocabulary of the sources, such as `">>fr<<"`.

    A single code leaves no choice, so the result is empty for a vocabulary with only one code.
    """
    added_tokens: dict[str, int] = {}
    if hasattr(tokenizer, "get_added_vocab"):
        added_tokens = tokenizer.get_added_vocab()
    # A user may add codes to a tokenizer before fine-tuning, so its added tokens are a part of the cache's key.
    return _codes_in_vocabulary(tokenizer, tuple(added_tokens))


# Cached, because reading the whole vocabulary for each sentence would take longer than tokenizing the sentence.
@lru_cache(maxsize=8)
def _codes_in_vocabulary(tokenizer: PreTrainedTokenizerBase, added_tokens: tuple[str, ...]) -> tuple[str, ...]:
    """Return what [`codes_of`] returns, for a tokenizer with these added tokens."""
    source_side, _ = sides_of(tokenizer)
    tokens = {*source_side.get_vocab(), *added_tokens}
    codes = sorted(token for token in tokens if _CODE.fullmatch(token))
    if len(codes) <= 1:
        return ()
    return tuple(codes)


def find_code(codes: Sequence[str], target_lang: str, argument: str = "target_lang") -> str:
    """Return the code of a language, for example `">>fra<<"` for `"fr"`.

    Raises ValueError if the language has several codes or none; the message lists the codes to choose from.
    """
    matching = matching_codes(codes, target_lang)
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise InputError(
            f'{argument} is "{target_lang}", for which the model has several codes; give one of {", ".join(matching)}.'
        )
    raise InputError(
        f'{argument} is "{target_lang}", but the model has no code for it; give one of {", ".join(codes)}.'
    )


def matching_codes(codes: Sequence[str], language: str) -> list[str]:
    """Return the codes that the name of a language may mean.

    The first of these rules that finds codes decides:

    1. the code that is spelled like the name;
    2. codes of the same language, script and region: "zh_Hans" means `>>cmn_Hans<<`, not `>>cmn_Hant<<`;
    3. codes of the language without script and region: "fr_BE" means `>>fr<<`, not `>>fr_CA<<`;
    4. all codes of the language.
    """
    name = language.removeprefix(">>").removesuffix("<<")
    if f">>{name}<<" in codes:
        return [f">>{name}<<"]
    subtags = _split_subtags(name)
    codes_of_language = []
    codes_of_variety = []
    codes_without_variety = []
    for code in codes:
        subtags_of_code = _split_subtags(_name_in(code))
        if subtags_of_code[0] != subtags[0]:
            continue
        codes_of_language.append(code)
        if subtags_of_code == subtags:
            codes_of_variety.append(code)
        if len(subtags_of_code) == 1:
            codes_without_variety.append(code)
    return codes_of_variety or codes_without_variety or codes_of_language


def short_name(codes: Sequence[str], code: str) -> str:
    """Return the shortest name of a language by which `find_code` finds its code: `"fr"` for `">>fra<<"`."""
    name = _name_in(code)
    language = language_of(name.lower())
    if language is not None and matching_codes(codes, language) == [code]:
        return language
    return name


def _name_in(code: str) -> str:
    """Return the name of the language in a code: "fra" in ">>fra<<"."""
    return code[2:-2]


def _split_subtags(name: str) -> tuple[str, ...]:
    """Split a name into its language, script and region in lower case: `("zh", "hans")` for "cmn_Hans".

    The language is written as the shortest of its codes.
    """
    language, *script_and_region = re.split("[_-]", name.lower())
    return (language_of(language) or language, *script_and_region)


def tokenizer_language(tokenizer: PreTrainedTokenizerBase, side: Literal["src_lang", "tgt_lang"]) -> str | None:
    """Return the language code that a tokenizer has for its sources or its targets, None without one.

    Args:
        tokenizer: any tokenizer of transformers.
        side: `"src_lang"` for the sources, `"tgt_lang"` for the targets.
    """
    saved_arguments = getattr(tokenizer, "init_kwargs", {})
    for attribute in _LANGUAGE_ATTRIBUTES[side]:
        code = getattr(tokenizer, attribute, None) or saved_arguments.get(attribute)
        if code and isinstance(code, str):
            return code
    return None


def are_same_language(code: str, other_code: str) -> bool:
    """Return True if two codes may name the same language, such as "eng_Latn" and "en".

    An unknown code may name any language.
    """
    language = language_of(code.lower())
    other_language = language_of(other_code.lower())
    if language is None or other_language is None:
        return True
    language = _WIDER_LANGUAGES.get(language, language)
    other_language = _WIDER_LANGUAGES.get(other_language, other_language)
    return language == other_language


def check_language(
    tokenizer: PreTrainedTokenizerBase,
    side: Literal["src_lang", "tgt_lang"],
    code: str,
    argument: str | None = None,
) -> None:
    """Raise ValueError if a tokenizer has a different language than `code`.

    Args:
        tokenizer: any tokenizer of transformers. Without a language, it fits every code.
        side: `"src_lang"` or `"tgt_lang"`, see [`tokenizer_language`].
        code: the language that the user gave.
        argument: the name of `code` in the message, by default `side`.
    """
    tokenizer_code = tokenizer_language(tokenizer, side)
    if tokenizer_code is not None and not are_same_language(code, tokenizer_code):
        raise InputError(
            f'{argument or side} is "{code}", but the model has "{tokenizer_code}"; leave it out, or load another '
            "model."
        )
