"""Train a small model on the translations of one or several larger models, and on the given targets. The command takes
the arguments of `train`, and makes a plan, files and a card in the same way. It also saves the model in int8.

    hf-vanilla-transformer distill --teacher runs/mine --train_file train.en train.de --output_dir runs/student
    hf-vanilla-transformer distill --teacher runs/a runs/b --train_file train.en train.de --output_dir runs/student
"""

from pathlib import Path

from ...support.user_errors import InputError
from .parser import program
from .train import parse_settings, run


@program
def main(arguments: list[str]) -> Path:
    """Distill as the command line says, and return the folder of the trained model."""
    settings = parse_settings(arguments, __doc__, "distill")
    if settings.distillation.teacher is None:
        raise InputError("--teacher must be given: the folder of the model to learn from, or its name on the Hub.")
    return run(settings)
