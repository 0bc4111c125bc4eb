import json
import statistics

import pytest

from hf_vanilla_transformer.evaluation.results import table_of_results


def write_results(folder, name: str, seed: int, **changes) -> str:
    point = {"updates": 10, "bleu": 40.0, "training_seconds": 60.0 * seed}
    results = {
        "seed": seed,
        "scores": {"validation": {"bleu": 40.0 + seed}, "test": {"bleu": 41.0 + seed}},
        "training_seconds": 600.0,
        "evaluation_seconds": 30.0,
        "peak_memory_bytes": 2_500_000_000,
        "curve": {"best": point, "reached": {"35": point, "40": None if seed == 2 else point}, "points": [point]},
    }
    path = folder / f"{name}_seed{seed}.json"
    path.write_text(json.dumps(results | changes))
    return str(path)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_mean_and_deviation_over_the_seeds(tmp_path):
    files = [write_results(tmp_path, "small", seed, total_seconds=60.0 * seed) for seed in (3, 1, 2)]
    heading, _, *rows = map(cells, table_of_results(files).splitlines())
    assert [row[:2] for row in rows] == [["small", "1"], ["small", "2"], ["small", "3"], ["small", "mean ± s.d."]]
    tests = [42.0, 43.0, 44.0]
    expected = f"{statistics.mean(tests):.2f} ± {statistics.stdev(tests):.2f}"
    assert rows[-1][heading.index("test BLEU")] == expected
    assert rows[0][heading.index("training, minutes")] == "10.00"
    assert [row[heading.index("in all, minutes")] for row in rows] == ["1.00", "2.00", "3.00", "2.00 ± 1.00"]
    assert rows[0][heading.index("most memory, GB")] == "2.50"
    assert rows[-1][heading.index("minutes to 35")] == "2.00 ± 1.00"
    # A mean over those seeds that got there would flatter.
    assert [row[heading.index("minutes to 40")] for row in rows] == ["1.00", "-", "3.00", "-"]


def test_two_recipes_and_what_they_lack(tmp_path):
    no_test = {"scores": {"validation": {"bleu": 30.0}, "test": None}, "curve": None}
    files = [write_results(tmp_path, "a", 1), write_results(tmp_path, "b", 1, **no_test)]
    heading, _, *rows = map(cells, table_of_results(files).splitlines())
    assert [row[0] for row in rows] == ["a", "b"]
    assert rows[1][heading.index("validation BLEU")] == "30.00"
    assert rows[1][heading.index("in all, minutes")] == "-"
    assert rows[1][heading.index("test BLEU")] == rows[1][heading.index("minutes to 35")] == "-"


def test_runs_with_other_settings_have_no_mean(tmp_path):
    files = [
        write_results(tmp_path, "a", seed, settings={"seed": seed, "max_steps": 5 * seed, "bf16": True})
        for seed in (1, 2)
    ]
    with pytest.raises(ValueError, match="a with seeds 1 and 2 differ in max_steps, so they have no mean"):
        table_of_results(files)
    # Earlier files list what the Trainer made of None, too.
    settings = {1: {"seed": 1, "bf16": True}, 2: {"seed": 2, "bf16": True, "debug": []}}
    table_of_results([write_results(tmp_path, "b", seed, settings=settings[seed]) for seed in (1, 2)])


@pytest.mark.parametrize(
    ("name", "values"), [("data", [{"test": "a.en"}, {"test": "b.en"}]), ("base_model", [None, "x"])]
)
def test_runs_on_other_data_or_from_another_model_have_no_mean(tmp_path, name, values):
    files = [write_results(tmp_path, "a", seed, **{name: values[seed - 1]}) for seed in (1, 2)]
    with pytest.raises(ValueError, match=f"a with seeds 1 and 2 differ in {name}, so they have no mean"):
        table_of_results(files)


@pytest.mark.parametrize(
    "content", ["no json", '{"seed": 1}', '{"seed": 1, "scores": {}, "training_seconds": 1}', "[1]"]
)
def test_a_file_without_results(tmp_path, content):
    path = tmp_path / "file.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"file\.json holds no results; name files"):
        table_of_results([path])


def test_a_seed_counts_once(tmp_path):
    files = [write_results(tmp_path, "a", 1), write_results(tmp_path, "a", 2)]
    with pytest.raises(ValueError, match="a with seed 1 is given 2 times"):
        table_of_results([*files, files[0]])


def test_no_file(tmp_path):
    with pytest.raises(ValueError, match="no files of results are given"):
        table_of_results([])
    with pytest.raises(FileNotFoundError, match=r"none\.json is not there; name files"):
        table_of_results([tmp_path / "none.json"])
