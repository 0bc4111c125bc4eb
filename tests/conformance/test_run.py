import pytest

from tests.conformance import run
from tests.conformance.results import Outcome, Recorder
from tests.conformance.sdist import SourceDistributionError


@pytest.fixture
def record(monkeypatch, tmp_path):
    """The results of the next run, with the files of the record in a temporary folder."""
    recorder = Recorder(())
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setattr(run, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(run, "BASELINE", tmp_path / "passed.txt")
    monkeypatch.setattr(run, "DOCUMENT", tmp_path / "conformance.md")
    monkeypatch.setattr(run, "INAPPLICABLE", {})
    monkeypatch.setattr(run, "SUITES_NOT_RUN", {})
    monkeypatch.setattr(run, "FLOORS", {"model": 1})
    monkeypatch.setattr(run.sdist, "fetch", lambda version, cache: cache)
    monkeypatch.setattr(run.sdist, "unpack", lambda archive, folder: None)
    monkeypatch.setattr(run, "run_suites", lambda folder: recorder)
    recorder.outcomes.update({"model::test_a": Outcome(), "model::test_b": Outcome()})
    assert run.main(["--update"]) == 0
    return recorder


def files(folder) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_update_records_what_passed(record, tmp_path):
    assert files(tmp_path).keys() == {"passed.txt", "conformance.md"}
    assert files(tmp_path)["passed.txt"] == "model::test_a\nmodel::test_b\n"


def test_a_run_without_changes_changes_no_file(record, tmp_path):
    before = files(tmp_path)
    assert run.main([]) == 0
    assert files(tmp_path) == before


def test_a_regression_fails_the_run_until_it_is_recorded(record, tmp_path, capsys):
    before = files(tmp_path)
    del record.outcomes["model::test_b"]
    assert run.main([]) == 1
    printed = capsys.readouterr().out
    assert "model::test_b passed before and is now missing" in printed
    assert "python -m tests.conformance.run --update" in printed
    assert files(tmp_path) == before
    assert run.main(["--update"]) == 0
    assert files(tmp_path)["passed.txt"] == "model::test_a\n"


def test_a_new_pass_is_printed_and_does_not_fail_the_run(record, capsys):
    record.outcomes["model::test_c"] = Outcome()
    assert run.main([]) == 0
    assert "new pass: model::test_c" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["--update"]])
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda record: record.outcomes.update({"model::test_new": Outcome(failures=1)}), "model::test_new failed"),
        (lambda record: record.outcomes.clear(), "at least 1 must"),
        (lambda record: record.problems.append("suite overrides test_a"), "overrides test_a"),
    ],
)
def test_what_is_wrong_cannot_be_recorded(record, tmp_path, capsys, arguments, change, told):
    before = files(tmp_path)
    change(record)
    assert run.main(arguments) == 1
    assert told in capsys.readouterr().out
    assert files(tmp_path) == before


def test_an_inapplicable_test_that_does_not_exist_fails_the_run(record, monkeypatch, capsys):
    monkeypatch.setattr(run, "INAPPLICABLE", {"model::test_gone": None})
    monkeypatch.setattr(run, "check_lines", lambda reasons, folder: None)
    assert run.main([]) == 1
    assert "model::test_gone is listed as inapplicable, but does not exist" in capsys.readouterr().out


def test_a_failed_download_is_one_sentence(record, monkeypatch, capsys):
    def fail(version, cache):
        raise SourceDistributionError("connect to the network")

    monkeypatch.setattr(run.sdist, "fetch", fail)
    assert run.main([]) == 1
    assert "error: connect to the network" in capsys.readouterr().out
