"""Scores, tokens, alignment and flags of a translation, by forced decoding of the hypotheses of a search."""

import math
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedTokenizerBase

from ..model.generation_settings import length_penalty_of
from ..model.tokenization_two_vocabularies import sides_of
from .alignment import Aligner
from .forced_decoding import Forced, forced_decoding
from .inference_batches import batches


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
            them; None where a model gives no attention.
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


# Of an empty or blank sentence, which is not given to the model.
BLANK = Translation("", 0.0, [], [], [])


def describe(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    sources: list[tuple[str, list[int]]],
    sequences: torch.Tensor,
    settings: Any,
    batch_tokens: int,
    aligner: Aligner,
) -> list[Translation]:
    """The details of the hypotheses of some sentences, by forced decoding.

    Args:
        model (`PreTrainedModel`, or an `Engine` as of `load_engine`): in evaluation mode.
        tokenizer (`PreTrainedTokenizerBase`): of the model.
        sources (`list` of `tuple`): each sentence and its token ids.
        sequences (`torch.LongTensor` of shape `(sentences, hypotheses, target)`): what `generate()` returned, best
            hypothesis first.
        settings (`GenerationConfig`): of the search.
        batch_tokens (`int`): maximum number of tokens per batch on each side, padding included.
        aligner (`Aligner`): makes the alignments.

    Returns:
        `list[Translation]`: one per sentence, the best, with the others as its alternatives.
    """
    eos = settings.eos_token_id
    eos = {eos} if isinstance(eos, int) else set(eos or ())
    count = sequences.shape[1]
    rows = [_generated(row, eos, tokenizer.pad_token_id) for row in sequences.flatten(0, 1).tolist()]
    texts = tokenizer.batch_decode(rows, skip_special_tokens=True)
    penalty, target_side = length_penalty_of(settings), sides_of(tokenizer)[1]
    found = []
    sources = [source for source in sources for _ in range(count)]
    decoded = _forced_decoding(model, tokenizer, [ids for _, ids in sources], rows, batch_tokens, aligner.heads)
    for source, row, text, (scores, attention) in zip(sources, rows, texts, decoded, strict=True):
        score = sum(scores) / penalty(len(scores)) if scores else -math.inf
        links = None if attention is None else aligner(source, (text, row), attention)
        flags = _flags(source[1], row, eos, tokenizer.model_max_length)
        found.append(Translation(text, score, target_side.convert_ids_to_tokens(row), scores, links, flags=flags))
    return [_best(found[start : start + count]) for start in range(0, len(found), count)]


def _flags(source: list[int], row: list[int], eos: set[int], longest: int) -> frozenset[str]:
    found = {
        "truncated": not eos.intersection(row[-1:]),
        "repetition": has_loop(row) and not has_loop(source),
        "longer_than_training": len(source) > longest,
    }
    return frozenset(name for name, is_so in found.items() if is_so)


def has_loop(tokens: list[Any], most_tokens: int = 8, least_times: int = 4) -> bool:
    """Whether some tokens are repeated in a row so often that a model is likely to have been caught in a loop.

    Args:
        tokens (`list`): of a sentence or its translation.
        most_tokens (`int`): longest sequence that counts.
        least_times (`int`): how often it must occur in a row; sequences of one or two tokens, three times as often.
    """
    for length in range(1, most_tokens + 1):
        repeated = 0
        needed = length * ((least_times if length > 2 else 3 * least_times) - 1)
        for position in range(length, len(tokens)):
            repeated = repeated + 1 if tokens[position] == tokens[position - length] else 0
            if repeated >= needed:
                return True
    return False


def _best(hypotheses: list[Translation]) -> Translation:
    best, *others = hypotheses
    return best._replace(alternatives=tuple(other for other in others if other.tokens))


def _generated(row: list[int], eos: set[int], pad: int) -> list[int]:
    """The tokens of a hypothesis, without its start token, up to EOS or to the padding at its end."""
    ids = row[1:]
    ends = [position + 1 for position, token in enumerate(ids) if token in eos]
    if ends:
        return ids[: ends[0]]
    while ids and ids[-1] == pad:
        ids.pop()
    return ids


def _forced_decoding(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    sources: list[list[int]],
    targets: list[list[int]],
    batch_tokens: int,
    heads: list[tuple[int, int]],
) -> list[Forced]:
    """Forced decoding in batches, in the order of the pairs; of a target without tokens, nothing."""
    found = [Forced([], None)] * len(targets)
    present = [row for row, target in enumerate(targets) if target]
    lengths = [max(len(sources[row]), len(targets[row])) for row in present]
    for batch in batches(lengths, batch_tokens):
        rows = [present[index] for index in batch]
        source_ids, target_ids = ([side[row] for row in rows] for side in (sources, targets))
        decoded = forced_decoding(model, tokenizer, source_ids, target_ids, heads)
        for row, each in zip(rows, decoded, strict=True):
            found[row] = each
    return found
