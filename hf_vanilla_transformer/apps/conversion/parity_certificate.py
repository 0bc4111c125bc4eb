"""Compare a converted model with its source, and collect the results in a certificate, which becomes `parity.json`.

The certificate states how far the log-probabilities of both models differ, and how many of their translations are
equal.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ...support.user_errors import InputError


# Largest difference between log-probabilities, in nats per token, of models that count as equal.
TOLERANCES = {torch.float32: 1e-4, torch.float64: 1e-9}
# The number of random sentences, and their maximum length including EOS. Random sentences draw from the whole
# vocabulary and from many lengths, which a few real sentences cannot cover.
_RANDOM_SENTENCES = 16
_LONGEST_RANDOM = 40
# The length limit of the translations that are compared, in tokens. It leaves room for all of `SENTENCES`, and bounds
# the time of the comparison if an untrained model never ends its sentences.
_MAX_LENGTH = 60
# The beam size of the translations that are compared. The paper's beam search has 4 beams, too.
_NUM_BEAMS = 4
# Marian truncates a hypothesis at this multiple of the source's length. A truncated hypothesis has no EOS.
LONGEST_OF_MARIAN = 3

# Token ids, one list for each sentence.
Rows = list[list[int]]
# The certificate's content, as it is written to parity.json.
Certificate = dict[str, Any]

# Source sentences on which conversions are compared by default: short and long ones, numbers, and quotation marks.
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


@dataclass(frozen=True)
class ScoredHypothesis:
    """A translation that a different system, such as Marian, generated and scored.

    Args:
        source: the source sentence.
        tokens: the SentencePiece tokens of the translation, separated by spaces.
        log_prob: the log-probability that the system assigns to the whole translation, in nats.
    """

    source: str
    tokens: str
    log_prob: float


@torch.no_grad()
def compare(
    model: PreTrainedModel,
    oracle: PreTrainedModel,
    real: Rows | None = None,
    *,
    in_float64: bool = False,
    tolerance: float = TOLERANCES[torch.float32],
) -> Certificate:
    """Compare the log-probabilities and the translations of a converted model and its source (the oracle).

    Args:
        model, oracle (`PreTrainedModel`): the converted model and its source, both in float32 and evaluation mode, on
            the CPU. Their token ids must be the same.
        real (`list` of `list` of `int`, *optional*): token ids of real source sentences, including EOS.
        in_float64 (`bool`): compare in float64 as well. The source must be able to compute in float64.
        tolerance (`float`): largest accepted difference between log-probabilities in float32, in nats.

    Returns:
        `dict` with these fields:

        - `log_probs`: the largest difference between log-probabilities under teacher forcing, in nats, for `random`
          input and, if given, for `real` input. The targets of real input are the oracle's greedy translations.
        - `translations`: the number of `sentences`, real ones if they are given, and how many of their translations
          are equal with `greedy` and with `beam` search.
        - `tolerance`: the argument.
        - `float64`: `log_probs` and `tolerance` of the float64 comparison, if requested.
        - `equal`: True if all differences are within their tolerances.
    """
    # The oracle may have a position table of this size, which limits the lengths of sources and targets.
    max_length = min(_MAX_LENGTH, oracle.config.max_position_embeddings)
    random_sources, random_targets = _draw_random_pairs(oracle, max_length)
    differences = {"random": _largest_difference(model, oracle, random_sources, random_targets)}
    if real:
        real_sources, real_targets = _translate_real_sources(oracle, real, max_length)
        differences["real"] = _largest_difference(model, oracle, real_sources, real_targets)
        translations = _compare_translations(model, oracle, real_sources, max_length)
    else:
        translations = _compare_translations(model, oracle, random_sources, max_length)

    certificate: Certificate = {"log_probs": differences, "translations": translations, "tolerance": tolerance}
    if in_float64:
        difference = _largest_difference_in_float64(model, oracle, random_sources, random_targets)
        certificate["float64"] = {"log_probs": {"random": difference}, "tolerance": TOLERANCES[torch.float64]}
    certificate["equal"] = is_within_tolerances(certificate)
    return certificate


def _draw_random_pairs(oracle: PreTrainedModel, max_length: int) -> tuple[Rows, Rows]:
    """Draw random sources and random targets of at most `max_length` tokens from the oracle's vocabulary."""
    sources = truncate_rows(random_rows(oracle, seed=0), max_length)
    targets = truncate_rows(random_rows(oracle, seed=1), max_length)
    return sources, targets


