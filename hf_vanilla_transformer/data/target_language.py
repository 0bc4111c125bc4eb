"""Read a tokenizer's languages, and put target-language codes such as `>>fr<<` before source texts.

Some models, such as many OPUS-MT models, translate into several languages. Each source text for these models must begin
with the code of its target language, which is a single token of the vocabulary.
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
# For example, this matches ">>fr<< " in ">>fr<< Hello".
_CODE_AT_BEGINNING = re.compile(rf"\s*(?P<code>{_CODE.pattern})\s*")
# The attributes in which tokenizers store their languages. Marian's and this package's tokenizers use the first name,
# and FSMT's tokenizer uses the second.
_LANGUAGE_ATTRIBUTES = {"src_lang": ("source_lang", "src_lang"), "tgt_lang": ("target_lang", "tgt_lang")}
# Languages whose texts are often labeled with the code of a broader or equivalent language: Norwegian's two written
# standards, and Filipino, which is standardized Tagalog.
_WIDER_LANGUAGES = {"nb": "no", "nn": "no", "fil": "tl"}


class Source(NamedTuple):
    """A text to translate, with the code of its target language.

    Args:
        text (`str`): the text without the code.
        code (`str`): a code such as `">>fr<<"`. It is empty if the model needs no code, or if no code is known.
        written (`str`): the text as the user wrote it, including the code if the user wrote one.
    """

    text: str
    code: str
    written: str


class TargetCodes:
    """The target-language codes of a multilingual model, such as `>>fr<<`, with methods that add them to source texts.

    If the model has no target-language codes, texts are not changed.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): the model's tokenizer.
        target_lang (`str`, *optional*): the target language, such as `"fr"`, or the code, for texts that do not begin
            with a code. By default, this is the target language that `train` saved in the tokenizer, provided that the
            model has exactly one code for it.
        argument (`str`): the name of `target_lang` in error messages about its value.
        advised_argument (`str`): the arguments that an error message recommends for a text without a code. By default,
            they include the option of the commands.

    Raises:
        TypeError: if `target_lang` is not a string.
        ValueError: if the model does not translate into `target_lang`, or has several codes for it.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        target_lang: str | None = None,
        argument: str = "target_lang",
        advised_argument: str = "target_lang (--target_lang)",
    ):
        """Find the model's codes, and the code for texts that do not begin with one."""
        if target_lang is not None and not isinstance(target_lang, str):
            raise TypeError(
                f"{argument} is of type {type(target_lang).__name__}; give the code of a language, such as fr."
            )
        self._advised_argument = advised_argument
        # The model's codes. There are none if the model has only one target language.
        self.codes = codes_of(tokenizer)
        # The default code is empty if every text must begin with a code, or if the model has no codes.
        self.default = _find_default_code(tokenizer, self.codes, target_lang, argument)

    def read(self, text: str, default: str = "") -> Source:
        """Separate the target-language code at the beginning of a text from the text to translate.

        If the text does not begin with one of the model's codes, its code is `default`, or the code of `target_lang` if
        `default` is empty. The unchanged text is kept in the field `written`.
        """
        # The match includes the white space around the code.
        match = _CODE_AT_BEGINNING.match(text)
        if match is not None and match["code"] in self.codes:
            text_without_code = text[match.end() :]
            return Source(text_without_code, code=match["code"], written=text)
        code = default
        if not code:
            code = self.default
        return Source(text, code, written=text)

    def join(self, source: Source) -> str:
        """Return the text to tokenize. It begins with the source's code if the model has target-language codes.

        Raises ValueError if the model has codes, but the source has none.
        """
        if not self.codes:
            return source.text
        if not source.code:
            raise InputError(
                f"the model translates into several languages; give {self._advised_argument}, or begin each text with "
                f"the code of its target language, one of {', '.join(self.codes)}."
            )
        return f"{source.code} {source.text}"

    def put_before(self, text: str) -> str:
        """Return a text that begins with a target-language code. A text without a code gets the code of `target_lang`.

        If the model has no codes, the text is returned unchanged.
        """
        return self.join(self.read(text))


