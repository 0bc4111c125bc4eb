"""Choose the tokenization that sacreBLEU applies before it computes BLEU.

BLEU compares sequences of words, so the way in which sacreBLEU splits text into words must suit the target language.
The choice depends on the language code or, if the language is unknown, on the script of the references.
"""

import re
from collections.abc import Iterable, Sequence

from ..support.language_codes import language_of


# The references of one translation: a single text, or several texts.
References = str | Sequence[str]

# sacreBLEU tokenizations of languages for which sacreBLEU has special rules, or that put no spaces between words.
_TOKENIZATIONS = {
    "zh": "zh",
    "ja": "ja-mecab",
    "ko": "ko-mecab",
    # Chinese languages that have no two-letter code.
    "cdo": "zh",
    "gan": "zh",
    "hak": "zh",
    "hsn": "zh",
    "lzh": "zh",
    "nan": "zh",
    "wuu": "zh",
    "yue": "zh",
    # sacreBLEU cannot split these languages into words: Thai, Lao, Khmer, Burmese, Tibetan and Dzongkha.
    "th": "char",
    "lo": "char",
    "km": "char",
    "my": "char",
    "bo": "char",
    "dz": "char",
}
# Matches one character of the Thai, Lao, Tibetan, Burmese and Khmer scripts. Text in these scripts has no spaces
# between words, and sacreBLEU cannot split it into words.
UNSPACED_CHARACTER = re.compile(
    "[\u0e00-\u0e7f\u0e80-\u0eff\u0f00-\u0fff\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f\u1780-\u17ff\u19e0-\u19ff]"
)
# Number of references that are read to find the script of a test set. Reading more takes longer and hardly changes the
# result.
REFERENCES_TO_DETECT_SCRIPT = 1_000


def find_bleu_tokenization(language: str | None) -> str | None:
    """Return the sacreBLEU tokenization for a target language, such as `"zh"`, or None if the default is suitable.

    Args:
        language (`str`, *optional*): a language code such as `"ja"`, `"zh_CN"`, `"zho_Hans"` or `"cmn"`.

    Returns:
        `str`: a value for the argument `tokenize` of [`score_translations`]. The result is None if the language is
        unknown or puts spaces between words, because the default tokenization suits such text.
    """
    # For example, "zh" for "zh_CN", "zho_Hans" and "cmn".
    known_language = language_of(language)
    if known_language is None:
        return None
    return _TOKENIZATIONS.get(known_language)


def choose_bleu_tokenization(references: Sequence[References]) -> str:
    """Choose a sacreBLEU tokenization for references whose language is unknown.

    The result is `"char"` if more than half of the letters are Thai, Lao, Tibetan, Burmese or Khmer, because these
    scripts have no spaces between words. Otherwise it is `"13a"`. Only the references of the first 1,000 translations
    are read.

    Args:
        references (`Sequence`): one reference, or a list of references, for each translation.
    """
    letters = 0
    unspaced_letters = 0
    for text in flatten_references(references[:REFERENCES_TO_DETECT_SCRIPT]):
        letters += _count_letters(text)
        unspaced_letters += _count_letters(UNSPACED_CHARACTER.findall(text))
    if 2 * unspaced_letters > letters:
        return "char"
    return "13a"


def _count_letters(characters: Iterable[str]) -> int:
    """Count the characters that are letters. `characters` is a text or a list of characters."""
    return sum(map(str.isalpha, characters))


def flatten_references(references: Iterable[References | None]) -> list[str]:
    """Return the references of all translations as one list. Skip translations that have no references."""
    texts: list[str] = []
    for alternatives in references:
        if isinstance(alternatives, str):
            texts.append(alternatives)
        elif alternatives:
            texts.extend(alternatives)
    return texts
