import pytest

from hf_vanilla_transformer.training.output import (
    check_output_folder,
    find_checkpoint,
    remove_checkpoints,
    remove_files_of_a_run,
    staged,
)


COMPLETE = ("trainer_state.json", "optimizer.pt", "scheduler.pt", "model.safetensors", "tokenizer.json")


@pytest.mark.parametrize("content", ["config.json", "checkpoint-5"])
def test_a_folder_that_holds_a_model_is_refused(tmp_path, content):
    path = tmp_path / content
    path.mkdir() if content.startswith("checkpoint") else path.touch()
    with pytest.raises(FileExistsError, match="already holds a model or checkpoints; name another folder, or say"):
        check_output_folder(tmp_path)
    assert path.exists()
    check_output_folder(tmp_path, resume=True)
    assert path.exists()
    check_output_folder(tmp_path, overwrite=True)
    assert path.exists()


def test_removing_checkpoints_and_files_of_a_run(tmp_path):
    for name in ("checkpoint-5", "checkpoint-notes"):
        (tmp_path / name).mkdir()
    for name in (
        "config.json",
        "generation_config.json",
        "model-00001-of-00002.safetensors",
        "scores.json",
        "notes.txt",
    ):
        (tmp_path / name).touch()
    remove_checkpoints(tmp_path)
    assert not (tmp_path / "checkpoint-5").exists()
    remove_files_of_a_run(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint-notes", "notes.txt"}


def make_checkpoint(folder, step, files=COMPLETE):
    path = folder / f"checkpoint-{step}"
    path.mkdir()
    for name in files:
        (path / name).touch()
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
    with pytest.raises(ValueError, match=r"checkpoint-5 is no checkpoint .*: it has no optimizer\.pt, scheduler\.pt"):
        find_checkpoint(str(incomplete), tmp_path)


def test_an_empty_or_new_folder_is_fine(tmp_path):
    check_output_folder(tmp_path)
    check_output_folder(tmp_path / "new")


def test_a_file_is_no_folder(tmp_path):
    path = tmp_path / "model"
    path.touch()
    with pytest.raises(NotADirectoryError, match="is a file; name a folder"):
        check_output_folder(path)


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
