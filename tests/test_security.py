"""The promises of docs/security.md: untrusted folders run no code, disclose no file, and take no memory they claim.

Each malicious file would create a folder, `mark`, if it were executed.
"""

import json
import os
import pickle
import re
import resource
import shutil
import struct
from pathlib import Path

import pytest
import torch
from datasets import load_dataset
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, BartConfig, BartForConditionalGeneration

from hf_vanilla_transformer import average_checkpoints, load_pairs
from hf_vanilla_transformer.apps.cli import train
from hf_vanilla_transformer.apps.cli.main import main
from hf_vanilla_transformer.hub.model_folder import check_links
from hf_vanilla_transformer.hub.push_to_hub import push_run
from hf_vanilla_transformer.support.atomic_files import write_text
from hf_vanilla_transformer.support.checkpoint_marks import mark_complete, newest_complete
from tests.apps.cli.tiny_run import TINY_RUN, write_recipe
from tests.test_docs import FIXTURE


PICKLES = ("pytorch_model.bin", "training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth")


class Malicious:
    """What a pickle of it does when it is loaded without care."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


@pytest.fixture
def mark(tmp_path) -> Path:
    return tmp_path / "mark"


@pytest.fixture
def copy(tmp_path) -> Path:
    return shutil.copytree(FIXTURE, tmp_path / "model")


def write_pickle(path: Path, mark: Path, as_zip: bool = True) -> None:
    if as_zip:
        torch.save({"a": Malicious(mark)}, path)
    else:
        path.write_bytes(pickle.dumps(Malicious(mark), protocol=2))


def change(path: Path, **fields) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def end_of(*arguments) -> str:
    """The one sentence with which a command ends."""
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    assert str(stop.value).startswith("error: ")
    assert "\n" not in str(stop.value).strip()
    return str(stop.value)


def test_the_malicious_pickle_works(mark, tmp_path):
    write_pickle(tmp_path / "a.bin", mark)
    torch.load(tmp_path / "a.bin", weights_only=False)
    assert mark.exists()


class TestPickles:
    @pytest.mark.parametrize("as_zip", [True, False])
    def test_are_not_read_next_to_safetensors(self, copy, mark, tmp_path, as_zip, capsys):
        for name in PICKLES:
            write_pickle(copy / name, mark, as_zip)
        AutoModelForSeq2SeqLM.from_pretrained(copy)
        main(["translate", "one", "--model_name_or_path", str(copy), "--max_new_tokens", "2"])
        average = average_checkpoints([copy], tmp_path / "average")
        assert not mark.exists()
        assert not [name for name in PICKLES if (average / name).exists()]

    def test_are_no_weights_of_this_model(self, copy, mark, tmp_path):
        (copy / "model.safetensors").unlink()
        write_pickle(copy / "pytorch_model.bin", mark)
        with pytest.raises(OSError, match=r"no file named model\.safetensors"):
            AutoModelForSeq2SeqLM.from_pretrained(copy)
        assert "neither model.safetensors nor" in end_of("translate", "one", "--model_name_or_path", copy)
        assert "neither model.safetensors nor" in end_of("average", copy, "--output", tmp_path / "average")
        with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
            AutoModelForSeq2SeqLM.from_pretrained(copy, use_safetensors=False)
        assert not mark.exists()

    def test_of_other_architectures_hold_tensors_only(self, tokenizer, mark, tmp_path):
        config = BartConfig(vocab_size=400, d_model=16, encoder_layers=1, decoder_layers=1)
        BartForConditionalGeneration(config).save_pretrained(tmp_path)
        tokenizer.save_pretrained(tmp_path)
        (tmp_path / "model.safetensors").unlink()
        write_pickle(tmp_path / "pytorch_model.bin", mark)
        sentence = end_of("translate", "one", "--model_name_or_path", tmp_path)
        assert "holds a pickle that torch does not load, because it may run code; use a model" in sentence
        assert not mark.exists()

    @pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"])
    def test_of_a_checkpoint_hold_tensors_only(self, run, tmp_path, mark, name):
        folder = shutil.copytree(run, tmp_path / "run")
        checkpoint = newest_complete(folder)
        write_pickle(checkpoint / name, mark)
        mark_complete(checkpoint)
        resume = write_recipe(RUN, tmp_path, resume_from_checkpoint="last", max_steps=4)
        if name == "training_args.bin":
            train.main(resume)
        else:
            sentence = end_of("train", *resume)
            assert sentence.endswith("it may run code; resume from a checkpoint of your own.")
        assert not mark.exists()


RUN = {**TINY_RUN, "max_steps": 2, "save_steps": 1}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return train.main(write_recipe(RUN, tmp_path_factory.mktemp("run")))


class TestCode:
    @pytest.fixture
    def folder(self, copy, mark) -> Path:
        """A model whose every file that may name code does."""
        code = f"import os\nos.mkdir({str(mark)!r})\nclass X: pass\n"
        for name in ("evil.py", *(path.name for path in Path("hf_vanilla_transformer/model").glob("*_vanilla_*.py"))):
            (copy / name).write_text(code)
        (copy / "custom_generate").mkdir()
        (copy / "custom_generate" / "generate.py").write_text(code)
        classes = ("AutoConfig", "AutoModel", "AutoModelForSeq2SeqLM")
        translation = {"impl": "evil.X", "pt": ["AutoModelForSeq2SeqLM"], "type": "text"}
        pipelines = {"translation": translation}
        change(copy / "config.json", auto_map=dict.fromkeys(classes, "evil.X"), custom_pipelines=pipelines)
        change(copy / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.X", "evil.X"]})
        change(copy / "generation_config.json", custom_generate=str(copy), trust_remote_code=True)
        return copy

    def test_in_a_folder_is_not_run(self, folder, mark, capsys):
        AutoTokenizer.from_pretrained(folder)
        model = AutoModelForSeq2SeqLM.from_pretrained(folder)
        model.generate(torch.tensor([[5, 6, 2]]), max_new_tokens=2)
        main(["translate", "one", "--model_name_or_path", str(folder), "--max_new_tokens", "2"])
        assert not mark.exists()

    def test_of_another_architecture_needs_trust(self, folder, mark):
        change(folder / "config.json", model_type="unknown")
        with pytest.raises(SystemExit, match="pass the argument `trust_remote_code=True`"):
            main(["translate", "one", "--model_name_or_path", str(folder)])
        assert not mark.exists()

    @pytest.mark.parametrize("name", ["attn_implementation", "_attn_implementation"])
    @pytest.mark.parametrize("kernel", ["somebody/kernel", {"": "somebody/kernel"}])
    def test_of_the_hub_is_not_fetched_for_attention(self, copy, name, kernel):
        change(copy / "config.json", **{name: kernel})
        message = r"config\.json names .*somebody/kernel.*, code on the Hub, for its attention; remove it"
        with pytest.raises(ValueError, match=message):
            AutoModelForSeq2SeqLM.from_pretrained(copy)

    def test_of_a_data_set_is_not_run(self, tmp_path, mark):
        folder = tmp_path / "data"
        folder.mkdir()
        (folder / "data.py").write_text(f"import os\nos.mkdir({str(mark)!r})\n")
        for load in (load_dataset, load_pairs):
            with pytest.raises(RuntimeError, match="Dataset scripts are no longer supported"):
                load(str(folder))
        assert not mark.exists()

    def test_in_pickled_pairs_is_not_run(self, tmp_path, mark):
        pairs = tmp_path / "pairs.pkl"
        write_pickle(pairs, mark, as_zip=False)
        with pytest.raises(ValueError, match="give tables of one format"):
            load_pairs(train_files=pairs)
        assert not mark.exists()

    def test_in_a_recipe_is_not_run(self, tmp_path, mark):
        recipe = tmp_path / "recipe.yaml"
        recipe.write_text(f"output_dir: !!python/object/apply:os.mkdir [{mark}]\n")
        with pytest.raises(SystemExit):
            main(["train", str(recipe)])
        assert not mark.exists()


class TestLinks:
    @pytest.fixture
    def secret(self, tmp_path) -> Path:
        path = tmp_path / "secret"
        path.write_text('{"password": "open sesame"}')
        return path

    @pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
    def test_are_followed_on_loading(self, copy, tmp_path, name, capsys):
        (copy / name).rename(tmp_path / name)
        (copy / name).symlink_to(tmp_path / name)
        main(["translate", "one", "--model_name_or_path", str(copy), "--max_new_tokens", "8"])
        assert capsys.readouterr().out == "eins\n"

    @pytest.mark.parametrize("name", ["README.md", "chat_template.jinja", "scores.json", "model.safetensors"])
    def test_are_not_pushed(self, copy, secret, name):
        (copy / name).unlink(missing_ok=True)
        (copy / name).symlink_to(secret)
        with pytest.raises(ValueError, match=rf"{name} is a link to .*secret, outside its folder; replace the link"):
            push_run(copy, "user/model", message="")

    @pytest.mark.parametrize("name", ["vocab.txt", "notes.py"])
    def test_are_not_copied_into_an_average(self, copy, secret, tmp_path, name):
        (copy / name).symlink_to(secret)
        sentence = end_of("average", copy, "--output", tmp_path / "average")
        assert f"{name} is a link to {secret.resolve()}, outside its folder" in sentence
        assert not (tmp_path / "average").exists()

    def test_within_a_folder_and_of_the_cache_are_allowed(self, tmp_path):
        (tmp_path / "blobs").mkdir()
        snapshot = tmp_path / "snapshots" / "abc"
        snapshot.mkdir(parents=True)
        (tmp_path / "blobs" / "1").write_text("{}")
        (snapshot / "config.json").symlink_to("../../blobs/1")
        (snapshot / "README.md").symlink_to("config.json")
        check_links(snapshot.iterdir())

    def test_with_the_names_of_temporary_files_are_not_written_through(self, tmp_path, secret):
        before = secret.read_text()
        (tmp_path / ".one.part").symlink_to(secret)
        write_text(tmp_path / "one", "content")
        assert (tmp_path / "one").read_text() == "content"
        (tmp_path / ".two.lock").symlink_to(secret)
        with pytest.raises(OSError, match="Too many levels of symbolic links"):
            write_text(tmp_path / "two", "content")
        assert secret.read_text() == before


def verbs(model: Path, tmp_path: Path) -> dict[str, list]:
    files = [tmp_path / "a.en", tmp_path / "a.de"]
    for file in files:
        file.write_text("one\n")
    of_model = ["--model_name_or_path", model]
    return {
        "translate": ["translate", "one", *of_model],
        "train": ["train", *of_model, "--train_file", *files, "--output_dir", tmp_path / "run", "--max_steps", "1"],
        "average": ["average", model, "--output", tmp_path / "average"],
    }


def end_with_little_memory(arguments: list) -> str:
    """The sentence with which a command ends that cannot have more than 20 GiB; more memory would be another one."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (20 * 2**30, limits[1]))
    try:
        return end_of(*arguments)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


