"""The Python of docs/explained.md and docs/see_inside.md runs, and makes the pictures that the pages show."""

import re

import numpy as np
import pytest

from tests.ecosystem.documentation import FIXTURE, ROOT


pytest.importorskip("matplotlib")

PAGES = ("explained.md", "see_inside.md")
EXPLAINED, SEE_INSIDE = ((ROOT / "docs" / page).read_text(encoding="utf-8") for page in PAGES)
# Lengths at which attention takes no time.
CHANGES = {"runs/numbers": FIXTURE.as_posix(), "[64, 128, 256, 512, 1024, 2048, 4096]": "[8, 16]"}


def run(text: str, **names) -> dict:
    """Run the blocks of Python of a text in order; returns their names."""
    for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        run_block(block, names)
    return names


def run_block(block: str, names: dict) -> None:
    for original, replacement in CHANGES.items():
        block = block.replace(original, replacement)
    exec(compile(block, "page", "exec"), names)


@pytest.fixture(scope="module")
def explained(tmp_path_factory):
    """The names of the page's blocks; of each block the code, what the page shows and what it prints; pictures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("explained"))
        printed: list[str] = []
        names, blocks = {"print": lambda *words: printed.append(" ".join(map(str, words)))}, []
        for code, shown in re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", EXPLAINED, flags=re.DOTALL):
            printed.clear()
            run_block(code, names)
            blocks.append((code, shown.splitlines(), "\n".join(printed).splitlines()))
        return names, blocks, {path.name: path for path in names["folder"].resolve().iterdir()}


def test_explained_page_pictures(explained):
    _, _, pictures = explained
    shown = set(re.findall(r"\]\(images/(\w+\.png)\)", EXPLAINED))
    assert pictures.keys() == shown
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures.values())


def test_explained_page_output(explained):
    """What depends on the model is not compared: the page has the demo's, the test a smaller one."""
    _, blocks, _ = explained
    blocks_of_model = [block for block in blocks if block[1] and re.search("tokenizer|model", block[0])]
    independent_blocks = [block for block in blocks if block not in blocks_of_model]
    assert (len(blocks_of_model), len([block for block in independent_blocks if block[1]])) == (5, 5)
    for _, shown, printed in independent_blocks:
        assert printed == shown
    for _, shown, printed in blocks_of_model:
        # The first words of lines, or parts of tokens.
        assert {line.split()[0][:1] for line in printed} == {line.split()[0][:1] for line in shown}
        assert [line.endswith("equal: True") for line in shown[-1:]] == [
            line.endswith("equal: True") for line in printed[-1:]
        ]


def test_explained_page_numbers_are_equation_1(explained):
    names, _, _ = explained
    q, k, v = np.array([[2, 0], [0, 2], [1, 1]]), np.array([[0, 2], [2, 0], [1, 1]]), np.array([[1, 1], [3, 2], [1, 2]])
    exponentials = np.exp(q @ k.T / np.sqrt(2))
    output = exponentials / exponentials.sum(axis=1, keepdims=True) @ v
    np.testing.assert_allclose(names["output"].numpy(), output, atol=1e-6)


def test_explained_page_decoding_equals_teacher_forcing(explained):
    names, blocks, _ = explained
    tokenizer = names["tokenizer"]
    printed = [line for _, _, lines in blocks for line in lines]
    assert tokenizer.decode(names["ids"][0], skip_special_tokens=True) == "zweiundvierzig"
    assert names["ids"][0, 1:].tolist() == names["logits"][0].argmax(dim=-1).tolist()
    steps = [line for line in printed if line.startswith("reads (")]
    assert len(steps) == names["ids"].shape[1] - 1


def test_see_inside_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    before_bertviz = SEE_INSIDE.partition("## BertViz")[0]
    names = run(before_bertviz)
    assert {path.name for path in tmp_path.iterdir()} == {"attention.pdf", "probabilities.svg"}
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == str(names["details"].cross.shape)
    assert [line.split()[0] for line in printed[1:]] == names["details"].target_tokens
