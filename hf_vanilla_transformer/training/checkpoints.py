"""Mark complete checkpoints, so that no run resumes from a checkpoint that was only partly written.

The Trainer writes its files directly into `checkpoint-N` and resumes from the highest N, even if that checkpoint is
incomplete. Here, a checkpoint gets a mark after all its files are flushed to the disk. The mark is the file
`complete.json`, which lists every file with its size in bytes.
"""

import json
import logging
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ..support.checkpoint_marks import MARK, checkpoints_in, complete_checkpoints, fault_of, mark_complete, step_of
from ..support.user_errors import InputError
from .process_seeds import seed_order_of_lengths
from .trainer_callbacks import RecordFacts, count_evaluations_without_improvement


logger = logging.getLogger(__name__)

_STATE = "trainer_state.json"
_FILES_TO_RESUME_FROM = (_STATE, "optimizer.pt", "scheduler.pt", "model.safetensors")


class CompleteCheckpoints(TrainerCallback):
    """Callback that marks each checkpoint of a stock `Trainer` once it is complete, so that a run can resume safely.

    ```python
    trainer = Seq2SeqTrainer(..., callbacks=[CompleteCheckpoints()])
    trainer.train(resume_from_checkpoint=last_complete_checkpoint(args.output_dir))
    ```

    The callback writes the mark after all processes have written their files and the files are flushed to the disk. At
    the start of a run, it removes the marks of checkpoints with a higher step, because the run will write them again.

    The callback also removes checkpoints beyond `save_total_limit`, but only after the new checkpoint is marked. The
    Trainer would remove old checkpoints earlier, and a run that is killed in between would have no checkpoint left. For
    this reason `args.save_total_limit` is negative during a run, which the Trainer treats as no limit. The best and the
    newest checkpoints are always kept, even at the end of a run with `save_total_limit=1`.

    With `group_by_length`, the callback makes the order of the sentences depend only on the seed and the epoch. By
    default, the Trainer draws the order from a random state that is different after a resume.

    With `save_only_model=True`, no run can resume from the checkpoints, so the callback marks none of them and logs a
    warning. It does not mark the checkpoints of the Trainer's `enable_jit_checkpoint` either, because the Trainer calls
    no callbacks for them.

    Raises:
        ValueError: at the start of a hyperparameter search, because each trial has a different folder.
    """

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Remove the completion marks of later checkpoints, and prevent the Trainer from removing old checkpoints."""
        if state.is_hyper_param_search:
            raise InputError("CompleteCheckpoints serves one output folder; leave it out of a hyper-parameter search.")
        # Only the process that writes checkpoints may change their marks.
        if args.should_save:
            # Checkpoints after update `state.global_step` are left from an earlier start of the run, and this start
            # will write them again.
            remove_later_marks(Path(str(args.output_dir)), state.global_step)
        if args.save_only_model:
            # `on_save` then leaves it to the Trainer to remove old checkpoints, so the Trainer needs its limit.
            logger.warning("save_only_model is set: no run can resume from these checkpoints, so none is marked.")
        else:
            # The Trainer then removes no checkpoints. `on_save` reads the limit back, and `on_train_end` restores it.
            # Change the three methods together.
            _negate_save_total_limit(args)

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # With `group_by_length`, the order of the sentences then depends only on the seed and the epoch.
        seed_order_of_lengths(args, state, kwargs["train_dataloader"])

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Mark the new checkpoint after all processes have written it, and then remove old checkpoints."""
        if args.save_only_model:
            # No run can resume from such a checkpoint, so it gets no mark, and the Trainer removes old ones.
            return
        # Other processes may still be writing their files, such as random states.
        PartialState().wait_for_everyone()
        if not args.should_save:
            # A different process marks the checkpoint.
            return

        output_folder = Path(str(args.output_dir))
        newest = output_folder / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        # This comes before old checkpoints are removed. A run that is killed in between would otherwise have none.
        mark_complete(newest)
        limit = _read_negated_limit(args)
        if limit is not None:
            _remove_surplus(output_folder, limit, _protect_newest_and_best(newest, state))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # Undo the change that `on_train_begin` has made. A limit that is not negative stays as it is.
        args.save_total_limit = _read_negated_limit(args)


