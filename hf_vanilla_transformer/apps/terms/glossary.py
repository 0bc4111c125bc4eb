"""Use glossaries: find their terms in sentences, tokenize the required translations, and read glossary files."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
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


# Characters of words. Scripts without spaces between words are excluded, because their word boundaries are unknown.
_LETTER = r"[[\w\p{M}]--[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]]"
# A token may contain some bytes of a character, which are decoded as U+FFFD. The character may be a letter.
_LETTER_OR_BYTE = rf"{_LETTER}|\uFFFD"
# Korean words that are attached to the end of other words without a space: particles, and forms of "to be".
_PARTICLES = (
    "은|는|이|가|을|를|의|에|에서|에게|에게서|께|께서|한테|한테서|로|으로|와|과|도|만|까지|부터|보다|처럼|같이|마다|조차"
    "|마저|밖에|뿐|대로|들|나|이나|든지|이든지|라도|이라도|야|이야|라고|이라고|라는|이라는|란|이란|랑|이랑|하고|며|이며"
    "|고|이고|요|이다|입니다|인|였다|이었다"
)
# A term begins where a word begins, or where its first character is not a letter.
_BEGIN = rf"(?:(?<!{_LETTER})|(?!{_LETTER}))"
# A term ends where a word ends, where its last character is not a letter, or before Korean particles that end a word.
_END = rf"(?:(?!{_LETTER})|(?<!{_LETTER})|(?=(?:{_PARTICLES}){{1,4}}(?!{_LETTER})))"
# Spelling differences that are ignored in terms: soft hyphens and other invisible characters, the type of white space,
# and the type of apostrophe.
_INVISIBLE = r"[\p{Cc}\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff]"
_SPACES = r"[\t-\r\x85\p{Z}]+"
_APOSTROPHES = "[\u2018\u2019\u02bc\uff07]"
# Texts that may precede a term and change its tokens: nothing (at the start of a sentence), a word and a space, or a
# punctuation mark without a space. Each is mapped to the text whose tokens are removed from the result. The space is
# not removed, because many tokenizers join it with the word that follows.
_CONTEXTS = {"": "", "a ": "a", "(": "(", "-": "-"}
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
        if not isinstance(terms, Mapping):
            raise TypeError(f"glossary is of type {type(terms).__name__}; give a mapping from terms to translations.")
        self._tokenizer = tokenizer
        # Maps the normalized spelling of each term to the forms of its translation.
        self._forms: dict[str, list[str]] = {}
        for term, translations in terms.items():
            forms = _check_term(term, translations)
            spelling = _normalize_spelling(term)
            if spelling in self._forms:
                raise InputError(f"glossary has {spelling!r} twice; give all of its translations as one list.")
            self._forms[spelling] = forms

        # Forms that several terms share are tokenized once.
        distinct_forms = list(dict.fromkeys(chain.from_iterable(self._forms.values())))
        tokenized_forms = _tokenize(tokenizer, distinct_forms)
        alternatives_of_form = dict(zip(distinct_forms, tokenized_forms, strict=True))

        self._phrases: dict[str, Phrase] = {}
        self._sizes: dict[str, PhraseSizes] = {}
        for spelling, forms in self._forms.items():
            alternatives: list[list[int]] = []
            for form in forms:
                alternatives += alternatives_of_form[form]
            num_positions = sum(map(len, alternatives))
            num_tokens = len(set(chain.from_iterable(alternatives)))
            self._phrases[spelling] = alternatives
            self._sizes[spelling] = PhraseSizes(num_positions, num_tokens, phrases=1)
        self._pattern = regex.compile(rf"{_BEGIN}\L<terms>{_END}", flags=regex.V1, terms=list(self._phrases))

    def __eq__(self, other: object) -> bool:
        """Return True if both glossaries have the same terms and the same tokenizer."""
        if not isinstance(other, Glossary):
            return NotImplemented
        return self._tokenizer is other._tokenizer and self._forms == other._forms

    def __hash__(self) -> int:
        return hash(frozenset(self._forms))

    def check(self, settings: GenerationConfig) -> None:
        """Raise ValueError unless the search settings choose beam search, which glossaries need."""
        check_is_beam_search(settings)

    def phrases(self, sentence: str) -> list[Phrase]:
        """Return the required translations of a sentence's terms as token ids, in the order of the sentence."""
        return [self._phrases[term] for term in self._find_terms(sentence)]

    def sizes(self, sentence: str) -> PhraseSizes:
        """Return upper bounds on the sizes of a sentence's phrases, from which the cost of the search is estimated.

        The bounds are sums over the sizes of the sentence's terms. Those were computed in advance, so this method's
        time does not depend on the length of the translations.
        """
        occurrences = Counter(self._find_terms(sentence))
        if not occurrences:
            return PhraseSizes()
        positions = 0
        tokens = 0
        for term, times in occurrences.items():
            # A term that occurs twice is one phrase of the search, but `ForcedPhrases` reads its alternatives twice.
            positions += times * self._sizes[term].positions
            tokens += self._sizes[term].tokens
        # The search tracks one more token, which ends a sentence.
        return PhraseSizes(positions, tokens + 1, len(occurrences))

    def search(self, model: PreTrainedModel | Engine, phrases: list[list[Phrase]]) -> ForcedPhrases:
        """Return a search for translations that contain the phrases of their sentence as whole words."""
        return ForcedPhrases(phrases, letter_edges(self._tokenizer, model.config.vocab_size))

    def _find_terms(self, sentence: str) -> list[str]:
        """Return the normalized spelling of each term that occurs in a sentence, in the order of the sentence."""
        if not self._phrases:
            return []
        return [match[0] for match in self._pattern.finditer(_normalize_spelling(sentence))]


