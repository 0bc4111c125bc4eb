"""Resume only from complete checkpoints, not from those that a killed run left unfinished.

The Trainer writes its files straight into `checkpoint-N` and resumes from the highest N. Here a checkpoint gets a mark
after all its files are flushed to the disk: `complete.json`, which lists every file with its size in bytes.
"""

import json
import logging
import os
import shutil
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ..support.checkpoint_marks import MARK, checkpoints_in, complete_checkpoints, fault_of, mark_complete, step_of
from ..support.user_errors import InputError
from .process_seeds import seed_order_of_lengths
from .trainer_callbacks import RecordFacts, count_evaluations_without_improvement


logger = logging.getLogger(__name__)

_STATE = "trainer_state.json"
_FILES_TO_RESUME_FROM = (_STATE, "optimizer.pt", "scheduler.pt", "model.safetensors")


class CompleteCheckpoints(TrainerCallback):
    """Marks every checkpoint of a stock `Trainer` when it is complete, so that no run resumes from an incomplete one.

    ```python
    trainer = Seq2SeqTrainer(..., callbacks=[CompleteCheckpoints()])
    trainer.train(resume_from_checkpoint=last_complete_checkpoint(args.output_dir))
    ```

    The callback writes the mark after all processes have written their files and these are flushed to the disk. At the
    start of a run it removes the marks of checkpoints with a higher step, because the run will write these steps anew.

    The callback also removes checkpoints beyond `save_total_limit`. The Trainer would do so before the new checkpoint
    is marked, and a run killed in between would have no checkpoint left; so `args.save_total_limit` is negative during
    a run, which the Trainer takes for no limit. The best and the newest checkpoint stay, even at the end of a run with
    `save_total_limit=1`.

    Under `group_by_length` it makes the order of sentences depend on the seed and the epoch only. The Trainer draws
    the order from a random state that differs after a resume.

    With `save_only_model=True` no checkpoint can be resumed from: the callback marks none and logs a warning. It does
    not mark those of a stock Trainer's `enable_jit_checkpoint` either, because the Trainer calls no callbacks for them.

    Raises:
        ValueError: at the start of a hyper-parameter search, because each trial has its own folder.
    """

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if state.is_hyper_param_search:
            raise InputError("CompleteCheckpoints serves one output folder; leave it out of a hyper-parameter search.")
        if args.should_save:
            remove_later_marks(Path(str(args.output_dir)), state.global_step)
        if args.save_only_model:
            logger.warning("save_only_model is set: no run can resume from these checkpoints; none is marked.")
        elif args.save_total_limit is not None:
            args.save_total_limit = -abs(args.save_total_limit)

    def on_epoch_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        seed_order_of_lengths(args, state, kwargs["train_dataloader"])

    def on_save(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if args.save_only_model:
            return
        # Other processes may still be writing their files, such as random states.
        PartialState().wait_for_everyone()
        if args.should_save:
            newest = Path(str(args.output_dir), f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")
            mark_complete(newest)
            best = [Path(state.best_model_checkpoint)] if state.best_model_checkpoint else []
            _remove_surplus(newest.parent, abs(args.save_total_limit or 0), keep=[newest, *best])

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if args.save_total_limit is not None:
            args.save_total_limit = abs(args.save_total_limit)


def restore_path_of_best(state: TrainerState, folder: Path) -> None:
    """Set the path of a run's best checkpoint, which may have been moved, or written without the path."""
    best = folder / f"{PREFIX_CHECKPOINT_DIR}-{state.best_global_step}"
    if best.is_dir():
        state.best_model_checkpoint = str(best)


def remove_path_of_best(checkpoint: Path) -> None:
    """Remove the path of the best checkpoint from a checkpoint that is pushed, because it describes this machine."""
    path = checkpoint / _STATE
    state = TrainerState.load_from_json(str(path))
    state.best_model_checkpoint = None
    state.save_to_json(str(path))


def remove_later_marks(folder: Path, step: int) -> None:
    """Remove the marks of checkpoints after an update, because a run from there will write them anew."""
    for checkpoint in checkpoints_in(folder):
        if step_of(checkpoint) > step:
            (checkpoint / MARK).unlink(missing_ok=True)


def last_complete_checkpoint(output_dir: str | os.PathLike[str]) -> str | None:
    """The newest complete checkpoint of a run, for `trainer.train(resume_from_checkpoint=...)`.

    Logs a warning, with the reason, for each checkpoint that it skips.

    Do not resume a run that has finished in the middle of an epoch: from its last checkpoint the stock Trainer makes
    one more update. `hf-vanilla-transformer train` does not.

    Args:
        output_dir (`str` or `PathLike`): folder of a run that was trained with [`CompleteCheckpoints`].

    Returns:
        `str`: the checkpoint's folder; None if no checkpoint can be resumed from, so that the run starts from scratch.

    Raises:
        ValueError: if no checkpoint is marked, but the files of one look complete, as after a run without
            [`CompleteCheckpoints`]. To resume from it, pass its path to `trainer.train`.
    """
    for checkpoint in complete_checkpoints(Path(output_dir)):
        return str(checkpoint)
    unmarked = [each.name for each in checkpoints_in(Path(output_dir)) if _is_finished_without_mark(each)]
    if unmarked:
        raise InputError(
            f"no checkpoint in {output_dir} is marked as complete, but {unmarked[-1]} may be: give its path as "
            "resume_from_checkpoint to resume from it, or remove it to start from scratch."
        )
    return None


def find_checkpoint(wanted: str, folder: Path) -> Path | None:
    """The checkpoint to resume from; None if the run, which writes into `folder`, is to start from scratch.

    `wanted` is a checkpoint's folder; `"last"`, the newest complete one in `folder`; or `"auto"`, which is `"last"` but
    allows that no checkpoint exists, for jobs that are restarted.
    """
    if wanted in ("last", "auto"):
        last = last_complete_checkpoint(folder)
        if last is None and wanted == "last":
            raise InputError(f"{folder} holds no complete checkpoint; leave out --resume_from_checkpoint.")
        return None if last is None else Path(last)
    checkpoint = Path(wanted)
    if not checkpoint.is_dir():
        raise InputError(f'{wanted} is not a folder; give the path of a checkpoint, "last" or "auto".')
    fault = fault_of(checkpoint) if (checkpoint / MARK).is_file() else _visible_fault(checkpoint)
    if fault is not None:
        raise InputError(f"{wanted} cannot be resumed from: {fault}; use an earlier checkpoint.")
    return checkpoint


def has_only_unfinished_checkpoints(folder: Path) -> bool:
    """Whether no checkpoint in a folder has the file that its run writes last; True without checkpoints."""
    return not any((each / MARK).exists() or _is_finished_without_mark(each) for each in checkpoints_in(folder))


def is_last_checkpoint(args: TrainingArguments, checkpoint: Path) -> bool:
    """Whether a checkpoint is the last of the run that the arguments describe, early stopping included."""
    state = TrainerState.load_from_json(str(checkpoint / _STATE))
    patience = getattr(args, "early_stopping_patience", None)
    if patience is not None and count_evaluations_without_improvement(state) >= patience:
        return True
    if args.max_steps > 0:
        return state.global_step >= args.max_steps
    return state.epoch >= args.num_train_epochs


def remove_checkpoints(folder: Path) -> None:
    """Remove the checkpoints of an earlier run."""
    for checkpoint in checkpoints_in(folder):
        shutil.rmtree(checkpoint)


def _remove_surplus(folder: Path, limit: int, keep: list[Path]) -> None:
    """Remove checkpoints until `limit` remain, or none if it is 0: first those without a mark, then the oldest."""
    if limit == 0:
        return
    checkpoints = checkpoints_in(folder)
    kept = {path.resolve() for path in keep}
    others = [path for path in checkpoints if path.resolve() not in kept]
    others.sort(key=lambda path: ((path / MARK).exists(), step_of(path)))
    surplus = min(len(others), len(checkpoints) - limit)
    for path in others[: max(0, surplus)]:
        shutil.rmtree(path, ignore_errors=True)


def _visible_fault(checkpoint: Path) -> str | None:
    """Why a checkpoint without a mark cannot be resumed from; None if the files needed look complete."""
    # Includes the files of other tokenizers.
    names = dict.fromkeys((*_FILES_TO_RESUME_FROM, *sorted(path.name for path in checkpoint.glob("*.json"))))
    torn = [name for name in names if not _is_whole(checkpoint / name)]
    return f"{', '.join(torn)}: missing or truncated" if torn else None


def _is_finished_without_mark(checkpoint: Path) -> bool:
    """Whether a run without [`CompleteCheckpoints`] wrote a checkpoint to the end, with what a resume needs.

    The state is written last; that of a run of `train`, which marks its checkpoints, holds facts of the run.
    """
    can_resume = _is_whole(checkpoint / _STATE) and any(checkpoint.glob("rng_state*.pth"))
    if (checkpoint / MARK).exists() or not can_resume:
        return False
    state = json.loads((checkpoint / _STATE).read_text(encoding="utf-8"))
    return RecordFacts.__name__ not in state.get("stateful_callbacks", {})


def _is_whole(path: Path) -> bool:
    if path.suffix in (".pt", ".pth"):
        return zipfile.is_zipfile(path)
    if path.suffix == ".json" and path.is_file():
        with suppress(ValueError):
            json.loads(path.read_text(encoding="utf-8"))
            return True
        return False
    return path.is_file()


def count_processes(checkpoint: Path) -> int:
    """Return the number of processes that wrote a checkpoint of the Trainer, or 0 if no random state tells it."""
    several = len(list(checkpoint.glob("rng_state_*.pth")))
    if several > 0:
        return several
    return int((checkpoint / "rng_state.pth").exists())
