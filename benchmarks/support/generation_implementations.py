"""The implementations that generation.py compares: models in transformers and CTranslate2 with the same weights.

A name is a model and a precision, such as `marian-bf16`. With `-static`, generate() uses a static cache, and
transformers compiles the model on GPUs if there is one beam.
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

from benchmarks.peers.ctranslate2_processes import CTranslate2Processes, token_text, write_ctranslate2
from benchmarks.support.timing import synchronize
from hf_vanilla_transformer import Int8Config, VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.acceleration.prepacked_weights import forget_packed
from hf_vanilla_transformer.apps.conversion.hf_marian import copy_to_marian, new_marian


BASELINE = "marian-fp32"
STATIC = "-static"


def _marian(model: Any, dtype: torch.dtype) -> PreTrainedModel:
    marian = new_marian(model.config, "sdpa")
    copy_to_marian(model, marian)
    return marian.to(dtype).eval()


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
IN_CTRANSLATE2 = {"ctranslate2-fp32": "float32", "ctranslate2-int8": "int8"}
_WITH_STATIC_CACHE = [f"{name}-bf16{STATIC}" for name in ("ours", "marian")]
IMPLEMENTATIONS = [*_IN_TRANSFORMERS, *_WITH_STATIC_CACHE, *IN_CTRANSLATE2]
_DEFAULTS = {
    "cpu": ["ours-fp32", "ours-bf16", "ours-int8", "marian-fp32", *IN_CTRANSLATE2],
    "cuda": ["ours-fp32", "ours-bf16", "marian-fp32", "marian-bf16"],
}


def default_implementations(device: torch.device, *, static_cache: bool = False) -> list[str]:
    """The default implementations on a device.

    Args:
        device: where they run.
        static_cache: whether to add those with a static cache on GPUs; all inputs must then have one shape.
    """
    return _DEFAULTS[device.type] + (_WITH_STATIC_CACHE if static_cache and device.type == "cuda" else [])


def without_missing(names: Sequence[str]) -> list[str]:
    """The names whose libraries are installed; prints the others."""
    if find_spec("ctranslate2") is not None:
        return list(names)
    for name in names:
        if name in IN_CTRANSLATE2:
            print(f"{name} is left out: ctranslate2 is not installed; install the extra.")
    return [name for name in names if name not in IN_CTRANSLATE2]


@contextmanager
def with_weights_of(model: Any, names: Sequence[str], device: torch.device) -> Iterator[dict[str, Any]]:
    """The named implementations with the weights of a float32 model: models, or `CTranslate2Processes`."""
    processes = {}
    with tempfile.TemporaryDirectory() as folder:
        if any(name in IN_CTRANSLATE2 for name in names):
            write_ctranslate2(model, Path(folder) / "model")
        try:
            for name in names:
                if name in IN_CTRANSLATE2:
                    compute_type = IN_CTRANSLATE2[name]
                    threads = torch.get_num_threads()
                    processes[name] = CTranslate2Processes(Path(folder) / "model", compute_type, threads)
            yield {
                name: processes.get(name) or _IN_TRANSFORMERS[name.removesuffix(STATIC)](model).to(device)
                for name in names
            }
        finally:
            for process in processes.values():
                process.close()


def generate_kwargs_of(name: str) -> dict[str, Any]:
    """Arguments of generate() that only this implementation gets."""
    return {"cache_implementation": "static"} if name.endswith(STATIC) else {}


@dataclass
class Job:
    """Sources of shape (batch, source) to translate into exactly `new_tokens` tokens each."""

    sources: torch.Tensor
    beams: int
    new_tokens: int


class InTransformers:
    """A model timed through its generate().

    Args:
        packs (`bool`): whether to time calls that pack the weights, too.
        **options: see `generate_kwargs_of`.
    """

    def __init__(self, model: Any, packs: bool = False, **options: Any):
        self.model, self.packs, self.options = model.eval(), packs, options
        # No sentence ends before the last token.
        settings = model.generation_config
        settings.eos_token_id, settings.early_stopping = None, False
        settings.max_length_offset = None

    def prepare(self, job: Job) -> dict[str, Any]:
        """Prepare for a job; returns figures to store, here none."""
        return {}

    def run(self, job: Job) -> tuple[float, list[list[int]]]:
        """Seconds of the call, and the new tokens of each sentence."""
        device = self.model.device
        synchronize(device)
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
        synchronize(device)
        return time.perf_counter() - start, found[:, 1:].tolist()


class InCTranslate2:
    """A model in CTranslate2, timed in its own process."""

    packs = False

    def __init__(self, config: VanillaTransformerConfig, processes: CTranslate2Processes):
        self.config, self.processes = config, processes

    def prepare(self, job: Job) -> dict[str, Any]:
        """Choose the fastest setting for a job; returns its description to store."""
        length = {"min_decoding_length": job.new_tokens, "max_decoding_length": job.new_tokens}
        options = {"beam_size": job.beams, "max_batch_size": 0, **length}
        self.processes.choose(self._texts(job), options)
        return {"setting": self.processes.described}

    def _texts(self, job: Job) -> list[list[str]]:
        return [[token_text(token, self.config) for token in source] for source in job.sources.tolist()]

    def run(self, job: Job) -> tuple[float, list[list[int]]]:
        """Seconds of the call, and the new tokens of each sentence."""
        seconds, targets = self.processes.translate(self._texts(job))
        ids = {token_text(token, self.config): token for token in range(self.config.vocab_size)}
        return seconds, [[ids[text] for text in target] for target in targets]


def seconds_of(implementation: InTransformers | InCTranslate2, job: Job) -> tuple[float, ...]:
    """Seconds of a call, and, if the implementation packs, of a call that packs the weights again."""
    if not implementation.packs:
        return (implementation.run(job)[0],)
    # This forgets the packed weights of all models, so each packs its own before its other call.
    forget_packed()
    with_packing = implementation.run(job)[0]
    return implementation.run(job)[0], with_packing
