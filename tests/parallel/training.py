"""A few updates of stock `Seq2SeqTrainer`, and what comes of them."""

import torch
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer

from hf_vanilla_transformer import PaperTrainingArguments
from tests.models import VOCAB_SIZE
from tests.training.toy import copy_task


UPDATES = 6
SAVED_AT = 4
SENTENCES_AN_UPDATE = 8
SENTENCES_TO_PREDICT = 8


def make_trainer(model, tokenizer, output, processes=1, **arguments):
    """A Trainer whose update has the same sentences, whatever the number of processes."""
    args = PaperTrainingArguments(
        **{
            "output_dir": str(output),
            "per_device_train_batch_size": SENTENCES_AN_UPDATE // processes,
            # The Trainer's evaluation loss is a mean over batches, so it is the same only for the same batches.
            "per_device_eval_batch_size": 1,
            "max_steps": UPDATES,
            "learning_rate": 1e-3,
            "warmup_steps": 2,
            "logging_steps": 1,
            "save_strategy": "no",
            "disable_tqdm": True,
            "train_sampling_strategy": "sequential",
            "predict_with_generate": True,
            "generation_max_length": 12,
            **arguments,
        }
    )
    return Seq2SeqTrainer(
        model=model,
        args=args,
        train_dataset=copy_task(tokenizer, SENTENCES_AN_UPDATE * UPDATES, longest=20, vocabulary=VOCAB_SIZE),
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
    )


def trajectory(trainer):
    """`(updates, 2)`: loss and gradient norm of every update so far."""
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    return torch.tensor([[float(entry["loss"]), float(entry["grad_norm"])] for entry in logs], dtype=torch.float64)


def prediction(trainer, tokenizer):
    """Loss and generated tokens of sentences that are not trained on."""
    output = trainer.predict(copy_task(tokenizer, SENTENCES_TO_PREDICT, seed=1, longest=9, vocabulary=VOCAB_SIZE))
    return {"loss": output.metrics["test_loss"], "tokens": torch.as_tensor(output.predictions)}
