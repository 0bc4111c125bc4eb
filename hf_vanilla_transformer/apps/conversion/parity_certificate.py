"""The certificate of a conversion: how far two models differ that should be equal."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from ...support.user_errors import InputError


# Largest difference of log-probabilities, in nats per token, between models that count as equal.
TOLERANCES = {torch.float32: 1e-4, torch.float64: 1e-9}
_RANDOM_SENTENCES, _LONGEST_RANDOM = 16, 40
_MAX_LENGTH, _BEAMS = 60, 4
# Marian truncates a hypothesis at this many times the tokens of the source; it then has no EOS.
LONGEST_OF_MARIAN = 3

Rows = list[list[int]]


@torch.no_grad()
def compare(
    model: Any,
    oracle: Any,
    real: Rows | None = None,
    *,
    in_float64: bool = False,
    tolerance: float = TOLERANCES[torch.float32],
) -> dict[str, Any]:
    """Compare a converted model with its source, both models of transformers with the same token ids.

    Args:
        model, oracle (`PreTrainedModel`): in float32 and evaluation mode, on the CPU.
        real (`list` of `list` of `int`, *optional*): token ids of real source sentences, EOS included.
        in_float64 (`bool`): compare in float64, too, where the source can compute in it.
        tolerance (`float`): largest difference of log-probabilities in float32, in nats.

    Returns:
        `dict`: `log_probs`, the largest difference of log-probabilities under teacher forcing in nats, for `random` and
        `real` input (targets of the latter are greedy translations of the oracle); `translations`, how many of so many
        `sentences` are equal by `greedy` and by `beam` search, of real input where it is given; `tolerance`; `float64`,
        `log_probs` and `tolerance` of that; and `equal`, whether all differences are within their tolerances.
    """
    # The source may have a table of positions. Of a sentence that is too long, the end.
    longest = min(_MAX_LENGTH, oracle.config.max_position_embeddings)
    sources, targets = ([row[-longest:] for row in random_rows(oracle, seed)] for seed in (0, 1))
    differences = {"random": _largest_difference(model, oracle, sources, targets)}
    if real:
        real = [row[-oracle.config.max_position_embeddings :] for row in real]
        differences["real"] = _largest_difference(model, oracle, real, translate_rows(oracle, real, 1, longest))
    chosen = real or sources
    translations: dict[str, int] = {"sentences": len(chosen)}
    for name, beams in (("greedy", 1), ("beam", _BEAMS)):
        ours, theirs = (translate_rows(each, chosen, beams, longest) for each in (model, oracle))
        translations[name] = sum(one == other for one, other in zip(ours, theirs, strict=True))
    parity = {"log_probs": differences, "translations": translations, "tolerance": tolerance}
    if in_float64:
        exact = {"random": _largest_difference(model.double(), oracle.double(), sources, targets)}
        parity["float64"] = {"log_probs": exact, "tolerance": TOLERANCES[torch.float64]}
        # float32 weights survive this unchanged.
        for each in (model, oracle):
            each.float()
    return {**parity, "equal": not excess(parity)}


@torch.no_grad()
def add_scores(
    parity: dict[str, Any], model: Any, tokenizer: Any, hypotheses: Sequence[tuple[str, str, float]]
) -> dict[str, Any]:
    """The comparison with `marian`: the largest difference per token from scores that Marian gave to whole hypotheses.

    Each hypothesis is a sentence, the SentencePiece tokens of a translation, and its log-probability.
    """
    differences = []
    for sentence, pieces, expected in hypotheses:
        tokenizer._switch_to_target_mode()
        labels = torch.tensor([[*tokenizer.convert_tokens_to_ids(pieces.split()), model.config.eos_token_id]])
        tokenizer._switch_to_input_mode()
        inputs = tokenizer(sentence, return_tensors="pt")
        if labels.shape[1] > LONGEST_OF_MARIAN * inputs.input_ids.shape[1]:
            continue
        logits = model(**inputs, labels=labels, skip_logits=False).logits
        total = float(logits.log_softmax(dim=-1)[0].gather(-1, labels[0][:, None]).sum())
        differences.append(abs(total - expected) / labels.shape[1])
    parity = {**parity, "log_probs": {**parity["log_probs"], "marian": max(differences)}}
    return {**parity, "equal": not excess(parity)}


def check_equal(parity: dict[str, Any], source: str, force: bool) -> None:
    """Raise ValueError, without `force`, if a converted model is not equal to its source."""
    if parity["equal"] is False and not force:
        raise InputError(f"the converted model is not equal to {source}: {excess(parity)}; --force writes it anyway.")


def excess(parity: dict[str, Any]) -> str:
    """The first difference beyond its tolerance, in words; an empty text if there is none."""
    parts = {"float32": parity, "float64": parity.get("float64", {"log_probs": {}})}
    for precision, part in parts.items():
        for difference in part["log_probs"].values():
            # NaN is not within a tolerance.
            if not difference <= part["tolerance"]:
                return f"log-probabilities in {precision} differ by {difference:.2g}, more than {part['tolerance']:g}"
    return ""


def random_rows(model: Any, seed: int) -> Rows:
    """Sentences of random tokens that are not special, EOS at their ends."""
    generator = torch.Generator().manual_seed(seed)
    config = model.config
    eos = config.eos_token_id
    special = {config.pad_token_id, config.bos_token_id, eos, config.decoder_start_token_id}
    names = ("vocab_size", "source_vocab_size", "decoder_vocab_size", "src_vocab_size")
    sizes = [getattr(config, name, None) for name in names]
    words = [token for token in range(min(size for size in sizes if size)) if token not in special]
    lengths = torch.randint(1, _LONGEST_RANDOM, (_RANDOM_SENTENCES,), generator=generator).tolist()
    return [[words[i] for i in torch.randint(len(words), (n,), generator=generator)] + [eos] for n in lengths]


def _pad(rows: Rows, pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and mask, `(batch, length)`, padded on the right."""
    ids, ones = ([torch.tensor(each) for each in part] for part in (rows, [[1] * len(row) for row in rows]))
    return pad_sequence(ids, True, pad), pad_sequence(ones, True)


