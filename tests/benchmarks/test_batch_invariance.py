"""benchmarks/batch_invariance.py counts equal translations, ties and different ones."""

from pathlib import Path

import pytest

from benchmarks import batch_invariance


pytestmark = pytest.mark.slow

FIXTURE = Path(__file__).parents[1] / "fixtures" / "numbers_tiny"
ORDERS = ("sorted by length", "random")


@pytest.fixture
def arguments(tmp_path):
    file = tmp_path / "sentences"
    file.write_text("forty-two\n\nseven\none hundred and one\nsix\n")
    return ["--model_name_or_path", str(FIXTURE), "--file", str(file), "--batch_size", "3"]


def test_equal_translations(arguments, capsys):
    figures = batch_invariance.main(arguments)
    expected = {"same": 4, "ties": 0, "different": 0, "log_prob_differences": []}
    assert figures == {"sentences": 4, **dict.fromkeys(ORDERS, expected)}
    assert "batches of 3, random: 4 of 4 translations the same as alone, 0 ties, 0 different" in capsys.readouterr().out


@pytest.mark.parametrize(("tie", "difference"), [(1e-4, "different"), (1e9, "ties")])
def test_a_different_translation_in_a_batch(tie, difference, arguments, monkeypatch):
    translate_batches = batch_invariance.translate_batches

    def with_a_mistake(batches, *args, **kwargs):
        batches = list(batches)
        translations = translate_batches(batches, *args, **kwargs)
        if len(batches[0]) > 1:
            translations[0] = [*translations[0][:-1], 5, translations[0][-1]]
        return translations

    monkeypatch.setattr(batch_invariance, "translate_batches", with_a_mistake)
    figures = batch_invariance.main([*arguments, "--tie", str(tie)])
    for name in ORDERS:
        assert figures[name]["same"] == 3
        assert figures[name][difference] == 1
        assert figures[name]["ties"] + figures[name]["different"] == 1
