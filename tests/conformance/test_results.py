import pytest

from tests.conformance import results
from tests.conformance.inapplicable import Inapplicable, LineNotFoundError, check_line
from tests.conformance.results import Outcome, Recorder


SUITE = """
import unittest

class SampleTest(unittest.TestCase):
    suite = "sample"

    def test_passes(self):
        for part in range(3):
            with self.subTest(part=part):
                if part == 2:
                    self.skipTest("not this part")

    def test_fails(self):
        self.fail()

    def test_fails_in_a_subtest(self):
        with self.subTest("first"):
            self.fail()
        with self.subTest("second"):
            pass

    @unittest.skip("needs <class 'some.module.Thing'>")
    def test_is_skipped(self):
        pass

    def test_is_skipped_in_all_subtests(self):
        with self.subTest("only"):
            self.skipTest("nothing to see")

    def test_is_inapplicable(self):
        self.fail()
"""
REASON = Inapplicable("tests/test_a.py", "def test_a(", "a | b", "Because.")


def run(tmp_path, text: str, inapplicable=()) -> Recorder:
    """Run pytest on one file, without this project's options and conftest.py."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    suite = tmp_path / f"suite_of_{tmp_path.name}.py"
    suite.write_text(text)
    recorder = Recorder(inapplicable)
    options = ["-q", "-p", "no:cacheprovider", "--import-mode=importlib", "-c", str(tmp_path / "pytest.ini")]
    pytest.main([*options, str(suite)], plugins=[recorder])
    return recorder


def test_recorder_keeps_the_result_of_each_test(tmp_path):
    recorder = run(tmp_path, SUITE, inapplicable={"sample::test_is_inapplicable"})
    assert {name: outcome.status for name, outcome in recorder.outcomes.items()} == {
        "sample::test_passes": "passed",
        "sample::test_fails": "failed",
        "sample::test_fails_in_a_subtest": "failed",
        "sample::test_is_skipped": "skipped",
        "sample::test_is_skipped_in_all_subtests": "skipped",
    }
    assert recorder.outcomes["sample::test_passes"].subtests_passed == 2
    assert recorder.outcomes["sample::test_is_skipped"].skip_reasons == ["needs Thing"]
    assert recorder.left_out == {"sample::test_is_inapplicable"}
    assert recorder.problems == []


def test_recorder_reports_a_file_that_cannot_be_collected(tmp_path):
    (problem,) = run(tmp_path, "import no_such_module").problems
    assert "no_such_module" in problem


def test_a_test_of_transformers_that_is_overridden_is_found():
    class Mixin:
        test_switch = True
        test_other_switch = False

        def test_a(self): ...

        def test_b(self): ...

    Mixin.__module__ = "transformers_tests.test_sample"

    class Faithful(Mixin):
        test_other_switch = True

        def test_more(self): ...

    class Unfaithful(Mixin):
        test_switch = False
        test_b = None

        def test_a(self): ...

    assert results.overridden_tests(Faithful) == []
    assert results.overridden_tests(Unfaithful) == ["test_a", "test_b", "test_switch"]


def test_regressions_name_each_test_that_is_gone_or_skipped():
    outcomes = {
        "model::test_kept": Outcome(),
        "model::test_new": Outcome(),
        "model::test_skipped": Outcome(skipped_whole=True, skip_reasons=["test requires a moon"]),
        "model::test_failed": Outcome(failures=1),
        "model::test_never_passed": Outcome(failures=1),
    }
    baseline = ["model::test_kept", "model::test_skipped", "model::test_failed", "model::test_missing"]
    assert results.regressions(outcomes, baseline) == [
        "model::test_missing passed before and is now missing",
        "model::test_skipped passed before and is now skipped: test requires a moon",
    ]


def test_too_few_passes_are_reported_by_suite():
    outcomes = {"model::test_a": Outcome(), "model::test_b": Outcome(failures=1), "tokenizer::test_a": Outcome()}
    expected = [
        "1 tests of the model suite passed; at least 2 must",
        "0 tests of the training suite passed; at least 1 must",
    ]
    assert results.too_few(outcomes, {"model": 2, "tokenizer": 1, "training": 1}) == expected


def test_document_counts_by_suite_and_groups_reasons_whatever_the_order():
    skipped = {"skipped_whole": True, "skip_reasons": ["test requires a moon"]}
    outcomes = {
        "model::test_a": Outcome(subtests_passed=3),
        "model::test_b": Outcome(subtests_passed=2),
        "model::test_c": Outcome(**skipped),
        "other::test_c": Outcome(**skipped),
        "other::test_d": Outcome(skipped_whole=True, skip_reasons=["a sun is missing"]),
        "other::test_e": Outcome(skipped_whole=True, skip_reasons=["test requires a comet"]),
    }
    reasons = {"model::test_x": REASON, "other::test_x": REASON}
    suites = {"model": "a model", "other": "another"}
    text = results.document("5.0", outcomes, suites, reasons, {})
    assert "transformers 5.0" in text
    assert "| model | a model | 2 | 5 | 0 | 1 | 1 |" in text
    assert "| other | another | 0 | 0 | 0 | 3 | 1 |" in text
    other = f"| {results.OTHER_REASONS} | 1 |"
    assert f"| test requires a moon | 2 |\n| test requires a comet | 1 |\n{other}" in text
    assert "| model::test_x, other::test_x | Because. |" in text
    assert results.document("5.0", dict(reversed(outcomes.items())), suites, reasons, {}) == text


def test_check_line_accepts_the_line_after_the_mark(tmp_path):
    (tmp_path / "test_a.py").write_text("def test_a():\n    c\n    a | b\n")
    check_line(REASON, "model::test_a", {"tests": tmp_path})


@pytest.mark.parametrize(
    "text", ["def test_a():\n    a | c\n", "def test_b():\n    a | b\n", "a | b\ndef test_a():\n    c\n"]
)
def test_a_line_that_is_gone_is_an_error(tmp_path, text):
    (tmp_path / "test_a.py").write_text(text)
    with pytest.raises(LineNotFoundError, match=r"tests/test_a\.py no longer has .* made model::test_a inapplicable"):
        check_line(REASON, "model::test_a", {"tests": tmp_path})
