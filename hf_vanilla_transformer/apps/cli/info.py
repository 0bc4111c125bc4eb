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

from hf_vanilla_transformer_launcher import VALUE, VARIABLE, reason_against

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
    info = {**describe_machine(), "openmp": openmp()}
    print(json.dumps(info, indent=2) if args.json else format_info(info))
    return info


def openmp() -> dict[str, str | None]:
    """Return the setting that decides how OpenMP's threads wait for work, and the reason for its value.

    The result maps the name of the environment variable to its value, or to None if it is not set, and `"reason"` to
    the reason. It holds for verbs that run a model, such as `train`.
    """
    reason_to_leave_it = reason_against(["train"])
    if reason_to_leave_it:
        return {VARIABLE: os.environ.get(VARIABLE), "reason": reason_to_leave_it}
    setter = "hf-vanilla-transformer sets it for verbs that compute (python -m hf_vanilla_transformer does not)"
    return {VARIABLE: VALUE, "reason": setter}


def format_info(info: Mapping[str, Any]) -> str:
    """Format the description of a machine as lines of text."""
    machine = info["machine"]
    lines = [f"{package} {version}" for package, version in info["versions"].items()]
    lines += [f"{package} {version or '-'}" for package, version in info["optional_packages"].items()]

    lines.append("")
    lines.append(f"CPU: {machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads of torch")
    spin_count = info["openmp"][VARIABLE] or "default"
    lines.append(f"OpenMP: {VARIABLE}={spin_count}, because {info['openmp']['reason']}")
    capabilities = []
    for name, is_supported in info["cpu_capabilities"].items():
        capabilities.append(f"{name} yes" if is_supported else f"{name} no")
    lines.append(f"CPU capabilities: {', '.join(capabilities)}; torch uses {machine['instructions']}")
    lines.append(f"GPU: {machine['accelerator'] or 'none'}")

    lines.append("")
    lines.append("fast paths:")
    for path, state in info["fast_paths"].items():
        lines.append(f"  {path}: on" if state["on"] else f"  {path}: off, because {state['reason']}")
    return "\n".join(lines)