OTHER_SHAPES = "its weights have other shapes than its config.json describes"
NOT_THERE = "weights are not in the files of"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"d_model": 10**9}, OTHER_SHAPES),
        ({"d_ff": 10**9}, OTHER_SHAPES),
        ({"d_k": 10**8, "d_v": 10**8}, OTHER_SHAPES),
        ({"d_model": 2**30, "d_ff": 2**31 - 1, "num_heads": 1}, OTHER_SHAPES),
        ({"encoder_layers": 10**9}, "encoder_layers is 1000000000; it must be from 1 to 1000"),
        ({"decoder_layers": 300}, NOT_THERE),
        ({"vocab_size": 10**9}, OTHER_SHAPES),
        ({"vocab_size": 10**12}, "vocab_size is 1000000000000; it must be from 1 to 2147483647"),
        ({"vocab_size": 10**30}, "vocab_size is 10{30}; it must be from 1 to 2147483647"),
        ({"source_vocab_size": 10**9}, f"3 {NOT_THERE}"),
        ({"max_position_embeddings": 10**12}, "max_position_embeddings is 10{12}; it must be from 1 to 2147483647"),
        ({"max_position_embeddings": 10**9, "position_embedding_type": "learned"}, f"2 {NOT_THERE}"),
    ],
)
@pytest.mark.parametrize("verb", ["translate", "train"])
def test_sizes_in_the_configuration(copy, tmp_path, fields, message, verb):
    change(copy / "config.json", **fields)
    assert re.search(message, end_with_little_memory(verbs(copy, tmp_path)[verb]))


