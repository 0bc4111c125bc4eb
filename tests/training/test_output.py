import pytest
import torch

from hf_vanilla_transformer.training.output import check_output_folder, find_checkpoint, remove_checkpoints, staged


COMPLETE = ("trainer_state.json", "optimizer.pt", "scheduler.pt", "model.safetensors", "tokenizer.json")


@pytest.mark.parametrize("content", ["config.json", "README.md", "model-00001-of-00002.safetensors", "checkpoint-5"])
def test_a_folder_that_holds_a_model_is_refused(tmp_path, content):
    path = tmp_path / content
    path.mkdir() if content.startswith("checkpoint") else path.touch()
    message = rf"already holds a model or checkpoints \({content}\); name another folder, or say"
    with pytest.raises(FileExistsError, match=message):
        check_output_folder(tmp_path)
    check_output_folder(tmp_path, resume=True)
    check_output_folder(tmp_path, overwrite=True)
    assert path.exists()


def test_an_empty_or_new_folder_is_fine(tmp_path):
    (tmp_path / "notes.txt").touch()
    check_output_folder(tmp_path)
    check_output_folder(tmp_path / "new")


def test_a_file_is_no_folder(tmp_path):
    path = tmp_path / "model"
    path.touch()
    with pytest.raises(NotADirectoryError, match="is a file; name a folder"):
        check_output_folder(path)


def test_only_what_an_earlier_run_left_is_removed(tmp_path):
    target = tmp_path / "run"
    for name in ("checkpoint-5", "checkpoint-notes", "tokenizer.json"):
        (target / name).mkdir(parents=True)
    stale = {"model-00001-of-00002.safetensors", "model.safetensors.index.json", "scores.json"}
    kept = {"config.json", "notes.txt", "ds_config.json", "model_old.safetensors"}
    for name in stale | kept:
        (target / name).touch()
    remove_checkpoints(target)
    with staged(target, replace_run=True) as folder:
        (folder / "config.json").write_text("new")
    assert {path.name for path in target.iterdir()} == {"checkpoint-notes", "tokenizer.json", *kept}
    assert (target / "config.json").read_text() == "new"


def make_checkpoint(folder, step, files=COMPLETE, cut_off=None):
    path = folder / f"checkpoint-{step}"
    path.mkdir()
    for name in files:
        if name.endswith(".pt"):
            torch.save({}, path / name)
        else:
            (path / name).write_text("{}")
    if cut_off:
        content = (path / cut_off).read_bytes()
        (path / cut_off).write_bytes(content[: len(content) // 2])
    return path


def test_the_last_complete_checkpoint(tmp_path):
    make_checkpoint(tmp_path, 90)
    expected = make_checkpoint(tmp_path, 100)
    make_checkpoint(tmp_path, 110, COMPLETE[:3])
    assert find_checkpoint("last", tmp_path) == expected


def test_no_complete_checkpoint(tmp_path):
    incomplete = make_checkpoint(tmp_path, 5, COMPLETE[:1] + COMPLETE[3:])
    with pytest.raises(ValueError, match="holds no checkpoint to resume from; leave out --resume_from_checkpoint"):
        find_checkpoint("last", tmp_path)
    with pytest.raises(ValueError, match=r"checkpoint-5 is no checkpoint .*: optimizer\.pt, scheduler\.pt: missing"):
        find_checkpoint(str(incomplete), tmp_path)


@pytest.mark.parametrize("name", ["trainer_state.json", "optimizer.pt", "scheduler.pt", "tokenizer.json"])
def test_a_checkpoint_with_a_file_cut_off(tmp_path, name):
    whole = make_checkpoint(tmp_path, 5)
    cut_off = make_checkpoint(tmp_path, 6, cut_off=name)
    with pytest.raises(ValueError, match=rf"checkpoint-6 is no checkpoint to resume from: {name}: missing or cut off"):
        find_checkpoint(str(cut_off), tmp_path)
    assert find_checkpoint("last", tmp_path) == whole


def test_staged_files_arrive_together(tmp_path):
    target = tmp_path / "run" / "model"
    with staged(target) as folder:
        (folder / "a").write_text("new")
        (folder / "b").write_text("new")
        assert not target.exists()
    assert {path.name: path.read_text() for path in target.iterdir()} == {"a": "new", "b": "new"}
    assert [path.name for path in target.parent.iterdir()] == ["model"]


def write_half(target):
    with staged(target) as folder:
        (folder / "a").write_text("half")
        raise RuntimeError("cut off")


def test_nothing_half_written_stays(tmp_path):
    target = tmp_path / "model"
    target.mkdir()
    (target / "a").write_text("old")
    with pytest.raises(RuntimeError, match="cut off"):
        write_half(target)
    assert (target / "a").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
