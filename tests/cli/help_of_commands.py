"""Runs scripts with --help, each as if it were all that a process does; tests run it in a process of its own.

What all of them import is imported once, and each runs in a fork. The library `evaluate` is not among it, because
scripts/evaluate.py hides it from a script that looks in its own folder first.

Usage: python -P help_of_scripts.py SCRIPT ...
"""

import json
import os
import runpy
import sys
import tempfile
from pathlib import Path

import datasets  # noqa: F401
import sacrebleu  # noqa: F401
import torch  # noqa: F401
import transformers.quantizers.auto  # noqa: F401
import yaml  # noqa: F401
from transformers import (  # noqa: F401
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    GenerationMixin,
    HfArgumentParser,
    Pipeline,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TokenizersBackend,
    pipelines,
)


def help_of(script: str) -> dict:
    """Exit code, output and errors."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = os.fork()
        if process == 0:
            os.dup2(output.fileno(), 1)
            os.dup2(errors.fileno(), 2)
            # Commands of benchmarks/ start anew with a setting of the allocator, unless one is given.
            os.environ.setdefault("GLIBC_TUNABLES", "")
            sys.argv = [script, "--help"]
            sys.path.insert(0, str(Path(script).parent))
            runpy.run_path(script, run_name="__main__")
            sys.exit()
        returncode = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        for file in (output, errors):
            file.seek(0)
        return {"returncode": returncode, "stdout": output.read().decode(), "stderr": errors.read().decode()}


if __name__ == "__main__":
    assert not {"benchmarks", "evaluate", "hf_vanilla_transformer", "scripts"} & set(sys.modules)
    print(json.dumps({script: help_of(script) for script in sys.argv[1:]}))
