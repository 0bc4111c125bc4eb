"""Results of a run of the suites, their comparison with the record, and the page about them."""

import inspect
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from .inapplicable import Inapplicable
from .sdist import PACKAGE


UPDATE = "python -m tests.conformance.run --update"
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
OTHER_REASONS = "other reasons, mostly a feature that our model does not have, such as RoPE"


@dataclass
class Outcome:
    """The result of one test and its subtests."""

    failures: int = 0
    subtests_passed: int = 0
    skipped_whole: bool = False
    skip_reasons: list[str] = field(default_factory=list)

    @property
    def status(self) -> str:
        if self.failures:
            return FAILED
        # pytest counts a test as passed even if all its subtests were skipped.
        skipped = self.skipped_whole or (self.skip_reasons and not self.subtests_passed)
        return SKIPPED if skipped else PASSED


class Recorder:
    """A pytest plugin that deselects inapplicable tests, and records the results of the others as `suite::test`."""

    def __init__(self, inapplicable: Collection[str]):
        self.outcomes: dict[str, Outcome] = {}
        self.left_out: set[str] = set()
        self.problems: list[str] = []
        self._inapplicable = inapplicable
        self._names: dict[str, str] = {}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.problems.append(f"{report.nodeid} could not be collected: {report.longreprtext}")

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        for suite in {item.cls for item in items}:
            self.problems += [f"{suite.__name__} overrides transformers' {name}" for name in overridden_tests(suite)]
        self._names = {item.nodeid: f"{item.cls.suite}::{item.name}" for item in items}
        left_out = [item for item in items if self._names[item.nodeid] in self._inapplicable]
        self.left_out = {self._names[item.nodeid] for item in left_out}
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome = self.outcomes.setdefault(self._names[report.nodeid], Outcome())
        is_subtest = isinstance(report, pytest.SubtestReport)
        if report.failed:
            outcome.failures += 1
        elif report.skipped:
            outcome.skipped_whole |= not is_subtest
            outcome.skip_reasons.append(skip_reason(report))
        elif is_subtest:
            outcome.subtests_passed += 1


def skip_reason(report: pytest.TestReport) -> str:
    """Why a test was skipped, with classes by their bare names."""
    reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return re.sub(r"<class '[\w.]*?(\w+)'>", r"\1", reason.removeprefix("Skipped: ")).strip()


def overridden_tests(suite: type) -> list[str]:
    """Names of the tests and switches of transformers' classes that `suite` replaces, switches turned on aside."""
    names = []
    for name in (name for name in dir(suite) if name.startswith("test")):
        ours = inspect.unwrap(getattr(suite, name)) if callable(getattr(suite, name)) else getattr(suite, name)
        for base in (base for base in suite.__mro__ if name in vars(base) and is_transformers(base)):
            original = inspect.unwrap(vars(base)[name]) if callable(vars(base)[name]) else vars(base)[name]
            if ours != original and ours is not True:
                names.append(name)
    return names


def is_transformers(base: type) -> bool:
    return base.__module__.split(".")[0] == PACKAGE


def names_with(outcomes: Mapping[str, Outcome], status: str) -> set[str]:
    return {name for name, outcome in outcomes.items() if outcome.status == status}


def regressions(outcomes: Mapping[str, Outcome], baseline: Iterable[str]) -> list[str]:
    """One sentence for each test of the baseline that is missing or skipped."""
    sentences = []
    for name in sorted(set(baseline)):
        if name not in outcomes:
            sentences.append(f"{name} passed before and is now missing")
        elif outcomes[name].status == SKIPPED:
            sentences.append(f"{name} passed before and is now skipped: {outcomes[name].skip_reasons[0]}")
    return sentences


def too_few(outcomes: Mapping[str, Outcome], floors: Mapping[str, int]) -> list[str]:
    """One sentence for each suite of which fewer tests passed than `floors` requires."""
    passed = Counter(suite_of(name) for name in names_with(outcomes, PASSED))
    return [
        f"{passed[suite]} tests of the {suite} suite passed; at least {floor} must"
        for suite, floor in floors.items()
        if passed[suite] < floor
    ]


def suite_of(name: str) -> str:
    return name.split("::")[0]


def read_baseline(path: Path) -> set[str]:
    return set(path.read_text(encoding="utf-8").split()) if path.exists() else set()


