"""Runs commands, each as if it were the first of its process; tests run this file in a process of its own.

It imports the package once, and runs each command in a fork.

Usage: python in_fresh_process.py COMMANDS LIBRARIES, both in JSON
"""

import json
import os
import sys
import tempfile

import transformers.modeling_utils  # noqa: F401


# transformers itself imports torchao with every model, where torchao is installed.
OF_TRANSFORMERS = set(sys.modules)

from hf_vanilla_transformer.apps.cli import main as cli  # noqa: E402


def answer(command: list[str], libraries: list[str]) -> dict:
    """Exit code and output of a command, and which of some libraries were imported for it."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as imported:
        process = os.fork()
        if process == 0:
            os.dup2(output.fileno(), 1)
            os.environ["COLUMNS"] = "200"
            code = 0
            try:
                cli.main(command)
            except SystemExit as end:
                code = end.code
            sys.stdout.flush()
            imported.write(
                json.dumps([name for name in libraries if name in sys.modules and name not in OF_TRANSFORMERS]).encode()
            )
            imported.flush()
            os._exit(code if isinstance(code, int) else 1)
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        for file in (output, imported):
            file.seek(0)
        return {"code": code, "output": output.read().decode(), "imported": json.loads(imported.read())}


if __name__ == "__main__":
    commands, libraries = map(json.loads, sys.argv[1:])
    print(json.dumps({" ".join(command): answer(command, libraries) for command in commands}))
