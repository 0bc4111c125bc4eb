"""Text in, text or log-probabilities out."""

import copy
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from tqdm.auto import tqdm
from transformers import GenerationConfig, PreTrainedTokenizerBase

from .model.cpu_decoder import supports_cpu_decoder
from .model.fast_path import is_unmodified
from .model.generation_vanilla_transformer import length_penalty_of
from .model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from .model.pipeline_vanilla_transformer import evaluating


_ONE_TRANSLATION = {"num_return_sequences": 1, "return_dict_in_generate": False}
# Batches that are translated at the same time on CPUs, and the least number of batches of each.
_SIDE_BY_SIDE, _BATCHES_OF_EACH = 2, 2
# What a thread tells torch of its number of threads is the default of threads to come, too.
_sharing_threads_out = threading.Lock()


@torch.inference_mode()
def translate(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Iterable[str],
    batch_tokens: int = 4096,
    show_progress: bool = False,
    **generate_kwargs: Any,
) -> list[str]:
    """Translate sentences, in batches of similar length, and return the translations in the order of the sentences.

    On CPUs two batches are translated at the same time, each with half of torch's threads, where nothing depends on
    their order: small products are shared out badly among threads. For their shares `torch.set_num_threads` is called,
    after which torch's fused attention takes longer on CPUs until the process ends.

    Args:
        model (`PreTrainedModel`): used in evaluation mode, and left in the mode that it was in.
        tokenizer (`PreTrainedTokenizerBase`): of the model.
        sentences (`Iterable[str]`): sources; an empty or blank one has an empty translation.
        batch_tokens (`int`): most source tokens of a batch, padding included; a longer sentence is a batch of its own.
        show_progress (`bool`): whether to show a progress bar, in sentences.
        **generate_kwargs: arguments of `generate()`, such as `num_beams`.

    Returns:
        `list[str]`: one translation a sentence.

    Raises:
        TypeError: if `sentences` is one string, or holds something else than strings.
        ValueError: if `generate_kwargs` asks for more than one translation a sentence, or for more than tokens.
    """
    sentences = _list_of_strings("sentences", sentences)
    options = _for_one_translation(generate_kwargs)
    translations = [""] * len(sentences)
    indices = [index for index, sentence in enumerate(sentences) if sentence.strip()]
    encoded = tokenizer([sentences[index] for index in indices]).input_ids if indices else []
    progress = tqdm(total=len(indices), desc="translating", unit=" sentences", disable=not show_progress)

    @torch.inference_mode()
    def generate(batch: list[int]) -> torch.Tensor:
        inputs = tokenizer.pad({"input_ids": [encoded[row] for row in batch]}, return_tensors="pt")
        return model.generate(**inputs.to(model.device), **options)

    with evaluating(model), progress:
        lengths = [len(ids) for ids in encoded]
        at_once = _SIDE_BY_SIDE if sum(lengths) > batch_tokens and _may_run_side_by_side(model, options) else 1
        if at_once > 1:
            batch_tokens = min(batch_tokens, -(-sum(lengths) // (at_once * _BATCHES_OF_EACH)))
        batches = list(_batches(lengths, batch_tokens))
        with _mapping(at_once) as map_each:
            for batch, output in zip(batches, map_each(generate, batches), strict=True):
                for row, text in zip(batch, tokenizer.batch_decode(output, skip_special_tokens=True), strict=True):
                    translations[indices[row]] = text
                progress.update(len(batch))
    return translations


def _for_one_translation(generate_kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `generate()` that say, too, what the model's own settings may say otherwise.

    Raises:
        ValueError: if they ask for more than one translation a sentence, or for more than tokens.
    """
    given = generate_kwargs.get("generation_config")
    for name, single in _ONE_TRANSLATION.items():
        asked_for = generate_kwargs.get(name), getattr(given, name, None)
        if any(value not in (None, single) for value in asked_for):
            raise ValueError(f"{name} does not go with one translation a sentence; call model.generate() for that.")
    if given is None:
        return {**generate_kwargs, **_ONE_TRANSLATION}
    # transformers takes settings or arguments, and not both.
    settings = copy.deepcopy(given)
    settings.update(**_ONE_TRANSLATION)
    others = {name: value for name, value in generate_kwargs.items() if name not in _ONE_TRANSLATION}
    return {**others, "generation_config": settings}


def _is_plain(value: Any) -> bool:
    # Not lists of another kind, such as transformers' own of processors.
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, (bool, int, float, str, type(None), GenerationConfig))


def _may_run_side_by_side(model: Any, options: dict[str, Any]) -> bool:
    """Whether batches of a model can be translated in any order, and threads are there for that.

    Nothing is drawn by lot, nothing of the user's own listens or keeps a state, and the model is ours.
    """
    # What one leaves open, the next one says.
    said = [
        options.get("do_sample"),
        *(getattr(each, "do_sample", None) for each in (options.get("generation_config"), model.generation_config)),
    ]
    return (
        torch.get_num_threads() >= _SIDE_BY_SIDE
        and isinstance(model, VanillaTransformerForConditionalGeneration)
        and supports_cpu_decoder(model)
        and all(map(is_unmodified, model.modules()))
        and not next((do_sample for do_sample in said if do_sample is not None), False)
        and _is_plain(list(options.values()))
    )


@contextmanager
def _mapping(at_once: int) -> Iterator[Callable]:
    """What maps a function over arguments, so many at the same time, each in a thread with its share of torch's."""
    if at_once == 1:
        yield map
        return
    executor = ThreadPoolExecutor(at_once)
    try:
        _share_threads_out(executor, at_once)
        yield executor.map
    finally:
        executor.shutdown(cancel_futures=True)


def _share_threads_out(executor: ThreadPoolExecutor, workers: int) -> None:
    """Give each worker its share of torch's threads, and leave the default as it is."""
    # With a limit, or else one would wait for ever for another that the system did not start.
    threads, all_here = torch.get_num_threads(), threading.Barrier(workers, timeout=60)

    def take_share(worker: int) -> None:
        # A thread that has not asked yet would take the default later.
        torch.get_num_threads()
        torch.set_num_threads(threads // workers)
        all_here.wait()

    with _sharing_threads_out:
        try:
            list(executor.map(take_share, range(workers)))
        finally:
            torch.set_num_threads(threads)


class Score(NamedTuple):
    """How probable a model finds a translation.

    Args:
        tokens (`list[str]`): of the translation, `</s>` at the end.
        log_probs (`list[float]`): of each token after those before it, in nats.
        total (`float`): their sum, log P(Y | X).
        normalized (`float`): log P(Y | X) / lp(Y), what the beams of the model's `generation_config` compete by.
    """

    tokens: list[str]
    log_probs: list[float]
    total: float
    normalized: float


@torch.inference_mode()
def score(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    sources: Iterable[str],
    targets: Iterable[str],
    batch_tokens: int = 4096,
    show_progress: bool = False,
) -> list[Score]:
    """Log-probabilities of given translations, from one forward pass for each batch.

    Args:
        model (`PreTrainedModel`): used in evaluation mode, and left in the mode that it was in.
        tokenizer (`PreTrainedTokenizerBase`): of the model.
        sources, targets (`Iterable[str]`): sentences, and a translation of each.
        batch_tokens (`int`): most tokens of a batch on each side, padding included; a longer pair is one of its own.
        show_progress (`bool`): whether to show a progress bar, in pairs.

    Returns:
        `list[Score]`: of each pair, in their order.

    Raises:
        TypeError: if a side is one string, or holds something else than strings.
        ValueError: if there are more sentences on one side than on the other, or the model's `generation_config` has a
            length penalty that there is not.
    """
    sources, targets = _list_of_strings("sources", sources), _list_of_strings("targets", targets)
    if len(sources) != len(targets):
        raise ValueError(f"there are {len(sources)} sources and {len(targets)} targets; give one target a source.")
    if not sources:
        return []
    source_ids, target_ids = tokenizer(sources).input_ids, tokenizer(text_target=targets).input_ids
    penalty = length_penalty_of(model.generation_config)
    scores: list[Any] = [None] * len(sources)
    progress = tqdm(total=len(sources), desc="scoring", unit=" pairs", disable=not show_progress)
    with evaluating(model), progress:
        lengths = [max(map(len, pair)) for pair in zip(source_ids, target_ids, strict=True)]
        for batch in _batches(lengths, batch_tokens):
            padded = (
                tokenizer.pad({"input_ids": [ids[row] for row in batch]}, return_tensors="pt", padding_side="right")
                for ids in (source_ids, target_ids)
            )
            source, target = (side.to(model.device) for side in padded)
            labels = target.input_ids.masked_fill(target.attention_mask == 0, -100)
            decoder_input_ids = model.prepare_decoder_input_ids_from_labels(labels)
            logits = model(**source, decoder_input_ids=decoder_input_ids, use_cache=False).logits
            for row, of_row, ids in zip(batch, logits, target.input_ids, strict=True):
                # One after the other: all of them take as much memory as the logits.
                log_probs = (
                    of_row.float().log_softmax(dim=-1).gather(-1, ids[:, None])[: len(target_ids[row]), 0].tolist()
                )
                total = sum(log_probs)
                tokens: Any = tokenizer.convert_ids_to_tokens(target_ids[row])
                scores[row] = Score(tokens, log_probs, total, total / penalty(len(log_probs)))
            progress.update(len(batch))
    return scores


def _list_of_strings(name: str, sentences: Iterable[str]) -> list[str]:
    if isinstance(sentences, str):
        raise TypeError(f"{name} is one string; give a list of sentences, of one if need be.")
    sentences = list(sentences)
    for sentence in sentences:
        if not isinstance(sentence, str):
            raise TypeError(f"{name} holds {sentence!r}, a {type(sentence).__name__}; give strings.")
    return sentences


def _batches(lengths: list[int], batch_tokens: int) -> Iterator[list[int]]:
    """Rows sorted by length, longest first so that too large a batch shows at once, in groups of `batch_tokens`."""
    batch: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if batch and (len(batch) + 1) * lengths[batch[0]] > batch_tokens:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch
