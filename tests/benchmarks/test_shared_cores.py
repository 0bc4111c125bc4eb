"""benchmarks.shared_cores: steps in a child process, beside a busy process, and the table."""

import os

import pytest

from benchmarks import shared_cores


pytestmark = pytest.mark.slow


def test_measures_a_setting_beside_a_busy_process(monkeypatch, capsys):
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    monkeypatch.setattr(shared_cores, "WARM_UP_STEPS", 1)
    options = ["--spin_counts", "7", "--busy", "0", "1", "--rounds", "1", "--steps", "1", "--repeats", "0"]
    seconds = shared_cores.main([*options, "--threads", "1"])
    assert [*seconds] == ["default", "GOMP_SPINCOUNT=7"]
    for rounds in seconds.values():
        assert {busy: [len(steps) for steps in rounds_of_setting] for busy, rounds_of_setting in rounds.items()} == {
            0: [1],
            1: [1],
        }
    assert "| GOMP_SPINCOUNT=7 |" in capsys.readouterr().out
    assert os.environ["OMP_WAIT_POLICY"] == "passive"


def test_table():
    seconds = {
        "default": {0: [[0.1, 0.1], [0.2, 0.2]], 1: [[0.4], [0.4]]},
        "other": {0: [[0.1, 0.1], [0.1, 0.1]], 1: [[0.2], [0.3]]},
    }
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in shared_cores.as_table(seconds).splitlines()]
    assert rows[2:] == [
        ["0", "default", "150", "200", "1.00", "1.00"],
        ["0", "other", "100", "100", "1.00", "0.75"],
        ["1", "default", "400", "400", "2.67", "1.00"],
        ["1", "other", "250", "300", "2.50", "0.62"],
    ]