def _negate_save_total_limit(args: TrainingArguments) -> None:
    """Make `args.save_total_limit` negative, which the Trainer treats as no limit, so that it removes no checkpoints.

    If the limit is negative already, because an earlier training with these arguments failed, it stays as it is.
    """
    if args.save_total_limit is not None:
        args.save_total_limit = -abs(args.save_total_limit)


def _read_negated_limit(args: TrainingArguments) -> int | None:
    """Return the number of checkpoints to keep, which `_negate_save_total_limit` has made negative in the arguments.

    Without a limit, the result is None or 0, as in the arguments.
    """
    if args.save_total_limit is None:
        return None
    return abs(args.save_total_limit)


def _protect_newest_and_best(newest: Path, state: TrainerState) -> list[Path]:
    """Return the checkpoints that are always kept: the newest and, if there is one, the best."""
    if state.best_model_checkpoint:
        return [newest, Path(state.best_model_checkpoint)]
    return [newest]


def _remove_surplus(folder: Path, limit: int, protected: list[Path]) -> None:
    """Remove checkpoints until `limit` of them remain: first those without a completion mark, then the oldest.

    Args:
        folder: folder of the run.
        limit: number of checkpoints to keep, including the protected ones; 0 means no limit.
        protected: checkpoints that are never removed, even if there are more of them than the limit allows.
    """
    if limit == 0:
        return
    checkpoints = checkpoints_in(folder)
    surplus = max(0, len(checkpoints) - limit)
    removable = _leave_out_protected(checkpoints, protected)
    for checkpoint in _sort_for_removal(removable)[:surplus]:
        # A checkpoint that cannot be removed must not stop the training.
        shutil.rmtree(checkpoint, ignore_errors=True)


def _leave_out_protected(checkpoints: list[Path], protected: list[Path]) -> list[Path]:
    """Return the checkpoints that are not protected."""
    # The path of the best checkpoint comes from the Trainer, and may be written differently.
    protected_paths = {path.resolve() for path in protected}
    return [checkpoint for checkpoint in checkpoints if checkpoint.resolve() not in protected_paths]


def _sort_for_removal(checkpoints: list[Path]) -> list[Path]:
    """Return checkpoints in the order of their removal: first those without a completion mark, then the oldest."""
    oldest_first = sorted(checkpoints, key=step_of)
    unmarked = [checkpoint for checkpoint in oldest_first if not _has_mark(checkpoint)]
    marked = [checkpoint for checkpoint in oldest_first if _has_mark(checkpoint)]
    return unmarked + marked


def _has_mark(checkpoint: Path) -> bool:
    """Return True if a checkpoint has a completion mark."""
    return (checkpoint / MARK).exists()


def restore_path_of_best(state: TrainerState, folder: Path) -> None:
    """Correct the path of a run's best checkpoint in the Trainer's state.

    The stored path may be outdated because the run's folder was moved, or it may be missing.
    """
    best = folder / f"{PREFIX_CHECKPOINT_DIR}-{state.best_global_step}"
    if best.is_dir():
        state.best_model_checkpoint = str(best)


def remove_path_of_best(checkpoint: Path) -> None:
    """Remove the best checkpoint's path from the `trainer_state.json` of a checkpoint that will be pushed to the Hub.

    The path would disclose the name of a folder of this machine.
    """
    path = checkpoint / _STATE
    state = TrainerState.load_from_json(str(path))
    state.best_model_checkpoint = None
    state.save_to_json(str(path))


