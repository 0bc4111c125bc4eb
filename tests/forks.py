"""Runs programs in forks of one process that has imported torch, which takes long and reads no setting of the Hub's.

huggingface_hub, transformers and datasets read the environment when they are imported, so each fork imports them.

Usage: python -I forks.py; a JSON object a line asks for a run: program, arguments, environment, folder.
"""

import gc
import json
import os
import runpy
import signal
import sys
import tempfile
import time
from importlib import import_module


TAKES_LONG = ("numpy", "pandas", "pyarrow", "torch._dynamo")
TAKES_LONG += ("torch.distributed.checkpoint", "torch.distributed.fsdp", "torch.distributed.tensor")
SECONDS = 300


def run(program: str, arguments: list[str], environment: dict[str, str], folder: str) -> dict:
    """Exit code, output and errors."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = os.fork()
        if process == 0:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(output.fileno(), 1)
            os.dup2(errors.fileno(), 2)
            os.environ.clear()
            os.environ.update(environment)
            os.chdir(folder)
            sys.argv = [program, *arguments]
            runpy.run_path(program, run_name="__main__")
            sys.exit()
        returncode = wait_for(process)
        for file in (output, errors):
            file.seek(0)
        return {"returncode": returncode, "stdout": output.read().decode(), "stderr": errors.read().decode()}


def wait_for(process: int) -> int:
    """The exit code, or minus the signal that it died of."""
    until = time.monotonic() + SECONDS
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            os.kill(process, signal.SIGKILL)
        time.sleep(0.02)


if __name__ == "__main__":
    for name in TAKES_LONG:
        import_module(name)
    gc.freeze()  # Or else each fork passes over these modules while it imports others.
    assert not {"datasets", "hf_vanilla_transformer", "huggingface_hub", "transformers"} & set(sys.modules)
    for line in sys.stdin:
        print(json.dumps(run(**json.loads(line))), flush=True)
