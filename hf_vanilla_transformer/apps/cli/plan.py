"""Print the settings that `train` chooses for sentence pairs and this machine, and what the training costs. It takes
the arguments of `train`, and trains nothing; --tflops is for a GPU that need not be here.

    hf-vanilla-transformer plan --train_file train.en train.de
    hf-vanilla-transformer plan --train_file train.en train.de --tflops 300
"""

from .parser import program
from .train import parse_settings, run


@program
def main(arguments: list[str]) -> None:
    """Plan as the command line says."""
    run(parse_settings([*arguments, "--dry_run"], __doc__, "plan"))
