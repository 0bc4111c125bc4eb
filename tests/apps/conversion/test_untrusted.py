"""Files that lie or that are damaged end a conversion with one sentence, before anything is written."""

import io
import json
import pickle
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hf_vanilla_transformer.apps import conversion
from tests.apps.conversion.fsmt import fsmt_model
from tests.apps.conversion.fsmt import write_tokenizer as write_fsmt_tokenizer
from tests.apps.conversion.test_from_fairseq import write_fairseq
from tests.apps.conversion.test_from_hf_marian import marian_model


WEIGHTS = "model.safetensors"


@pytest.fixture(params=["hf_marian", "fsmt"])
def of_transformers(request, tmp_path):
    """A conversion, and a folder for it."""
    folder = tmp_path / "source"
    if request.param == "fsmt":
        write_fsmt_tokenizer(folder)
    (fsmt_model() if request.param == "fsmt" else marian_model()).save_pretrained(folder)
    return getattr(conversion, f"from_{request.param}"), folder


def refused(convert, folder: Path, message: str) -> None:
    output = folder.parent / "model"
    with pytest.raises(ValueError, match=message) as raised:
        convert(str(folder), str(output))
    assert "\n" not in str(raised.value)
    assert not output.exists()


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def claim_a_terabyte(path: Path) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [2**38], "data_offsets": [0, 2**40]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)


def claim_a_header_of_a_terabyte(path: Path) -> None:
    path.write_bytes((2**40).to_bytes(8, "little") + path.read_bytes()[8:])


def put_nan(path: Path) -> None:
    state = load_file(path)
    state["model.decoder.layers.0.fc1.bias"][0] = torch.nan
    save_file(state, path, metadata={"format": "pt"})


def drop(path: Path) -> None:
    state = load_file(path)
    del state["model.decoder.layers.0.fc1.bias"]
    save_file(state, path, metadata={"format": "pt"})


def climb_out(path: Path) -> None:
    names = dict.fromkeys(load_file(path), f"../outside/{WEIGHTS}")
    (path.parent.parent / "outside").mkdir()
    path.rename(path.parent.parent / "outside" / WEIGHTS)
    path.with_name(f"{WEIGHTS}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))


FAULTS = {
    "truncated": (truncate, "source cannot be read: "),
    "a terabyte": (claim_a_terabyte, "source cannot be read: "),
    "a header of a terabyte": (claim_a_header_of_a_terabyte, "source cannot be read: "),
    "NaN": (put_nan, r"decoder\.layers\.0\.fc1\.bias in .*source has values that are NaN or infinite"),
    "missing": (drop, r"1 weights are not in the files of .*source \(model\.decoder\.layers\.0\.fc1\.bias"),
    "outside": (climb_out, r'index\.json names "\.\./outside/model\.safetensors", which is not a file of its folder'),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_convert_damaged_transformers_folder(of_transformers, fault):
    convert, folder = of_transformers
    change, message = FAULTS[fault]
    change(folder / WEIGHTS)
    refused(convert, folder, message)


class Attack:
    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_convert_runs_no_pickled_code(of_transformers, tmp_path):
    convert, folder = of_transformers
    (folder / WEIGHTS).unlink()
    torch.save({"a": Attack(tmp_path / "executed")}, folder / "pytorch_model.bin")
    refused(convert, folder, "source cannot be read: ")
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Attack(tmp_path / "executed")))
    refused(convert, folder, "source cannot be read: ")
    assert not (tmp_path / "executed").exists()


def bomb() -> bytes:
    """A file of torch in which 16 MB of zeros take a few kilobytes."""
    plain, packed = io.BytesIO(), io.BytesIO()
    torch.save({"model": {"a": torch.zeros(2**22)}, "args": None}, plain)
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target:
        for entry in source.infolist():
            target.writestr(entry.filename, source.read(entry))
    assert len(packed.getvalue()) < 100_000
    return packed.getvalue()


def test_convert_torch_file_that_claims_too_much(of_transformers, tmp_path):
    convert, folder = of_transformers
    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(bomb())
    refused(convert, folder, r"pytorch_model\.bin claims 16,[\d,]* bytes, but the file has \d\d?,\d*; convert a comp")
    write_fairseq(tmp_path / "fairseq" / "source", fsmt_model())
    (tmp_path / "fairseq" / "source" / "model.pt").write_bytes(bomb())
    refused(conversion.from_fairseq, tmp_path / "fairseq" / "source", r"model\.pt claims 16,[\d,]* bytes, but the file")


def test_from_fairseq_language_outside_folder(tmp_path):
    write_fairseq(tmp_path / "source", fsmt_model(), source_lang="x/../../outside")
    (tmp_path / "source" / "dict.x").mkdir()
    (tmp_path / "outside.txt").write_text("a 1\n")
    refused(
        conversion.from_fairseq, tmp_path / "source", r'model\.pt says that a language is "x/\.\./\.\./outside"; it'
    )
