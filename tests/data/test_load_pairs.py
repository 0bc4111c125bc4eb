import gzip
import json
import lzma
import os
import threading
import tracemalloc

import datasets
import pytest
from datasets import Dataset, DatasetDict

from hf_vanilla_transformer import load_pairs


ENGLISH = "a small house\ntwo houses\n"
GERMAN = "ein kleines Haus\nzwei Häuser\n"
EXPECTED = [
    {"source": "a small house", "target": "ein kleines Haus"},
    {"source": "two houses", "target": "zwei Häuser"},
]


def test_two_aligned_text_files(write):
    files = [write("train.en", ENGLISH), write("train.de", GERMAN)]
    pairs = load_pairs(train_files=files, test_files=files)
    assert list(pairs) == ["train", "test"]
    assert pairs["train"].to_list() == pairs["test"].to_list() == EXPECTED


def test_only_newlines_end_lines(write):
    files = [write("train.en", "a\u2028b\r\n\n c \n"), write("train.de", "x\x0by\nz\nw")]
    assert load_pairs(train_files=files)["train"].to_list() == [
        {"source": "a\u2028b", "target": "x\x0by"},
        {"source": "", "target": "z"},
        {"source": " c ", "target": "w"},
    ]


def test_text_comes_from_a_file_of_the_cache(write, cache):
    files = [write("train.en", ENGLISH), write("train.de", GERMAN)]
    first = load_pairs(train_files=files)["train"]
    assert all(str(cache) in file["filename"] for file in first.cache_files)
    times = {path: path.stat().st_mtime_ns for path in cache.rglob("*.arrow")}
    again = load_pairs(train_files=files)["train"]
    assert again.cache_files == first.cache_files
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*.arrow")} == times
    assert len(times) == 1


@pytest.mark.parametrize("side", [0, 1])
def test_text_that_has_changed_is_read_again(write, side):
    files = [write("train.en", ENGLISH), write("train.de", GERMAN)]
    fingerprint = load_pairs(train_files=files)["train"]._fingerprint
    state = files[side].stat()
    changed = files[side].read_text(encoding="utf-8").replace("e", "E")
    # A file of the same name, size and modification time.
    other = write("other", changed)
    os.utime(other, ns=(state.st_atime_ns, state.st_mtime_ns))
    other.replace(files[side])
    pairs = load_pairs(train_files=files)["train"]
    column = ["source", "target"][side]
    assert pairs[column][:] == changed.splitlines()
    assert pairs._fingerprint != fingerprint


def test_load_pairs_of_many_lines(write):
    lines = [f"line {number}" for number in range(10)]
    files = [write("a.en", "\n".join(lines)), write("a.de", "\n".join(lines).upper())]
    pairs = load_pairs(train_files=files)["train"]
    assert pairs["source"][:] == lines
    assert pairs["target"][:] == [line.upper() for line in lines]
    for longer in (0, 1):
        some = [write("b.en", "x\n" * (6 + 7 * longer)), write("b.de", "y\n" * (13 - 7 * longer))]
        counts = (13, 6) if longer else (6, 13)
        with pytest.raises(ValueError, match=r"b\.en has {} lines and .*b\.de has {};".format(*counts)):
            load_pairs(train_files=some)


def test_load_pairs_needs_little_memory(write):
    """A fraction of the size of the text."""
    line = "a sentence of some words, " * 8
    texts = [write("a.en", f"{line}\n" * 60_000), write("a.de", f"{line}\n" * 60_000)]
    table = write("a.jsonl", f"{json.dumps({'source': line, 'target': line})}\n" * 60_000)
    for files in (texts, table):
        tracemalloc.start()
        load_pairs(train_files=files)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < table.stat().st_size / 2


