"""`python -m hf_vanilla_transformer VERB ...`: the command line, see [`hf_vanilla_transformer.apps.cli`]."""

import os
import sys
from contextlib import suppress

import torch

import hf_vanilla_transformer_launcher as launcher


def restart() -> None:
    """Replace this process by the launcher's if OpenMP should wait otherwise, because torch has been imported.

    The environment of the new process holds the variable, so no process restarts twice.
    """
    place = len(sys.orig_argv) - len(sys.argv)
    if sys.orig_argv[max(place - 1, 0) : place + 1] != ["-m", __package__] or launcher.reason_against(sys.argv[1:]):
        return
    if torch.get_num_threads() == 1 or torch.accelerator.is_available():
        return
    command = [sys.executable, *sys.orig_argv[1:place], launcher.__name__, *sys.argv[1:]]
    with suppress(OSError):
        os.execve(sys.executable, command, {**os.environ, launcher.VARIABLE: launcher.VALUE})


if __name__ == "__main__":
    restart()
    # torch, which has been imported, reads this variable later.
    launcher.avoid_cudnn_attention(sys.argv[1:])
    from .apps.cli.main import main

    main()
