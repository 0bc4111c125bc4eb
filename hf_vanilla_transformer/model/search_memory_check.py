"""Estimate the memory that a search takes, and raise ValueError before a search that does not fit."""

from pathlib import Path
from typing import Any

import torch


# Tensors of `(rows, vocabulary)` in float32 that a step holds at the same time: logits, log-probabilities, candidates.
_TENSORS_OF_LOGITS = 4
# Tokens that a translation is longer than its source at most, unless it never ends.
_USUAL_OFFSET = 50
# Positions that the CPU decoder's cache holds in reserve for each hypothesis.
_FREE_POSITIONS = 8
# Of a number in float32.
_BYTES = 4
# Searches below this many bytes are not checked.
_SMALL = 2**30


def check_memory(model: Any, rows: int, source: int, settings: Any) -> None:
    """Check that a search fits into the memory that is available.

    Args:
        model (`VanillaTransformerForConditionalGeneration`): the model.
        rows (`int`): hypotheses of the whole batch, beams included.
        source (`int`): length of the longest source in tokens.
        settings (`GenerationConfig`): of this call, with its `max_length`.

    Raises:
        ValueError: if it does not fit.
    """
    config, beams = model.config, settings.num_beams or 1
    positions = min(settings.max_length, source + _USUAL_OFFSET)
    keys_values = config.num_heads * (config.key_dim + config.value_dim) * config.decoder_layers * positions
    # On CPUs each hypothesis has a mask over the positions of all hypotheses of its sentence.
    mask = beams * (positions + _FREE_POSITIONS) if model.device.type == "cpu" else 0
    needed = _BYTES * rows * (config.vocab_size * _TENSORS_OF_LOGITS + keys_values + mask)
    if needed < _SMALL or torch.compiler.is_compiling():
        return
    available = available_memory(model.device)
    if available is not None and needed > available:
        raise ValueError(
            f"the search of {rows // beams} sentences with {beams} beams takes about {needed / 1e9:,.0f} GB, but "
            f"{available / 1e9:,.0f} GB are available; give fewer num_beams, or fewer sentences at a time."
        )


def available_memory(device: torch.device) -> int | None:
    """Bytes that the system or the GPU can still give; None where that is unknown."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    path = Path("/proc/meminfo")
    if device.type != "cpu" or not path.is_file():
        return None
    lines = (line.partition(":") for line in path.read_text(encoding="utf-8").splitlines())
    found = {name: value for name, _, value in lines}
    return int(found["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in found else None