def _translate_real_sources(oracle: PreTrainedModel, real: Rows, max_length: int) -> tuple[Rows, Rows]:
    """Return real sources, truncated to the oracle's positions, and the oracle's greedy translations of them."""
    sources = truncate_rows(real, oracle.config.max_position_embeddings)
    targets = translate_rows(oracle, sources, num_beams=1, max_length=max_length)
    return sources, targets


def _compare_translations(
    model: PreTrainedModel, oracle: PreTrainedModel, sources: Rows, max_length: int
) -> dict[str, int]:
    """Count the sources for which both models produce the same translation, with greedy search and with beam search."""
    return {
        "sentences": len(sources),
        "greedy": _count_equal_translations(model, oracle, sources, 1, max_length),
        "beam": _count_equal_translations(model, oracle, sources, _NUM_BEAMS, max_length),
    }


def _largest_difference_in_float64(
    model: PreTrainedModel, oracle: PreTrainedModel, sources: Rows, targets: Rows
) -> float:
    """Compute the log-probabilities of two float32 models in float64, and return their largest difference, in nats.

    Both models are converted to float64 in place, and converted back at the end.
    """
    model.double()
    oracle.double()
    try:
        return _largest_difference(model, oracle, sources, targets)
    finally:
        # Converting float32 weights to float64 and back does not change them.
        model.float()
        oracle.float()


def _count_equal_translations(
    model: PreTrainedModel, oracle: PreTrainedModel, sources: Rows, num_beams: int, max_length: int
) -> int:
    """Translate the sources with both models, and count the equal translations."""
    model_translations = translate_rows(model, sources, num_beams, max_length)
    oracle_translations = translate_rows(oracle, sources, num_beams, max_length)
    return count_equal(model_translations, oracle_translations)


@torch.no_grad()
def add_scores(
    parity: Certificate,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    hypotheses: Sequence[ScoredHypothesis],
) -> Certificate:
    """Compare our scores with Marian's scores of the same translations, and add the result to a certificate.

    Returns a new certificate, in which `log_probs` has the entry `marian`. It is the largest difference between the
    total log-probabilities of a hypothesis, in nats per token. Hypotheses that Marian truncated are skipped, and at
    least one must remain.
    """
    differences = []
    for hypothesis in hypotheses:
        difference = _compare_scores(model, tokenizer, hypothesis)
        if difference is not None:
            differences.append(difference)

    extended = dict(parity)
    extended["log_probs"] = {**parity["log_probs"], "marian": max(differences)}
    extended["equal"] = is_within_tolerances(extended)
    return extended


def _compare_scores(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, hypothesis: ScoredHypothesis
) -> float | None:
    """Return the difference between our score and Marian's score of a hypothesis, in nats per token.

    Returns None if Marian truncated the hypothesis. Its score then does not include EOS, so it cannot be compared.
    """
    inputs = tokenizer(hypothesis.source, return_tensors="pt")
    target_ids = [*_read_target_tokens(tokenizer, hypothesis.tokens), model.config.eos_token_id]
    source_length = inputs.input_ids.shape[1]
    target_length = len(target_ids)
    if target_length > LONGEST_OF_MARIAN * source_length:
        return None
    our_log_prob = _log_prob_of_target(model, inputs, target_ids)
    return abs(our_log_prob - hypothesis.log_prob) / target_length


