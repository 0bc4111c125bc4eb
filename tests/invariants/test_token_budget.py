"""A resumed run with token-budget batches and dropout equals an uninterrupted one bit for bit."""

import shutil

import pytest
from transformers import AutoTokenizer, DataCollatorForSeq2Seq, Seq2SeqTrainer, TrainerCallback, TrainerState

from hf_vanilla_transformer import (
    CompleteCheckpoints,
    PaperTrainingArguments,
    TokenBudgetBatchSampler,
    last_complete_checkpoint,
    paper_optimizers,
)
from tests.invariants.checkpoints import assert_same_checkpoint
from tests.invariants.killed import exit_code, run_as_two, start
from tests.models import small_model
from tests.training.toy import copy_task


pytestmark = pytest.mark.long

UPDATES_AN_EPOCH = 4
MAX_STEPS = 10
LAST = f"checkpoint-{MAX_STEPS}"
# In the middle of the first epoch, at its end, in the middle of the second, in the middle of the third.
STEPS = (3, 4, 6, 9)


def training_pairs(tokenizer, processes):
    """Pairs that are padded from Arrow's memory; with a mask of their own they would not be."""
    return copy_task(tokenizer, 40 * processes).remove_columns("attention_mask")


class OwnCollator(DataCollatorForSeq2Seq):
    """The stock collator under another name, which makes each batch from lists."""


class SaveAt(TrainerCallback):
    """Saves after a few updates only, because saving takes longer than an update."""

    def __init__(self, steps):
        self.steps = steps

    def on_step_end(self, args, state, control, **kwargs):
        control.should_save = state.global_step in self.steps


def run_with_budget(folder, tokenizer_folder, saved_at=(MAX_STEPS,), workers=0, collator_class=DataCollatorForSeq2Seq):
    """Train with `Seq2SeqTrainer`, resuming if possible; the last update of an epoch has one batch instead of two."""
    args = PaperTrainingArguments(
        output_dir=str(folder),
        gradient_accumulation_steps=2,
        max_steps=MAX_STEPS,
        save_strategy="no",
        logging_steps=1,
        warmup_steps=3,
        include_num_input_tokens_seen="non_padding",
        dataloader_num_workers=workers,
        disable_tqdm=True,
        use_cpu=True,
    )
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    model = small_model(vocab_size=len(tokenizer), dropout=0.1)
    trainer = Seq2SeqTrainer(
        model=model,
        args=args,
        train_dataset=training_pairs(tokenizer, args.world_size),
        data_collator=collator_class(tokenizer, model=model),
        optimizers=paper_optimizers(model, args),
        callbacks=[CompleteCheckpoints(), SaveAt(saved_at)],
    )
    sampler = TokenBudgetBatchSampler.use_in(trainer, tokens_per_batch=44)
    assert len(sampler) == 2 * UPDATES_AN_EPOCH - 1
    trainer.train(resume_from_checkpoint=last_complete_checkpoint(folder))


def run_to_the_end(folder, *arguments, processes=1):
    """Train in one process, or in two that train together."""
    if processes == 2:
        run_as_two(run_with_budget, folder, *arguments, folder=folder.parent)
        return
    log = folder.parent / "log"
    assert exit_code(start(run_with_budget, folder, *arguments, log=log)) == 0, log.read_text()


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory, tokenizer):
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory, tokenizer_folder):
    """Folders of uninterrupted runs, by the number of their processes."""
    folders = {processes: tmp_path_factory.mktemp("whole") / "run" for processes in (1, 2)}
    for processes, folder in folders.items():
        run_to_the_end(folder, tokenizer_folder, (*STEPS, MAX_STEPS), processes=processes)
    return folders


def stop_at(step, whole_run, folder):
    """The folder of a run that is stopped after it has saved this step."""
    shutil.copytree(whole_run / f"checkpoint-{step}", folder / f"checkpoint-{step}")


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("step", STEPS)
def test_going_on(tmp_path, tokenizer_folder, whole, step, processes):
    run = tmp_path / "run"
    stop_at(step, whole[processes], run)
    run_to_the_end(run, tokenizer_folder, processes=processes)
    assert_same_checkpoint(run / LAST, whole[processes] / LAST)


@pytest.mark.parametrize("processes", [1, 2])
def test_going_on_with_worker_processes(tmp_path, tokenizer_folder, whole, processes):
    run = tmp_path / "run"
    stop_at(6, whole[processes], run)
    run_to_the_end(run, tokenizer_folder, (MAX_STEPS,), 2, processes=processes)
    assert_same_checkpoint(run / LAST, whole[processes] / LAST)


@pytest.mark.parametrize("processes", [1, 2])
def test_going_on_with_a_collator_of_lists(tmp_path, tokenizer_folder, whole, processes):
    """The batches that NumPy pads are those of the stock collator, so the weights are, too."""
    run = tmp_path / "run"
    stop_at(3, whole[processes], run)
    run_to_the_end(run, tokenizer_folder, (MAX_STEPS,), 0, OwnCollator, processes=processes)
    assert_same_checkpoint(run / LAST, whole[processes] / LAST)


@pytest.mark.parametrize("processes", [1, 2])
def test_an_epoch_has_every_token_once(tokenizer, whole, processes):
    state = TrainerState.load_from_json(str(whole[processes] / f"checkpoint-{UPDATES_AN_EPOCH}" / "trainer_state.json"))
    assert state.num_input_tokens_seen == sum(map(len, training_pairs(tokenizer, processes)["input_ids"]))


@pytest.mark.parametrize("processes", [1, 2])
def test_more_than_two_epochs_are_compared(whole, processes):
    state = TrainerState.load_from_json(str(whole[processes] / LAST / "trainer_state.json"))
    assert state.epoch > 2
    assert [entry["epoch"] for entry in state.log_history if "padding_share" in entry] == [1]
