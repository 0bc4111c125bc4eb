"""Loads and pushes while things go wrong; tests run it in a process of its own, and decide what goes wrong.

Usage: python -I broken.py RESULTS.json FOLDER_OF_A_MODEL
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock


sys.path.insert(0, str(Path(__file__).parents[3]))

from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla_transformer import load_pairs
from tests.hub.children.pull import digests
from tests.hub.children.push import change


def attempt(work: Callable) -> dict:
    """What came out, or the error."""
    try:
        return {"result": work()}
    except Exception as error:
        return {"error": type(error).__name__, "message": str(error)}


def cached_files() -> dict[str, int]:
    """Files of the cache, where no name is a link, with their sizes."""
    cache = Path(os.environ["HF_HOME"]) / "hub"
    return {path.name: path.stat().st_size for path in cache.rglob("*") if path.is_file() and not path.is_symlink()}


def pull(name: str, **options: str) -> Callable:
    """Weights of a model on the Hub."""
    return lambda: digests(AutoModelForSeq2SeqLM.from_pretrained(name, **options).state_dict())


def main() -> None:
    """In this order, on which the tests rely."""
    results, folder = sys.argv[1:]
    outcomes = {"pull that is cut once": attempt(pull("user/first"))}
    outcomes["pull that is cut and refused"] = attempt(pull("user/second"))
    outcomes["cache after that"] = cached_files()
    outcomes["next pull"] = attempt(pull("user/second"))
    outcomes["no such model"] = attempt(pull("user/no-such-model"))
    outcomes["no such model, logged in"] = attempt(pull("user/no-such-model", token="hf_reader"))
    outcomes["private model"] = attempt(pull("user/private"))
    outcomes["private model, logged in"] = attempt(pull("user/private", token="hf_reader"))
    outcomes["no such revision"] = attempt(pull("user/first", revision="no-such-revision"))
    outcomes["wrong token"] = attempt(pull("user/third", token="hf_wrong"))
    outcomes["no such tokenizer"] = attempt(lambda: AutoTokenizer.from_pretrained("user/no-such-model"))
    outcomes["no such data set"] = attempt(lambda: load_pairs("user/no-such-pairs"))

    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    push = model.push_to_hub
    change(model)
    outcomes["push without a token"] = attempt(lambda: push("user/new"))
    outcomes["push with a wrong token"] = attempt(lambda: push("user/new", token="hf_wrong"))
    outcomes["push that is cut once"] = attempt(lambda: push("user/cut-once", token="hf_writer").oid)
    change(model)
    outcomes["push whose commit is cut"] = attempt(lambda: push("user/cut-commit", token="hf_writer").oid)
    outcomes["next push"] = attempt(lambda: push("user/cut-commit", token="hf_writer").oid)
    outcomes["what was pushed last"] = digests(model.state_dict())
    Path(results).write_text(json.dumps(outcomes))


if __name__ == "__main__":
    # The client waits for a second or two before it tries again.
    with mock.patch("time.sleep"):
        main()