def _read_target_tokens(tokenizer: PreTrainedTokenizerBase, tokens: str) -> list[int]:
    """Convert target tokens, which are separated by spaces, to token ids of a `MarianTokenizer`."""
    # The tokenizer looks tokens up in its source vocabulary, unless it is in target mode.
    tokenizer._switch_to_target_mode()
    token_ids: Any = [tokenizer.convert_tokens_to_ids(token) for token in tokens.split()]
    tokenizer._switch_to_input_mode()
    return token_ids


def _log_prob_of_target(model: PreTrainedModel, inputs: Mapping[str, torch.Tensor], target_ids: list[int]) -> float:
    """Return the log-probability, in nats, that a model assigns to a whole target, given one tokenized source."""
    labels = torch.tensor([target_ids])  # (1, target)
    # With `skip_logits=True`, the model would return no logits.
    logits = model(**inputs, labels=labels, skip_logits=False).logits
    all_log_probs = logits.log_softmax(dim=-1)[0]  # (target, vocabulary)
    # `gather` picks the log-probability of each target token.
    target_log_probs = all_log_probs.gather(-1, labels[0][:, None])  # (target, 1)
    return float(target_log_probs.sum())


def check_equal(parity: Certificate, source: str, force: bool) -> None:
    """Raise ValueError if a certificate says that a model is not equal to its source, unless `force` is True."""
    if parity["equal"] is False and not force:
        raise InputError(
            f"the converted model is not equal to {source}: {describe_excess(parity)}; --force writes it anyway."
        )


def is_within_tolerances(parity: Certificate) -> bool:
    """Return True if all differences of a certificate are within their tolerances."""
    return describe_excess(parity) == ""


def describe_excess(parity: Certificate) -> str:
    """Describe the first difference that exceeds its tolerance, or return an empty string if there is none."""
    comparisons = {"float32": parity}
    if "float64" in parity:
        comparisons["float64"] = parity["float64"]
    for precision, comparison in comparisons.items():
        tolerance = comparison["tolerance"]
        for difference in comparison["log_probs"].values():
            # A comparison with NaN is False, so `difference > tolerance` would miss a difference that is NaN.
            is_within_tolerance = difference <= tolerance
            if not is_within_tolerance:
                return f"log-probabilities in {precision} differ by {difference:.2g}, more than {tolerance:g}"
    return ""


def random_rows(model: PreTrainedModel, seed: int) -> Rows:
    """Draw sentences of random tokens from a model's vocabulary, without special tokens, and append EOS to each."""
    generator = torch.Generator().manual_seed(seed)
    tokens = _list_ordinary_tokens(model.config)
    # The lengths without EOS. `randint` excludes its upper limit, so that EOS does not exceed the longest length.
    lengths = torch.randint(1, _LONGEST_RANDOM, (_RANDOM_SENTENCES,), generator=generator)
    rows = []
    for length in lengths.tolist():
        indices = torch.randint(len(tokens), (length,), generator=generator)
        row = [tokens[index] for index in indices.tolist()]
        rows.append([*row, model.config.eos_token_id])
    return rows


def _list_ordinary_tokens(config: PreTrainedConfig) -> list[int]:
    """List the token ids that are in all vocabularies of a model, without special tokens."""
    # The configuration has None instead of a token that the model lacks.
    special_tokens = {config.pad_token_id, config.bos_token_id, config.eos_token_id, config.decoder_start_token_id}
    size = _find_smallest_vocabulary(config)
    return [token for token in range(size) if token not in special_tokens]


def _find_smallest_vocabulary(config: PreTrainedConfig) -> int:
    """Return the size of the smallest vocabulary of a model. Configurations name the sizes differently."""
    sizes = []
    for field in ("vocab_size", "source_vocab_size", "decoder_vocab_size", "src_vocab_size"):
        size = getattr(config, field, None)
        if size:
            sizes.append(size)
    return min(sizes)


def truncate_rows(rows: Rows, max_length: int) -> Rows:
    """Truncate sentences to `max_length` tokens. They lose their first tokens, so that they still end in EOS."""
    return [row[-max_length:] for row in rows]


