"""Runs the Python of docs/share.md, and its training command with a small model; tests run it in a process of its own.

Usage: python -I run_docs.py FOLDER_TO_WORK_IN
"""

import os
import re
import shlex
import sys
from pathlib import Path


ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))

from hf_vanilla_transformer.apps.cli.main import main  # noqa: E402


SMALL = (
    "--num_layers 1 --d_model 16 --d_ff 16 --num_heads 2 --max_steps 1 --train_size 60 --max_digits 2 --vocab_size 300"
)


def run() -> None:
    """All blocks in their order, in one namespace."""
    os.chdir(sys.argv[1])
    text = (ROOT / "docs" / "share.md").read_text(encoding="utf-8")
    namespace: dict = {}
    for language, block in re.findall(r"```(python|bash) hub\n(.*?)```", text, flags=re.DOTALL):
        if language == "python":
            exec(compile(block, "docs/share.md", "exec"), namespace)
            continue
        program, *arguments = shlex.split(block.replace("\\\n", " "))
        assert program == "hf-vanilla-transformer"
        main([*arguments, *SMALL.split(), "--use_cpu"])


if __name__ == "__main__":
    run()
