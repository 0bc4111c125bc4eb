"""Entry point of the command line: it limits the spinning of OpenMP's threads before torch is imported.

If another process has the core of one thread, the other threads spin until that thread gets it again. This module lies
outside of the package, because importing the package imports torch.
"""

import gc
import os
import sys
from collections.abc import Sequence


VARIABLE, VALUE = "GOMP_SPINCOUNT", "3000"
_OF_MODELS = ("translate", "evaluate", "score", "align", "average", "convert", "plot", "serve")
COMPUTING = ("demo", "train", "distill", "plan", *_OF_MODELS)
# scikit-learn sets these in the environment, and they do not concern waiting.
_SCIKIT_LEARN_VARIABLES = ("KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK")


def is_about_waiting(name: str) -> bool:
    """Whether an environment variable sets how OpenMP's threads wait."""
    return name in ("OMP_WAIT_POLICY", VARIABLE) or (name.startswith("KMP_") and name not in _SCIKIT_LEARN_VARIABLES)


def reason_against(arguments: Sequence[str]) -> str:
    """Why the command line does not set the variable; empty if it does."""
    if not {*arguments[:1]} & {*COMPUTING} or {"-h", "--help", "--help_all", "--version"} & {*arguments}:
        return "the command does not compute"
    if sys.platform != "linux":
        return "torch has GNU's OpenMP on Linux only"
    if os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip() == "1" or len(os.sched_getaffinity(0)) == 1:
        return "there is one thread"
    return next((f"the user set {name}" for name in sorted(os.environ) if is_about_waiting(name)), "")


def main(arguments: Sequence[str] | None = None) -> None:
    """Set the variable if it helps, and run the verb that the first argument names."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not reason_against(arguments):
        os.environ[VARIABLE] = VALUE
    # To traverse again and again what imports make, and keep, would be a quarter of their time.
    gc.disable()
    from hf_vanilla_transformer.cli.main import main as run

    gc.enable()
    run(arguments)


if __name__ == "__main__":
    main()
