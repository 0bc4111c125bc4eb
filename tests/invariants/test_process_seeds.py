"""Processes that train together have different dropout masks, and resumed runs have those of uninterrupted ones."""

import shutil
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset, DatasetDict
from transformers import AutoTokenizer, DataCollatorForSeq2Seq, Seq2SeqTrainer, TrainerState

from hf_vanilla_transformer import CompleteCheckpoints, PaperTrainingArguments, ProcessSeeds
from hf_vanilla_transformer.training.run_arguments import Settings
from hf_vanilla_transformer.training.run_setup import set_up_training
from hf_vanilla_transformer.training.trainer_callbacks import RecordFacts
from tests.invariants.checkpoints import assert_same_checkpoint, assert_same_weights
from tests.invariants.killed import run_as_two
from tests.models import small_model
from tests.training.toy import copy_task


pytestmark = pytest.mark.long

UPDATES = 4
SAVED_AT = 2
ROWS = 4
SENTENCES = 40
SMALL = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 32, "d_ff": 64, "num_heads": 4}


@dataclass
class Sees:
    """A collator that notes the numbers of the sentences in every batch."""

    collate: DataCollatorForSeq2Seq

    def __post_init__(self):
        self.numbers = []

    def __call__(self, rows):
        self.numbers += [row.pop("number") for row in rows]
        return self.collate(rows)


def equal_sentences(tokenizer):
    """So many equal sentences that the batches of all processes and updates are equal."""
    row = copy_task(tokenizer, 1, longest=9)[0]
    return Dataset.from_list([row] * (2 * ROWS * UPDATES))


def note_losses(trainer):
    """Return a list into which the Trainer will write the loss of every batch of this process."""
    losses = []
    step = trainer.training_step

    def step_and_note(*arguments, **options):
        loss = step(*arguments, **options)
        losses.append(loss.item())
        return loss

    trainer.training_step = step_and_note
    return losses


def rank():
    return torch.distributed.get_rank()


def train_stock(folder, tokenizer_folder, dropout, has_own_seeds, checkpoint=None):
    """Train stock `Seq2SeqTrainer` on equal sentences; each process writes its losses into a file."""
    args = PaperTrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=ROWS,
        max_steps=UPDATES,
        save_steps=SAVED_AT,
        # Equal weights in all updates, so that only dropout makes losses differ.
        learning_rate=0.0,
        disable_tqdm=True,
        use_cpu=True,
    )
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    model = small_model(vocab_size=len(tokenizer), dropout=dropout)
    trainer = Seq2SeqTrainer(
        model=model,
        args=args,
        train_dataset=equal_sentences(tokenizer),
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        callbacks=[CompleteCheckpoints()],
    )
    if has_own_seeds:
        ProcessSeeds.use_in(trainer)
    losses = note_losses(trainer)
    trainer.train(resume_from_checkpoint=checkpoint)
    torch.save(losses, f"{folder}.losses{rank()}")


def train_as_the_verb_does(folder, tokenizer_folder):
    """Train the Trainer of `train` on equal sentences; each process writes its losses into a file."""
    settings = Settings.from_arguments(
        output_dir=str(folder),
        tokenizer_name=str(tokenizer_folder),
        config_overrides=SMALL,
        tokens_per_batch=40,
        max_steps=UPDATES,
        # As above.
        learning_rate=0.0,
        lr_scheduler_type="constant",
        warmup_steps=0,
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
    )
    pairs = Dataset.from_dict({"source": ["two dogs run"] * SENTENCES, "target": ["deux chiens"] * SENTENCES})
    _, trainer = set_up_training(settings, DatasetDict(train=pairs), None, RecordFacts())
    losses = note_losses(trainer)
    trainer.train()
    torch.save(losses, f"{folder}.losses{rank()}")


def losses_of(folder):
    """The losses of the first and of the second process."""
    return [torch.load(f"{folder}.losses{number}") for number in range(2)]


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory, tokenizer):
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def with_own_seeds(tmp_path_factory, tokenizer_folder):
    """The folder of a run of two processes with dropout."""
    folder = tmp_path_factory.mktemp("seeds") / "run"
    run_as_two(train_stock, folder, tokenizer_folder, 0.1, True, folder=folder.parent)
    return folder


def test_stock_trainer_has_the_same_masks_in_all_processes(tmp_path, tokenizer_folder):
    """If this fails, transformers has begun to seed processes differently."""
    run = tmp_path / "run"
    run_as_two(train_stock, run, tokenizer_folder, 0.1, False, folder=tmp_path)
    first, second = losses_of(run)
    assert len(first) == UPDATES
    assert first == second


def test_process_seeds_give_different_masks(with_own_seeds):
    first, second = losses_of(with_own_seeds)
    assert len(first) == len(second) == UPDATES
    # Not even shifted: no two batches have the same masks.
    assert len({*first, *second}) == 2 * UPDATES


def test_process_seeds_without_dropout(tmp_path, tokenizer_folder):
    run = tmp_path / "run"
    run_as_two(train_stock, run, tokenizer_folder, 0.0, True, folder=tmp_path)
    first, second = losses_of(run)
    assert first == second


