"""`plot`."""

from pathlib import Path

import pytest

from hf_vanilla_transformer.cli import plot


RESULTS = Path(__file__).parents[2] / "docs" / "results"


def test_runs_of_one_name_in_a_plot(tmp_path):
    runs = [tmp_path / name for name in ("a/seed1", "b/seed1", "rate_0.1", "rate_0.3")]
    for run in runs:
        run.mkdir(parents=True)
    given = [*map(str, runs), str(tmp_path / "x" / "curve.json"), str(tmp_path / "results_seed2.json")]
    assert plot.labels_of(given) == [*given[:2], "rate_0.1", "rate_0.3", "x", "results_seed2"]
    with pytest.raises(ValueError, match="a run is given twice"):
        plot.labels_of([given[0], given[0]])
    with pytest.raises(SystemExit, match="error: no run is given; name the folder of at least one"):
        plot.main(["curve", "--output", str(tmp_path / "plot.png")])


def test_the_first_run_may_be_a_results_file(tmp_path):
    pytest.importorskip("matplotlib")
    output = tmp_path / "plot.png"
    assert plot.main(["curve", str(RESULTS / "multi30k_en_de_seed1.json"), "--output", str(output)]) == output
    assert output.is_file()
