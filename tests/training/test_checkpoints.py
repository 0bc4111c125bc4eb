import dataclasses
import json
import logging
import os
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


def test_the_mark_lists_every_file_with_its_size(tmp_path):
    path = make_checkpoint(tmp_path, 5, marked=False)
    (path / "shards").mkdir()
    (path / "shards" / "0.bin").write_bytes(b"12345")
    mark_complete(path)
    mark_complete(path)
    files = json.loads((path / "complete.json").read_text())["files"]
    assert files == {**{name: (path / name).stat().st_size for name in FILES}, "shards/0.bin": 5}
    assert {entry.name for entry in path.iterdir()} == {*FILES, "shards", "complete.json"}


def test_the_mark_is_written_when_the_files_are_on_the_disk(tmp_path, monkeypatch):
    path = make_checkpoint(tmp_path, 5, marked=False)
    flushed = []
    flush = atomic_files.flush
    for module in (atomic_files, checkpoint_marks):
        monkeypatch.setattr(module, "flush", lambda path: (flushed.append(path.name), flush(path)))
    monkeypatch.setattr("pathlib.Path.replace", lambda path, target: flushed.append("named"))
    mark_complete(path)
    *first, unfinished, named, last = flushed
    assert sorted(first) == sorted([*FILES, path.name, tmp_path.name])
    assert (unfinished, named, last) == (".complete.json.part", "named", path.name)


def test_every_file_and_folder_is_flushed(tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.append(os.fstat(descriptor).st_ino))
    path = make_checkpoint(tmp_path, 5)
    assert {each.stat().st_ino for each in (*path.iterdir(), path, tmp_path)} <= set(flushed)


def test_the_last_complete_checkpoint(tmp_path, caplog):
    make_checkpoint(tmp_path, 90)
    expected = make_checkpoint(tmp_path, 100)
    torn = make_checkpoint(tmp_path, 110, FILES[:3], marked=False)
    assert find_checkpoint("last", tmp_path) == expected
    assert last_complete_checkpoint(tmp_path) == str(expected)
    assert caplog.messages == [f"skipping {torn}: {UNMARKED}."] * 2
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


@pytest.mark.parametrize("name", [*FILES, "complete.json"])
def test_a_file_truncated_after_the_mark(tmp_path, caplog, name):
    whole = make_checkpoint(tmp_path, 5)
    truncated = make_checkpoint(tmp_path, 6, truncated=name)
    assert last_complete_checkpoint(tmp_path) == str(whole)
    reason = UNMARKED if name == "complete.json" else f"{name}: missing or truncated"
    assert caplog.messages == [f"skipping {truncated}: {reason}."]


def test_a_file_removed_after_the_mark(tmp_path, caplog):
    (make_checkpoint(tmp_path, 6) / "rng_state.pth").unlink()
    assert last_complete_checkpoint(tmp_path) is None
    assert "rng_state.pth: missing or truncated" in caplog.text


def test_no_checkpoint_to_resume_from(tmp_path):
    assert last_complete_checkpoint(tmp_path / "nowhere") is None
    make_checkpoint(tmp_path, 5, FILES[1:], marked=False)
    assert last_complete_checkpoint(tmp_path) is None
    with pytest.raises(ValueError, match="holds no complete checkpoint; leave out --resume_from_checkpoint"):
        find_checkpoint("last", tmp_path)


def test_a_finished_checkpoint_without_a_mark_raises(tmp_path):
    make_checkpoint(tmp_path, 5, marked=False)
    with pytest.raises(ValueError, match="is marked as complete, but checkpoint-5 may be: give its path as"):
        last_complete_checkpoint(tmp_path)


def test_a_checkpoint_is_named_with_its_path(tmp_path):
    make_checkpoint(tmp_path, 5)
    with pytest.raises(ValueError, match='checkpoint-5 is not a folder; give the path of a checkpoint, "last"'):
        find_checkpoint("checkpoint-5", tmp_path)


def test_a_named_checkpoint_needs_no_mark(tmp_path):
    path = make_checkpoint(tmp_path, 5, marked=False)
    assert find_checkpoint(str(path), tmp_path) == path


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("name", ["trainer_state.json", "optimizer.pt", "scheduler.pt", "tokenizer.json"])
def test_a_named_checkpoint_with_a_file_truncated(tmp_path, name, marked):
    truncated = make_checkpoint(tmp_path, 6, truncated=name, marked=marked)
    with pytest.raises(ValueError, match=rf"checkpoint-6 cannot be resumed from: {name}: missing or truncated"):
        find_checkpoint(str(truncated), tmp_path)


def test_a_named_checkpoint_without_its_random_state(tmp_path):
    path = make_checkpoint(tmp_path, 6)
    (path / "rng_state.pth").unlink()
    with pytest.raises(ValueError, match=r"cannot be resumed from: rng_state\.pth: missing or truncated"):
        find_checkpoint(str(path), tmp_path)


class NoteMarks(TrainerCallback):
    """Records at every update which checkpoints exist, and which are marked."""

    def __init__(self):
        self.seen = []

    def on_step_end(self, args, state, control, **kwargs):
        there = checkpoints.checkpoints_in(checkpoints.Path(args.output_dir))
        self.seen.append([(path.name, (path / "complete.json").exists()) for path in there])


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


