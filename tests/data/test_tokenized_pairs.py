import json
import os
from pathlib import Path

import datasets
import pytest
from datasets import Dataset, DatasetDict
from transformers import AutoTokenizer, DataCollatorForSeq2Seq

from hf_vanilla_transformer import filter_pairs, load_pairs, tokenize_pairs, train_tokenizer
from tests.invariants.killed import exit_code, start


PAIRS = Dataset.from_list([{"number": 1, "source": "a small house", "target": "zwei"}])
TEXTS = ["a small house", "zwei", "ein kleines Haus", ""]


@pytest.fixture
def on_disk(write):
    """Pairs in the cache of `datasets`."""
    files = [write("a.en", "".join(f"{text}\n" for text in TEXTS)), write("a.de", "b\nc\n\nd\n")]
    return load_pairs(train_files=files)["train"]


def files_of(data):
    return [Path(file["filename"]) for file in data.cache_files]


def ids(data):
    return data["input_ids"][:], data["labels"][:]


def test_columns_of_a_trainer(tokenizer):
    row = tokenize_pairs(PAIRS, tokenizer)[0]
    assert set(row) == {"input_ids", "labels"}
    assert row["input_ids"] == tokenizer("a small house").input_ids
    assert row["labels"] == tokenizer("zwei").input_ids
    assert row["labels"][-1] == tokenizer.eos_token_id


def test_the_collator_makes_the_mask(tokenizer):
    pairs = Dataset.from_dict({"source": TEXTS, "target": TEXTS[::-1]})
    batch = DataCollatorForSeq2Seq(tokenizer)(tokenize_pairs(pairs, tokenizer).to_list())
    expected = tokenizer(TEXTS, padding=True, return_tensors="pt")
    assert batch["input_ids"].tolist() == expected.input_ids.tolist()
    assert batch["attention_mask"].tolist() == expected.attention_mask.tolist()


def test_a_missing_column(tokenizer):
    with pytest.raises(ValueError, match="the pairs have the columns number, source; they need source and target"):
        tokenize_pairs(PAIRS.remove_columns("target"), tokenizer)


def test_streams_have_no_rows(tokenizer):
    pairs = Dataset.from_dict({"source": ["seven"], "target": ["sieben"]})
    with pytest.raises(TypeError, match=r"in a IterableDataset; give a datasets\.Dataset"):
        tokenize_pairs(pairs.to_iterable_dataset(), tokenizer)


def test_every_split(tokenizer):
    tokenized = tokenize_pairs(DatasetDict({"train": PAIRS, "test": PAIRS.remove_columns("number")}), tokenizer)
    assert tokenized["train"][0] == tokenized["test"][0] == tokenize_pairs(PAIRS, tokenizer)[0]


def test_pairs_in_memory_stay_there(tokenizer, cache):
    assert files_of(tokenize_pairs(PAIRS, tokenizer)) == []
    assert not list(cache.rglob("*.arrow"))


def test_tokens_come_from_a_file_of_the_cache(on_disk, tokenizer, cache):
    data = tokenize_pairs(on_disk, tokenizer)
    assert ids(data) == (tokenizer(TEXTS).input_ids, tokenizer(["b", "c", "", "d"]).input_ids)
    (file,) = files_of(data)
    assert cache in file.parents


def tokenize_in_child(files: list[Path], folder: Path, cache: Path, path: Path) -> None:
    """Write the tokens of pairs in this process, and its hash("a"), which differs between processes."""
    datasets.config.HF_DATASETS_CACHE = cache
    tokenizer = AutoTokenizer.from_pretrained(folder)
    data = tokenize_pairs(load_pairs(train_files=files), tokenizer)["train"]
    remaining, _ = filter_pairs(data, tokenizer)
    path.write_text(json.dumps([hash("a"), [*map(str, files_of(remaining))], data.to_list()]))


def test_equal_pairs_are_tokenized_and_filtered_once(on_disk, tokenizer, cache, tmp_path):
    """Also by a tokenizer that was used and saved in between, and in another process."""
    data = tokenize_pairs(on_disk, tokenizer)
    remaining, _ = filter_pairs(data, tokenizer)
    assert len(files_of(remaining)) == 2
    written = {file: file.stat().st_ino for file in files_of(remaining)}
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    other = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    other(["a", "bb"], padding=True, truncation=True, max_length=2)
    again = tokenize_pairs(on_disk, other)
    assert {file: file.stat().st_ino for file in files_of(filter_pairs(again, other)[0])} == written
    files, path, log = [tmp_path / "a.en", tmp_path / "a.de"], tmp_path / "results", tmp_path / "log"
    process = start(tokenize_in_child, files, tmp_path / "tokenizer", cache, path, log=log)
    assert exit_code(process) == 0, log.read_text()
    other_hash, names, rows = json.loads(path.read_text())
    # With equal hashes the test could not detect names that depend on them.
    assert other_hash != hash("a") or "PYTHONHASHSEED" in os.environ
    assert [Path(name) for name in names] == files_of(remaining)
    assert {file: file.stat().st_ino for file in files_of(remaining)} == written
    assert rows == data.to_list()


def test_another_tokenizer_or_text_is_tokenized_again(on_disk, tokenizer, tmp_path, write):
    fingerprints = {tokenize_pairs(on_disk, tokenizer)._fingerprint}
    fewer = train_tokenizer(TEXTS * 5, vocab_size=262, show_progress=False)
    assert ids(tokenize_pairs(on_disk, fewer)) == (fewer(TEXTS).input_ids, fewer(["b", "c", "", "d"]).input_ids)
    fingerprints.add(tokenize_pairs(on_disk, fewer)._fingerprint)
    some = on_disk.select([2, 0])  # In the same folder of the cache.
    assert ids(tokenize_pairs(some, tokenizer))[0] == tokenizer([TEXTS[2], TEXTS[0]]).input_ids
    special = train_tokenizer(TEXTS * 5, vocab_size=262, show_progress=False)
    special.split_special_tokens = False
    files = [write("b.en", "</s>\n"), write("b.de", "x\n")]
    with_special = load_pairs(train_files=files)["train"]
    assert ids(tokenize_pairs(with_special, fewer)) != ids(tokenize_pairs(with_special, special))
    write("b.en", "s </s\n")
    assert ids(tokenize_pairs(load_pairs(train_files=files)["train"], fewer))[0] == fewer(["s </s"]).input_ids
    assert len(fingerprints) == 2


def test_two_processes(on_disk, tokenizer):
    data = tokenize_pairs(on_disk, tokenizer, num_proc=2)
    assert len(files_of(data)) == 2
    assert ids(data) == (tokenizer(TEXTS).input_ids, tokenizer(["b", "c", "", "d"]).input_ids)
