"""`translate`: files, arguments and standard input."""

import inspect
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from tqdm import tqdm

from hf_vanilla_transformer import Glossary, Translation
from hf_vanilla_transformer import translate as translate_sentences
from hf_vanilla_transformer.apps.cli import evaluate, translate
from hf_vanilla_transformer.support.user_errors import InputError
from hf_vanilla_transformer.translation.model_loading import load
from tests.apps.cli.tiny_run import lines


pytestmark = pytest.mark.long


def test_translate_does_not_replace_its_input(trained, tmp_path):
    path = tmp_path / "a.en"
    path.write_text("seven\n")
    with pytest.raises(SystemExit, match="is also an input"):
        translate.main(
            ["--model_name_or_path", str(trained), "--input", str(path), "--output", str(tmp_path / "." / "a.en")]
        )
    assert path.read_text() == "seven\n"


@pytest.fixture
def expected_translations(decisive):
    tokenizer, model = load(str(decisive))
    return lines(translate_sentences(model, tokenizer, ["one", "two"]))


def test_translate_a_file(decisive, tmp_path, expected_translations):
    (tmp_path / "in.txt").write_text("one\ntwo\n")
    translate.main(
        [
            "--model_name_or_path",
            str(decisive),
            "--input",
            str(tmp_path / "in.txt"),
            "--output",
            str(tmp_path / "out.txt"),
        ]
    )
    assert (tmp_path / "out.txt").read_text(encoding="utf-8") == expected_translations
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.txt"]


def test_translate_a_long_file_in_chunks(decisive, tmp_path, monkeypatch, capsys):
    """And what is there so far is no translation of the file. Memory goes back after each time."""
    monkeypatch.setattr(translate, "CHUNK_SIZE", 2)
    calls, output = [], tmp_path / "out.txt"

    def record(model, tokenizer, sentences, *args, **kwargs):
        assert not output.exists()
        calls.append(sentences)
        return translate_sentences(model, tokenizer, sentences, *args, **kwargs)

    monkeypatch.setattr(translate, "translate", record)
    given_back = []
    monkeypatch.setattr(translate, "release_freed_memory", lambda: given_back.append(len(calls)))
    sentences = ["one", "two houses", "", "a small house", "one"]
    (tmp_path / "in.txt").write_text("".join(f"{sentence}\n" for sentence in sentences))
    translate.main(
        ["--model_name_or_path", str(decisive), "--input", str(tmp_path / "in.txt"), "--output", str(output)]
    )
    assert calls == [sentences[:2], sentences[2:4], sentences[4:]]
    assert given_back == [1, 2, 3]
    assert re.search(r"^5 sentences in \d+\.\d s: \d+\.\d sentences/s$", capsys.readouterr().err, re.MULTILINE)
    tokenizer, model = load(str(decisive))
    assert output.read_text(encoding="utf-8") == lines(translate_sentences(model, tokenizer, sentences))