def write(path: Path, text: str) -> None:
    """Write a file atomically."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def table(header: tuple[str, ...], rows: Iterable[tuple]) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def counts(outcomes: Mapping[str, Outcome], left_out: Collection[str], suites: Mapping[str, str]) -> str:
    """A table of the suites with their counts; `suites` maps each to what it runs on."""
    rows = []
    for suite, subject in suites.items():
        of_suite = {name: outcome for name, outcome in outcomes.items() if suite_of(name) == suite}
        rows.append(
            (
                suite,
                subject,
                len(names_with(of_suite, PASSED)),
                sum(outcome.subtests_passed for outcome in of_suite.values()),
                len(names_with(of_suite, FAILED)),
                len(names_with(of_suite, SKIPPED)),
                sum(suite_of(name) == suite for name in left_out),
            )
        )
    header = ("suite", "runs on", "passed", "subtests passed", "failed", "skipped by transformers", "inapplicable")
    return table(header, rows)


def skip_table(outcomes: Mapping[str, Outcome]) -> str:
    """A table of what skipped tests require, by number of tests. All other reasons share the last row."""
    reasons = Counter(outcome.skip_reasons[0] for outcome in outcomes.values() if outcome.status == SKIPPED)
    required = {reason: count for reason, count in reasons.items() if reason.startswith("test requires ")}
    rows: list[tuple] = sorted(required.items(), key=lambda item: (-item[1], item[0]))
    others = reasons.total() - sum(required.values())
    if others:
        rows.append((OTHER_REASONS, others))
    return table(("reason that transformers gives", "tests"), rows)


def reason_table(header: str, reasons: Mapping[str, Inapplicable]) -> str:
    """A table of tests or suites with the reasons why they cannot apply. Names with the same reason share a row."""
    names_by_reason: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        names_by_reason.setdefault(reason.because, []).append(name)
    return table((header, "reason"), [(", ".join(names), because) for because, names in names_by_reason.items()])


def document(
    version: str,
    outcomes: Mapping[str, Outcome],
    suites: Mapping[str, str],
    inapplicable: Mapping[str, Inapplicable],
    suites_not_run: Mapping[str, Inapplicable],
) -> str:
    """The text of docs/conformance.md.

    Args:
        version: of transformers.
        outcomes: by `suite::test`.
        suites: what each suite runs on.
        inapplicable, suites_not_run: reasons by the name of a test or a suite.
    """
    return f"""# Conformance to transformers

Our model and tokenizer should behave like the classes of transformers. To check this, we run
transformers' own tests on them, and this page shows the results.

## Results

We ran these suites with transformers {version} on a CPU:

{counts(outcomes, inapplicable, suites)}

- A subtest is one case of a test. A test counts as skipped if all its subtests were skipped.
- Tests named `test_get_..._features_...` pass without a check, because they test methods for
  images, video and sound.
- The training suite was written for decoder-only models, so we pass our own pairs of sentences to
  it (`tests/conformance/suites.py`).

## Inapplicable tests

These tests cannot pass on this package, and we run all others.

{reason_table("test", inapplicable)}

## Skipped tests

transformers skips these tests. The counts add up all suites:

{skip_table(outcomes)}

## Suites that are not run

{reason_table("suite", suites_not_run)}

We do not run the other tests of transformers, because they cover internals of the library, or
features such as images and sound.

## Run the suites

`make test-conformance` downloads the source code of the installed transformers release, runs the
suites, and writes this page, whose text is in `tests/conformance/results.py`. The command fails in
these cases:

- A test fails.
- A test in `tests/conformance/passed.txt` no longer passes.
- Fewer tests pass than `tests/conformance/run.py` requires.
- One of our suites overrides a test of transformers.
- transformers has changed code that made a test inapplicable (`tests/conformance/inapplicable.py`).

If transformers has added, renamed or removed tests, run `{UPDATE}`
to update `passed.txt`, the list of passing tests.

## Versions

We ran our own tests with these versions:

| | `make test-floor` | `make test` | `make test-latest`, 25 November 2026 |
| --- | --- | --- | --- |
| Python | 3.11 | 3.11 | 3.12.1, and 3.13.0 |
| torch | 2.13.0 | 2.13.0 | 2.13.0, kept |
| transformers | 5.24.0 | 5.24.0 | 5.24.0 |
| datasets | 4.4.2 | 5.2.0 | 5.2.0 |
| accelerate | 1.12.0 | 1.15.0 | 1.15.0 |
| tokenizers | 0.23.1 | 0.23.3 | 0.23.3 |
| huggingface_hub | 1.31.0 | 2.4.0 | 2.4.0 |
| evaluate | 0.4.6 | 0.4.6 | 0.4.6 |
| safetensors | 0.8.0 | 0.8.0 | 0.8.0 |
| NumPy | 2.4.6 | 2.4.6 | 2.5.5 |

`make test-latest` installs the newest releases that `pyproject.toml` allows. With each Python
version, 3,046 of its tests passed and 34 were skipped. The Makefile lists the tests of
`test-latest` and `test-floor`.
"""
