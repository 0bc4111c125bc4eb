from pathlib import Path

import pytest

from hf_vanilla_transformer.hub.model_folder import INT8, files_of_a_run, staged
from hf_vanilla_transformer.training.checkpoints import remove_checkpoints
from hf_vanilla_transformer.training.run_checks import check_holds_no_run
from tests.models import small_model


@pytest.mark.parametrize("content", ["config.json", "README.md", "model-00001-of-00002.safetensors", "checkpoint-5"])
def test_a_folder_with_a_model_raises(tmp_path, content):
    path = tmp_path / content
    path.mkdir() if content.startswith("checkpoint") else path.touch()
    message = rf"already holds a model or checkpoints \({content}\); name another folder, or give"
    with pytest.raises(FileExistsError, match=message):
        check_holds_no_run(tmp_path)
    assert path.exists()


def test_all_that_is_saved_is_known(tmp_path, tokenizer):
    small_model().save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert sorted(files_of_a_run(tmp_path)) == sorted(tmp_path.iterdir())


def test_an_empty_or_new_folder_is_fine(tmp_path):
    (tmp_path / "notes.txt").touch()
    check_holds_no_run(tmp_path)
    check_holds_no_run(tmp_path / "new")


def test_only_files_of_an_earlier_run_are_removed(tmp_path):
    target = tmp_path / "run"
    for name in ("checkpoint-5", "checkpoint-notes", "tokenizer.json"):
        (target / name).mkdir(parents=True)
    stale = {"model-00001-of-00002.safetensors", "model.safetensors.index.json", "scores.json"}
    unrelated = {"config.json", "notes.txt", "ds_config.json", "model_old.safetensors"}
    for name in stale | unrelated:
        (target / name).touch()
    remove_checkpoints(target)
    with staged(target, replace_run=True) as folder:
        (folder / "config.json").write_text("new")
    assert {path.name for path in target.iterdir()} == {"checkpoint-notes", "tokenizer.json", *unrelated}
    assert (target / "config.json").read_text() == "new"


def test_staged_removes_the_int8_model_of_an_earlier_run(tmp_path):
    """It is the earlier model in int8, and would be taken for the new one."""
    target = tmp_path / "run"
    for student, notes in (("student", True), ("other", False)):
        int8 = target.with_name(student) / INT8
        int8.mkdir(parents=True)
        for name in ("config.json", "model.safetensors", "tokenizer.json"):
            (int8 / name).touch()
        if notes:
            (int8 / "notes.txt").touch()
        with staged(int8.parent, replace_run=True) as folder:
            (folder / "config.json").write_text("new")
        assert sorted(path.name for path in int8.glob("*")) == (["notes.txt"] if notes else [])
        assert int8.exists() == notes


def test_staged_files_arrive_together(tmp_path):
    target = tmp_path / "run" / "model"
    with staged(target) as folder:
        (folder / "a").write_text("new")
        (folder / "b").write_text("new")
        assert not target.exists()
    assert {path.name: path.read_text() for path in target.iterdir()} == {"a": "new", "b": "new"}
    assert [path.name for path in target.parent.iterdir()] == ["model"]


def test_a_folder_on_another_disk(tmp_path, monkeypatch):
    """Files next to a mounted folder can be written, but not moved into it."""
    target = tmp_path / "mounted"
    target.mkdir()
    replace = Path.replace

    def move(self, other):
        if self.is_relative_to(target) != Path(other).is_relative_to(target):
            raise OSError("Invalid cross-device link")
        return replace(self, other)

    monkeypatch.setattr(Path, "replace", move)
    with staged(target) as folder:
        (folder / "config.json").write_text("new")
    assert [path.name for path in target.iterdir()] == ["config.json"]


@pytest.mark.parametrize("moved", range(3))
def test_a_run_killed_while_files_move_leaves_files_of_one_model(tmp_path, monkeypatch, moved):
    names = ["config.json", "model.safetensors", "tokenizer.json"]
    for name in names:
        (tmp_path / name).write_text("old")
    replace, count = Path.replace, iter(range(len(names)))

    def move(self, other):
        if next(count) == moved:
            raise OSError("pulled out")
        return replace(self, other)

    monkeypatch.setattr(Path, "replace", move)
    staging = staged(tmp_path, replace_run=True)
    folder = staging.__enter__()
    for name in names:
        (folder / name).write_text("new")
    with pytest.raises(OSError, match=r"could not be replaced \(pulled out\); its new files are in "):
        staging.__exit__(None, None, None)
    assert not (tmp_path / "model.safetensors").exists()
    assert (folder / "model.safetensors").read_text() == "new"


def write_half(target):
    with staged(target) as folder:
        (folder / "a").write_text("half")
        raise RuntimeError("cut off")


def test_no_partial_file_stays(tmp_path):
    target = tmp_path / "model"
    target.mkdir()
    (target / "a").write_text("old")
    with pytest.raises(RuntimeError, match="cut off"):
        write_half(target)
    assert (target / "a").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
