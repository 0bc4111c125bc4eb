"""`demo`."""

import pytest

from hf_vanilla_transformer.apps.cli import demo
from hf_vanilla_transformer.support.user_errors import InputError
from tests.apps.cli.tiny_run import recipe
from tests.models import decisive_model
from tests.support.missing_packages import without_matplotlib


pytestmark = pytest.mark.long


def test_demo_ends_with_a_picture_and_python_that_runs(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    _, path = recipe(tmp_path, target_lang="de", max_steps=2)
    monkeypatch.setattr(demo, "RECIPE", path)
    arguments = ["--output_dir", str(tmp_path / "demo"), "--seed", "3"]
    demo.main(arguments)
    printed, python = capsys.readouterr().out.split("in Python:")
    assert "exact match: " in printed
    assert "BLEU: " in printed
    assert printed.count("\n  -> ") == demo.EXAMPLES
    assert f"the model is in {tmp_path / 'demo'}" in printed
    assert f"the cross-attention of forty-two is in {tmp_path / 'demo' / 'attention.png'}" in printed
    assert (tmp_path / "demo" / "attention.png").read_bytes().startswith(b"\x89PNG")
    assert len(python.strip().splitlines()) == 3
    exec(python, {})
    assert capsys.readouterr().out.startswith("[")
    with pytest.raises(SystemExit, match="already holds a model"):
        demo.main(arguments)


def test_demo_finds_a_new_folder(tmp_path, monkeypatch):
    all_settings = []

    def stop(settings):
        all_settings.append(settings)
        raise InputError("it would train now")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "run", stop)
    for name in ("runs/numbers", "runs/numbers_2", "runs/numbers_3"):
        with pytest.raises(SystemExit, match="it would train now"):
            demo.main([])
        assert str(all_settings[-1].output_folder) == name
        assert not all_settings[-1].output.overwrite
        (tmp_path / name).mkdir(parents=True)


def test_draw_attention_names_the_extra_without_matplotlib(monkeypatch, capsys, tmp_path, tokenizer):
    without_matplotlib(monkeypatch)
    demo.draw_attention(decisive_model(vocab_size=len(tokenizer)), tokenizer, tmp_path / "attention.png")
    printed = capsys.readouterr().out
    assert printed.startswith("\nthe cross-attention of forty-two is not drawn: plots need matplotlib; install it")
    assert "[plots]" in printed
    assert not list(tmp_path.iterdir())
