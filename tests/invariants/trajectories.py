"""Loss and gradient norm of every update of a run, in one process or as one of several."""

import torch
from transformers import AutoTokenizer, DataCollatorForSeq2Seq, Seq2SeqTrainer

from hf_vanilla_transformer import PaperTrainingArguments, TokenBudgetBatchSampler, paper_optimizers
from tests.models import small_model
from tests.training.toy import copy_task


UPDATES = 20
SENTENCES_AN_UPDATE = 16
LONGEST = 40


def trajectory(
    folder,
    tokenizer,
    batch_size=SENTENCES_AN_UPDATE,
    collate=None,
    model=None,
    pairs=SENTENCES_AN_UPDATE * UPDATES,
    tokens_per_batch=None,
    **arguments,
):
    """`(updates, 2)`: loss and gradient norm of every update of stock `Seq2SeqTrainer`, in float32, without dropout."""
    args = PaperTrainingArguments(
        **{
            "output_dir": str(folder),
            "per_device_train_batch_size": batch_size,
            "max_steps": UPDATES,
            "warmup_steps": 100,
            "logging_steps": 1,
            "save_strategy": "no",
            "disable_tqdm": True,
            "train_sampling_strategy": "sequential",
            "use_cpu": True,
            **arguments,
        }
    )
    model = model or small_model(vocab_size=len(tokenizer), dropout=0.0)
    trainer = Seq2SeqTrainer(
        model=model,
        args=args,
        train_dataset=copy_task(tokenizer, pairs, longest=LONGEST),
        data_collator=collate or DataCollatorForSeq2Seq(tokenizer, model=model),
        optimizers=paper_optimizers(model, args),
    )
    if tokens_per_batch is not None:
        TokenBudgetBatchSampler.use_in(trainer, tokens_per_batch)
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    return torch.tensor([[float(entry["loss"]), float(entry["grad_norm"])] for entry in logs], dtype=torch.float64)


def write_trajectory(path, tokenizer_folder, arguments):
    """The first process writes what it logged, of the batches of all, into a file."""
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    result = trajectory(path.parent, tokenizer, **arguments)
    assert torch.distributed.get_world_size() == 2
    if torch.distributed.get_rank() == 0:
        torch.save(result, path)