def test_an_error_leaves_no_files(write, cache, tmp_path):
    (tmp_path / "bad.de").write_bytes(b"x\n" * 20_000 + "Häuser\n".encode("latin-1"))
    files = [write("bad.en", "x\n" * 20_001), tmp_path / "bad.de"]
    with pytest.raises(ValueError, match=r"bad\.de, line 20001: byte 0xe4 is not UTF-8"):
        load_pairs(train_files=files)
    files = [write("long.en", "x\n" * 20_001), write("long.de", "x\n" * 20_000)]
    with pytest.raises(ValueError, match=r"20001 lines and .* has 20000;"):
        load_pairs(train_files=files)
    left = [path for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock"]
    assert left == []


def test_a_cache_that_cannot_be_written(write, monkeypatch):
    files = [write("a.en", "one\n"), write("a.de", "eins\n")]
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", files[0] / "cache")
    with pytest.raises(OSError, match=r"a\.en/cache"):
        load_pairs(train_files=files)


def test_several_parquet_files(tmp_path):
    for name, sources in (("a", ["one", "two"]), ("b", ["three"])):
        Dataset.from_dict({"en": sources, "de": sources}).to_parquet(tmp_path / f"{name}.parquet")
    pairs = load_pairs("parquet", data_files=str(tmp_path / "*.parquet"), source="en", target="de")
    assert pairs["train"]["source"][:] == ["one", "two", "three"]


@pytest.mark.parametrize("name", ["train.csv", "train.jsonl", "train.json", "train.parquet"])
def test_load_pairs_from_tables(tmp_path, name):
    table = Dataset.from_list([{"en": row["source"], "de": row["target"], "extra": 1} for row in EXPECTED])
    path = tmp_path / name
    writers = {".csv": table.to_csv, ".parquet": table.to_parquet}
    writers.get(path.suffix, table.to_json)(path)
    assert load_pairs(train_files=path, source="en", target="de")["train"].to_list() == EXPECTED


def test_words_that_pandas_reads_as_missing(write):
    pairs = load_pairs(train_files=write("train.csv", "source,target\nzero,null\nNA,None\n,nan\n"))
    assert pairs["train"].to_list() == [
        {"source": "zero", "target": "null"},
        {"source": "NA", "target": "None"},
        {"source": "", "target": "nan"},
    ]


def test_cells_that_look_like_numbers(write):
    rows = "007,1.50\nTrue,1e5\n"
    pairs = load_pairs(train_files=write("train.csv", "source,target\n" + "a,b\n" * 10_001 + rows * 5_000))
    assert pairs["train"][-2] == {"source": "007", "target": "1.50"}
    assert pairs["train"][-1] == {"source": "True", "target": "1e5"}


def test_numbers_alone_are_text_with_a_warning(write, caplog):
    pairs = load_pairs(train_files=write("numbers.csv", "source,target\n1,eins\n-2.5,x\n"))
    assert pairs["train"][0] == {"source": "1", "target": "eins"}
    assert [message.partition(": ")[2] for message in caplog.messages] == [
        'column "source" contains only numbers; is it the column of the sentences?'
    ]


def test_a_byte_order_mark_is_no_text(write):
    files = [write("a.en", "\ufeffone\n"), write("a.de", "eins\n")]
    assert load_pairs(train_files=files)["train"].to_list() == [{"source": "one", "target": "eins"}]
    table = write("a.csv", "\ufeffsource,target\none,eins\n")
    assert load_pairs(train_files=table)["train"].to_list() == [{"source": "one", "target": "eins"}]


def test_options_of_a_table(write):
    pairs = load_pairs(train_files=write("train.csv", "source;target\na;b\n"), delimiter=";")
    assert pairs["train"].to_list() == [{"source": "a", "target": "b"}]


def test_a_table_in_another_encoding_and_with_other_quotation_marks(tmp_path):
    path = tmp_path / "train.csv"
    path.write_bytes("source,target\n'a, b',Häuser\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"train\.csv, line 1 or later: 'utf-8' codec .* \(--encoding latin-1\)"):
        load_pairs(train_files=path)
    pairs = load_pairs(train_files=path, encoding="latin-1", quotechar="'")
    assert pairs["train"].to_list() == [{"source": "a, b", "target": "Häuser"}]


@pytest.mark.parametrize("line", ['"Hello," he said.\t"Hallo", sagte er.', '"Hello\tHallo'])
def test_quotation_marks_that_are_text_stay(tmp_path, line):
    path = tmp_path / "train.tsv"
    path.write_text(f"source\ttarget\na\tb\n{line}\n")
    with pytest.raises(ValueError, match=r"train\.tsv, line 3: .*give quoting=3 \(--quoting 3\) if no cell is quoted"):
        load_pairs(train_files=path, quoting=0)
    pairs = load_pairs(train_files=path)
    assert pairs["train"].to_list()[1] == dict(zip(("source", "target"), line.split("\t"), strict=True))


def test_tab_separated_values_are_unquoted(write):
    path = write("a.tsv", 'source\ttarget\n"B\tb\nC\tc\nD"\td\n')
    pairs = load_pairs(train_files=path)["train"]
    assert pairs.to_list() == [{"source": s, "target": t} for s, t in (('"B', "b"), ("C", "c"), ('D"', "d"))]
    assert load_pairs(train_files=path, quoting=0)["train"]["source"][:] == ["B\tb\nC\tc\nD"]
    path = write("b.tsv", 'source\ttarget\n"B\nC"\tc\n')
    with pytest.raises(ValueError, match=r"line 2: 1 cells, .* 2; if cells are quoted, give quoting=0 \(--quoting 0\)"):
        load_pairs(train_files=path)


def test_quotation_marks_in_a_file_without_quoted_cells(write, caplog):
    """csvkit, pandas and `datasets` read them as quoted cells."""
    path = write("a.tsv", '"en"\t"de"\n"a"\t"b"\n')
    for names, options in (({"source": "en", "target": "de"}, {}), ({"source": "en"}, {"quoting": 3})):
        with pytest.raises(ValueError, match=r'no column "en"; it has: .*; if cells are quoted, give quoting=0 \('):
            load_pairs(train_files=path, **names, **options)
    assert load_pairs(train_files=path, source="en", target="de", quoting=0)["train"][0] == {
        "source": "a",
        "target": "b",
    }
    rows = ['"He said ""so"", twice."\teins', '"two"\t"zwei" oder zwo', '"three"\tdrei "drei"', "four\tvier"]
    path = write("b.tsv", "\n".join(["source\ttarget", *rows]) + "\n")
    warning = 'most of column "source" is in quotation marks, which stay; if cells are quoted, give quoting=0'
    for options, warnings in (({}, 1), ({"quoting": 3}, 0)):
        caplog.clear()
        assert load_pairs(train_files=path, **options)["train"]["source"][1] == '"two"'
        assert [warning in message for message in caplog.messages] == [True] * warnings
    rows = ["source,target", '"""one""",eins', '"""two""",zwei']
    caplog.clear()
    assert load_pairs(train_files=write("c.csv", "\n".join(rows)))["train"]["source"][0] == '"one"'
    assert not caplog.messages


def test_a_quoted_cell_that_may_be_several_rows(write):
    path = write("a.csv", 'source,target\n"B,b\nC,c\nD",d\n')
    with pytest.raises(ValueError, match=r'a\.csv, line 4: a quoted cell holds "," and a line break.* give quoting=0 '):
        load_pairs(train_files=path)
    assert len(load_pairs(train_files=path, quoting=3)["train"]) == 3
    assert load_pairs(train_files=path, quoting=0)["train"]["source"][:] == ["B,b\nC,c\nD"]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("a.csv", {"skiprows": 1}, r"skiprows: \.csv files take delimiter, .*column_names alone"),
        (
            "a.csv",
            {"delimiter": "||"},
            r"a\.csv cannot be read with the options \{'delimiter': '\|\|'\}: .*1-character string",
        ),
        ("a.csv", {"encoding": "klingon"}, r"a\.csv cannot be read with .*: unknown encoding: klingon"),
        ("a.csv", {"quoting": 9}, r"a\.csv cannot be read with .*quoting"),
        ("a.jsonl", {"delimiter": ";"}, r"delimiter: \.jsonl files take field alone"),
    ],
)
def test_options_that_a_table_does_not_have(write, name, options, message):
    with pytest.raises(ValueError, match=message):
        load_pairs(train_files=write(name, "source,target\nx,y\n"), **options)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
