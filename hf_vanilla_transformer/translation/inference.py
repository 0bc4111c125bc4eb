"""What translating, scoring and aligning share: checks, batches of similar length, and forced decoding."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from ..data.target_language import TargetCodes
from ..model.input_checks import check_vocabulary
from ..support.argument_checks import check_number, check_strings
from ..support.user_errors import InputError
from .concurrent_use import encode
from .engine import Engine


# Of one target: the log-probability of each token given those before it, in nats; and on the CPU, the cross-attention
# `(heads, target, source)` of the requested heads in the step that predicts each token.
_Forced = tuple[list[float], torch.Tensor | None]


@dataclass(frozen=True)
class Inference:
    """A model with its tokenizer, and the size of the batches that it gets; a longer sentence is its own batch.

    `target_lang` is the target language of sources without a code, for a model of several target languages.
    """

    model: Any
    tokenizer: PreTrainedTokenizerBase
    tokens_per_batch: int
    show_progress: bool = False
    target_lang: str | None = None

    def __post_init__(self) -> None:
        check_number("tokens_per_batch", self.tokens_per_batch, 1)
        check_vocabulary(self.model.config, self.tokenizer)
        self.codes()  # Raises for a language that the model does not have.

    def codes(self) -> TargetCodes:
        """Return what puts the codes of target languages before sources."""
        return TargetCodes(self.tokenizer, self.target_lang)

    def tokenize_pairs(
        self, sources: Iterable[str], targets: Iterable[str]
    ) -> tuple[list[str], list[str], list[list[int]], list[list[int]]]:
        """Sentences and their translations, and the token ids of each of them.

        The ids of a source begin with the code of its target language if the model needs one.
        """
        sources, targets = list(check_strings("sources", sources)), list(check_strings("targets", targets))
        if len(sources) != len(targets):
            raise InputError(f"there are {len(sources)} sources and {len(targets)} targets; give a target per source.")
        if not sources:
            return [], [], [], []
        codes = self.codes()
        source_ids = encode(self.tokenizer, [codes.put_before(source) for source in sources]).input_ids
        return sources, targets, source_ids, encode(self.tokenizer, text_target=targets).input_ids

    def batches(self, lengths: list[int], task: str, unit: str) -> Iterator[list[int]]:
        """Rows in batches, longest first, so that running out of memory shows at once; with a progress bar."""
        rows, start = sorted(range(len(lengths)), key=lambda row: -lengths[row]), 0
        with tqdm(total=len(rows), desc=task, unit=f" {unit}", disable=not self.show_progress) as progress:
            while start < len(rows):
                batch = rows[start : start + max(1, self.tokens_per_batch // max(1, lengths[rows[start]]))]
                yield batch
                progress.update(len(batch))
                start += len(batch)


def forced_decoding(
    inference: Inference,
    sources: list[list[int]],
    targets: list[list[int]],
    heads: Sequence[Sequence[int]] = (),
    task: str = "",
) -> Iterator[tuple[int, _Forced]]:
    """Yield the row of each pair with its log-probabilities and attention, from one forward pass per batch.

    Token ids are without the token that decoding starts from; no row is empty, and the model is in evaluation mode.
    `heads` are pairs of decoder layer and head, of a model of this package; an engine returns the average of its own
    heads as that of one. Longest pairs come first.
    """
    lengths = [max(map(len, pair)) for pair in zip(sources, targets, strict=True)]
    for batch in inference.batches(lengths, task, "pairs"):
        source_ids, target_ids = ([side[row] for row in batch] for side in (sources, targets))
        yield from zip(batch, _decode(inference, source_ids, target_ids, heads), strict=True)


def _decode(
    inference: Inference, sources: list[list[int]], targets: list[list[int]], heads: Sequence[Sequence[int]]
) -> Iterator[_Forced]:
    model = inference.model
    if isinstance(model, Engine):
        attention = [each[None] for each in model.attention(sources, targets)] if heads else [None] * len(targets)
        yield from zip(model.log_probs(sources, targets), attention, strict=True)
        return
    source, target = (
        inference.tokenizer.pad({"input_ids": side}, return_tensors="pt", padding_side="right").to(model.device)
        for side in (sources, targets)
    )
    labels = target.input_ids.masked_fill(target.attention_mask == 0, -100)
    decoder_input_ids = model.prepare_decoder_input_ids_from_labels(labels)
    options = {"output_hidden_states": True} if heads else {}
    output = model(**source, decoder_input_ids=decoder_input_ids, use_cache=False, **options)
    logits, weights = output.logits, {}
    log_probabilities = getattr(model, "log_probabilities", partial(torch.log_softmax, dim=-1))
    for layer in {layer for layer, _ in heads}:
        states = output.decoder_hidden_states[layer], output.encoder_last_hidden_state
        weights[layer] = _cross_attention(model.get_decoder().layers[layer], *states, source.attention_mask)
    # Row by row, because all log-probabilities take as much memory as the logits.
    for row, (source_ids, ids) in enumerate(zip(sources, targets, strict=True)):
        log_probs = log_probabilities(logits[row].float()).gather(-1, target.input_ids[row, :, None])
        chosen = [weights[layer][row, head, : len(ids), : len(source_ids)] for layer, head in heads]
        yield log_probs[: len(ids), 0].tolist(), torch.stack(chosen).float().cpu() if chosen else None


def _cross_attention(layer: Any, x: torch.Tensor, source: torch.Tensor, source_mask: torch.Tensor) -> torch.Tensor:
    """The cross-attention `(batch, heads, target, source)` of a decoder layer, from its input and the encoder's output.

    Asking the model for its attention instead would compute, and keep, that of all layers.
    """
    look_ahead_mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()[None, None]
    x = layer.attend_to_target(x, attention_mask=look_ahead_mask, output_attentions=True)
    return layer.encoder_attn(x, source, source_mask[:, None, None].bool(), output_attentions=True)[1]
