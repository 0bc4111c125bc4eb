"""Start the command line: run the verb, such as `train`, that the first argument names."""

import gc
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module

from tqdm import tqdm

from ...support.user_errors import InputError, Terminated, exit_code_of
from ...support.version import __version__
from . import PROGRAM
from .parser import errors_in_one_line


# Without this call, the garbage collector would traverse all objects of torch and transformers at exit, which takes a
# second.
gc.freeze()

# The verbs with their summaries in `--help`. Each verb is a module in this package.
VERBS = {
    "demo": "train on the built-in number corpus, evaluate, translate some numbers, and draw attention",
    "train": "train a model from scratch, or fine-tune one",
    "distill": "train a small model on the translations of a larger one",
    "plan": "print the settings that train chooses, and what they cost",
    "translate": "translate sentences, a file, or standard input",
    "evaluate": "translate test pairs and compute BLEU, chrF and TER, or compare translations",
    "score": "compute log-probabilities of given translations",
    "align": "align the words of sentences and their translations",
    "average": "average the weights of checkpoints",
    "convert": "convert a model of another system, and prove that it is equal",
    "plot": "draw attention, positions, masks, the schedule, probabilities, curves",
    "serve": "translate by HTTP, for clients of the Hub and of LibreTranslate, and as a page",
    "info": "print versions, the machine, and the fast paths it enables",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the verb that the first argument names. `arguments` is `sys.argv[1:]` by default."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    # Without arguments, the help page is printed.
    verb = words[0] if words else "--help"
    verb_arguments = words[1:]
    with _ending_at_interrupts(), errors_in_one_line(shows_traceback="--traceback" in verb_arguments):
        if verb in ("-h", "--help"):
            print(_help_page(), flush=True)
        elif verb == "--version":
            print(f"{PROGRAM} {__version__}", flush=True)
        elif verb in VERBS:
            _run_verb(verb, verb_arguments)
        else:
            raise InputError(f'"{verb}" is not a verb of {PROGRAM}; use one of {", ".join(VERBS)}.')


def _run_verb(verb: str, arguments: list[str]) -> None:
    """Call the function `main` of a verb, which is a module of this package, and flush the output.

    The flush comes here, so that an error such as a full disk is reported in one line.
    """
    verb_module = import_module(f".{verb}", __package__)
    verb_module.main(arguments)
    if sys.stdout is not None:
        sys.stdout.flush()


def _help_page() -> str:
    """Return the text of `--help`, which lists the verbs."""
    lines = [f"  {verb:<10} {summary}" for verb, summary in VERBS.items()]
    return "\n".join(
        [
            f"usage: {PROGRAM} VERB [--name value ...]",
            "",
            *lines,
            "",
            f"`{PROGRAM} VERB --help` lists a verb's arguments.",
        ]
    )


@contextmanager
def _ending_at_interrupts() -> Iterator[None]:
    """End the program with a one-line message instead of a traceback if Ctrl-C or SIGTERM interrupts the block."""
    previous_handler = signal.signal(signal.SIGTERM, _raise_terminated)
    try:
        with _closing_progress_bars():
            yield
    # This includes `Terminated`, which is a KeyboardInterrupt for SIGTERM.
    except KeyboardInterrupt as interrupt:
        message = "interrupted"
        if str(interrupt):
            message = f"interrupted: {interrupt}"
        print(message, file=sys.stderr)
        sys.exit(exit_code_of(interrupt))
    finally:
        signal.signal(signal.SIGTERM, previous_handler)


@contextmanager
def _closing_progress_bars() -> Iterator[None]:
    """Close all progress bars when the block ends, so that a message after the block begins on a new line.

    Progress bars are still open if an exception ends the block.
    """
    try:
        yield
    finally:
        # `_instances` is tqdm's set of open bars. It is copied because closing a bar removes it from the set.
        for bar in list(tqdm._instances):
            bar.close()


def _raise_terminated(number: int, frame: object) -> None:
    """Raise an exception when the program receives SIGTERM, so that open files and locks are released."""
    raise Terminated
