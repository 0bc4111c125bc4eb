"""Decoding in plain Python: forward passes of single sentences, without padding and without a cache."""

import itertools
from collections.abc import Callable, Iterable

import torch
from transformers.modeling_outputs import Seq2SeqLMOutput


BOS, EOS = 1, 2


def forced_pass(model, source: torch.Tensor, target: torch.Tensor, **kwargs) -> Seq2SeqLMOutput:
    """The model's outputs for one source, `(source,)`, and one target, `(target,)`, that begins with `<s>`."""
    with torch.no_grad():
        return model(input_ids=source[None], decoder_input_ids=target[None], use_cache=False, **kwargs)


def forced_logits(model, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """`(target - 1, vocabulary)`: what predicts each target token but the first."""
    return forced_pass(model, source, target[:-1]).logits[0]


def forced_log_probabilities(model, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """`(target - 1,)`: of each target token but the first."""
    return forced_logits(model, source, target).log_softmax(-1).gather(-1, target[1:, None])[:, 0]


def greedy_search(
    model, source: torch.Tensor, prefix: torch.Tensor, steps: int, eos: Iterable[int] = (EOS,)
) -> torch.Tensor:
    """The most probable token, `steps` times or until one of `eos`; `(target,)`, the prefix included."""
    target = prefix
    for _ in range(steps):
        logits = forced_pass(model, source, target).logits
        target = torch.cat([target, logits[0, -1:].argmax(-1)])
        if target[-1] in eos:
            break
    return target


def gnmt_penalty(length: int) -> float:
    """Wu et al. 2016, with the paper's alpha."""
    return ((5 + length) / 6) ** 0.6


def hf_penalty(length: int) -> float:
    """transformers' own, with the paper's alpha."""
    return length**0.6


def beam_search(
    model,
    source: torch.Tensor,
    num_beams: int,
    steps: int,
    penalty: Callable[[int], float] = gnmt_penalty,
    prefix: torch.Tensor | None = None,
    eos: Iterable[int] = (EOS,),
) -> list[tuple[float, list[int]]]:
    """The `num_beams` best scores and targets, from a search that never stops before `steps` tokens.

    Those that have not ended by then come behind all that have.
    """
    eos = set(eos)
    running = [(0.0, [BOS] if prefix is None else prefix.tolist())]
    ended: list[tuple[float, list[int]]] = []
    for step in range(1, steps + 1):
        targets = torch.tensor([tokens for _, tokens in running])
        with torch.no_grad():
            logits = model(input_ids=source.expand(len(running), -1), decoder_input_ids=targets, use_cache=False).logits
        log_probabilities = logits[:, -1].log_softmax(-1).tolist()
        candidates = [
            (score + row[token], [*tokens, token])
            for (score, tokens), row in zip(running, log_probabilities, strict=True)
            for token in range(len(row))
        ]
        # Enough that `num_beams` remain if each beam finishes with every EOS token.
        candidates = sorted(candidates, reverse=True)[: (1 + len(eos)) * num_beams]
        ended += [(score / penalty(step), tokens) for score, tokens in candidates if tokens[-1] in eos]
        running = [candidate for candidate in candidates if candidate[1][-1] not in eos][:num_beams]
    cut = [(score / penalty(steps), tokens) for score, tokens in running]
    return [*sorted(ended, reverse=True), *sorted(cut, reverse=True)][:num_beams]


def exhaustive_search(
    model, source: torch.Tensor, steps: int, penalty: Callable[[int], float]
) -> list[tuple[float, list[int]]]:
    """Scores and targets, best first, of everything that a vocabulary can say in at most `steps` tokens.

    What does not end comes behind all that does.
    """
    words = [token for token in range(model.config.vocab_size) if token != EOS]

    def scored(length: int, *end: int) -> list[tuple[float, list[int]]]:
        targets = torch.tensor([[BOS, *tokens, *end] for tokens in itertools.product(words, repeat=length)])
        with torch.no_grad():
            logits = model(source.expand(len(targets), -1), decoder_input_ids=targets[:, :-1], use_cache=False).logits
        totals = logits.log_softmax(-1).gather(-1, targets[:, 1:, None]).sum(dim=(1, 2))
        return list(zip((totals / penalty(targets.shape[1] - 1)).tolist(), targets.tolist(), strict=True))

    ended = [pair for length in range(steps) for pair in scored(length, EOS)]
    return [*sorted(ended, reverse=True), *sorted(scored(steps), reverse=True)]