@torch.no_grad()
def log_probs(model: Any, sources: Rows, targets: Rows) -> torch.Tensor:
    """Log-probabilities `(tokens, vocabulary)` at the real positions of the targets."""
    config = model.config
    ids, mask = _pad(sources, config.pad_token_id)
    labels, real = _pad(targets, config.pad_token_id)
    starts = torch.full((len(labels), 1), config.decoder_start_token_id)
    inputs = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": torch.cat([starts, labels[:, :-1]], dim=1)}
    # With a cache, FSMT reads only the last token.
    output = model(**inputs, use_cache=False)
    return output.logits.log_softmax(dim=-1)[real.bool()]


def _largest_difference(model: Any, oracle: Any, sources: Rows, targets: Rows) -> float:
    differences = []
    # One pair at a time: the first alone shows what padding would hide.
    for batch in (slice(0, 1), slice(1, None)):
        if sources[batch]:
            ours, theirs = (log_probs(each, sources[batch], targets[batch]) for each in (model, oracle))
            differences.append((ours - theirs).abs().max())
    # torch's maximum of NaN is NaN.
    return float(torch.stack(differences).max())


def translate_rows(model: Any, sources: Sequence[list[int]], beams: int, max_length: int, **settings: Any) -> Rows:
    """Generated tokens of each source, without the start token and padding."""
    ids, mask = _pad(list(sources), model.config.pad_token_id)
    best = model.generate(ids, attention_mask=mask, num_beams=beams, max_length=max_length, do_sample=False, **settings)
    rows, eos = best[:, 1:].tolist(), model.config.eos_token_id
    return [row[: row.index(eos) + 1] if eos in row else row for row in rows]


SENTENCES = (
    "The house is small.",
    "A dog runs through the old town, and nobody looks at it.",
    "On 3 May 2021, 1,250 people signed the letter (see page 7).",
    "Why did you not tell me that you would be late?",
    "Two young men play guitar in front of a red wall while a child dances.",
    "Yes.",
    "The committee decided, after a long discussion that nobody had expected, to postpone the vote until autumn.",
    "“Come in!” she said.",
)