def _pad(rows: Rows, pad_token: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad rows of token ids on the right, and return the ids and their mask, both of shape `(batch, length)`."""
    ids = [torch.tensor(row) for row in rows]
    # 1 for tokens. `pad_sequence` adds 0 for padding.
    masks = [torch.ones_like(row) for row in ids]
    padded_ids = pad_sequence(ids, batch_first=True, padding_value=pad_token)
    mask = pad_sequence(masks, batch_first=True)
    return padded_ids, mask


@torch.no_grad()
def log_probs(model: PreTrainedModel, sources: Rows, targets: Rows) -> torch.Tensor:
    """Compute the log-probabilities of the whole vocabulary at each target position, under teacher forcing.

    Returns a tensor of shape `(target tokens, vocabulary)`, in which all targets are concatenated without padding.
    """
    config = model.config
    source_ids, source_mask = _pad(sources, config.pad_token_id)
    labels, target_mask = _pad(targets, config.pad_token_id)
    # The decoder reads the targets shifted by one position, after the start token.
    start_tokens = torch.full((len(labels), 1), config.decoder_start_token_id)
    decoder_input_ids = torch.cat([start_tokens, labels[:, :-1]], dim=1)  # (batch, target)
    # The cache is off because, with a cache, FSMT would read only the last token.
    output = model(
        input_ids=source_ids, attention_mask=source_mask, decoder_input_ids=decoder_input_ids, use_cache=False
    )
    all_log_probs = output.logits.log_softmax(dim=-1)  # (batch, target, vocabulary)
    # The mask removes padding and concatenates the targets.
    return all_log_probs[target_mask.bool()]  # (target tokens, vocabulary)


def _largest_difference(model: PreTrainedModel, oracle: PreTrainedModel, sources: Rows, targets: Rows) -> float:
    """Return the largest difference between two models' log-probabilities, in nats, or NaN if one of them is NaN."""
    # The first pair is compared alone, because padding could hide an error. The other pairs form one padded batch.
    batches = [(sources[:1], targets[:1])]
    if len(sources) > 1:
        batches.append((sources[1:], targets[1:]))
    differences = []
    for batch_sources, batch_targets in batches:
        # Both tensors have the shape (target tokens, vocabulary).
        model_log_probs = log_probs(model, batch_sources, batch_targets)
        oracle_log_probs = log_probs(oracle, batch_sources, batch_targets)
        differences.append((model_log_probs - oracle_log_probs).abs().max())
    # PyTorch's max() returns NaN if a value is NaN, but Python's may not.
    return float(torch.stack(differences).max())


def translate_rows(
    model: PreTrainedModel, sources: Sequence[list[int]], num_beams: int, max_length: int, **settings: object
) -> Rows:
    """Translate tokenized sources with greedy search or beam search.

    Args:
        model: any translation model of transformers.
        sources: token ids of the sources, including EOS.
        num_beams, max_length, settings: arguments of `generate`.

    Returns:
        The token ids of each translation, including EOS but without the start token and without padding.
    """
    ids, mask = _pad(list(sources), model.config.pad_token_id)
    outputs = model.generate(  # type: ignore[operator]
        ids, attention_mask=mask, num_beams=num_beams, max_length=max_length, do_sample=False, **settings
    )
    without_start_tokens = outputs[:, 1:].tolist()
    return [_remove_padding(row, model.config.eos_token_id) for row in without_start_tokens]


def _remove_padding(row: list[int], eos: int) -> list[int]:
    """Return a translation without padding. Only padding follows the first EOS."""
    # A translation at the length limit has neither EOS nor padding.
    if eos not in row:
        return row
    end = row.index(eos) + 1
    return row[:end]


def count_equal(translations: Sequence[Sequence[object]], expected: Sequence[Sequence[object]]) -> int:
    """Count the translations that are equal to the expected translations of the same sentences."""
    equal_pairs = 0
    for translation, expected_translation in zip(translations, expected, strict=True):
        if translation == expected_translation:
            equal_pairs += 1
    return equal_pairs
