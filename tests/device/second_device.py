"""Builds the device of second_device.cpp and has torch know it, as "second". That cannot be undone in a process."""

import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils import cpp_extension


NAME = "second"
SOURCE = Path(__file__).with_suffix(".cpp")


def build(library: Path) -> None:
    """Compile the device into a library."""
    headers = [f"-I{folder}" for folder in cpp_extension.include_paths()]
    libraries = [f"-L{folder}" for folder in cpp_extension.library_paths()] + ["-lc10", "-ltorch_cpu", "-ltorch"]
    options = ["-std=c++20", "-O0", "-w", "-fPIC", "-shared", *headers]
    subprocess.run(["g++", *options, str(SOURCE), "-o", str(library), *libraries], check=True)


def register(library: Path) -> None:
    """Load the device into this process."""
    torch.ops.load_library(library)
    torch.utils.rename_privateuse1_backend(NAME)
    module: Any = ModuleType(f"torch.{NAME}")
    module.is_available = module.is_initialized = lambda: True
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module._is_in_bad_fork = lambda: False
    module.manual_seed_all = lambda seed: None
    module.get_amp_supported_dtype = lambda: [torch.bfloat16]
    # Its random numbers are the CPU's, whose state torch keeps anyway.
    module.get_rng_state = lambda device=0: torch.empty(0, dtype=torch.uint8)
    module.set_rng_state = lambda state, device=0: None
    torch._register_device_module(NAME, module)
    torch.utils.generate_methods_for_privateuse1_backend()
