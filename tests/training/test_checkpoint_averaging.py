import ctypes
import json
import logging
import os
import re
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
import safetensors.numpy
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla_transformer import average_checkpoints
from hf_vanilla_transformer.support.checkpoint_marks import mark_complete
from hf_vanilla_transformer.support.peak_memory import peak_memory
from hf_vanilla_transformer.training import checkpoint_averaging
from hf_vanilla_transformer.training.checkpoint_averaging import last_checkpoints
from tests.invariants.killed import exit_code, start
from tests.models import decisive_model, pad, sentences, small_model


IDS, MASK = pad(sentences(5, 3))
# Option of mallopt(), by its number in malloc.h.
M_MMAP_THRESHOLD = -3


def save_model(folder: Path, seed: int, dtype=torch.float32, max_shard_size="1GB", **overrides) -> Path:
    small_model(seed, **overrides).to(dtype).save_pretrained(folder, max_shard_size=max_shard_size)
    return folder


def save_tensors(folder: Path, config=None, **tensors) -> Path:
    """Save a folder with these tensors."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "vanilla_transformer", **(config or {})}))
    save_file({name: torch.as_tensor(values) for name, values in tensors.items()}, folder / "model.safetensors")
    return folder


def save_checkpoint(run: Path, step: int, marked=True) -> Path:
    folder = save_tensors(run / f"checkpoint-{step}", a=[float(step)])
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    if marked:
        mark_complete(folder)
    return folder


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.fixture
def two_folders(tmp_path) -> list[Path]:
    return [save_tensors(tmp_path / name, a=[1.0, 2.0]) for name in ("one", "two")]


def test_average_checkpoints_computes_the_mean_of_every_tensor(tmp_path):
    folders = [save_model(tmp_path / str(seed), seed) for seed in range(3)]
    parts = [safetensors.numpy.load_file(folder / "model.safetensors") for folder in folders]
    average = safetensors.numpy.load_file(average_checkpoints(folders, tmp_path / "out") / "model.safetensors")
    assert average.keys() == parts[0].keys()
    for name, tensor in average.items():
        mean = np.mean([part[name] for part in parts], axis=0, dtype=np.float64).astype(np.float32)
        assert tensor.dtype == np.float32
        assert np.array_equal(tensor, mean)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_average_checkpoints_keeps_the_dtype(tmp_path, dtype):
    folders = [save_model(tmp_path / str(seed), seed, dtype) for seed in range(3)]
    parts = [load_file(folder / "model.safetensors") for folder in folders]
    for name, tensor in load_file(average_checkpoints(folders, tmp_path / "out") / "model.safetensors").items():
        mean = np.mean([part[name].double().numpy() for part in parts], axis=0)
        assert tensor.dtype == dtype
        assert torch.equal(tensor, torch.from_numpy(mean).to(dtype))


def test_average_checkpoints_sums_in_float64(tmp_path):
    folders = [save_tensors(tmp_path / str(index), a=[value]) for index, value in enumerate((2.0**30, 1.0, -(2.0**30)))]
    average = load_file(average_checkpoints(folders, tmp_path / "out") / "model.safetensors")["a"]
    assert average.tolist() == [np.float32(1 / 3)]


def test_average_checkpoints_does_not_change_equal_checkpoints(tmp_path):
    values = torch.tensor([-0.0, 1e-45, 3.3e38, 65504.0, 1 / 3])
    folders = [
        save_tensors(tmp_path / str(index), a=values, b=values.bfloat16(), scalar=0.1, none=torch.zeros(0, 2))
        for index in range(7)
    ]
    before = (folders[0] / "model.safetensors").read_bytes()
    for count in (1, 3, 7):
        output = average_checkpoints(folders[:count], tmp_path / f"out{count}")
        assert (output / "model.safetensors").read_bytes() == before


def test_average_checkpoints_of_output_matrices_averages_logits(tmp_path):
    models = [decisive_model(0) for _ in range(3)]
    for seed, model in enumerate(models):
        torch.manual_seed(seed)
        torch.nn.init.normal_(model.lm_head.weight)
        model.save_pretrained(tmp_path / str(seed))
    output = average_checkpoints([tmp_path / str(seed) for seed in range(3)], tmp_path / "out")
    average = AutoModelForSeq2SeqLM.from_pretrained(output).eval()
    inputs = {"input_ids": IDS, "attention_mask": MASK, "decoder_input_ids": IDS}
    expected = torch.stack([model(**inputs).logits for model in models]).mean(dim=0)
    torch.testing.assert_close(average(**inputs).logits, expected, rtol=1e-5, atol=1e-5)


def test_average_checkpoints_copies_the_files_of_the_last_checkpoint(tmp_path, tokenizer):
    for seed in range(2):
        model = small_model(seed)
        model.generation_config.num_beams = 2 + seed
        model.save_pretrained(tmp_path / str(seed))
        tokenizer.save_pretrained(tmp_path / str(seed))
    # The file also stores the padding of the last call; the tokenizer is the same.
    called = {**json.loads((tmp_path / "0" / "tokenizer.json").read_text()), "padding": {"strategy": "BatchLongest"}}
    (tmp_path / "0" / "tokenizer.json").write_text(json.dumps(called))
    (tmp_path / "1" / "optimizer.pt").touch()
    output = average_checkpoints([tmp_path / "0", str(tmp_path / "1")], str(tmp_path / "new" / "average"))
    assert output == tmp_path / "new" / "average"
    beside = {path.name for path in (tmp_path / "1").iterdir()} - {"optimizer.pt"}
    assert {path.name for path in output.iterdir()} == beside | {"README.md"}
    for name in beside - {"model.safetensors"}:
        assert (output / name).read_bytes() == (tmp_path / "1" / name).read_bytes()
    model = AutoModelForSeq2SeqLM.from_pretrained(output)
    assert model.generation_config.num_beams == 3
    assert model.lm_head.weight is model.model.shared.weight is model.model.encoder.embed_tokens.weight
    assert AutoTokenizer.from_pretrained(output).get_vocab() == tokenizer.get_vocab()
    assert {path.name for path in tmp_path.iterdir()} == {"0", "1", "new"}
    assert [path.name for path in output.parent.iterdir()] == ["average"]


@pytest.mark.parametrize("sizes", [("1GB", "8KB"), ("8KB", "1GB"), ("20KB", "8KB")])
def test_average_checkpoints_reads_and_writes_shards(tmp_path, sizes):
    folders = [save_model(tmp_path / size, seed, max_shard_size=size) for seed, size in enumerate(sizes)]
    folders_without_shards = [save_model(tmp_path / f"whole{seed}", seed) for seed in range(2)]
    expected_folder = average_checkpoints(folders_without_shards, tmp_path / "expected")
    expected = AutoModelForSeq2SeqLM.from_pretrained(expected_folder).state_dict()
    output = average_checkpoints(folders, tmp_path / "out")
    sharded = sizes[1] != "1GB"
    assert (output / "model.safetensors.index.json").exists() == sharded
    assert (len(list(output.glob("*.safetensors"))) > 1) == sharded
    weights = AutoModelForSeq2SeqLM.from_pretrained(output).state_dict()
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weight, expected[name]) for name, weight in weights.items())


def test_average_checkpoints_ignores_an_index_next_to_a_single_file(two_folders, tmp_path):
    (two_folders[1] / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "model-00001-of-00002.safetensors"}}'
    )
    output = average_checkpoints(two_folders, tmp_path / "out")
    assert not (output / "model.safetensors.index.json").exists()


def grow(small: Path, outputs: list[Path], folders: list[Path], path: Path) -> None:
    """Write by how many bytes an average raises the peak memory of this process."""
    with suppress(AttributeError, OSError):
        # glibc then releases freed memory to the system at once.
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**16)
    average_checkpoints([small], outputs[0])
    before = peak_memory()
    # Without the ballast, memory freed since the peak would hide growth.
    ballast = b"x" * max(0, before - psutil.Process().memory_info().rss)
    average_checkpoints(folders, outputs[1])
    path.write_text(str(peak_memory() - before))
    del ballast


def test_average_checkpoints_needs_no_memory_per_checkpoint(tmp_path):
    largest = 2**23
    tensors = {f"t{index}": torch.zeros(2**20) for index in range(12)}
    first = save_tensors(tmp_path / "0", t=torch.zeros(largest // 4, 4), **tensors)
    folders = [first, *(tmp_path / str(index) for index in range(1, 6))]
    for folder in folders[1:]:
        folder.mkdir()
        for name in ("config.json", "model.safetensors"):
            os.link(first / name, folder / name)
    small = save_tensors(tmp_path / "small", a=[1.0])
    outputs = [tmp_path / "small_average", tmp_path / "average"]
    growth_path = tmp_path / "grown"
    log = tmp_path / "log"
    assert exit_code(start(grow, small, outputs, folders, growth_path, log=log)) == 0, log.read_text()
    file_size = (first / "model.safetensors").stat().st_size
    assert int(growth_path.read_text()) < file_size + 20 * largest


def test_average_checkpoints_names_the_folders_in_the_card(tmp_path):
    folders = [save_checkpoint(tmp_path, 5), save_checkpoint(tmp_path, 10), save_tensors(tmp_path / "mine", a=[0.0])]
    output = average_checkpoints(folders, tmp_path / "out")
    card = ModelCard.load(output / "README.md").text
    assert "| weights | average of 3 checkpoints: checkpoint-5, checkpoint-10, mine |" in card
    assert "| parameters | 1 |" in card
    compile(card.partition("```python\n")[2].partition("```")[0], "README.md", "exec")


def test_average_checkpoints_accepts_several_runs_and_averages(tmp_path):
    first = average_checkpoints([save_checkpoint(tmp_path / run, 5) for run in ("a", "b")], tmp_path / "first")
    assert "average of 2 checkpoints: a/checkpoint-5, b/checkpoint-5 |" in (first / "README.md").read_text()
    second = average_checkpoints([first, save_checkpoint(tmp_path / "c", 7)], tmp_path / "second")
    assert "average of 2 checkpoints: first, checkpoint-7 |" in (second / "README.md").read_text()


def test_average_checkpoints_rejects_an_empty_list(tmp_path):
    with pytest.raises(ValueError, match="no checkpoint is given"):
        average_checkpoints([], tmp_path / "out")


def test_average_checkpoints_rejects_a_single_path(two_folders, tmp_path):
    for path in (two_folders[0], str(two_folders[0])):
        with pytest.raises(TypeError, match=rf"\bpaths\b.*{re.escape(str(two_folders[0]))}"):
            average_checkpoints(path, tmp_path / "out")


def test_average_checkpoints_rejects_a_repeated_checkpoint(two_folders, tmp_path):
    (tmp_path / "link").symlink_to(two_folders[0])
    with pytest.raises(ValueError, match=r"/one, .*/two, .*/link\b"):
        average_checkpoints([*two_folders, tmp_path / "link"], tmp_path / "out")


def damage(name):
    return lambda folder: truncate(folder / name)


def remove(name):
    return lambda folder: (folder / name).unlink()


def lose_a_shard(folder):
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def vanish(folder):
    folder.rename(folder.parent / "elsewhere")


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (vanish, FileNotFoundError, r"No such file or directory: '.*/two/config\.json'"),
        (remove("config.json"), FileNotFoundError, r"No such file or directory: '.*/two/config\.json'"),
        (remove("model.safetensors"), FileNotFoundError, r"two\b.*\bmodel\.safetensors\b"),
        (lose_a_shard, ValueError, r"two/model-00001-of-00002\.safetensors\b"),
        (
            damage("model.safetensors"),
            ValueError,
            r"two/model\.safetensors\b",
        ),
        (damage("config.json"), ValueError, r"two/config\.json\b"),
    ],
)
def test_average_checkpoints_rejects_missing_and_truncated_files(two_folders, tmp_path, spoil, error, message):
    spoil(two_folders[1])
    before = sorted(tmp_path.rglob("*"))
    for paths in (two_folders, two_folders[::-1]):
        with pytest.raises(error, match=message):
            average_checkpoints(paths, tmp_path / "out")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"b": [1.0]}, r"one and .*two differ in b: None and \('F32', 1\)"),
        ({"a": [1.0]}, r"differ in a: \('F32', 2\) and \('F32', 1\)"),
        ({"a": torch.ones(2).bfloat16()}, r"differ in a: \('F32', 2\) and \('BF16', 2\)"),
        ({"config": {"d_ff": 7}}, r"one and .*two differ in d_ff: 2048 and 7\b"),
        ({"config": {"model_type": "marian"}}, r"two holds a marian model\b"),
        ({"a": [1, 2]}, r"\ba in .*two has the dtype I64\b"),
    ],
)
def test_average_checkpoints_rejects_models_that_do_not_match(tmp_path, changes, message):
    first_folder = save_tensors(tmp_path / "one", a=[1.0, 2.0])
    last_folder = save_tensors(tmp_path / "two", **{"a": [1.0, 2.0], **changes})
    with pytest.raises(ValueError, match=message):
        average_checkpoints([first_folder, last_folder], tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


def test_average_checkpoints_rejects_a_different_tokenizer(two_folders, tmp_path, tokenizer):
    tokenizer.save_pretrained(two_folders[0])
    message = r"one and .*two differ in tokenizer\.json\b"
    with pytest.raises(ValueError, match=message):
        average_checkpoints(two_folders, tmp_path / "out")
    other = json.loads((two_folders[0] / "tokenizer.json").read_text())
    other["model"]["merges"].pop()
    (two_folders[1] / "tokenizer.json").write_text(json.dumps(other))
    with pytest.raises(ValueError, match=message):
        average_checkpoints(two_folders, tmp_path / "out")


def test_average_checkpoints_compares_the_files_of_any_tokenizer(two_folders, tmp_path):
    for folder, words in zip(two_folders, ({"a": 0}, {"b": 0}), strict=True):
        (folder / "vocab.json").write_text(json.dumps(words))
        (folder / "source.spm").write_bytes(b"the same")
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>", "name_or_path": folder.name}))
    with pytest.raises(ValueError, match=r"differ in vocab\.json\b"):
        average_checkpoints(two_folders, tmp_path / "out")
    (two_folders[0] / "vocab.json").write_text((two_folders[1] / "vocab.json").read_text())
    output = average_checkpoints(two_folders, tmp_path / "out")
    for name in ("vocab.json", "source.spm", "tokenizer_config.json"):
        assert (output / name).read_bytes() == (two_folders[1] / name).read_bytes()
    (two_folders[0] / "tokenizer_config.json").write_text(json.dumps({"eos_token": "."}))
    with pytest.raises(ValueError, match=r"differ in tokenizer_config\.json\b"):
        average_checkpoints(two_folders, tmp_path / "other")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_average_checkpoints_rejects_weights_that_are_not_finite(two_folders, tmp_path, value):
    spoiled = save_tensors(tmp_path / "spoiled", a=[1.0, value])
    with pytest.raises(ValueError, match=r"\ba in .*spoiled.model\.safetensors\b.*NaN"):
        average_checkpoints([two_folders[0], spoiled, two_folders[1]], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_average_checkpoints_rejects_an_output_that_exists(two_folders, tmp_path):
    with pytest.raises(FileExistsError, match=r"two\b.*\(config\.json, model\.safetensors\)"):
        average_checkpoints(two_folders, two_folders[1])
    with pytest.raises(NotADirectoryError, match=r"config\.json is a file\b"):
        average_checkpoints(two_folders, two_folders[1] / "config.json")


def test_average_checkpoints_leaves_nothing_after_a_failure(tmp_path, monkeypatch):
    folders = [save_tensors(tmp_path / name, a=[1.0], b=[2.0]) for name in ("one", "two")]
    read = checkpoint_averaging._read_tensor

    def fail_at_b(file, name):
        if name == "b":
            raise OSError("the disk is full")
        return read(file, name)

    monkeypatch.setattr(checkpoint_averaging, "_read_tensor", fail_at_b)
    with pytest.raises(OSError, match="the disk is full"):
        average_checkpoints(folders, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


def test_average_checkpoints_rejects_incomplete_checkpoints(tmp_path):
    complete = save_checkpoint(tmp_path, 1)
    truncated = save_checkpoint(tmp_path, 2)
    unmarked = save_checkpoint(tmp_path, 3, marked=False)
    truncate(truncated / "trainer_state.json")
    with pytest.raises(ValueError, match=r"checkpoint-2 is not complete: trainer_state\.json\b"):
        average_checkpoints([complete, truncated], tmp_path / "out")
    with pytest.raises(ValueError, match=r"checkpoint-3 is not complete: .*complete\.json\b"):
        average_checkpoints([complete, unmarked], tmp_path / "out")
    truncated.rename(tmp_path / "renamed")
    with pytest.raises(ValueError, match=r"renamed is not complete: trainer_state\.json\b"):
        average_checkpoints([complete, tmp_path / "renamed"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_average_checkpoints_accepts_a_run_without_marks(tmp_path):
    folders = [save_checkpoint(tmp_path, step, marked=False) for step in (1, 2)]
    output = average_checkpoints(folders, tmp_path / "out")
    assert load_file(output / "model.safetensors")["a"].tolist() == [1.5]


def test_last_checkpoints_skips_an_unmarked_checkpoint(tmp_path, caplog):
    folders = [save_checkpoint(tmp_path, step, marked=step != 10) for step in (8, 9, 10, 100)]
    assert last_checkpoints(tmp_path, 1) == folders[3:]
    assert not caplog.messages
    assert last_checkpoints(str(tmp_path), 2) == [folders[1], folders[3]]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert caplog.messages[0].startswith(f"skipping {folders[2]}: it has no mark")
    assert last_checkpoints(tmp_path, 9) == [*folders[:2], folders[3]]
    assert last_checkpoints(tmp_path / "nowhere", 2) == []
    with pytest.raises(ValueError, match=r"checkpoints to average is 0\b"):
        last_checkpoints(tmp_path, 0)
