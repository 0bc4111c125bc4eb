"""Start the command `hf-vanilla-transformer` with two environment variables that make PyTorch faster.

`GOMP_SPINCOUNT` limits how long a waiting OpenMP thread spins. Suppose that a different process occupies the core of
one thread. Without the limit, the other threads spin until that thread continues, which wastes CPU time. PyTorch's
OpenMP library reads the variable when PyTorch is imported. Importing the package imports PyTorch, so this module must
not be part of the package.

`TORCH_CUDNN_SDPA_DEPRIORITIZED` makes PyTorch prefer its own GPU attention kernels to cuDNN's kernels, which build an
execution plan for every new batch shape.

`python -m hf_vanilla_transformer_launcher` is the same command. `python -m hf_vanilla_transformer` sets only the GPU
variable, because Python imports the package, and PyTorch with it, before it runs the package's `__main__`.
"""

import gc
import os
import sys
from collections.abc import Sequence


# This variable tells GNU OpenMP how often a waiting thread checks whether it may continue before it sleeps.
VARIABLE = "GOMP_SPINCOUNT"
VALUE = "3000"
# PyTorch 2.11 and later read this variable when they first compute attention on a GPU.
CUDNN_VARIABLE = "TORCH_CUDNN_SDPA_DEPRIORITIZED"
# The subcommands that compute with a model.
COMPUTING = (
    *("demo", "train", "distill", "plan"),
    *("translate", "evaluate", "score", "align", "average", "convert", "plot", "serve"),
)
_HELP_OPTIONS = {"-h", "--help", "--help_all", "--version"}
# scikit-learn sets these environment variables. They do not affect how threads wait.
_SCIKIT_LEARN_VARIABLES = ("KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK")


def is_about_waiting(name: str) -> bool:
    """Return True if the environment variable controls how idle OpenMP threads wait."""
    if name in ("OMP_WAIT_POLICY", VARIABLE):
        return True
    return name.startswith("KMP_") and name not in _SCIKIT_LEARN_VARIABLES


def computes(arguments: Sequence[str]) -> bool:
    """Return True if a command line runs a subcommand that computes with a model, and does not only print help."""
    if not arguments or arguments[0] not in COMPUTING:
        return False
    return _HELP_OPTIONS.isdisjoint(arguments)


def avoid_cudnn_attention(arguments: Sequence[str]) -> None:
    """Make PyTorch prefer its own GPU attention to cuDNN's if the command computes.

    A value that the user has set for the variable stays unchanged.
    """
    if computes(arguments):
        os.environ.setdefault(CUDNN_VARIABLE, "1")


def reason_against(arguments: Sequence[str]) -> str:
    """Return why the launcher leaves OpenMP's spin count unchanged, or an empty string if it should set it."""
    if not computes(arguments):
        return "the command does not compute"
    if sys.platform != "linux":
        return "torch has GNU's OpenMP on Linux only"

    # The variable may hold a list such as "4,2", one number per level of nesting.
    num_threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if num_threads == "1" or len(os.sched_getaffinity(0)) == 1:
        return "there is one thread"

    for name in sorted(os.environ):
        if is_about_waiting(name):
            return f"the user set {name}"
    return ""


def main(arguments: Sequence[str] | None = None) -> None:
    """Set the environment variables that suit the command, and run the command line."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    avoid_cudnn_attention(arguments)
    if not reason_against(arguments):
        os.environ[VARIABLE] = VALUE

    # The objects that imports create are never freed. Without `gc.disable()`, the garbage collector would traverse them
    # again and again, which takes a quarter of the import time.
    gc.disable()
    from hf_vanilla_transformer.apps.cli.main import main as run_command_line

    gc.enable()
    run_command_line(arguments)


if __name__ == "__main__":
    main()
