"""Scores, tokens, alignment and flags of a translation, by forced decoding of the hypotheses of a search."""

import math
import re
from typing import Any, NamedTuple

import torch

from ..data.vocabularies import longest_training_source
from ..model.generation_settings import length_penalty_of, limits_length
from ..model.input_checks import sides_of
from .alignment import Aligner, Tokenized
from .inference import Inference, forced_decoding
from .words_of_tokens import WORDS


class Translation(NamedTuple):
    """A translation with its details, from `translate(..., return_details=True)`.

    Args:
        text (`str`): the translation.
        score (`float`): log P(Y | X) / lp(Y), by which beam search ranks hypotheses, with the length penalty of the
            call (section 6.1); minus infinity where the search found no hypothesis.
        tokens (`list[str]`): as generated, so with `</s>` unless the translation is truncated. `score()` tokenizes the
            text instead, which may give other tokens of the same text.
        log_probs (`list[float]`): of each token given the tokens before it, in nats. They are the model's own, without
            logits processors such as `repetition_penalty`.
        alignment (`list` of pairs of `int`, *optional*): the links of source words and target words, as `align` returns
            them, for documents of letters where no spaces divide words; None where a model gives no attention.
        alternatives (`tuple[Translation, ...]`): the other hypotheses, best first; `num_return_sequences` - 1 of them.
        flags (`frozenset[str]`): what may be wrong: `"truncated"` if the length limit ended the translation,
            `"repetition"` if its tokens repeat in a row as those of the source do not, `"longer_than_training"` if the
            source has more tokens than any that the model was trained on, and `"split"` if it was split therefore.
    """

    text: str
    score: float
    tokens: list[str]
    log_probs: list[float]
    alignment: list[tuple[int, int]] | None
    alternatives: tuple["Translation", ...] = ()
    flags: frozenset[str] = frozenset()


def untranslated(text: str, words: re.Pattern[str] = WORDS) -> Translation:
    """Return a text as its own translation, because the model does not get it.

    Each word that the pattern finds is linked with itself.
    """
    count = len(words.findall(text))
    return Translation(text, 0.0, [], [], [(word, word) for word in range(count)])


def describe(
    inference: Inference, aligner: Aligner | None, sources: list[Tokenized], sequences: torch.Tensor, settings: Any
) -> list[Translation]:
    """The best hypothesis of each sentence with its details, by forced decoding, and the others as its alternatives.

    `sequences`, `(sentences, hypotheses, target)`, are those of a search with these settings, best hypothesis first.
    Without an aligner there is no forced decoding, and no alternatives.
    """
    if aligner is None:
        sequences = sequences[:, :1]
    tokenizer, count = inference.tokenizer, sequences.shape[1]
    eos = settings.eos_token_id
    eos = {eos} if isinstance(eos, int) else set(eos or ())
    stops = [stops] if isinstance(stops := settings.stop_strings or [], str) else stops
    rows = [_generated(row, eos, tokenizer.pad_token_id) for row in sequences.flatten(0, 1).tolist()]
    sources = [source for source in sources for _ in range(count)]
    decoded = {}
    if aligner is not None:
        present = [index for index, row in enumerate(rows) if row]
        sides = [sources[index][1] for index in present], [rows[index] for index in present]
        forced_targets = forced_decoding(inference, *sides, with_attention=aligner.has_attention)
        decoded = {present[index]: forced for index, forced in forced_targets}
    penalty, target_side = length_penalty_of(settings), sides_of(tokenizer)[1]
    found = []
    for index, text in enumerate(tokenizer.batch_decode(rows, skip_special_tokens=True)):
        source, row = sources[index], rows[index]
        log_probs, attention = decoded.get(index, ([], None))
        score = sum(log_probs) / penalty(len(log_probs)) if log_probs else -math.inf
        links = aligner(source, (text, row), attention) if aligner is not None and attention is not None else None
        flags = {
            "truncated": not (eos.intersection(row[-1:]) or any(map(text.__contains__, stops)))
            or len(row) >= _limit_with_forced_eos(settings, len(source[1])),
            "repetition": has_loop(row) and not has_loop(source[1]),
            "longer_than_training": len(source[1]) > longest_training_source(tokenizer),
        }
        raised = frozenset(name for name, is_so in flags.items() if is_so)
        found.append(Translation(text, score, target_side.convert_ids_to_tokens(row), log_probs, links, flags=raised))
    return [
        best._replace(alternatives=tuple(other for other in others if other.tokens))
        for best, *others in (found[start : start + count] for start in range(0, len(found), count))
    ]


def _limit_with_forced_eos(settings: Any, source_length: int) -> float:
    """The length at which EOS takes the place of whatever would follow, as in OPUS-MT's settings; infinite without."""
    if settings.forced_eos_token_id is None:
        return math.inf
    if not limits_length(settings) and (offset := getattr(settings, "max_length_offset", None)) is not None:
        return source_length + offset
    return settings.max_new_tokens or (settings.max_length or math.inf) - 1


def _generated(row: list[int], eos: set[int], pad: int) -> list[int]:
    """The tokens of a hypothesis, without its start token, up to EOS or to the padding at its end."""
    ids = row[1:]
    for position, token in enumerate(ids, start=1):
        if token in eos:
            return ids[:position]
    while ids and ids[-1] == pad:
        ids.pop()
    return ids


def has_loop(tokens: list[Any], most_tokens: int = 8, least_times: int = 4) -> bool:
    """Whether some tokens are repeated in a row so often that a model is likely to have been caught in a loop.

    At most `most_tokens` must occur `least_times` in a row; one or two tokens, three times as often.
    """
    for length in range(1, most_tokens + 1):
        repeated = 0
        needed = length * ((least_times if length > 2 else 3 * least_times) - 1)
        for position in range(length, len(tokens)):
            repeated = repeated + 1 if tokens[position] == tokens[position - length] else 0
            if repeated >= needed:
                return True
    return False
