"""Print the plan, i.e. the settings that `train` chooses for your sentence pairs and this machine, and the estimated
cost of training. The command takes the arguments of `train`, but does not train. With --tflops, it estimates the cost
on a different GPU.

    hf-vanilla-transformer plan --train_file train.en train.de
    hf-vanilla-transformer plan --train_file train.en train.de --tflops 300
"""

from .parser import program
from .train import parse_settings, run


@program
def main(arguments: list[str]) -> None:
    """Print the plan for the training run that the command line describes."""
    run(parse_settings([*arguments, "--dry_run"], __doc__, "plan"))
