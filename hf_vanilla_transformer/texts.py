"""Texts of several sentences: their sentences are translated, and joined as they were."""

from collections.abc import Callable
from itertools import islice
from typing import Any

from transformers import PreTrainedTokenizerBase

from .details import Translation
from .segmentation import Piece, join_texts, source_language, split_text


def translate_texts(
    translate_sentences: Callable[[list[str]], list[Any]],
    tokenizer: PreTrainedTokenizerBase,
    texts: list[str],
    language: str | None = None,
) -> list[Any]:
    """Translate texts by their sentences.

    Sentences with more tokens than any that the model was trained on (the tokenizer's `model_max_length`, `</s>`
    included) are split at clauses.

    Args:
        translate_sentences (`Callable`): from sentences to their translations, texts or [`Translation`] objects.
        tokenizer (`PreTrainedTokenizerBase`): of the model.
        texts (`list` of `str`): with any white space and line breaks, which their translations keep.
        language (`str`, *optional*): code of the texts' language; by default the tokenizer's, or else English.

    Raises:
        ImportError: if sentencex is not installed.
    """

    def fits(sentence: str) -> bool:
        return len(tokenizer(sentence, verbose=False).input_ids) <= tokenizer.model_max_length

    language = language or source_language(tokenizer)
    pieces = [split_text(text, language, fits) for text in texts]
    translations = iter(translate_sentences([piece.text for each in pieces for piece in each]))
    return [_join(each, list(islice(translations, len(each)))) for each in pieces]


def _join(pieces: list[Piece], translations: list[Any]) -> Any:
    if not any(isinstance(translation, Translation) for translation in translations):
        return join_texts(pieces, translations)
    if len(pieces) == 1:
        return _with_space(translations[0], pieces[0].space)
    ends_of_source, ends_of_target = (
        _words_before([side + piece.space for side, piece in zip(sides, pieces, strict=True)])
        for sides in ([piece.text for piece in pieces], [translation.text for translation in translations])
    )
    flags = frozenset().union(*(translation.flags for translation in translations))
    return Translation(
        text=join_texts(pieces, [translation.text for translation in translations]),
        score=sum(translation.score for translation in translations),
        tokens=[token for translation in translations for token in translation.tokens],
        log_probs=[value for translation in translations for value in translation.log_probs],
        alignment=_shifted([translation.alignment for translation in translations], ends_of_source, ends_of_target),
        flags=flags | {"split"} if any(piece.is_part for piece in pieces) else flags,
    )


def _with_space(translation: Translation, space: str) -> Translation:
    alternatives = tuple(_with_space(other, space) for other in translation.alternatives)
    return translation._replace(text=translation.text + space, alternatives=alternatives)


def _words_before(parts: list[str]) -> list[int]:
    """For each part of a text, the index of its first word in the text; words are what white space separates."""
    first, count, ends_in_word = [], 0, False
    for part in parts:
        # Without white space between them, as in Chinese, two parts share a word.
        if part and ends_in_word and not part[0].isspace():
            count -= 1
        first.append(count)
        count += len(part.split())
        ends_in_word = not part[-1].isspace() if part else ends_in_word
    return first


def _shifted(
    alignments: list[list[tuple[int, int]] | None], sources: list[int], targets: list[int]
) -> list[tuple[int, int]] | None:
    pairs = []
    for alignment, source, target in zip(alignments, sources, targets, strict=True):
        if alignment is None:
            return None
        pairs += [(source + of_source, target + of_target) for of_source, of_target in alignment]
    return sorted(set(pairs))
