"""Train a Transformer from scratch, or fine-tune one, and evaluate it on the test pairs. `train` fits the settings that
you leave out to your pairs and machine, and prints them first, unless you pass --config, --preset, --max_steps or
--model_name_or_path. Without arguments, it trains on the built-in number corpus with the recipe "numbers".

    hf-vanilla-transformer train --train_file train.en train.de --output_dir runs/mine
    hf-vanilla-transformer train --config multi30k_en_de --train_file train.en train.de --test_file test.en test.de
"""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

from tqdm.auto import tqdm

from ...support.user_errors import exit_code_of
from ...training.distillation_arguments import DistillationArguments
from ...training.run_arguments import REJECTED, Settings
from .parser import given_arguments, program


@program
def main(arguments: list[str]) -> Path:
    """Train the model that the command line describes, and return the folder of the trained model."""
    return run(parse_settings(arguments or ["--config", "numbers"], __doc__, "train"))


def parse_settings(arguments: list[str], description: str | None, verb: str) -> Settings:
    """Parse the command line of `train`, `distill` or `plan` into the settings of a training run.

    If the command line names no recipe, the settings that it does not give may be planned, i.e. chosen for the sentence
    pairs and the machine.
    """
    # The Trainer has arguments that `train` rejects. `REJECTED` maps each to its error message.
    hidden = list(REJECTED)
    if verb != "distill":
        # Only the help of `distill` shows the options about teachers.
        hidden.extend(field.name for field in fields(DistillationArguments))
    arguments_by_name = given_arguments(Settings, description, arguments, verb, hidden=hidden)
    # The option may be written as `--config numbers` or as `--config=numbers`.
    names_recipe = any(argument.partition("=")[0] == "--config" for argument in arguments)
    return Settings.from_arguments(allow_plan=not names_recipe, **arguments_by_name)


def run(settings: Settings) -> Path:
    """Train with the given settings, print the log messages of training, and return the folder of the trained model."""
    # This is not imported at the top, because --help needs neither the Trainer nor the data.
    from ...training.run import run as train_model

    with printing_messages():
        try:
            return train_model(settings)
        except KeyboardInterrupt as interrupt:
            # Ctrl-C interrupts every process of a distributed training. The caller of this function reports an
            # exception that is raised here, so only the main process raises it. The others just exit.
            is_main_process = settings.args.process_index == 0
            if is_main_process:
                raise
            sys.exit(exit_code_of(interrupt))


@contextmanager
def printing_messages() -> Iterator[None]:
    """Print log messages of training for the duration of the block: information to stdout, and warnings to stderr."""
    package_logger = logging.getLogger("hf_vanilla_transformer")
    training_logger = package_logger.getChild("training")
    # The package's level lets information pass. The handler prints only the messages of `training`.
    previous_level = package_logger.level
    handler = _PrintingHandler()
    package_logger.setLevel(logging.INFO)
    training_logger.addHandler(handler)
    try:
        yield
    finally:
        training_logger.removeHandler(handler)
        package_logger.setLevel(previous_level)


class _PrintingHandler(logging.Handler):
    """A log handler that prints each message without breaking a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        stream = sys.stdout if record.levelno == logging.INFO else sys.stderr
        # print() would break a progress bar.
        tqdm.write(record.getMessage(), file=stream)
