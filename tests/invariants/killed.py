"""Training runs in processes of their own, two that train together among them, and such as die at a given place.

The processes are forked from a server that has imported everything, so that one costs little more than its updates.
"""

import gc
import multiprocessing
import os
import shutil
import signal
import socket
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import torch
from transformers import (
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Trainer,
    TrainerState,
    modeling_utils,
)
from transformers.trainer_callback import CallbackHandler

from hf_vanilla_transformer import (
    CompleteCheckpoints,
    PaperTrainingArguments,
    last_complete_checkpoint,
    paper_optimizers,
)
from hf_vanilla_transformer.training import run as train_run
from tests.models import small_model
from tests.training.toy import copy_task


SAVE_STEPS, MAX_STEPS = 3, 9
TORN = "checkpoint-6"
SECONDS_TO_WAIT = 300

forked = multiprocessing.get_context("forkserver")
forked.set_forkserver_preload([__name__])


def stock_run(folder, tokenizer_folder, **arguments):
    """Stock `Seq2SeqTrainer` with dropout, several epochs and gradient accumulation; resumes if it can."""
    args = PaperTrainingArguments(
        **{
            "output_dir": str(folder),
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 2,
            "max_steps": MAX_STEPS,
            "save_steps": SAVE_STEPS,
            "save_total_limit": 1,
            "logging_steps": 1,
            "warmup_steps": 3,
            "disable_tqdm": True,
            "train_sampling_strategy": "random",
            "use_cpu": True,
            **arguments,
        }
    )
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    model = small_model(vocab_size=len(tokenizer), dropout=0.1)
    trainer = Seq2SeqTrainer(
        model=model,
        args=args,
        train_dataset=copy_task(tokenizer, 32),
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        optimizers=paper_optimizers(model, args),
        callbacks=[CompleteCheckpoints()],
    )
    trainer.train(resume_from_checkpoint=last_complete_checkpoint(folder))


def die_before(owner, name, applies):
    """Die when a function is about to be called with arguments of which `applies` is true."""
    function = getattr(owner, name)

    def trap(*args, **kwargs):
        if applies(*args):
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)

    setattr(owner, name, trap)


def die_half_way(owner, name, file_name):
    """Die when a function has written half of a file of the checkpoint."""
    function = getattr(owner, name)

    def trap(content, path, *args, **kwargs):
        function(content, path, *args, **kwargs)
        if Path(path).parent.name == TORN and Path(path).name == file_name:
            os.truncate(path, Path(path).stat().st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, trap)


def die_in_a_step():
    """Die between the gradients and the update."""
    die_before(CallbackHandler, "on_pre_optimizer_step", lambda _, args, state, control: state.global_step == 7)


def die_while_removing():
    """Die when half of the files of an old checkpoint are gone."""

    def remove_half(folder, **kwargs):
        files = sorted(Path(folder).iterdir())
        for path in files[: len(files) // 2]:
            path.unlink()
        os.kill(os.getpid(), signal.SIGKILL)

    shutil.rmtree = remove_half


def is_torn(*args):
    return any(TORN in str(argument) for argument in args)


# How to die there, and the update to resume from. Files are written in this order.
PLACES = {
    "half of the weights": (lambda: die_half_way(modeling_utils, "safe_save_file", "model.safetensors"), 3),
    "before the optimizer": (lambda: die_before(Trainer, "_save_optimizer_and_scheduler", is_torn), 3),
    "half of the optimizer": (lambda: die_half_way(torch, "save", "optimizer.pt"), 3),
    "before the random state": (lambda: die_before(Trainer, "_save_rng_state", is_torn), 3),
    "before the trainer's state": (lambda: die_before(TrainerState, "save_to_json", is_torn), 3),
    "before the mark": (lambda: die_before(Path, "replace", is_torn), 3),
    "while removing the old one": (die_while_removing, 6),
    "in the middle of a step": (die_in_a_step, 6),
    "before the model is saved": (lambda: die_before(train_run, "save_model", lambda *_: True), 9),
}


def _child(run, arguments, place, log, environment):
    gc.freeze()  # Each training passes over all other objects.
    os.environ.update(environment)
    torch.set_num_threads(1)
    # As in a user's process; another fork server would import everything again for the workers of a DataLoader.
    multiprocessing.set_start_method("fork", force=True)
    # As tests/conftest.py has it: what a process has written is there when it is killed.
    os.fsync = lambda descriptor: None
    with Path(log).open("w", buffering=1) as file, redirect_stdout(file), redirect_stderr(file):
        # Loggers keep the stderr that there was when they were made.
        os.dup2(file.fileno(), 2)
        if place is not None:
            PLACES[place][0]()
        run(*arguments)


def start(run, *arguments, log, place=None, environment=None):
    """Run a function in a process of its own, which dies at a place of `PLACES`; its output goes into a file."""
    process = forked.Process(target=_child, args=(run, arguments, place, str(log), environment or {}))
    process.start()
    return process


def exit_code(process):
    """How a process ended: 0, or minus the signal that it died of."""
    process.join(SECONDS_TO_WAIT)
    if process.is_alive():
        process.kill()
        raise TimeoutError("a training process did not end.")
    return process.exitcode


def two_ranks():
    """What a launcher tells each of two processes on this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    common["OMP_NUM_THREADS"] = "1"
    return [{**common, "RANK": rank, "LOCAL_RANK": rank} for rank in ("0", "1")]


def run_as_two(run, *arguments, folder):
    """Run a function in two processes that compute together; what they print is in `log0` and `log1` of a folder."""
    logs = [folder / f"log{rank}" for rank in range(2)]
    processes = [
        start(run, *arguments, log=log, environment=environment)
        for log, environment in zip(logs, two_ranks(), strict=True)
    ]
    codes = [exit_code(process) for process in processes]
    assert codes == [0, 0], "".join(log.read_text()[-10_000:] for log in logs)