def codes_of(tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """Return the target-language codes in the source vocabulary, such as `">>fr<<"`, in sorted order.

    If the vocabulary has only one code, there is no choice between languages, and the result is empty.
    """
    added_tokens: dict[str, int] = {}
    if hasattr(tokenizer, "get_added_vocab"):
        added_tokens = tokenizer.get_added_vocab()
    # A user may add codes to a tokenizer before fine-tuning, so the added tokens are a part of the cache key.
    return _codes_in_vocabulary(tokenizer, tuple(added_tokens))


# Cached, because reading the whole vocabulary for each sentence would take longer than tokenizing the sentence.
@lru_cache(maxsize=8)
def _codes_in_vocabulary(tokenizer: PreTrainedTokenizerBase, added_tokens: tuple[str, ...]) -> tuple[str, ...]:
    """Find the target-language codes in a tokenizer's vocabulary and in its added tokens; see [`codes_of`]."""
    source_side, _ = sides_of(tokenizer)
    tokens = {*source_side.get_vocab(), *added_tokens}
    codes = sorted(token for token in tokens if _CODE.fullmatch(token))
    # A single code leaves no choice between languages.
    if len(codes) <= 1:
        return ()
    return tuple(codes)


def _find_default_code(
    tokenizer: PreTrainedTokenizerBase, codes: Sequence[str], target_lang: str | None, argument: str
) -> str:
    """Return the code for texts that do not begin with one, or "" if there is none; see [`TargetCodes`].

    Raises ValueError if the model does not translate into `target_lang`, or has several codes for it.
    """
    if codes and target_lang is not None:
        return find_code(codes, target_lang, argument)
    if codes:
        return _find_saved_code(tokenizer, codes)
    if target_lang is not None:
        # The model has one target language, and this raises an error if `target_lang` is a different one.
        check_language(tokenizer, "tgt_lang", target_lang, argument)
    return ""


def _find_saved_code(tokenizer: PreTrainedTokenizerBase, codes: Sequence[str]) -> str:
    """Return the model's code for the target language that the tokenizer stores, such as ">>fra<<" for "fr".

    The result is "" if the tokenizer stores no language, or if the language has no code or several codes.
    """
    language = tokenizer_language(tokenizer, "tgt_lang")
    if language is None:
        return ""
    matching = matching_codes(codes, language)
    if len(matching) != 1:
        return ""
    return matching[0]


def find_code(codes: Sequence[str], target_lang: str, argument: str = "target_lang") -> str:
    """Return the model's code for a language, for example `">>fra<<"` for `"fr"`.

    Raises ValueError if the language has several codes or none. The message lists the codes to choose from.
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
    """Find the target-language codes of a model that match a language name, for example `[">>fra<<"]` for "fr".

    The first of these rules that finds codes decides:

    1. the code that is spelled like the name;
    2. codes with the same language, script and region: "zh_Hans" matches `>>cmn_Hans<<`, not `>>cmn_Hant<<`;
    3. codes with the same language and without script and region: "fr_BE" matches `>>fr<<`, not `>>fr_CA<<`;
    4. all codes of the language.
    """
    name = language.removeprefix(">>").removesuffix("<<")
    code_of_name = f">>{name}<<"
    if code_of_name in codes:
        return [code_of_name]

    name_parts = _split_name(name)
    codes_of_language = _select_codes_of_language(codes, name_parts.language)
    codes_of_variety = _select_codes_of_variety(codes_of_language, name_parts.variety)
    if codes_of_variety:
        return codes_of_variety
    codes_without_variety = _select_codes_of_variety(codes_of_language, variety=[])
    if codes_without_variety:
        return codes_without_variety
    return codes_of_language


def _select_codes_of_language(codes: Sequence[str], language: str) -> list[str]:
    """Return the codes of a language, with any script and region."""
    return [code for code in codes if _split_name(_name_in(code)).language == language]


def _select_codes_of_variety(codes: Sequence[str], variety: list[str]) -> list[str]:
    """Return the codes with exactly the given script and region; those with neither if `variety` is empty."""
    return [code for code in codes if _split_name(_name_in(code)).variety == variety]


def short_name(codes: Sequence[str], code: str) -> str:
    """Return the shortest name for which `find_code` returns the given code, for example `"fr"` for `">>fra<<"`."""
    name = _name_in(code)
    # The shortest code of the language is used only if no other code of the model matches it.
    language = language_of(name.lower())
    if language is not None and matching_codes(codes, language) == [code]:
        return language
    return name


def _name_in(code: str) -> str:
    """Return the language's name in a code, for example "fra" for ">>fra<<"."""
    return code[2:-2]


class _LanguageName(NamedTuple):
    """The parts of a language name such as "cmn_Hans_TW", in lower case.

    Args:
        language: the shortest code of the language, for example "zh".
        variety: script and region, for example `["hans", "tw"]`. It may be empty.
    """

    language: str
    variety: list[str]


def _split_name(name: str) -> _LanguageName:
    """Split a language name into its parts. For example, "zho_Hant" gives "zh" and `["hant"]`."""
    subtags = re.split("[_-]", name.lower())
    language = subtags[0]
    shortest_code = language_of(language)
    if shortest_code is not None:
        language = shortest_code
    return _LanguageName(language, variety=subtags[1:])


def tokenizer_language(tokenizer: PreTrainedTokenizerBase, side: Literal["src_lang", "tgt_lang"]) -> str | None:
    """Return the language code that a tokenizer stores for its sources or its targets, or None if it stores none.

    Args:
        tokenizer: any transformers tokenizer.
        side: `"src_lang"` for the sources, `"tgt_lang"` for the targets.
    """
    # The arguments with which the tokenizer was made, including fields of its configuration file.
    saved_arguments = getattr(tokenizer, "init_kwargs", {})
    # Different tokenizers store the language under different names.
    for name in _LANGUAGE_ATTRIBUTES[side]:
        code = getattr(tokenizer, name, None)
        if not code:
            code = saved_arguments.get(name)
        if code and isinstance(code, str):
            return code
    return None


def are_same_language(code: str, other_code: str) -> bool:
    """Return True if two codes may stand for the same language, such as "eng_Latn" and "en".

    The result is also True if one of the codes is unknown, because an unknown code may stand for any language.
    """
    language = language_of(code.lower())
    other_language = language_of(other_code.lower())
    if language is None or other_language is None:
        return True
    # The two written standards of Norwegian, for example, count as one language.
    wider_language = _WIDER_LANGUAGES.get(language, language)
    other_wider_language = _WIDER_LANGUAGES.get(other_language, other_language)
    return wider_language == other_wider_language


def check_language(
    tokenizer: PreTrainedTokenizerBase,
    side: Literal["src_lang", "tgt_lang"],
    code: str,
    argument: str | None = None,
) -> None:
    """Raise ValueError if the user's language code contradicts the source or target language that a tokenizer stores.

    Args:
        tokenizer: any transformers tokenizer. If it stores no language, every code is accepted.
        side: `"src_lang"` or `"tgt_lang"`, see [`tokenizer_language`].
        code: the language code that the user gave.
        argument: the name of `code` in the message, by default `side`.
    """
    tokenizer_code = tokenizer_language(tokenizer, side)
    if tokenizer_code is not None and not are_same_language(code, tokenizer_code):
        raise InputError(
            f'{argument or side} is "{code}", but the model has "{tokenizer_code}"; leave it out, or load another '
            "model."
        )
