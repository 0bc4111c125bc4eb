"""Translate texts of several sentences: split them, translate the sentences, join texts, scores and alignments."""

from collections.abc import Callable
from heapq import nlargest
from itertools import accumulate, islice
from typing import Any

from transformers import PreTrainedTokenizerBase

from .sentence_splitting import Piece, join_texts, source_language, split_text
from .translation_details import Translation


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
    pieces = [pieces_of(tokenizer, text, language) for text in texts]
    translations = iter(translate_sentences([piece.text for each in pieces for piece in each]))
    return [join(each, list(islice(translations, len(each)))) for each in pieces]


def pieces_of(tokenizer: PreTrainedTokenizerBase, text: str, language: str | None = None) -> list[Piece]:
    """The sentences of a text, at least one, as [`translate_texts`] splits it.

    Raises:
        ImportError: if sentencex is not installed.
    """

    def fits(sentence: str) -> bool:
        return len(tokenizer(sentence, verbose=False).input_ids) <= tokenizer.model_max_length

    return split_text(text, language or source_language(tokenizer), fits) or [Piece("", "")]


def join(pieces: list[Piece], translations: list[Any]) -> Any:
    """The translation of a text: that of its sentences with its white space, a string or a [`Translation`].

    Alternatives are the best combinations of the sentences' hypotheses, by the sum of their scores.
    """
    if not any(isinstance(translation, Translation) for translation in translations):
        return join_texts(pieces, translations)
    best, *others = (_joined(pieces, each) for each in _combinations(translations))
    return best._replace(alternatives=tuple(others))


def _combinations(translations: list[Translation]) -> list[list[Translation]]:
    """The best combinations of one hypothesis of each sentence, best first, as many as a sentence has hypotheses."""
    count = max(1 + len(translation.alternatives) for translation in translations)
    # The score, and the last hypothesis with the combination before it.
    best: list[tuple[float, Any]] = [(0.0, None)]
    for translation in translations:
        hypotheses = (translation, *translation.alternatives)
        # A truncated hypothesis comes after finished ones with lower scores.
        scores = list(accumulate((each.score for each in hypotheses), min))
        pairs = (
            (total + score, (each, before))
            for total, before in best
            for score, each in zip(scores, hypotheses, strict=True)
        )
        best = nlargest(count, pairs, key=lambda pair: pair[0])
    found = []
    for _, last in best:
        chosen: list[Translation] = []
        while last is not None:
            each, last = last
            chosen.append(each)
        found.append(chosen[::-1])
    return found


def _joined(pieces: list[Piece], translations: list[Translation]) -> Translation:
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