def test_translate_keeps_its_part_after_an_error(decisive, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(translate, "CHUNK_SIZE", 1)
    (tmp_path / "in.txt").write_text("one\ntwo\nthree\n")

    def fail_at_last(model, tokenizer, sentences, *args, **kwargs):
        if sentences == ["three"]:
            raise InputError("no more")
        return translate_sentences(model, tokenizer, sentences, *args, **kwargs)

    monkeypatch.setattr(translate, "translate", fail_at_last)
    with pytest.raises(SystemExit, match="error: no more"):
        translate.main(
            [
                "--model_name_or_path",
                str(decisive),
                "--input",
                str(tmp_path / "in.txt"),
                "--output",
                str(tmp_path / "out.txt"),
            ]
        )
    part = tmp_path / ".out.txt.part"
    tokenizer, model = load(str(decisive))
    assert part.read_text(encoding="utf-8") == lines(translate_sentences(model, tokenizer, ["one", "two"]))
    assert f"the part that was written is in {part}" in caplog.messages
    assert not (tmp_path / "out.txt").exists()


def test_translate_arguments_by_another_search(decisive, capsys):
    sentences = ["one", "two houses", "a small house"]
    translate.main([*sentences, "--model_name_or_path", str(decisive), "--num_beams", "1", "--max_new_tokens", "20"])
    tokenizer, model = load(str(decisive))
    expected = translate_sentences(model, tokenizer, sentences, num_beams=1, max_new_tokens=20)
    assert expected != translate_sentences(model, tokenizer, sentences, max_new_tokens=20)
    assert expected != translate_sentences(model, tokenizer, sentences, num_beams=1)
    written = capsys.readouterr()
    assert written.out == lines(expected)
    assert "sentences/s" not in written.err


@pytest.mark.parametrize(
    ("command", "place"),
    [
        (translate, "hf_vanilla_transformer.apps.cli.translate"),
        (evaluate, "hf_vanilla_transformer.evaluation.evaluate"),
    ],
)
def test_verbs_pass_tokens_per_batch(decisive, write, monkeypatch, command, place):
    budgets = []

    def translate_and_note(*args, **kwargs):
        budgets.append(inspect.signature(translate_sentences).bind(*args, **kwargs).arguments["tokens_per_batch"])
        return translate_sentences(*args, **kwargs)

    monkeypatch.setattr(f"{place}.translate", translate_and_note)
    pairs = write("test.csv", "source,target\none,un\n")
    sentences = ["one"] if command is translate else ["--test_file", str(pairs)]
    command.main([*sentences, "--model_name_or_path", str(decisive), "--tokens_per_batch", "77"])
    assert budgets == [77]


def test_translate_standard_input(decisive, monkeypatch, capsys, expected_translations):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbfone\n\ntwo\r\n"), encoding="ascii"))
    translate.main(["--model_name_or_path", str(decisive)])
    first, second = expected_translations.splitlines()
    assert capsys.readouterr().out == f"{first}\n\n{second}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--num_beams", "0"], "error: num_beams is 0; it must be at least 1"),
        (["--length_penalty", "nan"], "error: length_penalty is nan; it must lie between -100 and 100"),
        (["--early_stopping", "soon"], "error: argument --early_stopping/--early-stopping: invalid choice: 'soon'"),
        (["--tokens_per_batch", "-5"], "error: tokens_per_batch is -5; it must be at least 1"),
        (["--output", "."], r"error: \. is a folder; name a file to write"),
    ],
)
def test_translate_rejects_wrong_arguments(trained, arguments, message):
    with pytest.raises(SystemExit, match=message):
        translate.main(["one", "--model_name_or_path", str(trained), *arguments])


@pytest.mark.parametrize(("option", "expected"), [("true", True), ("false", False), ("never", "never")])
def test_translate_passes_early_stopping(trained, monkeypatch, option, expected):
    arguments = {}
    monkeypatch.setattr(
        sys.modules["hf_vanilla_transformer.apps.cli.translate"],
        "translate",
        lambda *args, **kwargs: arguments.update(kwargs) or [Translation("a", 0.0, [], [], [])],
    )
    translate.main(["one", "--model_name_or_path", str(trained), "--early_stopping", option])
    assert arguments["early_stopping"] == expected


def test_translate_joins_the_lines_of_a_translation(trained, capsys, monkeypatch):
    translations = [Translation(text, 0.0, [], [], []) for text in ("a\nb", "c")]
    monkeypatch.setattr(translate, "translate", lambda *args, **kwargs: translations)
    translate.main(["one", "two", "--model_name_or_path", str(trained)])
    assert capsys.readouterr().out == "a b\nc\n"


