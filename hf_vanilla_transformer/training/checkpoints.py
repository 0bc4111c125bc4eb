"""Checkpoints to go on from, told apart from those that a killed run left unfinished.

The Trainer writes its files straight into `checkpoint-N` and resumes from the highest N. Here a checkpoint gets a mark
when everything else is on the disk: `complete.json`, which lists every file with its size in bytes.
"""

import json
import logging
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ..files import flush, whole_file
from .callbacks import evaluations_without_improvement


MARK = "complete.json"
_FILES_TO_RESUME_FROM = ("trainer_state.json", "optimizer.pt", "scheduler.pt", "model.safetensors")
_LIMIT = "_save_total_limit"

logger = logging.getLogger(__name__)


class CompleteCheckpoints(TrainerCallback):
    """Marks every checkpoint of a stock `Trainer` when it is complete, so that none is resumed from that is not.

    ```python
    trainer = Seq2SeqTrainer(..., callbacks=[CompleteCheckpoints()])
    trainer.train(resume_from_checkpoint=last_complete_checkpoint(args.output_dir))
    ```

    The mark is written when all processes have written their files and these are on the disk. Checkpoints with a higher
    step than the one that a run starts from lose their marks, because the run is about to write its own.

    It is this callback, too, that removes the checkpoints beyond `save_total_limit`: the Trainer does so before the new
    checkpoint can be marked, and a run killed in between would have none left. The best checkpoint and the newest stay,
    also at the end of a run with `save_total_limit=1`.

    And it makes the order of the sentences under `group_by_length` depend on the seed and the epoch alone. The Trainer
    draws it from random numbers that are others after a resume.

    With `save_only_model=True` there is nothing to resume from: nothing is marked, and a warning says so. Nor are the
    checkpoints of `enable_jit_checkpoint`, which the Trainer writes without telling callbacks.

    Raises:
        ValueError: at the start of a hyper-parameter search, whose trials have folders of their own.
    """

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.is_hyper_param_search:
            raise ValueError("CompleteCheckpoints knows one run's folder; leave it out of a hyper-parameter search.")
        if args.should_save:
            for checkpoint in checkpoints_in(Path(str(args.output_dir))):
                if _step(checkpoint) > state.global_step:
                    (checkpoint / MARK).unlink(missing_ok=True)
        if args.save_only_model:
            logger.warning("save_only_model is set: no run can be resumed from these checkpoints; none is marked.")
            return
        if args.save_total_limit is not None:
            # Kept on the arguments: a run that breaks off does not put it back, and the next one with them needs it.
            vars(args)[_LIMIT], args.save_total_limit = args.save_total_limit, None

    def on_epoch_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        train_dataloader: Any = None,
        **kwargs: Any,
    ) -> None:
        batches = getattr(train_dataloader, "batch_sampler", None)
        # With several processes each has its share of the batches.
        batches = getattr(batches, "batch_sampler", batches)
        sampler = getattr(batches, "sampler", None)
        if isinstance(sampler, LengthGroupedSampler):
            seed = args.seed if args.data_seed is None else args.data_seed
            sampler.generator = torch.Generator().manual_seed(seed + int(state.epoch or 0))

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if args.save_only_model:
            return
        # The other processes may still be writing their files, such as the state of their random numbers.
        PartialState().wait_for_everyone()
        if args.should_save:
            newest = Path(str(args.output_dir), f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")
            mark_complete(newest)
            best = [Path(state.best_model_checkpoint)] if state.best_model_checkpoint else []
            _remove_surplus(newest.parent, getattr(args, _LIMIT, None), keep=[newest, *best])

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        args.save_total_limit = vars(args).pop(_LIMIT, args.save_total_limit)


def mark_complete(checkpoint: Path) -> None:
    """Make sure that a checkpoint's files are on the disk, and then mark it as complete."""
    (checkpoint / MARK).unlink(missing_ok=True)
    # Left by a process that was killed while it wrote the mark.
    (checkpoint / f".{MARK}.part").unlink(missing_ok=True)
    contents = sorted(checkpoint.rglob("*"))
    for path in (*contents, checkpoint, checkpoint.parent):
        flush(path)
    sizes = {path.relative_to(checkpoint).as_posix(): path.stat().st_size for path in contents if path.is_file()}
    with whole_file(checkpoint / MARK, sync=True) as file:
        file.write(json.dumps({"files": sizes}, indent=2) + "\n")
    flush(checkpoint)


def last_complete_checkpoint(output_dir: str | os.PathLike[str]) -> str | None:
    """The newest complete checkpoint of a run, for `trainer.train(resume_from_checkpoint=...)`.

    Checkpoints that are passed over are named, with the reason, by a warning of `logging`.

    A run that has ended in the middle of an epoch needs no resuming: from its last checkpoint the stock Trainer makes
    one update more. scripts/train.py does not.

    Args:
        output_dir (`str` or `PathLike`): folder of a run that was trained with [`CompleteCheckpoints`].

    Returns:
        `str`: the checkpoint's folder; None if there is none to go on from, so that the run begins anew.

    Raises:
        ValueError: if none is marked, but one looks as if the Trainer had finished it. A run without
            [`CompleteCheckpoints`] writes such ones. To go on from it, give its name to `trainer.train`.
    """
    checkpoints = checkpoints_in(Path(output_dir))
    for checkpoint in reversed(checkpoints):
        fault = fault_of(checkpoint)
        if fault is None:
            return str(checkpoint)
        logger.warning("%s is passed over: %s.", checkpoint, fault)
    unmarked = [checkpoint for checkpoint in checkpoints if not (checkpoint / MARK).exists()]
    finished = [checkpoint.name for checkpoint in unmarked if _looks_finished(checkpoint)]
    if finished:
        raise ValueError(
            f"no checkpoint in {output_dir} is marked as complete, but {finished[-1]} may be: name it as "
            "resume_from_checkpoint to go on from it, or remove it to begin anew."
        )
    return None


def find_checkpoint(wanted: str, folder: Path) -> Path | None:
    """The checkpoint to go on from; None where the run is to begin.

    Args:
        wanted (`str`): a checkpoint's folder, `"last"` for the newest complete one in `folder`, or `"auto"` for that
            one if there is any, as in a job that may be started again.
        folder (`Path`): where the run writes.

    Raises:
        ValueError: if there is none, or files are missing or cut off that the training goes on from.
    """
    if wanted in ("last", "auto"):
        last = last_complete_checkpoint(folder)
        if last is None and wanted == "last":
            raise ValueError(f"{folder} holds no checkpoint to resume from; leave out --resume_from_checkpoint.")
        return None if last is None else Path(last)
    checkpoint = Path(wanted)
    if not checkpoint.is_dir():
        raise ValueError(f'{wanted} is no folder; name a checkpoint with its path, or say "last" or "auto".')
    fault = fault_of(checkpoint) if (checkpoint / MARK).is_file() else _visible_fault(checkpoint)
    if fault is not None:
        raise ValueError(f"{wanted} is no checkpoint to resume from: {fault}; take an earlier checkpoint.")
    return checkpoint


def are_all_torn(folder: Path) -> bool:
    """Whether the checkpoints in a folder, if there are any, all lack the Trainer's last file, as of a killed run."""
    last = (MARK, "trainer_state.json")
    return not any((checkpoint / name).exists() for checkpoint in checkpoints_in(folder) for name in last)


def is_finished(args: TrainingArguments, checkpoint: Path) -> bool:
    """Whether a checkpoint is the end of the run that the arguments ask for, stopped early or not."""
    state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
    patience = getattr(args, "early_stopping_patience", None)
    if patience is not None and evaluations_without_improvement(state) >= patience:
        return True
    if args.max_steps > 0:
        return state.global_step >= args.max_steps
    return state.epoch >= args.num_train_epochs


def remove_checkpoints(folder: Path) -> None:
    """Remove the checkpoints of an earlier run."""
    for checkpoint in checkpoints_in(folder):
        shutil.rmtree(checkpoint)


def checkpoints_in(folder: Path) -> list[Path]:
    """All checkpoints in a folder, complete or not, by step."""
    names = {path: path.name.removeprefix(f"{PREFIX_CHECKPOINT_DIR}-") for path in folder.glob("checkpoint-*")}
    return sorted((path for path, step in names.items() if step.isdecimal() and path.is_dir()), key=_step)


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix(f"{PREFIX_CHECKPOINT_DIR}-"))


