"""Print versions, what the CPU and the GPU can compute, threads, and which fast paths are on.

hf-vanilla-transformer info
hf-vanilla-transformer info --json
"""

import json
import os
from dataclasses import dataclass
from typing import Any

from hf_vanilla_transformer_launcher import VALUE, VARIABLE, reason_against

from ...support.build_arguments import option
from .machine_report import describe_machine
from .parser import parse, program


@dataclass
class InfoArguments:
    """How to print."""

    json: bool = option(False, "Print one JSON object instead of text.")


@program
def main(arguments: list[str]) -> dict[str, Any]:
    """Print the description; returns it."""
    args = parse(InfoArguments, __doc__, arguments, "info")
    info = {**describe_machine(), "openmp": openmp()}
    print(json.dumps(info, indent=2) if args.json else as_text(info))
    return info


def openmp() -> dict[str, str | None]:
    """Describe how OpenMP's threads wait in verbs of `hf-vanilla-transformer`: the variable, None if unset, and why."""
    reason_to_leave_it = reason_against(["train"])
    if reason_to_leave_it:
        return {VARIABLE: os.environ.get(VARIABLE), "reason": reason_to_leave_it}
    setter = "hf-vanilla-transformer sets it for verbs that compute (python -m hf_vanilla_transformer does not)"
    return {VARIABLE: VALUE, "reason": setter}


def as_text(info: dict[str, Any]) -> str:
    """The description as lines of text."""
    machine = info["machine"]
    versions = {**info["versions"], **{name: found or "-" for name, found in info["optional_packages"].items()}}
    lines = [f"{name} {found}" for name, found in versions.items()]
    lines += ["", f"CPU: {machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads of torch"]
    lines += [f"OpenMP: {VARIABLE}={info['openmp'][VARIABLE] or 'default'}, because {info['openmp']['reason']}"]
    has = [f"{name} {'yes' if found else 'no'}" for name, found in info["cpu_capabilities"].items()]
    lines += [f"CPU capabilities: {', '.join(has)}; torch uses {machine['instructions']}"]
    lines += [f"GPU: {machine['accelerator'] or 'none'}", "", "fast paths:"]
    for path, state in info["fast_paths"].items():
        lines.append(f"  {path}: {'on' if state['on'] else 'off, because ' + state['reason']}")
    return "\n".join(lines)
