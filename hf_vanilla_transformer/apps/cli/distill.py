"""Train a small model on the translations of a larger one, or of several, and on the given targets. The plan, the files
and the card are those of `train`, whose arguments it takes, too; the model is saved in int8, too.

    hf-vanilla-transformer distill --teacher runs/mine --train_file train.en train.de --output_dir runs/student
    hf-vanilla-transformer distill --teacher runs/a runs/b --train_file train.en train.de --output_dir runs/student
"""

from pathlib import Path

from ...support.user_errors import InputError
from .parser import program
from .train import parse_settings, run


@program
def main(arguments: list[str]) -> Path:
    """Distill as the command line says; returns the folder of the trained model."""
    settings = parse_settings(arguments, __doc__, "distill")
    if settings.teacher.teacher is None:
        raise InputError("--teacher must be given: the folder of the model to learn from, or its name on the Hub.")
    return run(settings)
