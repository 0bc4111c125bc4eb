"""Use glossaries: find their terms in sentences, tokenize the required translations, and read glossary files."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple
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


# Characters of words. Scripts without spaces between words are excluded, because their word boundaries are unknown. In
# the regex library, [A--B] matches the characters in A that are not in B.
_LETTER = r"[[\w\p{M}]--[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]]"
# A token may contain some bytes of a character, which are decoded as U+FFFD. The character may be a letter.
_LETTER_OR_BYTE = rf"{_LETTER}|\uFFFD"
# Korean words that are attached to the end of other words without a space: particles, and forms of "to be".
_PARTICLES = (
    "은|는|이|가|을|를|의|에|에서|에게|에게서|께|께서|한테|한테서|로|으로|와|과|도|만|까지|부터|보다|처럼|같이|마다|조차"
    "|마저|밖에|뿐|대로|들|나|이나|든지|이든지|라도|이라도|야|이야|라고|이라고|라는|이라는|란|이란|랑|이랑|하고|며|이며"
    "|고|이고|요|이다|입니다|인|였다|이었다"
)
# The following regular expressions match at a position between two characters, and match no text. Up to four particles
# may follow each other.
_NOT_AFTER_LETTER = rf"(?<!{_LETTER})"
_NOT_BEFORE_LETTER = rf"(?!{_LETTER})"
_BEFORE_PARTICLES_AND_END_OF_WORD = rf"(?=(?:{_PARTICLES}){{1,4}}{_NOT_BEFORE_LETTER})"
# A term may begin where no letter precedes it, or where its own first character is not a letter.
_BEGIN = rf"(?:{_NOT_AFTER_LETTER}|{_NOT_BEFORE_LETTER})"
# A term may end where no letter follows it, where its own last character is not a letter, or before Korean particles.
_END = rf"(?:{_NOT_BEFORE_LETTER}|{_NOT_AFTER_LETTER}|{_BEFORE_PARTICLES_AND_END_OF_WORD})"
# Spelling differences that are ignored in terms: soft hyphens and other invisible characters, the type of white space,
# and the type of apostrophe.
_INVISIBLE = r"[\p{Cc}\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff]"
_SPACES = r"[\t-\r\x85\p{Z}]+"
_APOSTROPHES = "[\u2018\u2019\u02bc\uff07]"


class _Context(NamedTuple):
    """A text before a term in a sentence. It may change how the term is tokenized.

    Args:
        preceding: the text before the term.
        removed: the beginning of `preceding` whose tokens do not belong to the term. A space at the end of `preceding`
            is not a part of it, because many tokenizers join the space with the word that follows.
    """

    preceding: str
    removed: str


# The start of a sentence, a word and a space, and punctuation marks without a space.
_CONTEXTS = (_Context("", ""), _Context("a ", "a"), _Context("(", "("), _Context("-", "-"))
# The number of texts per tokenizer call. It is limited because other threads must wait until a call ends.
_TEXTS_PER_CALL = 256


class Glossary:
    """Terms and their required translations, to be passed to `translate(glossary=...)`.

    ```python
    glossary = Glossary({"machine": "Maschine", "seven": ["sieben", "siebte"]}, tokenizer)
    translate(model, tokenizer, sentences, glossary=glossary)
    ```

    Terms are found in sentences according to these rules:

    - A term matches one or more whole words. Upper and lower case must agree. Korean particles may follow the term.
    - Matches do not overlap. If several terms match at the same position, the longest one is found.
    - Letters with diacritics may be composed or decomposed Unicode, and apostrophes and white space may be of any type.
    - Soft hyphens and other invisible characters are ignored.

    Args:
        terms (`Mapping[str, str | Sequence[str]]`): maps each term to its translation, or to a list of forms of its
            translation, one of which must occur.
        tokenizer (`PreTrainedTokenizerBase`): tokenizer of the model.

    Raises:
        TypeError: if a term or a translation is not a string.
        ValueError: if a term or a translation is blank, if two terms have the same spelling according to these rules,
            or if the vocabulary has no tokens for a translation.
    """

    def __init__(self, terms: Mapping[str, str | Sequence[str]], tokenizer: PreTrainedTokenizerBase):
        self._tokenizer = tokenizer
        # In these dicts, the keys are the normalized spellings of the terms.
        self._forms = _read_forms(terms)
        self._phrases = _tokenize_forms(tokenizer, self._forms)
        self._sizes = {spelling: _measure_phrase(phrase) for spelling, phrase in self._phrases.items()}
        # In the regex library, \L<terms> matches any of the terms, the longest one first.
        self._pattern = regex.compile(rf"{_BEGIN}\L<terms>{_END}", flags=regex.V1, terms=list(self._phrases))

    def __eq__(self, other: object) -> bool:
        """Return True if both glossaries have the same terms and the same tokenizer."""
        if not isinstance(other, Glossary):
            return NotImplemented
        return self._tokenizer is other._tokenizer and self._forms == other._forms

    def __hash__(self) -> int:
        return hash(frozenset(self._forms))

    def check(self, settings: GenerationConfig) -> None:
        """Raise ValueError unless the search settings choose beam search. Glossaries work with no other search."""
        check_is_beam_search(settings)

    def phrases(self, sentence: str) -> list[Phrase]:
        """Return the required translations of the terms in a sentence, as token ids, in the order of the terms."""
        return [self._phrases[term] for term in self._find_terms(sentence)]

    def sizes(self, sentence: str) -> PhraseSizes:
        """Return upper bounds on the sizes of a sentence's phrases. They are used to estimate the cost of the search.

        The bounds are sums over the sizes of the sentence's terms. Those were computed in advance, so this method's
        time does not depend on the length of the translations.
        """
        count_of_term = Counter(self._find_terms(sentence))
        if not count_of_term:
            return PhraseSizes()
        num_positions = 0
        # The search also tracks the token that ends a sentence.
        num_tracked_tokens = 1
        for term, count in count_of_term.items():
            sizes_of_term = self._sizes[term]
            # If a term occurs twice, `phrases` returns its phrase twice. `ForcedPhrases` reads and checks all tokens of
            # both, so the positions, one for each token, count twice. Then the search merges both into one phrase that
            # must occur twice, so the distinct tokens count once.
            num_positions += count * sizes_of_term.positions
            num_tracked_tokens += sizes_of_term.tokens
        return PhraseSizes(num_positions, num_tracked_tokens, phrases=len(count_of_term))

    def search(self, model: PreTrainedModel | Engine, phrases: list[list[Phrase]]) -> ForcedPhrases:
        """Return a beam search for translations that contain the phrases of their sentence as whole words."""
        return ForcedPhrases(phrases, letter_edges(self._tokenizer, model.config.vocab_size))

    def _find_terms(self, sentence: str) -> list[str]:
        """Return the normalized spelling of each term that occurs in a sentence, in the order of the sentence."""
        if not self._phrases:
            return []
        # The pattern matches only the term itself, so the match is the term's normalized spelling.
        return [match[0] for match in self._pattern.finditer(_normalize_spelling(sentence))]


def _read_forms(terms: Mapping[str, str | Sequence[str]]) -> dict[str, list[str]]:
    """Check a glossary's terms, and return a dict from their normalized spellings to the forms of their translations.

    The forms of a translation are its alternatives, such as the inflections of a noun. One of them must occur.

    Raises:
        TypeError, ValueError: if a term is invalid, see [`_check_term`], or if two terms have the same spelling.
    """
    if not isinstance(terms, Mapping):
        raise TypeError(f"glossary is of type {type(terms).__name__}; give a mapping from terms to translations.")
    forms_of_terms: dict[str, list[str]] = {}
    for term, translations in terms.items():
        forms = _check_term(term, translations)
        spelling = _normalize_spelling(term)
        if spelling in forms_of_terms:
            raise InputError(f"glossary has {spelling!r} twice; give all of its translations as one list.")
        forms_of_terms[spelling] = forms
    return forms_of_terms


def _check_term(term: object, translations: object) -> list[str]:
    """Check a glossary entry, and return the forms of the term's translation as a list.

    `translations` is a single form or a sequence of forms.

    Raises:
        TypeError: if the term or a form is not a string.
        ValueError: if the term or a form is blank, or there is no form.
    """
    if isinstance(translations, Sequence) and not isinstance(translations, str):
        forms = list(translations)
    else:
        forms = [translations]
    for text in (term, *forms):
        if not isinstance(text, str):
            raise TypeError(f"glossary has {translations!r} for {term!r}; give texts.")
    has_blank_text = any(is_blank(text) for text in (term, *forms))
    if has_blank_text or not forms:
        raise InputError(f"glossary has {translations!r} for {term!r}; give texts that are not blank.")
    return forms


def _normalize_spelling(text: str) -> str:
    """Return a text without the spelling differences that are ignored in terms, such as the type of apostrophe."""
    # White space comes first, because some of it, such as a tab, also counts as invisible characters.
    spaced = regex.sub(_SPACES, " ", text)
    visible = regex.sub(_INVISIBLE, "", spaced)
    with_apostrophes = regex.sub(_APOSTROPHES, "'", normalize("NFC", visible))
    # `split()` would also split at some invisible characters, such as U+001C, but these were removed above.
    return " ".join(with_apostrophes.split())


def tokenize_in_contexts(tokenizer: PreTrainedTokenizerBase, text: str) -> list[list[int]]:
    """Tokenize a target text at the start of a sentence, after a space, and after a punctuation mark.

    A text may have different tokens in these contexts.

    Returns:
        `list[list[int]]`: the distinct results, except for results that contain unknown tokens.

    Raises:
        ValueError: if no context gives a usable result, for example because all results contain unknown tokens.
    """
    return _tokenize_all_in_contexts(tokenizer, [text])[0]


def _tokenize_forms(
    tokenizer: PreTrainedTokenizerBase, forms_of_terms: Mapping[str, list[str]]
) -> dict[str, list[list[int]]]:
    """Return the phrase of each term. Its alternatives are all tokenizations of all forms of the translation.

    An alternative is a list of token ids. For example, the phrase [[5, 6], [7]] has the alternatives [5, 6] and [7].
    """
    # Forms that several terms share are tokenized once.
    all_forms = chain.from_iterable(forms_of_terms.values())
    distinct_forms = _remove_repetitions(all_forms)
    tokenized_forms = _tokenize_all_in_contexts(tokenizer, distinct_forms)
    alternatives_of_form = dict(zip(distinct_forms, tokenized_forms, strict=True))

    phrases: dict[str, list[list[int]]] = {}
    for term, forms in forms_of_terms.items():
        phrases[term] = []
        for form in forms:
            phrases[term] += alternatives_of_form[form]
    return phrases


def _remove_repetitions(texts: Iterable[str]) -> list[str]:
    """Return the distinct texts in the order in which they occur first."""
    # The keys of a dict are distinct and in the order of their insertion.
    return list(dict.fromkeys(texts))


def _measure_phrase(phrase: Phrase) -> PhraseSizes:
    """Count the positions and the distinct tokens of a phrase."""
    num_positions = sum(len(alternative) for alternative in phrase)
    distinct_tokens = set(chain.from_iterable(phrase))
    return PhraseSizes(num_positions, len(distinct_tokens), phrases=1)


def _tokenize_all_in_contexts(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[list[int]]]:
    """Tokenize several texts, each as [`tokenize_in_contexts`] does, with as few tokenizer calls as possible.

    This takes a tenth of the time of one call per text. A context precedes the text in a sentence, as "a " may do.
    """
    # For each context, the tokens that are removed from the beginning of a text's tokens: for "a ", the tokens of "a".
    removed_tokens = _encode_targets(tokenizer, [context.removed for context in _CONTEXTS])
    tokens_of_texts = _encode_in_contexts(tokenizer, texts)
    alternatives_of_texts = []
    for text, tokens_in_contexts in zip(texts, tokens_of_texts, strict=True):
        alternatives = _remove_contexts(tokens_in_contexts, removed_tokens, tokenizer.unk_token_id)
        if not alternatives:
            raise InputError(f"the vocabulary has no tokens for {text!r}; choose another translation.")
        alternatives_of_texts.append(alternatives)
    return alternatives_of_texts


def _encode_in_contexts(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[list[int]]]:
    """Return the tokens of each text in each context, including the tokens of the context."""
    # All contexts of the first text, then all contexts of the second text, and so on.
    texts_in_contexts = []
    for text in texts:
        words = " ".join(text.split())
        for context in _CONTEXTS:
            texts_in_contexts.append(context.preceding + words)
    tokens_in_contexts = _encode_targets(tokenizer, texts_in_contexts)

    num_contexts = len(_CONTEXTS)
    tokens_of_texts = []
    for start in range(0, len(tokens_in_contexts), num_contexts):
        tokens_of_texts.append(tokens_in_contexts[start : start + num_contexts])
    return tokens_of_texts


def _encode_targets(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> list[list[int]]:
    """Tokenize target texts without special tokens, in calls of limited size."""
    tokens_of_texts: list[list[int]] = []
    for start in range(0, len(texts), _TEXTS_PER_CALL):
        texts_of_call = texts[start : start + _TEXTS_PER_CALL]
        tokens_of_texts.extend(encode(tokenizer, text_target=texts_of_call, add_special_tokens=False).input_ids)
    return tokens_of_texts


def _remove_contexts(
    tokens_in_contexts: list[list[int]], removed_tokens: list[list[int]], unknown_token: int | None
) -> list[list[int]]:
    """Return the distinct tokenizations of a text, without the tokens of the contexts in which it was tokenized.

    Args:
        tokens_in_contexts: the tokens of the text in each context, including the tokens of the context.
        removed_tokens: for each context, the tokens to remove from the beginning.
        unknown_token: the token of unknown characters. Tokenizations that contain it are left out.
    """
    alternatives: list[list[int]] = []
    for tokens, removed in zip(tokens_in_contexts, removed_tokens, strict=True):
        if tokens[: len(removed)] != removed:
            # The tokenizer has joined the context with the text, so the tokens of the text are unknown.
            continue
        alternative = tokens[len(removed) :]
        is_usable = len(alternative) > 0 and unknown_token not in alternative
        if is_usable and alternative not in alternatives:
            alternatives.append(alternative)
    return alternatives


@lru_cache(maxsize=8)
def letter_edges(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> torch.Tensor:
    """Return three flags for each target token: whether it begins with a letter, ends with a letter, and has no text.

    [`ForcedPhrases`] uses this to find whole words. A token with a space before its first letter does not begin with a
    letter, because the space separates it from the previous token. Special tokens have no text. The result is cached,
    so callers must not change it.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): tokenizer of the model.
        vocab_size (`int`): the model's vocabulary size.

    Returns:
        `torch.BoolTensor` of shape `(3, vocab_size)`: one row for each of the three flags, in this order.
    """
    # The tokens of a single letter. Each token of the vocabulary is decoded together with them.
    letter = encode(tokenizer, text_target="a", add_special_tokens=False).input_ids
    texts_of_tokens = _decode_after_letter(tokenizer, vocab_size, letter)
    # A token without text has the first and last character "", which is not a letter.
    begins_with_letter = _are_letters([text[:1] for text in texts_of_tokens])
    ends_with_letter = _are_letters([text[-1:] for text in texts_of_tokens])
    has_no_text = _find_tokens_without_text(tokenizer, vocab_size, letter)
    return torch.tensor([begins_with_letter, ends_with_letter, has_no_text])


def _are_letters(characters: Iterable[str]) -> list[bool]:
    """Return True for each character that is a letter, or a part of a character that may be one."""
    is_letter = regex.compile(_LETTER_OR_BYTE, flags=regex.V1).fullmatch
    return [is_letter(character) is not None for character in characters]


def _decode_after_letter(tokenizer: PreTrainedTokenizerBase, vocab_size: int, letter: list[int]) -> list[str]:
    """Return the text that each token of the vocabulary has after a letter, including a space at its start.

    Tokenizers remove a space at the start of a text, so a token that is decoded without a letter would lose its space.
    """
    text_of_letter = str(tokenizer.decode(letter, skip_special_tokens=True))
    tokens_after_letter = [[*letter, token] for token in range(vocab_size)]
    texts_of_tokens = []
    for text in tokenizer.batch_decode(tokens_after_letter, skip_special_tokens=True):
        if text.startswith(text_of_letter):
            texts_of_tokens.append(text.removeprefix(text_of_letter))
        else:
            # The token has changed the text of the letter, so its own text is unknown.
            texts_of_tokens.append("")
    return texts_of_tokens


def _find_tokens_without_text(tokenizer: PreTrainedTokenizerBase, vocab_size: int, letter: list[int]) -> list[bool]:
    """Return True for each token that has no text, not even a space.

    Tokenizers may remove a space at the start or end of a text, so each token is decoded between two letters.
    """
    letters_alone = tokenizer.batch_decode([[*letter, *letter]], skip_special_tokens=True)[0]
    between_letters = [[*letter, token, *letter] for token in range(vocab_size)]
    return [text == letters_alone for text in tokenizer.batch_decode(between_letters, skip_special_tokens=True)]


def read_terms(path: Path) -> dict[str, list[str]]:
    """Read glossary terms and their translations from a UTF-8 file with tab-separated values.

    Each line consists of a term, followed by one or more forms of its translation.
    """
    return parse_terms(iterate_lines(path), str(path))


def parse_terms(
    lines: Iterable[str], name: str, separator: str = "\t", separator_name: str = "a tab"
) -> dict[str, list[str]]:
    """Parse lines of text into a mapping from glossary terms to the forms of their translations.

    Args:
        lines (`Iterable[str]`): lines that consist of a term and one or more forms of its translation, all separated by
            `separator`. Blank lines are skipped.
        name (`str`): name of the glossary in error messages.
        separator (`str`): a regular expression that matches the separator.
        separator_name (`str`): name of the separator in error messages.

    Raises:
        ValueError: if a line lacks a term or a translation, or two lines have the same term.
    """
    terms: dict[str, list[str]] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        cells = [cell.strip() for cell in re.split(separator, line)]
        term = cells[0]
        forms = cells[1:]
        has_empty_cell = "" in cells
        if has_empty_cell or not forms:
            raise InputError(f"{name}, line {number}: {line!r}; write a term, {separator_name}, and its translation.")
        if term in terms:
            raise InputError(f"{name}, line {number}: {term!r} has an earlier line; write all translations in one.")
        terms[term] = forms
    return terms
