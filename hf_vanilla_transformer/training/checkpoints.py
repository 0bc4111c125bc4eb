"""Resume only from complete checkpoints, not from those that a killed run left unfinished.

The Trainer writes its files directly into `checkpoint-N` and resumes from the highest N, complete or not. Here a
checkpoint gets a mark after all its files are flushed to the disk. The mark is the file `complete.json`, which lists
every file with its size in bytes.
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
    """Mark every checkpoint of a stock `Trainer` when it is complete, so that no run resumes from an incomplete one.

    ```python
    trainer = Seq2SeqTrainer(..., callbacks=[CompleteCheckpoints()])
    trainer.train(resume_from_checkpoint=last_complete_checkpoint(args.output_dir))
    ```

    The callback writes the mark after all processes have written their files and the files are flushed to the disk. At
    the start of a run it removes the marks of checkpoints with a higher step, because the run will write them again.

    The callback also removes checkpoints beyond `save_total_limit`, always after the new checkpoint is marked. The
    Trainer would remove old checkpoints earlier, and a run that is killed in between would have no checkpoint left.
    Therefore `args.save_total_limit` is negative during a run, which the Trainer takes for no limit. The best and the
    newest checkpoint are kept, even at the end of a run with `save_total_limit=1`.

    With `group_by_length`, the callback makes the order of the sentences depend only on the seed and the epoch. The
    Trainer draws the order from a random state that is different after a resume.

    With `save_only_model=True`, no run can resume from the checkpoints. The callback then marks none and logs a
    warning. It also does not mark checkpoints of the Trainer's `enable_jit_checkpoint`, because the Trainer calls no
    callbacks for them.

    Raises:
        ValueError: at the start of a hyperparameter search, because each trial has its own folder.
    """

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Remove the marks of later checkpoints, and take over the removal of old ones from the Trainer."""
        if state.is_hyper_param_search:
            raise InputError("CompleteCheckpoints serves one output folder; leave it out of a hyper-parameter search.")
        if args.should_save:
            remove_later_marks(Path(str(args.output_dir)), state.global_step)
        if args.save_only_model:
            logger.warning("save_only_model is set: no run can resume from these checkpoints, so none is marked.")
        elif args.save_total_limit is not None:
            args.save_total_limit = -abs(args.save_total_limit)

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        seed_order_of_lengths(args, state, kwargs["train_dataloader"])

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Mark the new checkpoint when all processes have written it, and then remove old checkpoints."""
        if args.save_only_model:
            return
        # Other processes may still be writing their files, such as random states.
        PartialState().wait_for_everyone()
        if not args.should_save:
            return
        newest = Path(str(args.output_dir), f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")
        mark_complete(newest)
        protected = [newest]
        if state.best_model_checkpoint:
            protected.append(Path(state.best_model_checkpoint))
        _remove_surplus(newest.parent, abs(args.save_total_limit or 0), protected)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if args.save_total_limit is not None:
            args.save_total_limit = abs(args.save_total_limit)


def _remove_surplus(folder: Path, limit: int, protected: list[Path]) -> None:
    """Remove checkpoints until `limit` remain: first those without a mark, then the oldest.

    Args:
        folder: folder of the run.
        limit: number of checkpoints to keep; 0 means no limit.
        protected: checkpoints that are never removed, even if they are more than the limit.
    """
    if limit == 0:
        return
    checkpoints = checkpoints_in(folder)
    protected_paths = {path.resolve() for path in protected}
    removable = [checkpoint for checkpoint in checkpoints if checkpoint.resolve() not in protected_paths]
    # False sorts before True.
    removable.sort(key=lambda checkpoint: ((checkpoint / MARK).exists(), step_of(checkpoint)))
    surplus = max(0, len(checkpoints) - limit)
    for checkpoint in removable[:surplus]:
        shutil.rmtree(checkpoint, ignore_errors=True)


def restore_path_of_best(state: TrainerState, folder: Path) -> None:
    """Set the path of a run's best checkpoint in the state of the Trainer.

    The run may have been moved since the state was written, or the state may have been written without the path.
    """
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
    """Remove the marks of the checkpoints after an update, because a run that resumes there will write them again."""
    for checkpoint in checkpoints_in(folder):
        if step_of(checkpoint) > step:
            (checkpoint / MARK).unlink(missing_ok=True)


def last_complete_checkpoint(output_dir: str | os.PathLike[str]) -> str | None:
    """Return the newest complete checkpoint of a run, for `trainer.train(resume_from_checkpoint=...)`.

    A warning with the reason is logged for each checkpoint that is skipped.

    Do not resume a run that has finished in the middle of an epoch. From its last checkpoint, the stock Trainer makes
    one more update. `hf-vanilla-transformer train` does not.

    Args:
        output_dir (`str` or `PathLike`): folder of a run that was trained with [`CompleteCheckpoints`].

    Returns:
        `str`: folder of the checkpoint; None if there is no checkpoint, so that the run starts from scratch.

    Raises:
        ValueError: if no checkpoint is marked, but the files of one look complete, as after a run without
            [`CompleteCheckpoints`]. To resume from it, pass its path to `trainer.train`.
    """
    folder = Path(output_dir)
    newest = next(complete_checkpoints(folder), None)
    if newest is not None:
        return str(newest)
    unmarked_names = []
    for checkpoint in checkpoints_in(folder):
        if _is_finished_without_mark(checkpoint):
            unmarked_names.append(checkpoint.name)
    if unmarked_names:
        raise InputError(
            f"no checkpoint in {output_dir} is marked as complete, but {unmarked_names[-1]} may be: give its path as "
            "resume_from_checkpoint to resume from it, or remove it to start from scratch."
        )
    return None


def find_checkpoint(name: str, folder: Path) -> Path | None:
    """Return the checkpoint to resume from, or None if the run starts from scratch.

    Args:
        name: folder of a checkpoint; `"last"` for the newest complete checkpoint of the run; or `"auto"`, which allows
            in addition that there is no checkpoint, for jobs that are restarted.
        folder: output folder of the run.

    Raises:
        ValueError: if there is no such checkpoint, or a run cannot resume from it.
    """
    if name in ("last", "auto"):
        last = last_complete_checkpoint(folder)
        if last is not None:
            return Path(last)
        if name == "last":
            raise InputError(f"{folder} holds no complete checkpoint; leave out --resume_from_checkpoint.")
        return None

    checkpoint = Path(name)
    if not checkpoint.is_dir():
        raise InputError(f'{name} is not a folder; give the path of a checkpoint, "last" or "auto".')
    if (checkpoint / MARK).is_file():
        fault = fault_of(checkpoint)
    else:
        fault = _find_fault_without_mark(checkpoint)
    if fault is not None:
        raise InputError(f"{name} cannot be resumed from: {fault}; use an earlier checkpoint.")
    return checkpoint


def has_only_unfinished_checkpoints(folder: Path) -> bool:
    """Return True if no checkpoint of a run was written to the end, or if the run has no checkpoints."""
    for checkpoint in checkpoints_in(folder):
        if (checkpoint / MARK).exists() or _is_finished_without_mark(checkpoint):
            return False
    return True


def is_last_checkpoint(args: TrainingArguments, checkpoint: Path) -> bool:
    """Return True if a checkpoint is the last one of the run that the arguments describe.

    A run also ends if early stopping has run out of patience.
    """
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


def count_processes(checkpoint: Path) -> int:
    """Return the number of processes that wrote a checkpoint of the Trainer, or 0 if it has no random states.

    Each process writes its own random state: `rng_state_0.pth` and so on, or `rng_state.pth` if there is one process.
    """
    numbered_states = list(checkpoint.glob("rng_state_*.pth"))
    if numbered_states:
        return len(numbered_states)
    if (checkpoint / "rng_state.pth").exists():
        return 1
    return 0


def _find_fault_without_mark(checkpoint: Path) -> str | None:
    """Return why a run cannot resume from a checkpoint without a mark, or None if its files look complete."""
    json_names = sorted(path.name for path in checkpoint.glob("*.json"))
    # A dict removes duplicates. The JSON files include those of any tokenizer.
    names = dict.fromkeys((*_FILES_TO_RESUME_FROM, *json_names))
    faulty_names = [name for name in names if not _is_whole(checkpoint / name)]
    if not faulty_names:
        return None
    return f"{', '.join(faulty_names)}: missing or truncated"


def _is_finished_without_mark(checkpoint: Path) -> bool:
    """Return True if a checkpoint without a mark is nevertheless complete and can be resumed.

    Such checkpoints come from a Trainer without [`CompleteCheckpoints`].
    """
    if (checkpoint / MARK).exists():
        return False
    # The Trainer writes its state last.
    state_path = checkpoint / _STATE
    has_random_state = any(checkpoint.glob("rng_state*.pth"))
    if not _is_whole(state_path) or not has_random_state:
        return False
    state = json.loads(state_path.read_text(encoding="utf-8"))
    # Runs of `train` use `RecordFacts` and mark their checkpoints, so one of these without a mark is not complete.
    return RecordFacts.__name__ not in state.get("stateful_callbacks", {})


def _is_whole(path: Path) -> bool:
    """Return True if a file exists and, as far as its format shows that, is not truncated."""
    if not path.is_file():
        return False
    if path.suffix in (".pt", ".pth"):
        # torch saves zip archives, whose directory is at the end of the file.
        return zipfile.is_zipfile(path)
    if path.suffix == ".json":
        try:
            json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            return False
    return True
