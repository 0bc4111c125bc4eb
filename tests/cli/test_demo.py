"""`demo`."""

import pytest

from hf_vanilla_transformer.cli import demo, train
from tests.cli.tiny_run import recipe


def test_the_demo_ends_with_python_that_runs(tmp_path, monkeypatch, capsys):
    (path,) = recipe(tmp_path, target_lang="de", max_steps=2)
    monkeypatch.setattr(train, "DEFAULT_CONFIG", path)
    arguments = ["--output_dir", str(tmp_path / "demo"), "--seed", "3"]
    demo.main(arguments)
    printed, python = capsys.readouterr().out.split("in Python:")
    assert "exact match: " in printed
    assert "BLEU: " in printed
    assert printed.count("\n  -> ") == demo.EXAMPLES
    assert f"the model is in {tmp_path / 'demo'}" in printed
    assert len(python.strip().splitlines()) == 3
    exec(python, {})
    assert capsys.readouterr().out.startswith("[")
    with pytest.raises(SystemExit, match="already holds a model"):
        demo.main(arguments)
