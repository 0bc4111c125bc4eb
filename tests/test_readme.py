"""The README is short, and its Python runs, on a small model."""

import re
from pathlib import Path


ROOT = Path(__file__).parents[1]
FIXTURE = ROOT / "tests" / "fixtures" / "numbers_tiny"
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def run(block: str, *changes: tuple[str, str]) -> None:
    for original, replacement in changes:
        assert original in block
        block = block.replace(original, replacement)
    exec(compile(block, "README.md", "exec"), {})


def test_translating(capsys):
    run(BLOCKS[0], ("runs/numbers", str(FIXTURE)))
    assert "zweiundvierzig" in capsys.readouterr().out


def test_training(tmp_path, monkeypatch):
    (tmp_path / "train.en").write_text("one house\ntwo houses\n" * 8)
    (tmp_path / "train.de").write_text("ein Haus\nzwei Häuser\n" * 8)
    monkeypatch.chdir(tmp_path)
    run(BLOCKS[1], ("max_steps=100_000", "max_steps=2"), ('"base", ', '"C N=2", d_model=16, d_ff=16, num_heads=2, '))
    assert (tmp_path / "runs" / "mine" / "model.safetensors").is_file()


def test_it_is_short():
    lines = README.splitlines()
    assert len(lines) <= 120
    beginning = "\n".join(lines[:15])
    assert all(word in beginning for word in ("pip install", "hf-vanilla-transformer translate", "zweiundvierzig"))


def test_there_are_no_other_blocks():
    assert len(BLOCKS) == 2