def _remove_surplus(folder: Path, limit: int | None, keep: list[Path]) -> None:
    """Remove checkpoints until `limit` are left: first those without a mark, then the oldest."""
    if limit is None or limit < 1:
        return
    checkpoints = checkpoints_in(folder)
    kept = {path.resolve() for path in keep}
    others = [path for path in checkpoints if path.resolve() not in kept]
    others.sort(key=lambda path: ((path / MARK).exists(), _step(path)))
    surplus = min(len(others), len(checkpoints) - limit)
    for path in others[: max(0, surplus)]:
        shutil.rmtree(path, ignore_errors=True)


def _marked_sizes(checkpoint: Path) -> dict[str, int] | None:
    """Size in bytes of each file that the mark lists; None without a whole mark."""
    try:
        return dict(json.loads((checkpoint / MARK).read_text(encoding="utf-8"))["files"])
    except (FileNotFoundError, KeyError, TypeError, ValueError):
        return None


def fault_of(checkpoint: Path) -> str | None:
    """Why a checkpoint is not complete; None if it is."""
    sizes = _marked_sizes(checkpoint)
    if sizes is None:
        return f"it has no mark ({MARK}), so the run stopped while it was written, or CompleteCheckpoints was not used"
    files = {name: checkpoint / name for name in sizes}
    wrong = [name for name, path in files.items() if not path.is_file() or path.stat().st_size != sizes[name]]
    return f"{', '.join(wrong)}: missing or cut off" if wrong else None


def _visible_fault(checkpoint: Path) -> str | None:
    """Why a checkpoint without a mark cannot be resumed from; None if the usual files look whole."""
    # Of a tokenizer there may be other files than ours has.
    names = dict.fromkeys((*_FILES_TO_RESUME_FROM, *sorted(path.name for path in checkpoint.glob("*.json"))))
    torn = [name for name in names if not _is_whole(checkpoint / name)]
    return f"{', '.join(torn)}: missing or cut off" if torn else None


def _looks_finished(checkpoint: Path) -> bool:
    """Whether there is what the Trainer writes last, and what it writes only where a run can go on."""
    return _is_whole(checkpoint / "trainer_state.json") and any(checkpoint.glob("rng_state*.pth"))


def _is_whole(path: Path) -> bool:
    if not path.is_file():
        return False
    if path.suffix in (".pt", ".pth"):
        return zipfile.is_zipfile(path)
    if path.suffix == ".json":
        try:
            json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            return False
    return True
