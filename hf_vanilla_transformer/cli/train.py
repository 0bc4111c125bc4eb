"""Train a Transformer from scratch, or fine-tune one, and evaluate it on the test pairs.

Without arguments it trains on the built-in number corpus, with the recipe "numbers".
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from ..training.run_arguments import KINDS, REJECTED, Settings
from .parser import parse
from .run_training import run


def main(arguments: Sequence[str] | None = None) -> Path:
    """Train as the command line says; returns the folder of the trained model."""
    arguments = list(sys.argv[1:] if arguments is None else arguments) or ["--config", "numbers"]
    return run(Settings(*parse(KINDS, __doc__, arguments, verb="train", rejected=REJECTED)))