def test_translate_counts_flagged_translations(decisive, tmp_path, capsys):
    tokenizer, model = load(str(decisive))
    long = " ".join(["one"] * 60)
    tokenizer.model_max_length = len(tokenizer(long).input_ids) - 1
    tokenizer.save_pretrained(tmp_path / "model")
    model.save_pretrained(tmp_path / "model")
    command = [long, "two", "", "--model_name_or_path", str(tmp_path / "model"), "--num_beams", "1"]
    translate.main([*command, "--max_new_tokens", "1"])
    assert capsys.readouterr().err.splitlines()[-1:] == [
        "2 of the translations may be wrong: 1 longer than any source of the training (split them by "
        "--split_sentences), 2 truncated at the length limit (raise --max_new_tokens)."
    ]
    translate.main([*command, "--max_new_tokens", "1", "--json_lines"])
    written = capsys.readouterr()
    assert [json.loads(line).get("flags") for line in written.out.splitlines()] == [
        ["longer_than_training", "truncated"],
        ["truncated"],
        None,
    ]
    assert "may be wrong" not in written.err


def test_translate_counts_flagged_translations_if_interrupted(decisive, monkeypatch, capsys):
    """On a line of their own, above an unfinished progress bar."""
    chunks, bars = iter(["one"]), []

    def translate_once(model, tokenizer, sentences, **kwargs):
        if next(chunks, None) is None:
            bars.append(tqdm(sentences, file=sys.stderr))
            raise KeyboardInterrupt
        return translate_sentences(model, tokenizer, sentences, **kwargs)

    monkeypatch.setattr(translate, "translate", translate_once)
    monkeypatch.setattr(translate, "CHUNK_SIZE", 1)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo\n")))
    with pytest.raises(KeyboardInterrupt):
        translate.main(["--model_name_or_path", str(decisive), "--num_beams", "1", "--max_new_tokens", "1"])
    counted = "1 of the translations may be wrong: 1 truncated at the length limit (raise --max_new_tokens)."
    assert counted in capsys.readouterr().err.replace("\r", "\n").splitlines()
    for bar in bars:
        bar.close()


def test_translate_a_sentence_that_ends_like_a_file_name(trained, capsys):
    translate.main(["one.json", "--model_name_or_path", str(trained)])
    assert capsys.readouterr().out


def test_translate_rejects_a_missing_file(tmp_path):
    with pytest.raises(SystemExit, match=r"error: .*in\.txt does not exist"):
        translate.main(["--model_name_or_path", "not loaded", "--input", str(tmp_path / "in.txt")])


def test_translate_rejects_arguments_with_a_file(trained):
    with pytest.raises(SystemExit, match="given both as arguments and as a file"):
        translate.main(["one", "--model_name_or_path", str(trained), "--input", "in.txt"])


def start(folder, *arguments, **streams):
    """The command in a process of its own."""
    command = [sys.executable, "-m", "hf_vanilla_transformer", "translate", "--model_name_or_path", folder, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **streams)


def test_translate_a_pipe_while_it_is_written(decisive, expected_translations):
    with start(decisive, stdin=subprocess.PIPE) as process:
        for line, expected in zip(("one", "two"), expected_translations.splitlines(), strict=True):
            process.stdin.write(f"{line}\n".encode())
            process.stdin.flush()
            assert process.stdout.readline().decode() == f"{expected}\n"
        process.stdin.close()
        assert b"2 sentences in" in process.stderr.read()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_translate_keeps_its_part_if_interrupted(decisive, tmp_path, expected_translations, number):
    output, part = tmp_path / "out.txt", tmp_path / ".out.txt.part"
    with start(decisive, "--output", output, stdin=subprocess.PIPE) as process:
        process.stdin.write(b"one\ntwo\n")
        process.stdin.flush()
        while not (part.exists() and part.read_text(encoding="utf-8") == expected_translations):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
        assert process.wait() == 128 + number
        assert process.stderr.read().decode().splitlines()[-2:] == [
            f"the part that was written is in {part}",
            "interrupted",
        ]
    assert not output.exists()
    assert part.read_text(encoding="utf-8") == expected_translations
    assert [path.name for path in tmp_path.iterdir()] == [part.name]


