"""Glossaries: terms, the token ids of the translations that they must have, and files of terms."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any
from unicodedata import normalize

import regex
import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from ...data.text_lines import iterate_lines
from ...model.input_checks import is_blank
from ...support.user_errors import InputError
from ...translation.concurrent_use import encode
from ...translation.engine import Engine
from ...translation.required_phrases import Phrase, PhraseSizes
from .forced_phrases import ForcedPhrases, check_is_beam_search


# Characters of words. Text in these scripts has no spaces between words, so that their ends are unknown.
_LETTER = r"[[\w\p{M}]--[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]]"
# Bytes that are no whole character are decoded as U+FFFD.
_LETTER_OR_BYTE = rf"{_LETTER}|\uFFFD"
# Words that Korean writes at the end of others: particles, and forms of "to be".
_PARTICLES = (
    "은|는|이|가|을|를|의|에|에서|에게|에게서|께|께서|한테|한테서|로|으로|와|과|도|만|까지|부터|보다|처럼|같이|마다|조차"
    "|마저|밖에|뿐|대로|들|나|이나|든지|이든지|라도|이라도|야|이야|라고|이라고|라는|이라는|란|이란|랑|이랑|하고|며|이며"
    "|고|이고|요|이다|입니다|인|였다|이었다"
)
_BEGIN = rf"(?:(?<!{_LETTER})|(?!{_LETTER}))"
_END = rf"(?:(?!{_LETTER})|(?<!{_LETTER})|(?=(?:{_PARTICLES}){{1,4}}(?!{_LETTER})))"
# Spellings of one term: a soft hyphen and other invisible characters, and marks that stand for an apostrophe.
_INVISIBLE = r"[\p{Cc}\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff]"
_SPACES = r"[\t-\r\x85\p{Z}]+"
_APOSTROPHES = "[\u2018\u2019\u02bc\uff07]"
# A term after these: at the start of a text, after a space, and inside a group of characters between spaces. With
# each, a text whose tokens come before those of the term.
_CONTEXTS = {"": "", "a ": "a", "(": "(", "-": "-"}
# Texts that are tokenized at once. Other threads wait meanwhile, because a tokenizer serves one thread at a time.
_TEXTS_AT_ONCE = 256


class Glossary:
    """Finds terms in sentences, and the translations that they must have, for `translate(glossary=...)`.

    ```python
    glossary = Glossary({"machine": "Maschine", "seven": ["sieben", "siebte"]}, tokenizer)
    translate(model, tokenizer, sentences, glossary=glossary)
    ```

    A term is a whole word, or several; case counts. Of terms that begin at the same place the longest is found, and
    terms do not overlap. Letters with marks may be composed or not, apostrophes and white space between words may be of
    any kind, soft hyphens and other invisible characters are ignored, and Korean particles may follow a term.

    Args:
        terms (`Mapping[str, str | Sequence[str]]`): from each term to its translation, or to several forms of it, of
            which one must occur.
        tokenizer (`PreTrainedTokenizerBase`): of the model.

    Raises:
        TypeError: if a term or a translation is no string.
        ValueError: if one is empty, two terms differ in white space only, or the vocabulary has no tokens for a
            translation.
    """

    def __init__(self, terms: Mapping[str, str | Sequence[str]], tokenizer: PreTrainedTokenizerBase):
        if not isinstance(terms, Mapping):
            raise TypeError(f"glossary is of type {type(terms).__name__}; give a mapping from terms to translations.")
        self._forms: dict[str, list[str]] = {}
        for term, translations in terms.items():
            if isinstance(translations, str) or not isinstance(translations, Sequence):
                forms = [translations]
            else:
                forms = list(translations)
            if not all(isinstance(text, str) for text in [term, *forms]):
                raise TypeError(f"glossary has {translations!r} for {term!r}; give texts.")
            if not forms or any(map(is_blank, [term, *forms])):
                raise InputError(f"glossary has {translations!r} for {term!r}; give texts that are not blank.")
            key = _spelling(term)
            if key in self._forms:
                raise InputError(f"glossary has {key!r} twice; give all of its translations as one list.")
            self._forms[key] = forms
        self._tokenizer = tokenizer
        distinct_forms = list(dict.fromkeys(form for forms in self._forms.values() for form in forms))
        tokens_of_forms = dict(zip(distinct_forms, _tokenize(tokenizer, distinct_forms), strict=True))
        self._phrases: dict[str, Phrase] = {}
        self._sizes: dict[str, PhraseSizes] = {}
        for key, forms in self._forms.items():
            alternatives = [tokens for form in forms for tokens in tokens_of_forms[form]]
            distinct_tokens = {token for tokens in alternatives for token in tokens}
            self._phrases[key] = alternatives
            self._sizes[key] = PhraseSizes(sum(map(len, alternatives)), len(distinct_tokens), 1)
        self._pattern = regex.compile(rf"{_BEGIN}\L<terms>{_END}", flags=regex.V1, terms=list(self._phrases))

    def __eq__(self, other: object) -> bool:
        """Whether both have the same terms for the same tokenizer."""
        if not isinstance(other, Glossary):
            return NotImplemented
        return self._tokenizer is other._tokenizer and self._forms == other._forms

    def __hash__(self) -> int:
        return hash(frozenset(self._forms))

    def check(self, settings: GenerationConfig) -> None:
        """Raise ValueError if the settings are not those of a beam search."""
        check_is_beam_search(settings)

    def phrases(self, sentence: str) -> list[Phrase]:
        """The translations of a sentence's terms, in the order of the terms, as token ids."""
        return [self._phrases[term] for term in self._terms(sentence)]

    def sizes(self, sentence: str) -> PhraseSizes:
        """Compute the sizes of a sentence's phrases from those of each term, so long translations cost no time."""
        positions = 0
        tokens = 0
        # A term that occurs twice is one phrase of the search, but `ForcedPhrases` reads its alternatives twice.
        occurrences = Counter(self._terms(sentence))
        for term, times in occurrences.items():
            positions += times * self._sizes[term].positions
            tokens += self._sizes[term].tokens
        if not occurrences:
            return PhraseSizes()
        # One more for the token that ends a sentence.
        return PhraseSizes(positions, tokens + 1, len(occurrences))

    def search(self, model: PreTrainedModel | Engine, phrases: list[list[Phrase]]) -> ForcedPhrases:
        """The search for translations with the phrases of each sentence, as whole words."""
        return ForcedPhrases(phrases, letter_edges(self._tokenizer, model.config.vocab_size))

    def _terms(self, sentence: str) -> list[str]:
        """The spelling of each term that a sentence has, in their order."""
        if not self._phrases:
            return []
        return [match[0] for match in self._pattern.finditer(_spelling(sentence))]


