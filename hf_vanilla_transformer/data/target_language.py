"""The languages of a tokenizer, and the codes with which sources name their target language.

Some models translate into several languages, as many of OPUS-MT do. Each of their sources begins with a code such as
`>>fr<<`, which is one token of the vocabulary.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from ..model.input_checks import sides_of
from ..support.language_codes import language_of
from ..support.user_errors import InputError


_CODE = re.compile(r">>[^\s<>]+<<")
# A code at the beginning of a text.
_BEGINNING = re.compile(rf"\s*({_CODE.pattern})\s*")
# Names under which tokenizers have their languages: Marian's and ours, FSMT's.
_LANGUAGES = {"src_lang": ("source_lang", "src_lang"), "tgt_lang": ("target_lang", "tgt_lang")}
# Languages whose texts may have the code of another one.
_WIDER = {"nb": "no", "nn": "no", "fil": "tl"}


class Source(NamedTuple):
    """A text to translate, and the code of its target language.

    Args:
        text (`str`): the text without the code.
        code (`str`): a code such as `">>fr<<"`; empty if the model needs none, or none is known.
        written (`str`): the text as it was written, which may begin with the code.
    """

    text: str
    code: str
    written: str


class TargetCodes:
    """Puts the code of the target language before sources, for a model that needs one.

    For a model without such codes, texts stay as they are.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): of the model.
        target_lang (`str`, *optional*): the language of texts that do not begin with a code, such as `"fr"`, or a code.
            By default it is the tokenizer's, which `train` saves, if the model has one code for it.
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
        # The code of texts that do not begin with one.
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
        """Split a text into its code and the rest.

        A text that does not begin with one of the model's codes gets `default`, or else the code of `target_lang`.
        """
        beginning = _BEGINNING.match(text) if self.codes else None
        if beginning is None or beginning[1] not in self.codes:
            return Source(text, default or self.default, text)
        return Source(text[beginning.end() :], beginning[1], text)

    def join(self, source: Source) -> str:
        """Return the text to tokenize; ValueError if the model needs a code, and the source has none."""
        if not self.codes:
            return source.text
        if not source.code:
            # Commands have an option of this name.
            argument = "target_lang (--target_lang)" if self._argument == "target_lang" else self._argument
            raise InputError(
                f"the model translates into several languages; give {argument}, or begin each text with the code of "
                f"its target language, one of {', '.join(self.codes)}."
            )
        return f"{source.code} {source.text}"

    def put_before(self, text: str) -> str:
        """Return a text as it is tokenized, with the code that it begins with or that of `target_lang`."""
        return self.join(self.read(text))


def codes_of(tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """Return the codes of target languages in the vocabulary of a tokenizer's sources, such as `">>fr<<"`, in order.

    A vocabulary with a single code has no choice of languages, so that its model is one of a single target language.
    """
    # A user may add codes to a tokenizer before fine-tuning, so its added tokens are a part of the key.
    return _codes_in_vocabulary(tokenizer, tuple(getattr(tokenizer, "get_added_vocab", dict)()))


# To read the whole vocabulary for each sentence would take longer than to tokenize the sentence.
@lru_cache(maxsize=8)
def _codes_in_vocabulary(tokenizer: Any, added_tokens: tuple[str, ...]) -> tuple[str, ...]:
    source_side = sides_of(tokenizer)[0]
    vocabulary = {**source_side.get_vocab(), **dict.fromkeys(added_tokens)}
    codes = sorted(token for token in vocabulary if _CODE.fullmatch(token))
    return tuple(codes) if len(codes) > 1 else ()


def find_code(codes: Sequence[str], target_lang: str, argument: str = "target_lang") -> str:
    """Return the code of a language: the one that is spelled so, or else the only one of that language.

    Raises ValueError with the codes of the language if there are several, and with all codes if there is none.
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
    """Return the codes that a name of a language may mean.

    These are the one that is spelled so; or else those of the same language, script and region; or else those of the
    language without script and region; or else all of the language.
    """
    name = language.removeprefix(">>").removesuffix("<<")
    if f">>{name}<<" in codes:
        return [f">>{name}<<"]
    wanted = _subtags(name)
    of_language = [code for code in codes if _subtags(code[2:-2])[0] == wanted[0]]
    # "zh_Hans" is ">>cmn_Hans<<", not ">>cmn_Hant<<".
    of_variety = [code for code in of_language if _subtags(code[2:-2]) == wanted]
    # "fr_BE" is ">>fr<<", not ">>fr_CA<<".
    of_plain_language = [code for code in of_language if len(_subtags(code[2:-2])) == 1]
    return of_variety or of_plain_language or of_language


def short_name(codes: Sequence[str], code: str) -> str:
    """Return the shortest name of a code's language that finds the code: `"fr"` for `">>fra<<"`."""
    name = code[2:-2]
    language = language_of(name.lower())
    is_unique = language is not None and matching_codes(codes, language) == [code]
    return str(language) if is_unique else name


def _subtags(name: str) -> tuple[str, ...]:
    """The language of a code by its shortest name, its script and its region, in lower case: `("zh", "hans")`."""
    language, *others = re.split("[_-]", name.lower())
    return (language_of(language) or language, *others)


def tokenizer_language(tokenizer: Any, side: str) -> str | None:
    """The language code that a tokenizer has for its sources, `"src_lang"`, or its targets, `"tgt_lang"`."""
    saved = getattr(tokenizer, "init_kwargs", {})
    codes = [getattr(tokenizer, name, None) or saved.get(name) for name in _LANGUAGES[side]]
    return next((code for code in codes if code and isinstance(code, str)), None)


def are_same_language(code: str, other: str) -> bool:
    """Whether two codes may name one language, such as "eng_Latn" and "en"; unknown codes may."""
    one, two = (language_of(each.lower()) for each in (code, other))
    return not (one and two) or _WIDER.get(one, one) == _WIDER.get(two, two)


def check_language(tokenizer: Any, side: str, code: str, argument: str | None = None) -> None:
    """Raise ValueError if a tokenizer has another language than `code`; an unknown language may be the same.

    `argument` is the name of `code` in the message, by default the side.
    """
    known = tokenizer_language(tokenizer, side)
    if not are_same_language(code, known or code):
        raise InputError(
            f'{argument or side} is "{code}", but the model has "{known}"; leave it out, or load another model.'
        )
