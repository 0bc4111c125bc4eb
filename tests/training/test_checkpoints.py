import dataclasses
import json
import logging
import os
import re
from types import SimpleNamespace

import pytest
import torch
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.trainer_utils import get_last_checkpoint

from hf_vanilla_transformer import CompleteCheckpoints, PaperTrainingArguments, last_complete_checkpoint
from hf_vanilla_transformer.support import atomic_files, checkpoint_marks
from hf_vanilla_transformer.support.checkpoint_marks import mark_complete
from hf_vanilla_transformer.training import checkpoints
from hf_vanilla_transformer.training.checkpoints import find_checkpoint
from tests.models import small_model
from tests.training.toy import copy_task


FILES = ("trainer_state.json", "optimizer.pt", "scheduler.pt", "model.safetensors", "tokenizer.json", "rng_state.pth")
UNMARKED = r"it has no mark (complete.json): the run stopped while writing it, or did not use CompleteCheckpoints"


def make_checkpoint(folder, step, files=FILES, truncated=None, marked=True):
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    for name in files:
        if name.endswith((".pt", ".pth")):
            torch.save({}, path / name)
        else:
            (path / name).write_text("{}")
    if marked:
        mark_complete(path)
    if truncated:
        content = (path / truncated).read_bytes()
        (path / truncated).write_bytes(content[: len(content) // 2])
    return path


def test_mark_complete_lists_every_file_with_its_size(tmp_path):
    path = make_checkpoint(tmp_path, 5, marked=False)
    (path / "shards").mkdir()
    (path / "shards" / "0.bin").write_bytes(b"12345")
    mark_complete(path)
    mark_complete(path)
    files = json.loads((path / "complete.json").read_text())["files"]
    assert files == {**{name: (path / name).stat().st_size for name in FILES}, "shards/0.bin": 5}
    assert {entry.name for entry in path.iterdir()} == {*FILES, "shards", "complete.json"}


def test_mark_complete_writes_the_mark_after_the_files_are_flushed(tmp_path, monkeypatch):
    path = make_checkpoint(tmp_path, 5, marked=False)
    # The names of the flushed files and folders, and "renamed" when the mark gets its name.
    events = []
    flush = atomic_files.flush

    def record_flush(path):
        events.append(path.name)
        flush(path)

    for module in (atomic_files, checkpoint_marks):
        monkeypatch.setattr(module, "flush", record_flush)
    monkeypatch.setattr("pathlib.Path.replace", lambda path, target: events.append("renamed"))
    mark_complete(path)
    assert sorted(events[:-3]) == sorted([*FILES, path.name, tmp_path.name])
    assert events[-3:] == [".complete.json.part", "renamed", path.name]


def test_mark_complete_flushes_every_file_and_folder(tmp_path, monkeypatch):
    flushed_inodes = set()
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed_inodes.add(os.fstat(descriptor).st_ino))
    checkpoint = make_checkpoint(tmp_path, 5)
    inodes = {path.stat().st_ino for path in (*checkpoint.iterdir(), checkpoint, tmp_path)}
    assert inodes <= flushed_inodes


def test_find_checkpoint_skips_an_unmarked_checkpoint(tmp_path, caplog):
    make_checkpoint(tmp_path, 90)
    expected = make_checkpoint(tmp_path, 100)
    incomplete = make_checkpoint(tmp_path, 110, FILES[:3], marked=False)
    assert find_checkpoint("last", tmp_path) == expected
    assert last_complete_checkpoint(tmp_path) == str(expected)
    assert caplog.messages == [f"skipping {incomplete}: {UNMARKED}."] * 2
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


@pytest.mark.parametrize("name", [*FILES, "complete.json"])
def test_last_complete_checkpoint_skips_a_truncated_file(tmp_path, caplog, name):
    complete = make_checkpoint(tmp_path, 5)
    truncated = make_checkpoint(tmp_path, 6, truncated=name)
    assert last_complete_checkpoint(tmp_path) == str(complete)
    reason = UNMARKED if name == "complete.json" else f"{name}: missing or truncated"
    assert caplog.messages == [f"skipping {truncated}: {reason}."]


def test_last_complete_checkpoint_skips_a_removed_file(tmp_path, caplog):
    (make_checkpoint(tmp_path, 6) / "rng_state.pth").unlink()
    assert last_complete_checkpoint(tmp_path) is None
    assert "rng_state.pth: missing or truncated" in caplog.text


def test_find_checkpoint_rejects_a_folder_without_checkpoints(tmp_path):
    assert last_complete_checkpoint(tmp_path / "nowhere") is None
    make_checkpoint(tmp_path, 5, FILES[1:], marked=False)
    assert last_complete_checkpoint(tmp_path) is None
    with pytest.raises(ValueError, match=r"no complete checkpoint.*--resume_from_checkpoint"):
        find_checkpoint("last", tmp_path)


def test_last_complete_checkpoint_rejects_a_finished_checkpoint_without_a_mark(tmp_path):
    make_checkpoint(tmp_path, 5, marked=False)
    with pytest.raises(ValueError, match=r"checkpoint-5.*resume_from_checkpoint"):
        last_complete_checkpoint(tmp_path)


def test_find_checkpoint_needs_the_path_of_a_checkpoint(tmp_path):
    make_checkpoint(tmp_path, 5)
    with pytest.raises(ValueError, match="checkpoint-5 is not a folder"):
        find_checkpoint("checkpoint-5", tmp_path)


def test_find_checkpoint_accepts_a_named_checkpoint_without_a_mark(tmp_path):
    path = make_checkpoint(tmp_path, 5, marked=False)
    assert find_checkpoint(str(path), tmp_path) == path


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("name", ["trainer_state.json", "optimizer.pt", "scheduler.pt", "tokenizer.json"])
def test_find_checkpoint_rejects_a_truncated_file(tmp_path, name, marked):
    truncated = make_checkpoint(tmp_path, 6, truncated=name, marked=marked)
    with pytest.raises(ValueError, match=rf"checkpoint-6 .*\b{re.escape(name)}\b"):
        find_checkpoint(str(truncated), tmp_path)


def test_find_checkpoint_rejects_a_missing_random_state(tmp_path):
    path = make_checkpoint(tmp_path, 6)
    (path / "rng_state.pth").unlink()
    with pytest.raises(ValueError, match=r"checkpoint-6 .*\brng_state\.pth\b"):
        find_checkpoint(str(path), tmp_path)


class RecordMarks(TrainerCallback):
    """Records at every update which checkpoints exist, and which are marked."""

    def __init__(self):
        # For each update, the names of the checkpoints, each with whether it is marked.
        self.marks_by_update = []

    def on_step_end(self, args, state, control, **kwargs):
        existing_checkpoints = checkpoints.checkpoints_in(checkpoints.Path(args.output_dir))
        marks = [(path.name, (path / "complete.json").exists()) for path in existing_checkpoints]
        self.marks_by_update.append(marks)


def make_trainer(folder, tokenizer, *callbacks, **arguments):
    defaults = {"max_steps": 6, "save_steps": 2, "per_device_train_batch_size": 4, "disable_tqdm": True}
    args = PaperTrainingArguments(output_dir=str(folder), **{**defaults, **arguments})
    model = small_model(vocab_size=len(tokenizer))
    return Seq2SeqTrainer(
        model=model,
        args=args,
        train_dataset=copy_task(tokenizer, 32),
        eval_dataset=copy_task(tokenizer, 4, seed=1),
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
        callbacks=[CompleteCheckpoints(), *callbacks],
    )


def names(folder):
    return [path.name for path in checkpoints.checkpoints_in(folder)]


def test_complete_checkpoints_marks_every_checkpoint(tmp_path, tokenizer):
    make_trainer(tmp_path, tokenizer).train()
    assert names(tmp_path) == ["checkpoint-2", "checkpoint-4", "checkpoint-6"]
    assert all(checkpoints.fault_of(tmp_path / name) is None for name in names(tmp_path))
    assert last_complete_checkpoint(tmp_path) == get_last_checkpoint(str(tmp_path))


def test_complete_checkpoints_removes_later_marks_when_a_run_resumes(tmp_path, tokenizer):
    make_trainer(tmp_path, tokenizer).train()
    recorder = RecordMarks()
    trainer = make_trainer(tmp_path, tokenizer, recorder, max_steps=5)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert recorder.marks_by_update[0] == [("checkpoint-2", True), ("checkpoint-4", False), ("checkpoint-6", False)]
    assert last_complete_checkpoint(tmp_path) == str(tmp_path / "checkpoint-5")


def test_complete_checkpoints_removes_marks_with_save_only_model(tmp_path, tokenizer):
    make_trainer(tmp_path, tokenizer).train()
    make_trainer(tmp_path, tokenizer, save_only_model=True).train()
    assert not any((tmp_path / name / "complete.json").exists() for name in names(tmp_path))


def test_complete_checkpoints_removes_old_checkpoints_after_the_new_mark(tmp_path, tokenizer):
    recorder = RecordMarks()
    trainer = make_trainer(tmp_path, tokenizer, recorder, save_total_limit=1)
    trainer.train()
    assert names(tmp_path) == ["checkpoint-6"]
    # From the third update on, there is always one checkpoint, which is marked.
    for marks in recorder.marks_by_update[2:]:
        assert [is_marked for _, is_marked in marks] == [True]
    assert trainer.args.save_total_limit == 1


def test_complete_checkpoints_keeps_the_limit_of_an_interrupted_run(tmp_path, tokenizer):
    class Interrupt(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            raise KeyboardInterrupt

    interrupted_trainer = make_trainer(tmp_path, tokenizer, Interrupt(), save_total_limit=1)
    with pytest.raises(KeyboardInterrupt):
        interrupted_trainer.train()
    trainer = make_trainer(tmp_path, tokenizer)
    trainer.args = interrupted_trainer.args
    trainer.train()
    assert names(tmp_path) == ["checkpoint-6"]
    assert trainer.args.save_total_limit == 1


class FirstIsBest(TrainerCallback):
    def on_evaluate(self, args, state, control, metrics, **kwargs):
        metrics["eval_score"] = -state.global_step


def test_complete_checkpoints_keeps_the_best_checkpoint(tmp_path, tokenizer):
    """The run may resume from a checkpoint that lacks the path of the best one, as pushed checkpoints do."""
    arguments = {"save_total_limit": 1, "eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True}
    arguments |= {"metric_for_best_model": "eval_score", "greater_is_better": True}
    trainer = make_trainer(tmp_path, tokenizer, FirstIsBest(), **arguments)
    trainer.train()
    assert trainer.state.best_model_checkpoint == str(tmp_path / "checkpoint-2")
    assert names(tmp_path) == ["checkpoint-2", "checkpoint-6"]
    last = tmp_path / "checkpoint-6"
    checkpoints.remove_path_of_best(last)
    mark_complete(last)
    trainer = make_trainer(tmp_path, tokenizer, FirstIsBest(), max_steps=8, **arguments)
    trainer.train(resume_from_checkpoint=str(last))
    assert trainer.state.best_model_checkpoint == str(tmp_path / "checkpoint-2")
    assert names(tmp_path) == ["checkpoint-2", "checkpoint-8"]


@pytest.mark.parametrize(
    ("limit", "remaining_steps"),
    [(0, [1, 2, 3, 9]), (9, [1, 2, 3, 9]), (3, [1, 2, 3]), (2, [1, 3]), (1, [1, 3])],
)
def test_remove_surplus_removes_unmarked_checkpoints_first(tmp_path, limit, remaining_steps):
    for step in (1, 2, 3):
        make_checkpoint(tmp_path, step)
    make_checkpoint(tmp_path, 9, marked=False)
    protected = [tmp_path / "checkpoint-3", tmp_path / "checkpoint-1"]
    checkpoints._remove_surplus(tmp_path, limit, protected)
    assert names(tmp_path) == [f"checkpoint-{step}" for step in remaining_steps]


def test_complete_checkpoints_marks_nothing_with_save_only_model(tmp_path, tokenizer, caplog):
    make_trainer(tmp_path, tokenizer, save_only_model=True, save_total_limit=2).train()
    assert "save_only_model is set: no run can resume from these checkpoints" in caplog.text
    assert names(tmp_path) == ["checkpoint-4", "checkpoint-6"]
    assert not list(tmp_path.rglob("complete.json"))
    with pytest.raises(ValueError, match=r"checkpoint-6 .*\boptimizer\.pt, scheduler\.pt\b"):
        find_checkpoint(str(tmp_path / "checkpoint-6"), tmp_path)
    assert last_complete_checkpoint(tmp_path) is None


def test_complete_checkpoints_rejects_a_hyper_parameter_search(tmp_path):
    with pytest.raises(ValueError, match=r"CompleteCheckpoints.*search"):
        CompleteCheckpoints().on_train_begin(None, SimpleNamespace(is_hyper_param_search=True), None)


def test_complete_checkpoints_gives_each_epoch_its_own_order(tmp_path):
    sampler = LengthGroupedSampler(batch_size=4, lengths=list(range(100)))
    loader = SimpleNamespace(batch_sampler=SimpleNamespace(sampler=sampler))
    args = TrainingArguments(str(tmp_path), seed=3)

    def order(epoch, global_seed, **changes):
        torch.manual_seed(global_seed)
        changed_args = dataclasses.replace(args, **changes)
        CompleteCheckpoints().on_epoch_begin(changed_args, TrainerState(epoch=epoch), None, train_dataloader=loader)
        return list(sampler)

    order_of_epoch_0 = order(0, 1)
    order_of_epoch_1 = order(1, 1)
    assert sorted(order_of_epoch_0) == sorted(order_of_epoch_1) == list(range(100))
    assert order_of_epoch_0 != order_of_epoch_1
    assert order_of_epoch_0 == order(0, 2)
    assert order_of_epoch_1 == order(1.5, 2)
    assert order_of_epoch_0 != order(0, 1, seed=4) == order(0, 1, data_seed=4)