def test_translate_locks_its_output(decisive, tmp_path):
    output = tmp_path / "out.txt"
    with start(decisive, "--output", output, stdin=subprocess.PIPE) as process:
        while not (tmp_path / ".out.txt.part").exists():
            assert process.poll() is None
            time.sleep(0.05)
        with pytest.raises(SystemExit, match=f"error: process {process.pid} on .* is writing "):
            translate.main(["one", "--model_name_or_path", str(decisive), "--output", str(output)])
        process.communicate(b"two\n")
    assert len(output.read_text(encoding="utf-8").splitlines()) == 1


def test_translate_rejects_standard_input_in_latin_1(decisive, monkeypatch, capsys):
    stream = io.TextIOWrapper(io.BytesIO("one\nH\u00e4user\n".encode("latin-1")))
    monkeypatch.setattr(sys, "stdin", stream)
    with pytest.raises(SystemExit, match="error: standard input, line 2: byte 0xe4 is not UTF-8"):
        translate.main(["--model_name_or_path", str(decisive)])


def test_translate_rejects_arguments_that_are_not_utf_8(decisive):
    with pytest.raises(SystemExit, match=r"^error: 'H\\udce4user' is not UTF-8"):
        translate.main(["H\udce4user", "--model_name_or_path", str(decisive)])


def test_translate_rejects_too_many_beams(decisive):
    with pytest.raises(
        SystemExit, match=r"^error: num_beams is 1000000000000; it must be a whole number from 1 to 10,000"
    ):
        translate.main(["one", "--model_name_or_path", str(decisive), "--num_beams", str(10**12)])


@pytest.mark.parametrize("error", [MemoryError("too much"), torch.OutOfMemoryError("too much")])
def test_translate_reports_too_little_memory(decisive, monkeypatch, error):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(translate, "translate", fail)
    with pytest.raises(SystemExit, match=r"^error: not enough memory \(too much\)"):
        translate.main(["one", "--model_name_or_path", str(decisive)])


def test_translate_a_named_pipe(decisive, tmp_path, expected_translations, capsys):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    threading.Thread(target=pipe.write_text, args=("one\ntwo\n",), daemon=True).start()
    translate.main(["--model_name_or_path", str(decisive), "--input", str(pipe)])
    assert capsys.readouterr().out == expected_translations


def test_translate_with_a_glossary(decisive, tmp_path, capsys):
    (tmp_path / "terms.tsv").write_text("house\tHaus\tHäuser\ntwo\tzwei\n", encoding="utf-8")
    command = ["--model_name_or_path", str(decisive), "--glossary", str(tmp_path / "terms.tsv"), "two", "a house"]
    translate.main(command)
    tokenizer, model = load(str(decisive))
    glossary = Glossary({"house": ["Haus", "Häuser"], "two": "zwei"}, tokenizer)
    expected = lines(translate_sentences(model, tokenizer, ["two", "a house"], glossary=glossary))
    assert capsys.readouterr().out == expected
    assert re.search(r"\bzwei\b.*\n.*\b(Haus|Häuser)\b", expected)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (None, [], "No such file or directory: 'terms.tsv'"),
        ("house Haus\n", [], "terms.tsv, line 1: 'house Haus'; write a term, a tab, and its translation."),
        ("two\tzwei\n", ["--num_beams", "1"], "forced phrases and glossaries need beam search, but num_beams is 1; "),
        ("two\tzwei\n", ["--engine", "ctranslate2"], "--glossary does not work with --engine ctranslate2; "),
        ("two\tzwei\n", ["--output", "terms.tsv"], "terms.tsv is also an input, "),
        ("two\tzwei\n", ["--max_new_tokens", "2"], "the phrases of sentence 0 of the batch take up to 3 tokens, "),
    ],
)
def test_translate_rejects_a_glossary(decisive, tmp_path, monkeypatch, text, options, message):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / "terms.tsv").write_text(text, encoding="utf-8")
    with pytest.raises(SystemExit, match=re.escape(message)) as stop:
        translate.main(["--model_name_or_path", str(decisive), "--glossary", "terms.tsv", *options, "two"])
    assert str(stop.value).startswith("error: ")
    assert "\n" not in str(stop.value)
