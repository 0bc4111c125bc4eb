"""Choose sacrebleu's tokenization for BLEU by the language or by the script of the references."""

import re
from collections.abc import Iterable, Sequence

from ..support.language_codes import language_of


# The references of a translation: one text, or several.
References = str | Sequence[str]

# Languages that sacrebleu tokenizes by rules of their own, and languages that write no spaces between words.
_TOKENIZATIONS = {
    "zh": "zh",
    "ja": "ja-mecab",
    "ko": "ko-mecab",
    # Chinese languages that have no code of two letters.
    "cdo": "zh",
    "gan": "zh",
    "hak": "zh",
    "hsn": "zh",
    "lzh": "zh",
    "nan": "zh",
    "wuu": "zh",
    "yue": "zh",
    # sacrebleu cannot divide these languages into words: Thai, Lao, Khmer, Burmese, Tibetan and Dzongkha.
    "th": "char",
    "lo": "char",
    "km": "char",
    "my": "char",
    "bo": "char",
    "dz": "char",
}
# A character of the scripts Thai, Lao, Tibetan, Burmese or Khmer. They put no spaces between words, and sacrebleu
# cannot divide them into words.
UNSPACED_CHARACTER = re.compile(
    "[\u0e00-\u0e7f\u0e80-\u0eff\u0f00-\u0fff\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f\u1780-\u17ff\u19e0-\u19ff]"
)
# This many references show the script of a test set. More would take longer and hardly change the result.
REFERENCES_TO_DETECT_SCRIPT = 1_000


def find_bleu_tokenization(language: str | None) -> str | None:
    """Return sacrebleu's tokenization for a target language, or None if the default tokenization suits it.

    Args:
        language (`str`, *optional*): a language code such as `"ja"`, `"zh_CN"`, `"zho_Hans"` or `"cmn"`.

    Returns:
        `str`: a value for `tokenize` of [`score_translations`]; None for an unknown language, and for languages with
        spaces between words, which the default tokenization suits.
    """
    known_language = language_of(language)
    if known_language is None:
        return None
    return _TOKENIZATIONS.get(known_language)


def choose_bleu_tokenization(references: Sequence[References]) -> str:
    """Return sacrebleu's tokenization for references whose language is unknown.

    It is `"char"` if most letters belong to the scripts Thai, Lao, Tibetan, Burmese or Khmer, because these put no
    spaces between words. Otherwise it is `"13a"`.

    Args:
        references (`Sequence`): for each translation one reference, or a list of them.
    """
    letters = 0
    unspaced_letters = 0
    for text in flatten_references(references[:REFERENCES_TO_DETECT_SCRIPT]):
        letters += sum(map(str.isalpha, text))
        unspaced_letters += sum(map(str.isalpha, UNSPACED_CHARACTER.findall(text)))
    if 2 * unspaced_letters > letters:
        return "char"
    return "13a"


def flatten_references(references: Iterable[References | None]) -> list[str]:
    """Return all references of all translations in one list. A translation without references adds nothing."""
    texts: list[str] = []
    for alternatives in references:
        if isinstance(alternatives, str):
            texts.append(alternatives)
        elif alternatives:
            texts.extend(alternatives)
    return texts
