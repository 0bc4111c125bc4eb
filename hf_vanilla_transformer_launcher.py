"""Entry point of `hf-vanilla-transformer`: it sets environment variables that torch reads once per process.

One limits the spinning of OpenMP's threads, and must be set before torch is imported: if another process has the core
of one thread, the other threads spin until that thread gets it again. This module lies outside of the package, because
importing the package imports torch.

The other has torch prefer its own attention on GPUs to that of cuDNN, which builds an execution plan for every new
shape of a batch.

`python -m hf_vanilla_transformer_launcher` is the same command. `python -m hf_vanilla_transformer` sets only the
variable for GPUs, because Python imports the package, and torch with it, before it runs the package's `__main__`.
"""

import gc
import os
import sys
from collections.abc import Sequence


VARIABLE, VALUE = "GOMP_SPINCOUNT", "3000"
# torch 2.11 and later read it when they first compute attention on a GPU.
CUDNN_VARIABLE = "TORCH_CUDNN_SDPA_DEPRIORITIZED"
_OF_MODELS = ("translate", "evaluate", "score", "align", "average", "convert", "plot", "serve")
COMPUTING = ("demo", "train", "distill", "plan", *_OF_MODELS)
# scikit-learn sets these in the environment, and they do not concern waiting.
_SCIKIT_LEARN_VARIABLES = ("KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK")


def is_about_waiting(name: str) -> bool:
    """Whether an environment variable sets how OpenMP's threads wait."""
    return name in ("OMP_WAIT_POLICY", VARIABLE) or (name.startswith("KMP_") and name not in _SCIKIT_LEARN_VARIABLES)


def computes(arguments: Sequence[str]) -> bool:
    """Whether the arguments of the command line name a verb that computes, and do not only ask for help."""
    asks_for_help = {"-h", "--help", "--help_all", "--version"} & {*arguments}
    return bool(arguments) and arguments[0] in COMPUTING and not asks_for_help


def avoid_cudnn_attention(arguments: Sequence[str]) -> None:
    """Set the variable of cuDNN for verbs that compute, unless the user has set it."""
    if computes(arguments):
        os.environ.setdefault(CUDNN_VARIABLE, "1")


def reason_against(arguments: Sequence[str]) -> str:
    """Return why the launcher does not set the variable of OpenMP; empty if it does."""
    if not computes(arguments):
        return "the command does not compute"
    if sys.platform != "linux":
        return "torch has GNU's OpenMP on Linux only"
    if os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip() == "1" or len(os.sched_getaffinity(0)) == 1:
        return "there is one thread"
    return next((f"the user set {name}" for name in sorted(os.environ) if is_about_waiting(name)), "")


def main(arguments: Sequence[str] | None = None) -> None:
    """Set the variables that help, and run the verb that the first argument names."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    avoid_cudnn_attention(arguments)
    if not reason_against(arguments):
        os.environ[VARIABLE] = VALUE
    # To traverse again and again what imports make, and keep, would be a quarter of their time.
    gc.disable()
    from hf_vanilla_transformer.apps.cli.main import main as run

    gc.enable()
    run(arguments)


if __name__ == "__main__":
    main()