def test_train_gives_different_masks(tmp_path, tokenizer_folder):
    run = tmp_path / "run"
    run_as_two(train_as_the_verb_does, run, tokenizer_folder, folder=tmp_path)
    first, second = losses_of(run)
    assert len(first) == UPDATES
    assert len({*first, *second}) == 2 * UPDATES


def test_process_seeds_resume(tmp_path, tokenizer_folder, with_own_seeds):
    """Each process resumes from its own random state, and has the masks of an uninterrupted run."""
    run = tmp_path / "run"
    checkpoint = f"checkpoint-{SAVED_AT}"
    shutil.copytree(with_own_seeds / checkpoint, run / checkpoint)
    run_as_two(train_stock, run, tokenizer_folder, 0.1, True, str(run / checkpoint), folder=tmp_path)
    expected = [losses[SAVED_AT:] for losses in losses_of(with_own_seeds)]
    assert losses_of(run) == expected
    last = f"checkpoint-{UPDATES}"
    assert_same_checkpoint(run / last, with_own_seeds / last)


def train_twice(folder, tokenizer_folder, strategy):
    """Train two epochs, and two more; each process writes the numbers of its sentences into a file."""
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    args = PaperTrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=ROWS,
        num_train_epochs=2,
        train_sampling_strategy=strategy,
        save_strategy="no",
        remove_unused_columns=False,
        disable_tqdm=True,
        use_cpu=True,
    )
    data = copy_task(tokenizer, SENTENCES)
    data = data.add_column("number", list(range(SENTENCES)))
    model = small_model(vocab_size=len(tokenizer), dropout=0.1)
    collator = Sees(DataCollatorForSeq2Seq(tokenizer, model=model))
    trainer = Seq2SeqTrainer(model=model, args=args, train_dataset=data, data_collator=collator)
    ProcessSeeds.use_in(trainer)
    trainer.train()
    trainer.train()
    torch.save(collator.numbers, f"{folder}.numbers{rank()}")


@pytest.mark.parametrize("strategy", ["random", "group_by_length"])
def test_process_seeds_keep_one_order_of_sentences(tmp_path, tokenizer_folder, strategy):
    """On CPUs samplers may draw from the generator of dropout, and still each epoch has every sentence once."""
    run = tmp_path / "run"
    run_as_two(train_twice, run, tokenizer_folder, strategy, folder=tmp_path)
    numbers = torch.tensor([torch.load(f"{run}.numbers{number}") for number in range(2)])
    epochs = numbers.reshape(2, 4, SENTENCES // 2).transpose(0, 1).reshape(4, SENTENCES)
    assert epochs.sort().values.tolist() == [list(range(SENTENCES))] * 4


def test_process_seeds_change_nothing_in_one_process(tmp_path, tokenizer):
    for name in ("with", "without"):
        args = PaperTrainingArguments(
            output_dir=str(tmp_path / name), max_steps=3, save_strategy="no", disable_tqdm=True, use_cpu=True
        )
        torch.manual_seed(0)
        model = small_model(vocab_size=len(tokenizer), dropout=0.1)
        trainer = Seq2SeqTrainer(
            model=model,
            args=args,
            train_dataset=copy_task(tokenizer, SENTENCES),
            data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        )
        if name == "with":
            ProcessSeeds.use_in(trainer)
        trainer.train()
        trainer.save_model()
    assert_same_weights(tmp_path / "with", tmp_path / "without")


@pytest.mark.parametrize(
    ("process", "seed"), [(0, None), (1, None), (2, 11), (3, 11), (4, 12)], ids=lambda value: str(value)
)
def test_process_seeds_are_equal_in_processes_of_one_model(monkeypatch, process, seed):
    """Two processes hold the parts of one model, and need equal masks."""
    trainer = SimpleNamespace(get_tp_size=lambda: 2, get_cp_size=lambda: 1, get_sp_size=lambda: 1)
    args = SimpleNamespace(process_index=process, world_size=6, seed=10, device=torch.device("cpu"))
    seeds = []
    monkeypatch.setattr(torch, "manual_seed", seeds.append)
    ProcessSeeds(trainer).on_train_begin(args, TrainerState(), None)
    assert seeds == ([] if seed is None else [seed])


def test_process_seeds_of_a_gpu_leave_the_generator_of_the_cpu_alone(monkeypatch):
    """Samplers draw from the CPU's generator, and need the same state in all processes."""
    trainer = SimpleNamespace(get_tp_size=lambda: 1, get_cp_size=lambda: 1, get_sp_size=lambda: 1)
    args = SimpleNamespace(process_index=3, world_size=4, seed=10, device=torch.device("cuda", 0))
    seeds = []
    monkeypatch.setattr(torch.cuda, "manual_seed", seeds.append)
    before = torch.get_rng_state()
    ProcessSeeds(trainer).on_train_begin(args, TrainerState(), None)
    assert seeds == [13]
    assert torch.equal(torch.get_rng_state(), before)
