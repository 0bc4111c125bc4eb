"""Train a Transformer from scratch, or fine-tune one, and evaluate it on the test pairs. What is not given is planned
for the pairs and the machine, and printed first, unless --config, --preset, --max_steps or --model_name_or_path is
given. Without arguments it trains on the built-in number corpus, with the recipe "numbers".

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
from ...training.run_arguments import REJECTED, Settings
from ...training.teacher_arguments import TeacherArguments
from .parser import given_arguments, program


@program
def main(arguments: list[str]) -> Path:
    """Train as the command line says; returns the folder of the trained model."""
    return run(parse_settings(arguments or ["--config", "numbers"], __doc__, "train"))


def parse_settings(arguments: list[str], description: str | None, verb: str) -> Settings:
    """The settings of a command line; a plan may choose what neither that nor a recipe gives."""
    # Only the help of `distill` shows them.
    teacher_names = [] if verb == "distill" else [each.name for each in fields(TeacherArguments)]
    given = given_arguments(Settings, description, arguments, verb, hidden=[*REJECTED, *teacher_names])
    names_recipe = any(each.partition("=")[0] == "--config" for each in arguments)
    return Settings.from_arguments(may_plan=not names_recipe, **given)


def run(settings: Settings) -> Path:
    """Train with these settings, and print what the training logs; returns the folder of the trained model."""
    # Not at the top, because --help needs neither the Trainer nor the data.
    from ...training.run import prepared

    with printing_messages(), prepared(settings) as finish:
        try:
            return finish()
        except KeyboardInterrupt as interrupt:
            if settings.args.process_index == 0:
                raise
            sys.exit(exit_code_of(interrupt))  # The main process reports it.


@contextmanager
def printing_messages() -> Iterator[None]:
    """Print what the training logs: messages to standard output, warnings to standard error."""
    package = logging.getLogger("hf_vanilla_transformer")
    training, level, handler = package.getChild("training"), package.level, _PrintingHandler()
    package.setLevel(logging.INFO)
    training.addHandler(handler)
    try:
        yield
    finally:
        training.removeHandler(handler)
        package.setLevel(level)


class _PrintingHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        # Not print(), which would break a progress bar.
        tqdm.write(record.getMessage(), file=sys.stdout if record.levelno == logging.INFO else sys.stderr)