def claims_a_terabyte(header, weight):
    weight["shape"], weight["data_offsets"][1] = [2**20, 2**18], weight["data_offsets"][0] + 2**40


def overlaps(header, weight):
    weight["data_offsets"] = header["model.encoder.layers.0.fc1.weight"]["data_offsets"]


def has_integers(header, weight):
    weight["dtype"] = "I32"


def has_another_dtype(header, weight):
    weight["dtype"] = "F16"


def is_transposed(header, weight):
    weight["shape"] = weight["shape"][::-1]


def is_negative(header, weight):
    weight["data_offsets"] = [-8, 0]


def overflows(header, weight):
    weight["shape"] = [2**40, 2**40]


def is_unchanged(header, weight):
    pass


@pytest.mark.parametrize(
    ("change_header", "length", "message"),
    [
        (claims_a_terabyte, None, "truncated or damaged .*invalid offset"),
        (is_unchanged, 2**40, "truncated or damaged .*header too large"),
        (is_unchanged, 2**64 - 1, "truncated or damaged .*header too large"),
        (is_unchanged, 10**7, "truncated or damaged .*invalid header length"),
        (is_unchanged, 9, "truncated or damaged .*invalid JSON in header"),
        (overlaps, None, "truncated or damaged .*invalid offset"),
        (is_negative, None, "truncated or damaged .*invalid JSON in header"),
        (overflows, None, "truncated or damaged .*overflow"),
        (has_integers, None, "has the dtype I32; weights need one of F64, F32, F16, BF16"),
        (has_another_dtype, None, "truncated or damaged .*(invalid shape|offset)"),
    ],
)
@pytest.mark.parametrize("verb", ["translate", "train", "average"])
def test_headers_of_weights(copy, tmp_path, change_header, length, message, verb):
    write_header(copy / "model.safetensors", change_header, length)
    assert re.search(message, end_with_little_memory(verbs(copy, tmp_path)[verb]))


@pytest.mark.parametrize("verb", ["translate", "train"])
def test_shapes_of_weights(copy, tmp_path, verb):
    write_header(copy / "model.safetensors", is_transposed)
    assert re.search(OTHER_SHAPES, end_with_little_memory(verbs(copy, tmp_path)[verb]))


@pytest.mark.parametrize("verb", ["translate", "train", "average"])
def test_a_file_of_a_terabyte_that_is_a_hole(copy, tmp_path, verb):
    weight = {"dtype": "F32", "shape": [2**20, 2**18], "data_offsets": [0, 2**40]}
    header = json.dumps({"model.decoder.layers.0.fc1.weight": weight}).encode()
    path = copy / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    os.truncate(path, 8 + len(header) + 2**40)
    assert "emory" in end_with_little_memory(verbs(copy, tmp_path)[verb])


def write_header(path: Path, change_header, length: int | None = None) -> None:
    content = path.read_bytes()
    end = 8 + struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:end])
    change_header(header, header["model.decoder.layers.0.fc1.weight"])
    written = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(written) if length is None else length) + written + content[end:])
