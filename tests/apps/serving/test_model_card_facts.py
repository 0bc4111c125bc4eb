"""What a card says, in every state that a README.md may have."""

import pytest

from hf_vanilla_transformer.apps.serving.model_card_facts import CardFacts, read_card
from tests.ecosystem.documentation import FIXTURE


def test_model_card_facts_of_our_card():
    assert read_card(f"{FIXTURE}/") == CardFacts("numbers_tiny", "en", "de", ("seven",))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, {}),
        ("", {}),
        ("# A model\n", {"title": "A model"}),
        ("---\nlanguage: [en, de]\n---\n", {"source_language": "en", "target_language": "de"}),
        ("---\nlanguage: [en, de, fr]\n---\n", {}),
        ("---\nlanguage: en\n---\n", {}),
        ("---\nlanguage: [en, code]\n---\n", {}),
        ("---\nlanguage: [no, de]\n---\n", {}),
        ("---\nwidget:\n- text: Ein Haus\n- src: x.wav\n- 3\n---\n", {"examples": ("Ein Haus",)}),
        ('---\n---\ntokenizer("a \\"b\\" c", return_tensors="pt")', {"examples": ('a "b" c',)}),
        ('---\n---\ntokenizer("What\\\'s the time?", return_tensors="pt")', {}),
        ("---\ntags: 5\n---\n# Broken\n", {}),
        ("---\nno: 1\n---\n# Broken\n", {}),
        ("# A model\r\n\r\nIt is.\r\n", {"title": "A model"}),
        ("---\n- a\n---\n", {}),
        ("---\n{\n---\n# Broken\n", {}),
    ],
)
def test_model_card_facts_of_any_card(tmp_path, text, expected):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    if text is not None:
        (folder / "README.md").write_bytes(text.encode())
    assert read_card(str(folder)) == CardFacts(**{"title": "model", **expected})
