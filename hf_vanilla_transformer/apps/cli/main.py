"""The entry point of the command line: it runs the verb that the first argument names."""

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


# The garbage collector would traverse every object of torch and transformers at exit, which takes a second.
gc.freeze()

VERBS = {
    "demo": "train on the built-in number corpus, evaluate, translate some numbers, and draw attention",
    "train": "train a model from scratch, or fine-tune one",
    "distill": "train a small model on what a larger one translates",
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
    """Run the verb that the first argument names."""
    verb, *rest = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    with _ending_at_interrupts(), errors_in_one_line("--traceback" in rest):
        if verb in ("-h", "--help"):
            verbs = "\n".join(f"  {verb:<10} {summary}" for verb, summary in VERBS.items())
            advice = f"`{PROGRAM} VERB --help` lists a verb's arguments."
            print(f"usage: {PROGRAM} VERB [--name value ...]\n\n{verbs}\n\n{advice}", flush=True)
        elif verb == "--version":
            print(f"{PROGRAM} {__version__}", flush=True)
        elif verb in VERBS:
            import_module(f".{verb}", __package__).main(rest)
            if sys.stdout is not None:
                sys.stdout.flush()
        else:
            raise InputError(f'"{verb}" is not a verb of {PROGRAM}; use one of {", ".join(VERBS)}.')


@contextmanager
def _ending_at_interrupts() -> Iterator[None]:
    """End in one line instead of a traceback at Ctrl-C and SIGTERM."""
    before = signal.signal(signal.SIGTERM, _raise_terminated)
    try:
        try:
            yield
        finally:  # A message would continue the line of a progress bar that an exception leaves open.
            for bar in list(tqdm._instances):
                bar.close()
    except KeyboardInterrupt as interrupt:
        print(f"interrupted{f': {interrupt}' if str(interrupt) else ''}", file=sys.stderr)
        sys.exit(exit_code_of(interrupt))
    finally:
        signal.signal(signal.SIGTERM, before)


def _raise_terminated(number: int, frame: object) -> None:
    raise Terminated