def _check_term(term: object, translations: object) -> list[str]:
    """Check a glossary entry, and return the forms of the term's translation as a list.

    Raises:
        TypeError: if the term or a form is not a string.
        ValueError: if the term or a form is blank, or there is no form.
    """
    if isinstance(translations, Sequence) and not isinstance(translations, str):
        forms = list(translations)
    else:
        forms = [translations]
    texts = [term, *forms]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError(f"glossary has {translations!r} for {term!r}; give texts.")
    if not forms or any(map(is_blank, texts)):
        raise InputError(f"glossary has {translations!r} for {term!r}; give texts that are not blank.")
    return forms


def _normalize_spelling(text: str) -> str:
    """Normalize a text's Unicode, white space, apostrophes and invisible characters, to compare it with terms."""
    spaced = regex.sub(_SPACES, " ", text)
    visible = regex.sub(_INVISIBLE, "", spaced)
    with_apostrophes = regex.sub(_APOSTROPHES, "'", normalize("NFC", visible))
    # Without `_SPACES`, `split()` would also split at some of the invisible characters.
    return " ".join(with_apostrophes.split())


def tokenize_in_contexts(tokenizer: PreTrainedTokenizerBase, text: str) -> list[list[int]]:
    """Tokenize a target text at the start of a sentence, after a space, and after a punctuation mark.

    A text may have different tokens in these contexts.

    Returns:
        `list[list[int]]`: the distinct results, except for results that contain unknown tokens.

    Raises:
        ValueError: if no context gives a usable result, for example because all results contain unknown tokens.
    """
    return _tokenize(tokenizer, [text])[0]


def _tokenize(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[list[int]]]:
    """Tokenize several texts, each as [`tokenize_in_contexts`] does, with as few tokenizer calls as possible.

    This takes a tenth of the time of one call per text.
    """
    tokens_of_contexts = encode(tokenizer, text_target=list(_CONTEXTS.values()), add_special_tokens=False).input_ids
    texts_in_contexts = []
    for text in texts:
        words = " ".join(text.split())
        texts_in_contexts += [context + words for context in _CONTEXTS]

    tokens_in_contexts: list[list[int]] = []
    for start in range(0, len(texts_in_contexts), _TEXTS_PER_CALL):
        texts_of_call = texts_in_contexts[start : start + _TEXTS_PER_CALL]
        tokens_in_contexts += encode(tokenizer, text_target=texts_of_call, add_special_tokens=False).input_ids

    alternatives_of_texts = []
    for number, text in enumerate(texts):
        start = number * len(_CONTEXTS)
        tokens_of_text = tokens_in_contexts[start : start + len(_CONTEXTS)]
        alternatives: list[list[int]] = []
        for tokens_of_context, tokens in zip(tokens_of_contexts, tokens_of_text, strict=True):
            begins_with_context = tokens[: len(tokens_of_context)] == tokens_of_context
            alternative = tokens[len(tokens_of_context) :]
            is_usable = alternative and begins_with_context and tokenizer.unk_token_id not in alternative
            if is_usable and alternative not in alternatives:
                alternatives.append(alternative)
        if not alternatives:
            raise InputError(f"the vocabulary has no tokens for {text!r}; choose another translation.")
        alternatives_of_texts.append(alternatives)
    return alternatives_of_texts


@lru_cache(maxsize=8)
def letter_edges(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> torch.Tensor:
    """Return three flags for each target token: whether it begins with a letter, ends with a letter, and has no text.

    [`ForcedPhrases`] uses this to find whole words. A token with a space before its first letter does not begin with a
    letter, because the space separates it from the previous token. Special tokens have no text.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): tokenizer of the model.
        vocab_size (`int`): the model's vocabulary size.

    Returns:
        `torch.BoolTensor` of shape `(3, vocab_size)`: one row for each of the three flags, in this order.
    """
    # Tokenizers remove a space at the start of a text, so each token is decoded after the letter "a".
    letter = encode(tokenizer, text_target="a", add_special_tokens=False).input_ids
    text_of_letter = str(tokenizer.decode(letter, skip_special_tokens=True))
    after_letter = [[*letter, token] for token in range(vocab_size)]
    is_letter = regex.compile(_LETTER_OR_BYTE, flags=regex.V1).fullmatch
    begins_with_letter = []
    ends_with_letter = []
    for text in tokenizer.batch_decode(after_letter, skip_special_tokens=True):
        text_of_token = text[len(text_of_letter) :] if text.startswith(text_of_letter) else ""
        begins_with_letter.append(bool(is_letter(text_of_token[:1])))
        ends_with_letter.append(bool(is_letter(text_of_token[-1:])))

    # Tokenizers may also remove a space at the end of a text, so a token has no text only if decoding it between two
    # letters gives the letters alone.
    letters_alone = tokenizer.batch_decode([[*letter, *letter]], skip_special_tokens=True)[0]
    between_letters = [[*letter, token, *letter] for token in range(vocab_size)]
    has_no_text = []
    for text in tokenizer.batch_decode(between_letters, skip_special_tokens=True):
        has_no_text.append(text == letters_alone)
    return torch.tensor([begins_with_letter, ends_with_letter, has_no_text])


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
        if not forms or not all(cells):
            raise InputError(f"{name}, line {number}: {line!r}; write a term, {separator_name}, and its translation.")
        if term in terms:
            raise InputError(f"{name}, line {number}: {term!r} has an earlier line; write all translations in one.")
        terms[term] = forms
    return terms
