"""Print the settings that `train` chooses for your sentence pairs and this machine, and what the training costs. The
command takes the arguments of `train`, and trains nothing. With --tflops it estimates the costs on a different GPU.

    hf-vanilla-transformer plan --train_file train.en train.de
    hf-vanilla-transformer plan --train_file train.en train.de --tflops 300
"""

from .parser import program
from .train import parse_settings, run


@program
def main(arguments: list[str]) -> None:
    """Print the plan for the arguments of the command line."""
    run(parse_settings([*arguments, "--dry_run"], __doc__, "plan"))
