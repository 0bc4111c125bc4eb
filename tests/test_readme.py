"""The README is short, and its Python runs, on a small model."""

import re
from pathlib import Path


ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def run(block: str, *changes: tuple[str, str]) -> None:
    for original, replacement in changes:
        assert original in block
        block = block.replace(original, replacement)
    exec(compile(block, "README.md", "exec"), {})


def write_pairs(folder: Path) -> None:
    for split, repetitions in (("train", 8), ("test", 1)):
        (folder / f"{split}.en").write_text("one house\ntwo houses\n" * repetitions)
        (folder / f"{split}.fr").write_text("une maison\ndeux maisons\n" * repetitions)


def test_the_way_in_python(tmp_path, monkeypatch, capsys):
    write_pairs(tmp_path)
    monkeypatch.chdir(tmp_path)
    tiny = "d_model=16, d_ff=16, num_layers=1, num_heads=2, vocab_size=300, max_steps=1, use_cpu=True, bf16=False"
    run(BLOCKS[0], ('"runs/python"', f'"runs/python", save_strategy="no", max_new_tokens=5, {tiny}'))
    assert capsys.readouterr().out.splitlines()[-1].startswith("['")


def test_training_by_stock_classes(tmp_path, monkeypatch):
    write_pairs(tmp_path)
    monkeypatch.chdir(tmp_path)
    run(
        BLOCKS[1],
        ("max_steps=100_000", "max_steps=2"),
        ("bf16=True", "use_cpu=True"),
        ('"base", ', '"C N=2", d_model=16, d_ff=16, num_heads=2, '),
    )
    assert (tmp_path / "runs" / "base" / "model.safetensors").is_file()


def test_it_is_short():
    assert len(README.split()) <= 950
    beginning = "\n".join(README.splitlines()[:15])
    commands = ("make demo", "pip install", "hf-vanilla-transformer translate", "zweiundvierzig")
    assert all(command in beginning for command in commands)
    assert "\nmake test\n" in README


def test_there_are_no_other_blocks():
    assert len(BLOCKS) == 2
