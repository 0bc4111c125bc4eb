"""Runs the checks on the device that stands for a GPU, and writes down what came out.

Usage: python -m tests.device.compare LIBRARY OUTPUT; the output maps each check to an error, or to null.
"""

import json
import sys
import traceback
from pathlib import Path
from unittest import mock

import pytest
import torch

from hf_vanilla_transformer.model import modeling_vanilla_transformer as modeling
from tests.device import checks, second_device


def tensors_of_both_are_refused(device: str) -> None:
    x = torch.ones(2, device=device)
    for mix in (lambda: x + torch.ones(2), lambda: torch.cat([x, torch.ones(2)]), lambda: x.cpu() @ x):
        with pytest.raises(RuntimeError, match="same device"):
            mix()


def positions_computed_there(device: str) -> None:
    """Where the tokens are, as on NVIDIA's GPUs, or else on the CPU."""
    with mock.patch.object(modeling, "_DEVICES_WITH_FLOAT64", ("cpu", device)):
        checks.positions(device)
        checks.logits(device)


CHECKS = [tensors_of_both_are_refused, positions_computed_there, *checks.CHECKS]


def main(library: str, output: str) -> None:
    second_device.register(Path(library))
    errors: dict[str, str | None] = dict.fromkeys(check.__name__ for check in CHECKS)
    for check in CHECKS:
        try:
            check(second_device.NAME)
        except (Exception, pytest.fail.Exception):
            errors[check.__name__] = traceback.format_exc()
    Path(output).write_text(json.dumps(errors), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
