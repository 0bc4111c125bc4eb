"""Checks before a run starts: it must not overwrite another run, and its checkpoints must suffice for an average."""

from pathlib import Path

import pytest

from hf_vanilla_transformer.support.checkpoint_marks import mark_complete
from hf_vanilla_transformer.training.run_arguments import Settings
from hf_vanilla_transformer.training.run_checks import check_average, check_output_folder


def make_settings(folder: Path, **arguments: object) -> Settings:
    return Settings.from_arguments(output_dir=str(folder / "run"), **arguments)


def write_model(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").touch()


def write_checkpoint(folder: Path, is_complete: bool) -> None:
    checkpoint = folder / "checkpoint-5"
    checkpoint.mkdir(parents=True)
    (checkpoint / "trainer_state.json").write_text("{}")
    if is_complete:
        mark_complete(checkpoint)


def test_check_output_folder_accepts_a_new_folder(tmp_path):
    check_output_folder(make_settings(tmp_path), resumes=False)


@pytest.mark.parametrize("resume_from_checkpoint", [None, "auto"])
def test_check_output_folder_rejects_a_model(tmp_path, resume_from_checkpoint):
    write_model(tmp_path / "run")
    settings = make_settings(tmp_path, resume_from_checkpoint=resume_from_checkpoint)
    with pytest.raises(FileExistsError, match=r"config\.json"):
        check_output_folder(settings, resumes=False)
    check_output_folder(settings, resumes=True)
    check_output_folder(make_settings(tmp_path, overwrite=True), resumes=False)


@pytest.mark.parametrize(
    ("is_complete", "resume_from_checkpoint", "is_accepted"),
    [(False, "auto", True), (False, None, False), (True, "auto", False), (True, None, False)],
)
def test_check_output_folder_with_a_checkpoint(tmp_path, is_complete, resume_from_checkpoint, is_accepted):
    write_checkpoint(tmp_path / "run", is_complete)
    settings = make_settings(tmp_path, resume_from_checkpoint=resume_from_checkpoint)
    if is_accepted:
        check_output_folder(settings, resumes=False)
    else:
        with pytest.raises(FileExistsError, match="checkpoint-5"):
            check_output_folder(settings, resumes=False)


@pytest.mark.parametrize("place", ["run", "run/base"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_check_output_folder_rejects_the_base_model(tmp_path, place, overwrite):
    write_model(tmp_path / place)
    settings = make_settings(tmp_path, model_name_or_path=str(tmp_path / place), overwrite=overwrite)
    with pytest.raises(ValueError, match=f"{place} lies in .*run"):
        check_output_folder(settings, resumes=False)
    check_output_folder(settings, resumes=True)


def test_check_output_folder_takes_a_missing_folder_for_a_name(tmp_path):
    base_model = tmp_path / "run" / "base"
    check_output_folder(make_settings(tmp_path, model_name_or_path=str(base_model)), resumes=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"average_last": 2, "save_steps": 5}, None),
        ({"average_last": 2, "save_strategy": "epoch", "save_total_limit": 2}, None),
        ({"average_last": 2, "save_steps": 5, "save_total_limit": 0}, None),
        ({"average_last": 2, "save_steps": 5, "save_total_limit": 1}, "save_total_limit 1; give at least 2"),
        (
            {"average_last": 2, "save_steps": 5, "save_total_limit": 2, "metric_for_best_model": "loss"},
            "save_total_limit 2; give at least 3",
        ),
        ({"average_last": 2, "save_strategy": "no"}, "average_last is 2.*save_strategy"),
        ({"average_last": 2, "save_only_model": True}, "average_last is 2.*save_only_model"),
        (
            {"average_last": 2, "load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 5}
            | {"save_strategy": "steps", "save_steps": 5},
            "average_last and load_best_model_at_end",
        ),
        ({"keep_better": True}, "keep_better.*average_last"),
        ({}, None),
    ],
)
def test_check_average(tmp_path, arguments, message):
    settings = make_settings(tmp_path, **arguments)
    if message is None:
        check_average(settings)
    else:
        with pytest.raises(ValueError, match=message):
            check_average(settings)