@pytest.mark.parametrize("text", ["2024-05-01", "2024-05-01T10:00:00Z", "2024-05-01 10:00", "7", "true", " x "])
def test_texts_of_json_lines_stay_as_they_are(write, name, text):
    row = {"source": text, "target": text, "other": {"nested": [1, None]}}
    lines = [json.dumps(row), json.dumps({**row, "other": "1"})] * 3
    content = "\n".join(lines) if name == "a.jsonl" else f"[{','.join(lines)}]"
    assert load_pairs(train_files=write(name, content))["train"]["target"][:] == [text] * 6


def test_one_array_of_objects(write):
    assert load_pairs(train_files=write("train.json", json.dumps(EXPECTED)))["train"].to_list() == EXPECTED


def test_a_column_of_translations(write):
    lines = [json.dumps({"id": 1, "translation": {"en": row["source"], "de": row["target"]}}) for row in EXPECTED]
    path = write("train.jsonl", "\n".join(lines))
    assert load_pairs(train_files=path, source="en", target="de")["train"].to_list() == EXPECTED


def test_a_data_set_by_name(monkeypatch, tmp_path):
    folder = tmp_path / "pairs"
    folder.mkdir()
    rows = "".join(json.dumps({"en": row["source"], "de": row["target"]}) + "\n" for row in EXPECTED)
    for split in ("train", "test"):
        (folder / f"{split}.jsonl").write_text(rows, encoding="utf-8")
    pairs = load_pairs(str(folder), source="en", target="de")
    assert {name: split.to_list() for name, split in pairs.items()} == {"train": EXPECTED, "test": EXPECTED}
    some = load_pairs(str(folder), source="en", target="de", split="test[:1]")
    assert {name: split.to_list() for name, split in some.items()} == {"test": EXPECTED[:1]}
    with pytest.raises(ValueError, match="streamed pairs have no length; leave streaming out"):
        load_pairs(str(folder), source="en", target="de", streaming=True)