def remove_later_marks(folder: Path, step: int) -> None:
    """Remove the completion marks of all checkpoints that come after update `step`.

    A run that resumes from that update will write these checkpoints again. Until then, they must not count as complete.
    """
    for checkpoint in checkpoints_in(folder):
        if step_of(checkpoint) > step:
            (checkpoint / MARK).unlink(missing_ok=True)


def last_complete_checkpoint(output_dir: str | os.PathLike[str]) -> str | None:
    """Return the newest complete checkpoint of a run, to be passed to `trainer.train(resume_from_checkpoint=...)`.

    Incomplete checkpoints are skipped, and a warning with the reason is logged for each of them.

    Do not resume a run that ended in the middle of an epoch, because the stock Trainer makes one more update from its
    last checkpoint. `hf-vanilla-transformer train` does not.

    Args:
        output_dir (`str` or `PathLike`): folder of a run that was trained with [`CompleteCheckpoints`].

    Returns:
        `str`: folder of the checkpoint. If there is no checkpoint, the result is None, with which `trainer.train`
        starts from scratch.

    Raises:
        ValueError: if no checkpoint is marked, but the files of one look complete. This happens if the run did not use
            [`CompleteCheckpoints`]. To resume from such a checkpoint, pass its path to `trainer.train`.
    """
    folder = Path(output_dir)
    # `complete_checkpoints` yields the newest checkpoint first, and logs the warnings.
    newest = next(complete_checkpoints(folder), None)
    if newest is not None:
        return str(newest)
    # If a checkpoint without a mark looks complete, the user must decide whether the run starts from scratch.
    unmarked = _find_finished_without_mark(folder)
    if unmarked:
        newest_unmarked = unmarked[-1]
        raise InputError(
            f"no checkpoint in {output_dir} is marked as complete, but {newest_unmarked.name} may be: give its path as "
            "resume_from_checkpoint to resume from it, or remove it to start from scratch."
        )
    return None


