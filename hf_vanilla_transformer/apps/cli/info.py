"""Print library versions, the capabilities of the CPU and the GPU, the number of threads, and which fast paths
(optimized implementations) are on.

hf-vanilla-transformer info
hf-vanilla-transformer info --json
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hf_vanilla_transformer_launcher import VALUE as SPIN_COUNT
from hf_vanilla_transformer_launcher import VARIABLE as SPIN_VARIABLE
from hf_vanilla_transformer_launcher import reason_against

from ...support.build_arguments import option
from .machine_report import describe_machine
from .parser import parse, program


@dataclass
class InfoArguments:
    """The command-line argument that selects the output format."""

    json: bool = option(False, "Print one JSON object instead of text.")


@program
def main(arguments: list[str]) -> dict[str, Any]:
    """Print a description of this machine, and return it."""
    args = parse(InfoArguments, __doc__, arguments, "info")
    info = {**describe_machine(), "openmp": describe_openmp()}
    if args.json:
        text = json.dumps(info, indent=2)
    else:
        text = format_info(info)
    print(text)
    return info


def describe_openmp() -> dict[str, str | None]:
    """Predict the value that the environment variable GOMP_SPINCOUNT would have in a verb such as `train`.

    The variable decides how long OpenMP's threads wait for work before they sleep. The launcher, which starts the verbs
    of `hf-vanilla-transformer`, sets it for verbs that run a model. `info` runs none, so its own environment does not
    show the value.

    The result has two keys. The first is the name of the variable, with the predicted value, or None if the variable
    would not be set. The second is `"reason"`, which explains why the variable would have this value.
    """
    # This is why the launcher would not set the variable, such as "there is one thread". It is an empty string if the
    # launcher would set it.
    why_not_set_by_launcher = reason_against(["train"])
    if why_not_set_by_launcher:
        # The verb would get the user's own value, if there is one.
        spin_count = os.environ.get(SPIN_VARIABLE)
        reason_for_value = why_not_set_by_launcher
    else:
        spin_count = SPIN_COUNT
        reason_for_value = (
            "hf-vanilla-transformer sets it for verbs that compute (python -m hf_vanilla_transformer does not)"
        )
    return {SPIN_VARIABLE: spin_count, "reason": reason_for_value}


def format_info(info: Mapping[str, Any]) -> str:
    """Format the description of a machine, which [`main`] returns, as lines of text.

    The text has three blocks: the versions of packages, the hardware, and the fast paths.
    """
    return "\n".join(
        [
            *_describe_packages(info),
            "",
            *_describe_hardware(info),
            "",
            "fast paths:",
            *_describe_fast_paths(info),
        ]
    )


def _describe_packages(info: Mapping[str, Any]) -> list[str]:
    """Return a line about each package. A minus sign stands for the version of one that is not installed."""
    lines = [f"{package} {version}" for package, version in info["versions"].items()]
    for package, version in info["optional_packages"].items():
        lines.append(f"{package} {version or '-'}")
    return lines


def _describe_fast_paths(info: Mapping[str, Any]) -> list[str]:
    """Return a line about each fast path, with the reason if it is off."""
    lines = []
    for path, state in info["fast_paths"].items():
        if state["on"]:
            lines.append(f"  {path}: on")
        else:
            lines.append(f"  {path}: off, because {state['reason']}")
    return lines


def _describe_hardware(info: Mapping[str, Any]) -> list[str]:
    """Return the lines about the CPU, its threads, and the GPU."""
    machine = info["machine"]
    openmp = info["openmp"]
    # The value is None if the variable is not set.
    spin_count = openmp[SPIN_VARIABLE] or "default"
    capabilities = []
    for name, is_supported in info["cpu_capabilities"].items():
        capabilities.append(f"{name} yes" if is_supported else f"{name} no")
    return [
        f"CPU: {machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads of torch",
        f"OpenMP: {SPIN_VARIABLE}={spin_count}, because {openmp['reason']}",
        f"CPU capabilities: {', '.join(capabilities)}; torch uses {machine['instructions']}",
        f"GPU: {machine['accelerator'] or 'none'}",
    ]