@pytest.mark.parametrize(
    ("files", "error", "message"),
    [
        ({"a.en": "x\n", "a.de": ""}, ValueError, r"a\.de is empty; give a file with sentences"),
        ({"a.en": "x\ny\n", "a.de": "x\n"}, ValueError, r"a\.en has 2 lines and .*a\.de has 1; give files whose"),
        (
            {"a.en": "x\n", "a.de": "x\n", "b.en": "x\n", "b.de": "x\ny\n"},
            ValueError,
            r"b\.en has 1 lines and .*b\.de has 2; give files whose",
        ),
        (
            {"a.en": "x\n", "a.de": "x\n", "b.de": "x\n", "b.en": "x\n"},
            ValueError,
            "the text files end in de-en and en-de; give one direction, and in each pair the file of the sources first",
        ),
        (
            {"1.en": "x\n", "2.en": "x\n", "1.de": "x\n", "2.de": "x\n"},
            ValueError,
            "end in de-de and en-en; give one dir",
        ),
        (
            {"a.en": "x\n", "a.de": "x\n", "b.eng": "x\n", "b.fr.gz": "x\n"},
            ValueError,
            "end in en-de and en-fr; give one direction",
        ),
        ({"a.en": "x\n", "a.csv": "x\n"}, ValueError, r"one split is in .*a\.en, .*a\.csv; give tables of one format"),
        (
            {"a.en": "x\n", "a.de": "x\n", "b.csv": "x\n", "c.csv": "x\n"},
            ValueError,
            r"one split is in .*b\.csv, .*c\.csv; give .*, or several such pairs: a\.en a\.de b\.en b\.de",
        ),
        ({}, ValueError, "one split is in ; give tables of one format"),
        (
            {"a.csv": "source,german\nx,y\n"},
            ValueError,
            r'a\.csv, line 2, has no column "target"; it has: "source", "german"',
        ),
        (
            {"a.jsonl": '{"source": "x", "target": "y"}\n{"source": "x"\n'},
            ValueError,
            r"a\.jsonl, line 2: not valid JSON",
        ),
        (
            {"a.json": '{\n  "source": "x",\n  "target": "y"\n}\n'},
            ValueError,
            r"a\.json, line 1: not valid JSON \(.*\); write one object per line, or one array of objects\.",
        ),
        (
            {"a.jsonl": '{"source": "x", "target": "y"}\n["x", "y"]\n'},
            ValueError,
            r"a\.jsonl, line 2: a list; each line",
        ),
        ({"a.json": '{"source": "x", "target": "y"}\n{"source"\n'}, ValueError, r"a\.json, line 2: not valid JSON"),
        (
            {"a.jsonl": '{"source": "x"}\n{"source": "x", "target": "y"}\n'},
            ValueError,
            r'a\.jsonl, line 1, has no column "target"; it has: "source"',
        ),
        (
            {"a.csv": "source,target\nx,y\n", "b.tsv": "source\ttarget\nx\ty\n"},
            ValueError,
            r"one split is in .*a\.csv, .*b\.tsv; give tables of one format \(\.csv, .*\), or two aligned text files",
        ),
        (
            {"a.csv": "source,target\nx,y\n", "b.csv": "source,goal\nx,y\n"},
            ValueError,
            r'b\.csv, line 2, has no column "target"; it has: "source", "goal"',
        ),
        ({"a.txt": "x\n"}, ValueError, r"one split is in .*a\.txt; give tables of one format \(\.csv, .*two aligned"),
        ({"a": "x\n", "b": "x\n", "c": "x\n"}, ValueError, "one split is in .*a, .*b, .*c; give tables of one"),
        (
            {"a.json": '{"source": "x", "target": 1}\n'},
            ValueError,
            r'a\.json, line 1: column "target" holds 1, not text',
        ),
        (
            {"a.csv": "source,target\nHello, world,Hallo, Welt\nYes,Ja\n"},
            ValueError,
            r'a\.csv, line 2: 4 cells, but the header has 2; quote cells that contain ","',
        ),
        ({"a.json": '[{"source": "x", "target": null}]'}, ValueError, r'line 1: column "target" holds None, not text'),
        ({"a.json": '{"data": []}'}, ValueError, r'a\.json, line 1, has no column "source"; it has: "data"'),
        ({"a.json": '[{"source": "x", "target": "\\ud800"}]'}, ValueError, r"surrogates not allowed"),
        ({"a.csv": "\ufeff"}, ValueError, r"a\.csv has no rows"),
        ({"a.csv": "source,target\n"}, ValueError, r"a\.csv has no rows"),
        ({"a.en": "x\ry\r", "a.de": "x\n"}, ValueError, r"a\.en: its lines end in carriage returns alone; convert it"),
        ({"a.en": "x\ry\n", "a.de": "x\n"}, ValueError, r"a\.en: its lines end in carriage returns alone; convert it"),
        ({"a.jsonl": "{}\r{}\r"}, ValueError, r"a\.jsonl: its lines end in carriage returns alone; convert it"),
        ({"a.csv": "source,target\nYes,Ja\nNo\n"}, ValueError, r"a\.csv, line 3: 1 cells, but the header has 2"),
        ({"a.parquet": "nonsense"}, ValueError, r"a\.parquet cannot be read as parquet"),
    ],
)
def test_load_pairs_rejects_files(write, files, error, message):
    paths = [write(name, text) for name, text in files.items()]
    with pytest.raises(error, match=message):
        load_pairs(train_files=paths)


