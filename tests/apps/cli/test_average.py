"""`average`."""

import os

import pytest

from hf_vanilla_transformer.apps.cli import average, evaluate
from hf_vanilla_transformer.support.atomic_files import locked
from tests.apps.cli.tiny_run import assert_is_mean, weights_of


def test_average_checkpoints_by_name_and_by_last(trained, tmp_path, capsys):
    checkpoints = [trained / "checkpoint-3", trained / "checkpoint-6"]
    named = average.main([*map(str, checkpoints), "--output", str(tmp_path / "named")])
    assert capsys.readouterr().out == f"the average of checkpoint-3, checkpoint-6 is in {named}\n"
    last = average.main(["--last", "2", str(trained), "--output", str(tmp_path / "last")])
    for folder in (named, last):
        assert_is_mean(weights_of(folder), checkpoints)
    evaluation = [
        "--dataset_name",
        "numbers",
        "--source_lang",
        "en",
        "--target_lang",
        "fr",
        "--max_digits",
        "1",
        "--train_size",
        "9",
    ]
    assert "bleu" in evaluate.main(["--model_name_or_path", str(last), *evaluation])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "error: no checkpoint is given; name at least one checkpoint or saved model"),
        (["--last", "2"], "error: --last needs the folder of one run; 0 folders were given"),
        (["run", "run2", "--last", "2"], "error: --last needs the folder of one run; 2 folders were given"),
        (["run", "--last", "3"], "error: run holds 2 complete checkpoints, fewer than 3; give a smaller --last, or"),
        (["run", "--last", "0"], "error: the number of checkpoints to average is 0; it must be at least 1"),
        (["run", "nowhere"], r"error: .*No such file or directory: 'nowhere/config\.json'"),
    ],
)
def test_average_rejects_wrong_arguments(trained, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(trained.parent)
    with pytest.raises(SystemExit, match=message):
        average.main([*arguments, "--output", str(tmp_path / "average")])
    assert not list(tmp_path.iterdir())


def test_average_locks_its_output(trained, tmp_path):
    output = tmp_path / "average"
    with (
        locked(output),
        pytest.raises(SystemExit, match=f"error: process {os.getpid()} on .* is writing {output}"),
    ):
        average.main([str(trained), "--output", str(output)])
    average.main([str(trained), "--output", str(output)])
    assert [path.name for path in tmp_path.iterdir()] == ["average"]
