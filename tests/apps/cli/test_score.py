"""`score`: log-probabilities of given translations."""

import json

import pytest

from hf_vanilla_transformer import score as score_sentences
from hf_vanilla_transformer.apps.cli import score
from hf_vanilla_transformer.translation.model_loading import load
from hf_vanilla_transformer.translation.score import Score


SOURCES, TARGETS = ["one", "two houses"], ["un", "deux maisons"]


@pytest.fixture
def files(write) -> list[str]:
    return ["--test_file", str(write("a.en", "one\ntwo houses\n")), str(write("a.fr", "un\ndeux maisons\n"))]


def expected(folder):
    tokenizer, model = load(str(folder))
    return score_sentences(model, tokenizer, SOURCES, TARGETS)


def test_score_prints_one_total_per_line(decisive, files, capsys):
    scores = score.main(["--model_name_or_path", str(decisive), *files])
    of_api = expected(decisive)
    assert scores == of_api
    assert of_api[0].total != of_api[1].total
    assert [float(line) for line in capsys.readouterr().out.splitlines()] == [
        pytest.approx(pair_score.total, abs=1e-6) for pair_score in of_api
    ]


def test_score_writes_json_lines(decisive, files, tmp_path, capsys):
    output = tmp_path / "scores.jsonl"
    score.main(["--model_name_or_path", str(decisive), *files, "--format", "jsonl", "--output", str(output)])
    rows = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert [(row["source"], row["target"]) for row in rows] == list(zip(SOURCES, TARGETS, strict=True))
    for row, of_api in zip(rows, expected(decisive), strict=True):
        assert {name: row[name] for name in of_api._fields} == of_api._asdict()
    assert capsys.readouterr().out == ""


def test_score_the_built_in_corpus_in_small_batches(decisive, monkeypatch):
    batches = []

    def note(model, tokenizer, sources, targets, tokens_per_batch, **options):
        batches.append((len(sources), tokens_per_batch))
        return [Score([], [], 0.0, 0.0)] * len(sources)

    monkeypatch.setattr(score, "score", note)
    data = ["--dataset_name", "numbers", "--max_digits", "1", "--train_size", "9", "--split", "train"]
    score.main(["--model_name_or_path", str(decisive), *data, "--tokens_per_batch", "77"])
    assert batches == [(9, 77)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "csv"], "argument --format: invalid choice: 'csv'"),
        (["--output", "nowhere/scores"], "nowhere does not exist; create the folder"),
        (["--split", "train"], 'the data has no split "train", only test'),
        (["--tokens_per_batch", "0"], "tokens_per_batch is 0; it must be at least 1"),
    ],
)
def test_score_rejects_wrong_arguments(decisive, files, arguments, message):
    with pytest.raises(SystemExit, match=f"error: {message}"):
        score.main(["--model_name_or_path", str(decisive), *files, *arguments])
