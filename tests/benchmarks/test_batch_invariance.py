"""benchmarks/alone_and_together.py: what is the same is counted, and what is not, by its scores."""

from pathlib import Path

import pytest

from benchmarks import alone_and_together


FIXTURE = Path(__file__).parents[1] / "fixtures" / "numbers_tiny"
KINDS = ("of similar length", "at random")


@pytest.fixture
def arguments(tmp_path):
    file = tmp_path / "sentences"
    file.write_text("forty-two\n\nseven\none hundred and one\nsix\n")
    return ["--model", str(FIXTURE), "--file", str(file), "--batch_size", "3"]


def test_sentences_that_stay_the_same(arguments, capsys):
    figures = alone_and_together.main(arguments)
    expected = {"same": 4, "ties": 0, "others": 0, "score_differences": []}
    assert figures == {"sentences": 4, **dict.fromkeys(KINDS, expected)}
    assert "in batches of 3 at random: 4 of 4 translations as alone, 0 ties, 0 others" in capsys.readouterr().out


@pytest.mark.parametrize(("tie", "kind"), [(1e-4, "others"), (1e9, "ties")])
def test_one_that_differs_in_a_batch(tie, kind, arguments, monkeypatch):
    translate_in = alone_and_together.translate_in

    def with_a_mistake(groups, *args, **kwargs):
        groups = list(groups)
        found = translate_in(groups, *args, **kwargs)
        if len(groups[0]) > 1:
            found[0] = [*found[0][:-1], 5, found[0][-1]]
        return found

    monkeypatch.setattr(alone_and_together, "translate_in", with_a_mistake)
    figures = alone_and_together.main([*arguments, "--tie", str(tie)])
    for name in KINDS:
        assert figures[name]["same"] == 3
        assert figures[name][kind] == 1
        assert figures[name]["ties"] + figures[name]["others"] == 1