def test_other_columns_may_change_their_type(write):
    """pandas infers types from a chunk of rows."""
    rows = ["1"] * 15_000 + ["", "0.5", "x"]
    path = write("a.csv", "source,year,target\n" + "".join(f"s{n},{year},t{n}\n" for n, year in enumerate(rows)))
    pairs = load_pairs(train_files=path)["train"]
    assert len(pairs) == 15_003
    assert pairs[15_002] == {"source": "s15002", "target": "t15002"}


def test_a_name_that_looks_like_a_pattern(write, tmp_path):
    folder = tmp_path / "[Corpora]"
    folder.mkdir()
    for name, sentence in (("train[1].csv", "right"), ("train1.csv", "wrong")):
        (folder / name).write_text(f"source,target\n{sentence},x\n")
    assert load_pairs(train_files=folder / "train[1].csv")["train"]["source"] == ["right"]


def test_cells_between_tabs(write):
    path = write("a.tsv", 'source\ttarget\nan "odd, text\tein Text\n')
    assert load_pairs(train_files=path, quoting=3)["train"][0] == {"source": 'an "odd, text', "target": "ein Text"}


def test_tables_without_names_or_in_a_field(write):
    path = write("a.csv", "one,eins\ntwo,zwei\n")
    pairs = load_pairs(train_files=path, column_names=["source", "target"])["train"]
    assert pairs["target"] == ["eins", "zwei"]
    path = write("a.json", '{"data": [\n{"source": "one", "target": "eins"}\n]}')
    assert load_pairs(train_files=path, field="data")["train"]["source"] == ["one"]


