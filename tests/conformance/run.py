"""Run transformers' common suites on this package, compare with the record, write docs/conformance.md."""

import argparse
import os
import sys
from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from ..plain_operations import use_plain_operations
from . import results, sdist
from .inapplicable import INAPPLICABLE, SUITES_NOT_RUN, Inapplicable, LineNotFoundError, check_line


HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CACHE = ROOT / "build" / "conformance"
BASELINE = HERE / "passed.txt"
DOCUMENT = ROOT / "docs" / "conformance.md"

# In the order of the table in docs/conformance.md.
SUITES = {
    "model": "the paper's model: one joint vocabulary, tied embeddings, sinusoids",
    "model-untied-learned": "untied embeddings, learned positions (Table 3 row E)",
    "model-two-vocabularies": "separate vocabularies for source and target",
    "model-other-system": "as in converted models: different sinusoids, a bias in the LM head, norms after the stacks",
    "configuration": "`VanillaTransformerConfig`",
    "tokenizer": "`VanillaTransformerTokenizer` with its default settings",
    "tokenizer-special-tokens": "the same class with `split_special_tokens=False`",
    "tokenizers-backend": "the same class, as a tokenizer of the tokenizers library",
    "training": "the paper's model without regularization, which must overfit one batch",
}
FLOORS = {"model": 100, "configuration": 1, "tokenizer": 50, "training": 1}


def say(text: str) -> None:
    print(text, flush=True)


def run_suites(folder: Path) -> results.Recorder:
    """Run suites.py with the suites in `folder`; offline, including the tests that transformers marks slow."""
    os.environ.update(HF_HUB_OFFLINE="1", RUN_SLOW="1")
    # The models are too small for several threads.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.path.insert(0, str(folder))
    recorder = results.Recorder(INAPPLICABLE)
    # Without the project's own pytest options: transformers' markers are not registered here.
    options = ["-q", "--tb=short", "--disable-warnings", "--override-ini=addopts=", "-p", "no:cacheprovider"]
    status = pytest.main([*options, f"--rootdir={ROOT}", str(HERE / "suites.py")], plugins=[recorder])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        recorder.problems.append(f"pytest ended with {pytest.ExitCode(status).name}")
    return recorder


def check_lines(reasons: Mapping[str, Inapplicable], folder: Path) -> None:
    installed = Path(find_spec("transformers").submodule_search_locations[0])
    folders = {"tests": folder / sdist.PACKAGE, "transformers": installed}
    for name, reason in reasons.items():
        check_line(reason, name, folders)


def problems_of(recorder: results.Recorder) -> list[str]:
    """One sentence for each fault that does not depend on earlier results."""
    failed = results.names_with(recorder.outcomes, results.FAILED)
    unknown = set(INAPPLICABLE) - recorder.left_out
    return [
        *recorder.problems,
        *(f"{name} failed" for name in sorted(failed)),
        *(f"{name} is listed as inapplicable, but does not exist" for name in sorted(unknown)),
        *results.too_few(recorder.outcomes, FLOORS),
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.run", description=__doc__)
    parser.add_argument("--update", action="store_true", help="record the tests that pass now in passed.txt")
    parser.add_argument("--plain-operations", action="store_true", help="run the model without acceleration/")
    options = parser.parse_args(arguments)
    update = options.update
    if options.plain_operations:
        use_plain_operations()
    transformers_version = version("transformers")

    say(f"transformers {transformers_version}; its source distribution is cached in {CACHE.relative_to(ROOT)}")
    with TemporaryDirectory() as folder:
        try:
            sdist.unpack(sdist.fetch(transformers_version, CACHE), Path(folder))
            check_lines({**INAPPLICABLE, **SUITES_NOT_RUN}, Path(folder))
        except (sdist.SourceDistributionError, LineNotFoundError) as error:
            say(f"error: {error}")
            return 1
        recorder = run_suites(Path(folder))

    passed = results.names_with(recorder.outcomes, results.PASSED)
    baseline = results.read_baseline(BASELINE)
    gone = [] if update else results.regressions(recorder.outcomes, baseline)
    problems = [*problems_of(recorder), *gone]
    say(results.counts(recorder.outcomes, INAPPLICABLE, SUITES))
    new_passes = sorted(passed - baseline)
    for line in [*(f"new pass: {name}" for name in new_passes), *(f"problem: {text}" for text in problems)]:
        say(line)
    if gone:
        say(f"If a test was removed on purpose, record those that pass now: {results.UPDATE}")
    elif new_passes and not update:
        say(f"To record the new passes: {results.UPDATE}")
    if problems:
        return 1

    if update:
        results.write(BASELINE, "".join(f"{name}\n" for name in sorted(passed)))
    if options.plain_operations:
        return 0
    write_document(results.document(transformers_version, recorder.outcomes, SUITES, INAPPLICABLE, SUITES_NOT_RUN))
    return 0


def write_document(text: str) -> None:
    """Write docs/conformance.md, which describes CPU runs: with an accelerator more tests run."""
    from transformers.testing_utils import torch_device

    name = DOCUMENT.relative_to(ROOT)
    if torch_device != "cpu":
        say(f"{name} describes runs on a CPU, this one was on {torch_device}: not written")
        return
    results.write(DOCUMENT, text)
    say(f"written: {name}")


if __name__ == "__main__":
    sys.exit(main())
