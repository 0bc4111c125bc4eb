"""The command line `hf-vanilla-transformer VERB ...`: one module per verb, and what the verbs share."""

import sys
from collections.abc import Sequence
from importlib import import_module

from .. import __version__


PROGRAM = "hf-vanilla-transformer"
VERBS = {
    "demo": "train on the built-in number corpus, evaluate, and translate some numbers",
    "train": "train a model from scratch, or fine-tune one",
    "translate": "translate sentences, a file, or standard input",
    "evaluate": "translate test pairs and compute BLEU and chrF",
    "score": "compute log-probabilities of given translations",
    "average": "average the weights of checkpoints",
    "plot": "draw validation curves",
    "info": "print versions, the machine, and the fast paths it enables",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the verb that the first argument names."""
    verb, *rest = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if verb in ("-h", "--help"):
        print(_help())
    elif verb == "--version":
        print(f"{PROGRAM} {__version__}")
    elif verb in VERBS:
        import_module(f".{verb}", __name__).main(rest)
    else:
        sys.exit(f'error: "{verb}" is not a verb of {PROGRAM}; use one of {", ".join(VERBS)}.')


def _help() -> str:
    verbs = "\n".join(f"  {verb:<10} {summary}" for verb, summary in VERBS.items())
    return f"usage: {PROGRAM} VERB [--name value ...]\n\n{verbs}\n\n`{PROGRAM} VERB --help` lists a verb's arguments."