def test_several_tables_of_a_split(write):
    paths = [write("a.csv", "source,year,target\nx,1,y\n"), write("b.csv", "target,source\nz,v\nu,w\n")]
    pairs = load_pairs(train_files=paths)["train"]
    assert (pairs["source"][:], pairs["target"][:]) == (["x", "v", "w"], ["y", "z", "u"])


def test_several_pairs_of_text_files(write):
    contents = {"a.en": "a\nb\n", "a.de": "A\nB", "b.en": "c\n", "b.de": "C\n", "c.src": "d\n", "c.tgt": "D\n"}
    files = [write(name, content) for name, content in contents.items()]
    pairs = load_pairs(train_files=files, test_files=files[4:])
    assert (pairs["train"]["source"][:], pairs["train"]["target"][:]) == (["a", "b", "c", "d"], ["A", "B", "C", "D"])
    assert pairs["test"].to_list() == [{"source": "d", "target": "D"}]
    other_order = load_pairs(train_files=files[2:4] + files[:2])["train"]
    assert other_order["source"][:] == ["c", "a", "b"]


@pytest.mark.parametrize("names", [("a.en.gz", "a.de.gz"), ("A.CSV",), ("a.CSV.GZ",), ("a.tsv.gz",), ("a.JSONL.gz",)])
def test_compressed_files_and_other_cases(tmp_path, names):
    contents = {
        "csv": ["source,target\nx,ä\n"],
        "tsv": ["source\ttarget\nx\tä\n"],
        "jsonl": ['{"source": "x", "target": "ä"}\n'],
        "en": ["x\n", "ä\n"],
    }
    suffixes = names[0].lower().split(".")[1:]
    paths = [tmp_path / name for name in names]
    for path, content in zip(paths, contents[suffixes[0]], strict=True):
        path.write_bytes(gzip.compress(content.encode()) if "gz" in suffixes else content.encode())
    assert load_pairs(train_files=paths)["train"].to_list() == [{"source": "x", "target": "ä"}]


def test_an_empty_compressed_file_of_rows(tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b""))
    with pytest.raises(ValueError, match=r"a\.jsonl\.gz has no rows"):
        load_pairs(train_files=tmp_path / "a.jsonl.gz")


def test_load_pairs_rejects_other_compression(tmp_path):
    paths = [tmp_path / "a.en.xz", tmp_path / "a.de.xz"]
    for path in paths:
        path.write_bytes(lzma.compress(b"x\n"))
    with pytest.raises(ValueError, match=r"a\.en\.xz, line 1: byte .* is not UTF-8; convert it .*or decompress it"):
        load_pairs(train_files=paths)


def test_load_pairs_from_pipes(tmp_path):
    pipes = [tmp_path / name for name in ("a.en", "a.de", "a.csv")]
    contents = ("one\ntwo\n", "eins\nzwei\n", "source,target\none,eins\n")
    for pipe, content in zip(pipes, contents, strict=True):
        os.mkfifo(pipe)
        threading.Thread(target=pipe.write_text, args=(content,), daemon=True).start()
    pairs = load_pairs(train_files=pipes[:2], test_files=pipes[2])
    assert pairs["train"]["target"][:] == ["eins", "zwei"]
    assert pairs["test"].to_list() == [{"source": "one", "target": "eins"}]


