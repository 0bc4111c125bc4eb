"""Train a Transformer from scratch, or fine-tune one, and evaluate it on the test pairs.

Without arguments it trains on the built-in number corpus, with the recipe "numbers".
"""

import logging
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tqdm.auto import tqdm

from ..training.run_arguments import KINDS, REJECTED, Settings
from .parser import parse, plain_errors


DEFAULT_CONFIG = "numbers"


def main(arguments: Sequence[str] | None = None) -> Path:
    """Train as the command line says; returns the folder of the trained model."""
    arguments = list(sys.argv[1:] if arguments is None else arguments) or ["--config", DEFAULT_CONFIG]
    return run(Settings(*parse(KINDS, __doc__, arguments, verb="train", rejected=REJECTED)))


def run(settings: Settings) -> Path:
    """Train with these settings, print what the training logs, and end in one line if it fails."""
    # Not at the top, because --help needs neither the Trainer nor the data.
    from ..training.run import prepared

    with printing_messages(), ExitStack() as stack:
        with plain_errors():
            prepared_run = stack.enter_context(prepared(settings))
        with ending_in_one_line(settings):
            return prepared_run.finish()


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
