"""A training run for the command line: it prints what the run logs, and ends in one line where the run fails."""

import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tqdm.auto import tqdm

from ..training.run_arguments import Settings
from .parser import plain_errors


def run(settings: Settings) -> Path:
    """Train with these settings, print what the training logs, and end in one line if it fails."""
    # Not at the top, because --help needs neither the Trainer nor the data.
    from ..training.run import prepared

    with printing_messages(), ExitStack() as stack:
        with plain_errors():
            finish = stack.enter_context(prepared(settings))
        with ending_in_one_line(settings):
            return finish()


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


@contextmanager
def ending_in_one_line(settings: Settings) -> Iterator[None]:
    """End the program with one line if the run stops; an interrupt is reported by the main process alone."""
    from ..training.run_saving import RunStoppedError

    try:
        yield
    except RunStoppedError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        if settings.args.process_index == 0:
            raise
        sys.exit(128 + signal.SIGINT)