def _spelling(text: str) -> str:
    # Not str.split(), which splits at four of the invisible characters.
    spaced = normalize("NFC", regex.sub(_INVISIBLE, "", regex.sub(_SPACES, " ", text)))
    return " ".join(regex.sub(_APOSTROPHES, "'", spaced).split())


def tokenize_in_contexts(tokenizer: PreTrainedTokenizerBase, text: str) -> list[list[int]]:
    """The token ids of a target text at the start of a sentence, after a space, and inside a group of characters.

    Raises ValueError if each of them has unknown tokens.
    """
    return _tokenize(tokenizer, [text])[0]


def _tokenize(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[list[int]]]:
    """The [`tokenize_in_contexts`] of each of several texts; many at once take a tenth of the time."""
    contexts = encode(tokenizer, text_target=list(_CONTEXTS.values()), add_special_tokens=False).input_ids
    in_contexts = [context + " ".join(text.split()) for text in texts for context in _CONTEXTS]
    encoded: list[list[int]] = []
    for start in range(0, len(in_contexts), _TEXTS_AT_ONCE):
        part = in_contexts[start : start + _TEXTS_AT_ONCE]
        encoded += encode(tokenizer, text_target=part, add_special_tokens=False).input_ids
    tokenized = []
    for number, text in enumerate(texts):
        start = number * len(_CONTEXTS)
        alternatives: list[list[int]] = []
        for context, tokens in zip(contexts, encoded[start : start + len(_CONTEXTS)], strict=True):
            own = tokens[len(context) :]
            is_usable = own and tokens[: len(context)] == context and tokenizer.unk_token_id not in own
            if is_usable and own not in alternatives:
                alternatives.append(own)
        if not alternatives:
            raise InputError(f"the vocabulary has no tokens for {text!r}; choose another translation.")
        tokenized.append(alternatives)
    return tokenized


@lru_cache(maxsize=8)
def letter_edges(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> torch.Tensor:
    """Whether each target token begins, and ends, with a letter, and has no text, for [`ForcedPhrases`].

    A bool tensor `(3, vocab_size)`. Only a letter that is not set apart from the token before it by a space counts.
    Special tokens have no text.
    """
    anchor = encode(tokenizer, text_target="a", add_special_tokens=False).input_ids
    before: Any = tokenizer.decode(anchor, skip_special_tokens=True)
    texts = tokenizer.batch_decode([[*anchor, token] for token in range(vocab_size)], skip_special_tokens=True)
    is_letter = regex.compile(_LETTER_OR_BYTE, flags=regex.V1).fullmatch
    added = [text[len(before) :] if text.startswith(before) else "" for text in texts]
    edges = [[bool(is_letter(text[edge : edge + 1 or None])) for text in added] for edge in (0, -1)]
    # A token of a space has text, but decoding may strip it at the end.
    between = [[*anchor, *anchor], *([*anchor, token, *anchor] for token in range(vocab_size))]
    nothing, *around = tokenizer.batch_decode(between, skip_special_tokens=True)
    return torch.tensor([*edges, [text == nothing for text in around]])


def read_terms(path: Path) -> dict[str, list[str]]:
    """Read a glossary: UTF-8, in each line a term, a tab, and its translation, or several forms, each after a tab."""
    return parse_terms(iterate_lines(path), str(path))


def parse_terms(
    lines: Iterable[str], name: str, separator: str = "\t", separator_name: str = "a tab"
) -> dict[str, list[str]]:
    """The terms of some lines, with a separator, a regular expression that errors name as `separator_name`.

    Raises ValueError, with the name of the lines, if a line has other columns, or a term has two lines.
    """
    terms: dict[str, list[str]] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        term, *forms = (cell.strip() for cell in re.split(separator, line))
        if not (term and forms and all(forms)):
            raise InputError(f"{name}, line {number}: {line!r}; write a term, {separator_name}, and its translation.")
        if term in terms:
            raise InputError(f"{name}, line {number}: {term!r} has an earlier line; write all translations in one.")
        terms[term] = forms
    return terms
