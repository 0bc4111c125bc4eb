"""`translate`: JSON lines, compressed files, texts of several sentences."""

import gzip
import io
import json
import sys

import pytest

from hf_vanilla_transformer import translate as translate_sentences
from hf_vanilla_transformer.apps.cli import translate
from hf_vanilla_transformer.translation.model_loading import load


@pytest.fixture(scope="module")
def loaded(decisive):
    tokenizer, model = load(str(decisive))
    return model, tokenizer


@pytest.fixture
def run(decisive, tmp_path):
    """Runs the command with an input file of a name and a text; returns the path of its output."""

    def run(name, text, output, *arguments):
        open_file = gzip.open if name.lower().endswith(".gz") else open
        with open_file(tmp_path / name, "wt", encoding="utf-8") as file:
            file.write(text)
        paths = ["--input", str(tmp_path / name), "--output", str(tmp_path / output)]
        translate.main(["--model_name_or_path", str(decisive), *paths, *arguments])
        return tmp_path / output

    return run


def objects(path):
    open_file = gzip.open if path.suffix == ".gz" else open
    with open_file(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@pytest.mark.parametrize(
    ("name", "output"), [("in.jsonl", "out.jsonl"), ("in.JSONL.gz", "out.jsonl.gz"), ("in.jsonl.GZ", "out.jsonl")]
)
def test_translate_keeps_fields_of_json_lines(run, loaded, name, output):
    rows = [{"id": 7, "text": "one\ntwo ä"}, {"text": "", "id": None}]
    text_of_rows = "".join(f"{json.dumps(row)}\n" for row in rows)
    output_rows = objects(run(name, text_of_rows, output))
    details = translate_sentences(*loaded, [row["text"] for row in rows], return_details=True)
    for row, output_row, expected in zip(rows, output_rows, details, strict=True):
        assert {name: output_row[name] for name in row} == row
        assert output_row["translation"] == expected.text
        assert output_row["score"] == pytest.approx(expected.score, abs=1e-4)
        assert output_row.get("flags", []) == sorted(expected.flags)


def test_translate_writes_alternatives(run, loaded):
    options = ["--num_return_sequences", "3", "--num_beams", "5", "--source_column", "en", "--target_column", "de"]
    (row,) = objects(run("in.jsonl", '{"en": "a small house"}\n', "out.jsonl", *options))
    (expected,) = translate_sentences(
        *loaded, ["a small house"], return_details=True, num_beams=5, num_return_sequences=3
    )
    assert row["de"] == expected.text
    assert [alternative["de"] for alternative in row["alternatives"]] == [
        alternative.text for alternative in expected.alternatives
    ]
    scores = [row["score"], *(alternative["score"] for alternative in row["alternatives"])]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)


def test_translate_text_to_json_lines_and_gzip(run, loaded):
    expected = translate_sentences(*loaded, ["one", "two"])
    rows = objects(run("in.txt", "one\ntwo\n", "out.jsonl"))
    assert [row["translation"] for row in rows] == expected
    with gzip.open(run("in.txt", "one\ntwo\n", "out.txt.gz"), "rt", encoding="utf-8") as file:
        assert file.read().splitlines() == expected


def test_translate_json_lines_of_standard_input(decisive, loaded, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"text": "one"}\n{"text": "two"}')))
    translate.main(["--model_name_or_path", str(decisive), "--json_lines"])
    translations = [json.loads(line)["translation"] for line in capsys.readouterr().out.splitlines()]
    assert translations == translate_sentences(*loaded, ["one", "two"])


def test_translate_keeps_line_breaks_of_split_texts(decisive, loaded, run, capsys):
    pytest.importorskip("sentencex")
    text = "One. Two houses!\n\nOne"
    (expected,) = translate_sentences(*loaded, [text], split_sentences=True)
    (row,) = objects(run("in.jsonl", json.dumps({"text": text}), "out.jsonl", "--split_sentences"))
    assert row["translation"] == expected
    translate.main(["--model_name_or_path", str(decisive), "--split_sentences", "--source_lang", "en", text])
    assert capsys.readouterr().out == f"{expected}\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("one", r"in\.jsonl, line 2 is not JSON \(.*\); write one JSON object per line"),
        ('["one"]', r'in\.jsonl, line 2 is no object; give objects with text in "text", or name its field'),
        ('{"en": "one"}', r"in\.jsonl, line 2 has the fields en; give objects with text in"),
        ('{"text": 1}', r"in\.jsonl, line 2 has the fields text; give objects with text in"),
        ('{"text": "one", "translation": ""}', r'line 2 already has a field "translation"; name another field'),
        ('{"text": "\\ud800"}', r"in\.jsonl, line 2 has the lone surrogate '\\ud800'; write the whole character"),
        (
            '{"text": "one", "id": "\\udc00"}',
            r"in\.jsonl, line 2 has the lone surrogate '\\udc00'; write the whole character",
        ),
        ('{"text": "one", "id": ' + "9" * 5000 + "}", r"in\.jsonl, line 2 is not JSON \(.*digits.*\)"),
        ('{"text": "one", "id": ' + "[" * 100_000, r"in\.jsonl, line 2 is not JSON \(.*recursion.*\)"),
        *(
            (f'{{"text": "one", "{name}": 1}}', f'line 2 already has a field "{name}", which the output has')
            for name in ("score", "alternatives", "flags")
        ),
    ],
)
def test_translate_rejects_wrong_json_lines(run, tmp_path, line, message):
    with pytest.raises(SystemExit, match=message):
        run("in.jsonl", f'{{"text": "one"}}\n{line}\n', "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


def test_translate_ignores_detail_fields_for_text_output(run):
    assert len(run("in.jsonl", '{"text": "one", "score": 1}\n', "out.txt").read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--num_return_sequences", "2"],
            "num_return_sequences needs JSON lines; give --json_lines, or an",
        ),
        (["--num_return_sequences", "0", "--json_lines"], "num_return_sequences is 0; it must be at least 1"),
        (["--source_lang", "en"], "source_lang is en, but has no effect without --split_sentences"),
        (["--target_column", "score", "--json_lines"], "target_column is score, another field of the output; give"),
        (["--source_column", "en"], "source_column and target_column have no effect on lines of text; leave them out"),
        (["--input", "a.txt", "--output", "b.txt", "--json_lines"], "json_lines is for standard input and output, and"),
        (["--target_column", "text"], 'source_column and target_column are both "text"; give two names'),
    ],
)
def test_translate_rejects_wrong_arguments_of_json(decisive, arguments, message):
    with pytest.raises(SystemExit, match=message):
        translate.main(["one", "--model_name_or_path", str(decisive), *arguments])