def test_one_file_for_both_sides(write, tmp_path):
    path, link = write("a.en", "one\n"), tmp_path / "a.de"
    link.symlink_to(path)
    for files in ([path, link], [write("b.en", "one\n"), write("b.de", "eins\n"), path, link]):
        with pytest.raises(ValueError, match=r"a\.en and .*a\.de are one file; give the sources and the targets"):
            load_pairs(train_files=files)


def test_files_of_another_direction(write):
    files = [write(name, "x\n") for name in ("a.en", "a.de", "b.de", "b.en")]
    with pytest.raises(ValueError, match="end in de-en and en-de; give one direction"):
        load_pairs(train_files=files[:2], test_files=files[2:])


def test_a_folder_in_place_of_a_file(tmp_path):
    with pytest.raises(IsADirectoryError, match="is a folder; name a file"):
        load_pairs(train_files=[tmp_path, tmp_path])


def test_options_that_give_no_pairs(write):
    path = write("a.csv", "source,target\nx,y\n")
    with pytest.raises(ValueError, match="streamed pairs have no length; leave streaming out"):
        load_pairs(train_files=path, streaming=True)
    with pytest.raises(ValueError, match=r"split is \['train', 'test'\]; give one"):
        load_pairs("user/name", split=["train", "test"])


def test_text_in_another_encoding(tmp_path):
    paths = [tmp_path / "a.en", tmp_path / "a.de"]
    for path in paths:
        path.write_bytes("Häuser\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"a\.en, line 1: byte 0xe4 is not UTF-8; convert it"):
        load_pairs(train_files=paths)


def test_one_column_for_both(write):
    with pytest.raises(ValueError, match='source and target are both "source"; give two'):
        load_pairs(train_files=write("a.csv", "source,target\nx,y\n"), target="source")


def test_options_for_text_files(write):
    with pytest.raises(ValueError, match="delimiter: text files take no options"):
        load_pairs(train_files=[write("a.en", "x\n"), write("a.de", "y\n")], delimiter=";")


def test_load_pairs_rejects_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.csv does not exist; check the path"):
        load_pairs(train_files=tmp_path / "nowhere.csv")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["train", "dev", "test"], ["train", "validation", "test"]),
        (["train", "valid"], ["train", "validation"]),
        (["train", "dev", "validation"], ["train", "dev", "validation"]),
        (["train", "dev", "val"], ["train", "validation", "val"]),
    ],
)
def test_names_of_the_validation_split(monkeypatch, names, expected):
    splits = {name: Dataset.from_dict({"source": [name], "target": [name]}) for name in names}
    monkeypatch.setattr(
        "hf_vanilla_transformer.data.load_pairs.load_dataset", lambda *args, **options: DatasetDict(splits)
    )
    pairs = load_pairs("user/pairs")
    assert list(pairs) == expected
    assert [split["source"][0] for split in pairs.values()] == names
    # A single split keeps the name that was given.
    monkeypatch.setattr(f"{load_pairs.__module__}.load_dataset", lambda *args, split, **options: splits[split])
    assert [list(load_pairs("user/pairs", split=name)) for name in names] == [[name] for name in names]


@pytest.mark.parametrize("arguments", [{}, {"dataset": "numbers", "train_files": "train.csv"}])
def test_either_a_data_set_or_files(arguments, write, monkeypatch):
    monkeypatch.chdir(write("train.csv", "source,target\n").parent)
    with pytest.raises(ValueError, match="give either a data set"):
        load_pairs(**arguments)


def test_load_pairs_of_multi30k(multi30k):
    pairs = load_pairs(
        train_files=[multi30k / "train.en", multi30k / "train.de"],
        validation_files=[multi30k / "val.en", multi30k / "val.de"],
        test_files=[multi30k / "test_2016_flickr.en", multi30k / "test_2016_flickr.de"],
    )
    assert {name: len(split) for name, split in pairs.items()} == {"train": 29000, "validation": 1014, "test": 1000}