def _find_finished_without_mark(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder that look complete but have no completion mark, the newest at the end."""
    return [checkpoint for checkpoint in checkpoints_in(folder) if _is_finished_without_mark(checkpoint)]


def find_checkpoint(name: str, folder: Path) -> Path | None:
    """Return the checkpoint that a run resumes from, or None if the run starts from scratch.

    Args:
        name: folder of a checkpoint; `"last"`, which selects the run's newest complete checkpoint; or `"auto"`, which
            selects the same checkpoint but accepts that there may be none. Use `"auto"` for jobs that may be restarted.
        folder: output folder of the run.

    Raises:
        ValueError: if the checkpoint does not exist, or if a run cannot resume from it.
    """
    if name in ("last", "auto"):
        last = last_complete_checkpoint(folder)
        if last is not None:
            return Path(last)
        if name == "last":
            raise InputError(f"{folder} holds no complete checkpoint; leave out --resume_from_checkpoint.")
        return None
    return _find_given_checkpoint(name)


def _find_given_checkpoint(name: str) -> Path:
    """Check that a run can resume from a checkpoint, given by its path. Return the path, or raise InputError."""
    checkpoint = Path(name)
    if not checkpoint.is_dir():
        raise InputError(f'{name} is not a folder; give the path of a checkpoint, "last" or "auto".')
    # Checkpoints of a Trainer without `CompleteCheckpoints` have no mark, so their files are checked instead.
    # `fault` says what is wrong with the checkpoint. It is None if the checkpoint is complete.
    if (checkpoint / MARK).is_file():
        fault = fault_of(checkpoint)
    else:
        fault = _find_fault_without_mark(checkpoint)
    if fault is not None:
        raise InputError(f"{name} cannot be resumed from: {fault}; use an earlier checkpoint.")
    return checkpoint


def has_only_unfinished_checkpoints(folder: Path) -> bool:
    """Return True if a run has no checkpoints, or only incomplete ones."""
    for checkpoint in checkpoints_in(folder):
        if _has_mark(checkpoint) or _is_finished_without_mark(checkpoint):
            return False
    return True


def is_last_checkpoint(args: TrainingArguments, checkpoint: Path) -> bool:
    """Return True if no updates are left after a checkpoint, according to the arguments of the run.

    This is the case if the run has reached its number of updates or epochs, or if early stopping ends it.
    """
    state = TrainerState.load_from_json(str(checkpoint / _STATE))
    # The number of evaluations without improvement after which the run stops. Only the arguments of `train` have it.
    patience = getattr(args, "early_stopping_patience", None)
    if patience is not None and count_evaluations_without_improvement(state) >= patience:
        return True
    # The default of `max_steps`, -1, means that the number of epochs decides.
    if args.max_steps > 0:
        return state.global_step >= args.max_steps
    return state.epoch >= args.num_train_epochs


def remove_checkpoints(folder: Path) -> None:
    """Remove all checkpoints in a folder."""
    for checkpoint in checkpoints_in(folder):
        shutil.rmtree(checkpoint)


def count_processes(checkpoint: Path) -> int:
    """Return the number of processes that wrote a Trainer checkpoint, or 0 if the number is unknown.

    Each process writes its random state to a separate file: `rng_state_0.pth` and so on, or `rng_state.pth` if there is
    only one process. The number is unknown if the checkpoint has none of these files.
    """
    numbered_states = list(checkpoint.glob("rng_state_*.pth"))
    if numbered_states:
        return len(numbered_states)
    if (checkpoint / "rng_state.pth").exists():
        return 1
    return 0


def _find_fault_without_mark(checkpoint: Path) -> str | None:
    """Return the reason why a run cannot resume from an unmarked checkpoint, or None if its files look complete."""
    # The JSON files include the tokenizer's files, whichever it has.
    other_names = {path.name for path in checkpoint.glob("*.json")}.difference(_FILES_TO_RESUME_FROM)
    names = [*_FILES_TO_RESUME_FROM, *sorted(other_names)]
    faulty_names = [name for name in names if not _is_whole(checkpoint / name)]
    if not faulty_names:
        return None
    name_list = ", ".join(faulty_names)
    return f"{name_list}: missing or truncated"


def _is_finished_without_mark(checkpoint: Path) -> bool:
    """Return True if a checkpoint has no completion mark but is nevertheless complete.

    Such checkpoints come from a Trainer without [`CompleteCheckpoints`]. An unmarked checkpoint of `train` counts as
    incomplete, because `train` marks each checkpoint from which a run can resume as soon as it is complete.
    """
    if _has_mark(checkpoint):
        return False
    # The Trainer writes `trainer_state.json` last, so a checkpoint without this file is incomplete. With
    # `save_only_model`, it writes no random state, and no run can resume.
    state_path = checkpoint / _STATE
    has_random_state = any(checkpoint.glob("rng_state*.pth"))
    looks_complete = _is_whole(state_path) and has_random_state
    if not looks_complete:
        return False
    # Find out whether `train` wrote the checkpoint. The state has an entry for each callback that saves its own state,
    # by the name of its class, and only runs of `train` have the callback `RecordFacts`. Such a state has, for example,
    # {"stateful_callbacks": {"RecordFacts": {...}, "TrainerControl": {...}}}. The class must keep its name, because
    # checkpoints that were written under a different name would not be recognized here.
    state = json.loads(state_path.read_text(encoding="utf-8"))
    is_of_train = RecordFacts.__name__ in state.get("stateful_callbacks", {})
    return not is_of_train


def _is_whole(path: Path) -> bool:
    """Return True if a file exists and is not truncated, as far as its format allows such a check."""
    if not path.is_file():
        return False
    if path.suffix in (".pt", ".pth"):
        # PyTorch saves zip archives, whose directory is at the end of the file.
        return zipfile.is_zipfile(path)
    if path.suffix == ".json":
        try:
            json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            return False
    return True
