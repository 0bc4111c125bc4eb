"""benchmarks/tabulate_runs.py: rows of runs, and mean and deviation over the seeds of a recipe."""

import json
import statistics
from pathlib import Path

import pytest

from benchmarks import tabulate_runs
from benchmarks.tabulate_runs import table_of_results


pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def write_results(folder, name: str, seed: int, **changes) -> str:
    point = {"updates": 10, "bleu": 36.0 if seed == 2 else 40.0, "training_seconds": 60.0 * seed}
    results = {
        "seed": seed,
        "scores": {"validation": {"bleu": 40.0 + seed}, "test": {"bleu": 41.0 + seed}},
        "training_seconds": 600.0,
        "evaluation_seconds": 30.0,
        "peak_memory_bytes": 2_500_000_000,
        "curve": {"best": point, "points": [{"updates": 5, "bleu": 9.0, "training_seconds": 1.0}, point]},
    }
    path = folder / f"{name}_seed{seed}.json"
    path.write_text(json.dumps(results | changes))
    return str(path)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_mean_and_deviation_over_the_seeds(tmp_path):
    files = [write_results(tmp_path, "small", seed, total_seconds=60.0 * seed) for seed in (3, 1, 2)]
    heading, _, *rows = map(cells, table_of_results(files, [35, 40]).splitlines())
    assert [row[:2] for row in rows] == [["small", "1"], ["small", "2"], ["small", "3"], ["small", "mean ± s.d."]]
    tests = [42.0, 43.0, 44.0]
    expected = f"{statistics.mean(tests):.2f} ± {statistics.stdev(tests):.2f}"
    assert rows[-1][heading.index("test BLEU")] == expected
    assert rows[0][heading.index("training, minutes")] == "10.00"
    assert [row[heading.index("total, minutes")] for row in rows] == ["1.00", "2.00", "3.00", "2.00 ± 1.00"]
    assert rows[0][heading.index("peak memory, GB")] == "2.50"
    assert rows[-1][heading.index("minutes to BLEU 35")] == "2.00 ± 1.00"
    # A mean over only those seeds that reached the target would be too good.
    assert [row[heading.index("minutes to BLEU 40")] for row in rows] == ["1.00", "-", "3.00", "-"]


def test_two_recipes_with_missing_figures(tmp_path):
    no_test = {"scores": {"validation": {"bleu": 30.0}, "test": None}, "curve": None}
    files = [write_results(tmp_path, "a", 1), write_results(tmp_path, "b", 1, **no_test)]
    heading, _, *rows = map(cells, table_of_results(files, [35, 40]).splitlines())
    assert [row[0] for row in rows] == ["a", "b"]
    assert rows[1][heading.index("validation BLEU")] == "30.00"
    assert rows[1][heading.index("total, minutes")] == "-"
    assert rows[1][heading.index("test BLEU")] == rows[1][heading.index("minutes to BLEU 35")] == "-"


def test_runs_with_different_settings_raise(tmp_path):
    files = [
        write_results(tmp_path, "a", seed, settings={"seed": seed, "max_steps": 5 * seed, "bf16": True})
        for seed in (1, 2)
    ]
    with pytest.raises(ValueError, match="a with seeds 1 and 2 differ in max_steps, so their mean is meaningless"):
        table_of_results(files)
    # Older files store empty lists of the Trainer.
    settings = {1: {"seed": 1, "bf16": True}, 2: {"seed": 2, "bf16": True, "debug": []}}
    table_of_results([write_results(tmp_path, "b", seed, settings=settings[seed]) for seed in (1, 2)])


@pytest.mark.parametrize(
    ("name", "values"), [("data", [{"test": "a.en"}, {"test": "b.en"}]), ("base_model", [None, "x"])]
)
def test_runs_with_different_data_or_base_models_raise(tmp_path, name, values):
    files = [write_results(tmp_path, "a", seed, **{name: values[seed - 1]}) for seed in (1, 2)]
    with pytest.raises(ValueError, match=f"a with seeds 1 and 2 differ in {name}, so their mean is meaningless"):
        table_of_results(files)


@pytest.mark.parametrize(
    "content", ["no json", '{"seed": 1}', '{"seed": 1, "scores": {}, "training_seconds": 1}', "[1]"]
)
def test_a_file_without_results_raises(tmp_path, content):
    path = tmp_path / "file.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"file\.json holds no results; name files"):
        table_of_results([path])


def test_a_seed_given_twice_raises(tmp_path):
    files = [write_results(tmp_path, "a", 1), write_results(tmp_path, "a", 2)]
    with pytest.raises(ValueError, match="a with seed 1 is given 2 times"):
        table_of_results([*files, files[0]])


def test_missing_files_raise(tmp_path):
    with pytest.raises(ValueError, match="no result files are given"):
        table_of_results([])
    with pytest.raises(FileNotFoundError, match=r"none\.json does not exist; name files"):
        table_of_results([tmp_path / "none.json"])


def test_the_table_is_also_written_into_a_file(tmp_path, capsys):
    results = str(ROOT / "docs" / "results" / "multi30k_en_de_seed1.json")
    table = tabulate_runs.main([results, "--output", str(tmp_path / "table.md")])
    assert "| multi30k_en_de | 1    |" in table
    assert capsys.readouterr().out == (tmp_path / "table.md").read_text(encoding="utf-8") == table
    with pytest.raises(SystemExit, match=r"error: .*nowhere does not exist; create the folder before writing"):
        tabulate_runs.main([results, "--output", str(tmp_path / "nowhere" / "table.md")])
