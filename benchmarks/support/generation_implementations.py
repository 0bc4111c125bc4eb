"""What generation.py compares: models of transformers and CTranslate2 with the same weights, by name.

A name is an implementation and a kind of numbers, such as `marian-bf16`. With `-static` behind it generate() has a
static cache, for which transformers compiles the model on GPUs where there is one beam.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, PreTrainedModel

from benchmarks.peers.ctranslate2_model import CTranslate2Processes, convert, word
from benchmarks.peers.marian import Marian
from benchmarks.support.measuring import synchronise
from hf_vanilla_transformer import Int8Config, VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.model.packed_linear import forget_packed


REFERENCE = "marian-fp32"
STATIC = "-static"


def _marian(model: Any, dtype: torch.dtype) -> PreTrainedModel:
    marian = Marian(model.config, "sdpa")
    marian.copy_weights(model)
    return marian.model.to(dtype).eval()


def _ours(model: Any, dtype: torch.dtype) -> PreTrainedModel:
    copied = VanillaTransformerForConditionalGeneration(model.config)
    copied.load_state_dict(model.state_dict())
    return copied.to(dtype).eval()


def _ours_int8(model: Any) -> PreTrainedModel:
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return AutoModelForSeq2SeqLM.from_pretrained(folder, quantization_config=Int8Config()).eval()


_IN_TRANSFORMERS: dict[str, Callable[[Any], PreTrainedModel]] = {
    "ours-fp32": partial(_ours, dtype=torch.float32),
    "ours-bf16": partial(_ours, dtype=torch.bfloat16),
    "ours-int8": _ours_int8,
    "marian-fp32": partial(_marian, dtype=torch.float32),
    "marian-bf16": partial(_marian, dtype=torch.bfloat16),
}
_IN_CTRANSLATE2 = {"ctranslate2-fp32": "float32", "ctranslate2-int8": "int8"}
_WITH_STATIC_CACHE = [f"{name}-bf16{STATIC}" for name in ("ours", "marian")]
ENTRIES = [*_IN_TRANSFORMERS, *_WITH_STATIC_CACHE, *_IN_CTRANSLATE2]
# Measured where nothing else is asked for.
USUAL_ENTRIES = {
    "cpu": ["ours-fp32", "ours-bf16", "ours-int8", "marian-fp32", *_IN_CTRANSLATE2],
    "cuda": ["ours-fp32", "ours-bf16", "marian-fp32", "marian-bf16"],
}


def usual_entries(device: torch.device, *, of_cells: bool = False) -> list[str]:
    """The entries that suit a device; only in the cells is every shape alike, as a static cache needs it."""
    return USUAL_ENTRIES[device.type] + (_WITH_STATIC_CACHE if of_cells and device.type == "cuda" else [])


def without_missing(names: Sequence[str]) -> list[str]:
    """Entries without those that cannot run here; says which these are."""
    if find_spec("ctranslate2") is not None:
        return list(names)
    for name in names:
        if name in _IN_CTRANSLATE2:
            print(f"{name} is left out: it needs ctranslate2 (pip install ctranslate2)")
    return [name for name in names if name not in _IN_CTRANSLATE2]


@contextmanager
def peers(model: Any, names: Sequence[str], device: torch.device) -> Iterator[dict[str, Any]]:
    """What is compared, by name, all with the weights of one model in float32: models, and `CTranslate2Processes`."""
    processes = {}
    with tempfile.TemporaryDirectory() as folder:
        if any(name in _IN_CTRANSLATE2 for name in names):
            convert(model, Path(folder) / "model")
        try:
            for name in names:
                if name in _IN_CTRANSLATE2:
                    kind = _IN_CTRANSLATE2[name]
                    processes[name] = CTranslate2Processes(Path(folder) / "model", kind, torch.get_num_threads())
            yield {
                name: processes.get(name) or _IN_TRANSFORMERS[name.removesuffix(STATIC)](model).to(device)
                for name in names
            }
        finally:
            for process in processes.values():
                process.close()


def options_of(name: str) -> dict[str, Any]:
    """What an entry gives to generate() besides what all do."""
    return {"cache_implementation": "static"} if name.endswith(STATIC) else {}


@dataclass
class Job:
    """Sentences of equal length to translate into exactly so many tokens."""

    sources: torch.Tensor
    beams: int
    new_tokens: int


class InTransformers:
    """A model of transformers, by its generate().

    Args:
        packs (`bool`): whether calls that pack the weights are timed, too.
        **options: see `options_of`.
    """

    def __init__(self, model: Any, packs: bool = False, **options: Any):
        self.model, self.packs, self.options = model.eval(), packs, options
        # No sentence ends before the last token.
        settings = model.generation_config
        settings.eos_token_id, settings.early_stopping = None, False
        settings.max_length_offset = None

    def begin(self, job: Job) -> dict[str, Any]:
        """Nothing is to be known of a job."""
        return {}

    def run(self, job: Job) -> tuple[float, list[list[int]]]:
        """Seconds, and the tokens found."""
        device = self.model.device
        synchronise(device)
        start = time.perf_counter()
        sources = job.sources.to(device)
        found = self.model.generate(
            sources,
            attention_mask=torch.ones_like(sources),
            num_beams=job.beams,
            max_new_tokens=job.new_tokens,
            eos_token_id=None,
            do_sample=False,
            **self.options,
        )
        synchronise(device)
        return time.perf_counter() - start, found[:, 1:].tolist()


class InCTranslate2:
    """The same model in CTranslate2, timed in its process."""

    packs = False

    def __init__(self, config: VanillaTransformerConfig, processes: CTranslate2Processes):
        self.config, self.processes = config, processes

    def begin(self, job: Job) -> dict[str, Any]:
        """Get ready for a job; returns what is to be known of it."""
        length = {"min_decoding_length": job.new_tokens, "max_decoding_length": job.new_tokens}
        options = {"beam_size": job.beams, "max_batch_size": 0, **length}
        self.processes.choose(self._words(job), options)
        return {"setting": self.processes.described}

    def _words(self, job: Job) -> list[list[str]]:
        return [[word(token, self.config) for token in source] for source in job.sources.tolist()]

    def run(self, job: Job) -> tuple[float, list[list[int]]]:
        """Seconds, and the tokens found."""
        seconds, targets = self.processes.translate(self._words(job))
        tokens = {word(token, self.config): token for token in range(self.config.vocab_size)}
        return seconds, [[tokens[each] for each in target] for target in targets]


def seconds_of(entry: InTransformers | InCTranslate2, job: Job) -> tuple[float, ...]:
    """What a call takes, and behind it, if it is asked for, what one takes that packs the weights anew."""
    if not entry.packs:
        return (entry.run(job)[0],)
    # Of all models, so each packs its own before its other call.
    forget_packed()
    with_packing = entry.run(job)[0]
    return entry.run(job)[0], with_packing
