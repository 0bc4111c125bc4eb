"""The entry point of `hf-vanilla-transformer`. It sets environment variables that torch reads once per process.

The first variable limits the spinning of OpenMP's threads. If another process takes the core of one thread, the other
threads spin until that thread gets it back, which wastes CPU time. The variable must be set before torch is imported.
This module lies outside of the package for that reason, because importing the package imports torch.

The second variable makes torch prefer its own attention on GPUs to that of cuDNN, which builds an execution plan for
every new shape of a batch.

`python -m hf_vanilla_transformer_launcher` is the same command. `python -m hf_vanilla_transformer` sets only the
variable for GPUs, because Python imports the package, and torch with it, before it runs the package's `__main__`.
"""

import gc
import os
import sys
from collections.abc import Sequence


# GNU's OpenMP reads how many times a waiting thread tests whether it may continue before it sleeps.
VARIABLE = "GOMP_SPINCOUNT"
VALUE = "3000"
# torch 2.11 and later read it when they first compute attention on a GPU.
CUDNN_VARIABLE = "TORCH_CUDNN_SDPA_DEPRIORITIZED"
# The verbs of the command line that compute with a model.
COMPUTING = (
    *("demo", "train", "distill", "plan"),
    *("translate", "evaluate", "score", "align", "average", "convert", "plot", "serve"),
)
_HELP_OPTIONS = {"-h", "--help", "--help_all", "--version"}
# scikit-learn sets these in the environment. They do not concern waiting.
_SCIKIT_LEARN_VARIABLES = ("KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK")


def is_about_waiting(name: str) -> bool:
    """Return True if an environment variable sets how OpenMP's threads wait."""
    if name in ("OMP_WAIT_POLICY", VARIABLE):
        return True
    return name.startswith("KMP_") and name not in _SCIKIT_LEARN_VARIABLES


def computes(arguments: Sequence[str]) -> bool:
    """Return True if a command line names a verb that computes, and does not only ask for help."""
    if not arguments or arguments[0] not in COMPUTING:
        return False
    return _HELP_OPTIONS.isdisjoint(arguments)


def avoid_cudnn_attention(arguments: Sequence[str]) -> None:
    """Set the variable for GPUs if the command computes, unless the user has set it."""
    if computes(arguments):
        os.environ.setdefault(CUDNN_VARIABLE, "1")


def reason_against(arguments: Sequence[str]) -> str:
    """Return the reason why the launcher does not set the variable of OpenMP, or an empty string if it does."""
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
    """Set the variables that help, and run the verb that the first argument names."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    avoid_cudnn_attention(arguments)
    if not reason_against(arguments):
        os.environ[VARIABLE] = VALUE

    # The objects that imports create are kept. Without this, the garbage collector would traverse them again and again,
    # which takes a quarter of the time of the imports.
    gc.disable()
    from hf_vanilla_transformer.apps.cli.main import main as run_command_line

    gc.enable()
    run_command_line(arguments)


if __name__ == "__main__":
    main()
