"""Train a small model (the student) on the translations of one or several larger models (the teachers), and on the
given targets. The command takes the same arguments as `train`. Like `train`, it plans the settings and writes a model
card. In addition, it saves the model in int8.

    hf-vanilla-transformer distill --teacher runs/mine --train_file train.en train.de --output_dir runs/student
    hf-vanilla-transformer distill --teacher runs/a runs/b --train_file train.en train.de --output_dir runs/student
"""

from pathlib import Path

from ...support.user_errors import InputError
from .parser import program
from .train import parse_settings, run


@program
def main(arguments: list[str]) -> Path:
    """Train a student on the translations of the teachers that the command line names, and return its folder."""
    settings = parse_settings(arguments, __doc__, "distill")
    if settings.distillation.teacher is None:
        raise InputError("--teacher must be given: the folder of the model to learn from, or its name on the Hub.")
    return run(settings)