def test_every_checkpoint_of_a_run_is_marked(tmp_path, tokenizer):
    make_trainer(tmp_path, tokenizer).train()
    assert names(tmp_path) == ["checkpoint-2", "checkpoint-4", "checkpoint-6"]
    assert all(checkpoints.fault_of(tmp_path / name) is None for name in names(tmp_path))
    assert last_complete_checkpoint(tmp_path) == get_last_checkpoint(str(tmp_path))


def test_marks_of_later_steps_go_when_a_run_starts_from_an_earlier_one(tmp_path, tokenizer):
    make_trainer(tmp_path, tokenizer).train()
    note = NoteMarks()
    trainer = make_trainer(tmp_path, tokenizer, note, max_steps=5)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    first, *_ = note.seen
    assert first == [("checkpoint-2", True), ("checkpoint-4", False), ("checkpoint-6", False)]
    assert last_complete_checkpoint(tmp_path) == str(tmp_path / "checkpoint-5")


def test_marks_go_when_a_run_saves_models_alone(tmp_path, tokenizer):
    make_trainer(tmp_path, tokenizer).train()
    make_trainer(tmp_path, tokenizer, save_only_model=True).train()
    assert not any((tmp_path / name / "complete.json").exists() for name in names(tmp_path))


def test_old_checkpoints_are_removed_when_the_new_one_is_marked(tmp_path, tokenizer):
    note = NoteMarks()
    trainer = make_trainer(tmp_path, tokenizer, note, save_total_limit=1)
    trainer.train()
    assert names(tmp_path) == ["checkpoint-6"]
    assert all(len(seen) == 1 and seen[0][1] for seen in note.seen[2:])
    assert trainer.args.save_total_limit == 1


def test_the_limit_outlives_a_run_that_breaks_off(tmp_path, tokenizer):
    class Break(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            raise KeyboardInterrupt

    broken = make_trainer(tmp_path, tokenizer, Break(), save_total_limit=1)
    with pytest.raises(KeyboardInterrupt):
        broken.train()
    trainer = make_trainer(tmp_path, tokenizer)
    trainer.args = broken.args
    trainer.train()
    assert names(tmp_path) == ["checkpoint-6"]
    assert trainer.args.save_total_limit == 1


class FirstIsBest(TrainerCallback):
    def on_evaluate(self, args, state, control, metrics, **kwargs):
        metrics["eval_score"] = -state.global_step


def test_the_best_checkpoint_stays(tmp_path, tokenizer):
    """Also if the run resumes from a checkpoint without its path, which pushed ones lack."""
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
    ("limit", "kept"),
    [(0, [1, 2, 3, 9]), (9, [1, 2, 3, 9]), (3, [1, 2, 3]), (2, [1, 3]), (1, [1, 3])],
)
def test_order_of_removal(tmp_path, limit, kept):
    for step in (1, 2, 3):
        make_checkpoint(tmp_path, step)
    make_checkpoint(tmp_path, 9, marked=False)
    keep = [tmp_path / "checkpoint-3", tmp_path / "checkpoint-1"]
    checkpoints._remove_surplus(tmp_path, limit, keep)
    assert names(tmp_path) == [f"checkpoint-{step}" for step in kept]


def test_only_models_are_saved(tmp_path, tokenizer, caplog):
    make_trainer(tmp_path, tokenizer, save_only_model=True, save_total_limit=2).train()
    assert "save_only_model is set: no run can resume from these checkpoints" in caplog.text
    assert names(tmp_path) == ["checkpoint-4", "checkpoint-6"]
    assert not list(tmp_path.rglob("complete.json"))
    with pytest.raises(ValueError, match=r"checkpoint-6 cannot be resumed from: optimizer\.pt, scheduler\.pt"):
        find_checkpoint(str(tmp_path / "checkpoint-6"), tmp_path)
    assert last_complete_checkpoint(tmp_path) is None


def test_a_hyper_parameter_search_raises(tmp_path):
    with pytest.raises(ValueError, match="serves one output folder; leave it out of a hyper-parameter search"):
        CompleteCheckpoints().on_train_begin(None, SimpleNamespace(is_hyper_param_search=True), None)


def test_each_epoch_has_its_own_order(tmp_path):
    sampler = LengthGroupedSampler(batch_size=4, lengths=list(range(100)))
    loader = SimpleNamespace(batch_sampler=SimpleNamespace(sampler=sampler))
    args = TrainingArguments(str(tmp_path), seed=3)

    def order(epoch, seed_of_others, **changes):
        torch.manual_seed(seed_of_others)
        changed = dataclasses.replace(args, **changes)
        CompleteCheckpoints().on_epoch_begin(changed, TrainerState(epoch=epoch), None, train_dataloader=loader)
        return list(sampler)

    first, second = order(0, 1), order(1, 1)
    assert sorted(first) == sorted(second) == list(range(100))
    assert first != second
    assert first == order(0, 2)
    assert second == order(1.5, 2)
    assert first != order(0, 1, seed=4) == order(0, 1, data_seed=4)
