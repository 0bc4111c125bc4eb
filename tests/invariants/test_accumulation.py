"""Loss and gradient norm do not depend on how a batch is split; in most models of transformers they do."""

import pytest
import torch
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer

from hf_vanilla_transformer import PaperTrainingArguments
from tests.conftest import small_model
from tests.training.toy import copy_task


UPDATES = 5


def trajectory(folder, tokenizer, batch_size, accumulation):
    """Loss and gradient norm of each update."""
    args = PaperTrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=batch_size,
        gradient_accumulation_steps=accumulation,
        max_steps=UPDATES,
        learning_rate=1e-3,
        warmup_steps=2,
        logging_steps=1,
        save_strategy="no",
        disable_tqdm=True,
        train_sampling_strategy="sequential",
    )
    model = small_model(vocab_size=len(tokenizer), dropout=0.0)
    trainer = Seq2SeqTrainer(
        model=model,
        args=args,
        train_dataset=copy_task(tokenizer, 8 * UPDATES, longest=20),
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
    )
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    return torch.tensor([[float(entry["loss"]), float(entry["grad_norm"])] for entry in logs])


@pytest.fixture(scope="module")
def whole_batches(tmp_path_factory, tokenizer):
    return trajectory(tmp_path_factory.mktemp("whole"), tokenizer, 8, 1)


@pytest.mark.parametrize(("batch_size", "accumulation"), [(4, 2), (1, 8)])
def test_splits_of_a_batch(tmp_path, tokenizer, whole_batches, batch_size, accumulation):
    assert whole_batches.shape == (UPDATES, 2)
    split = trajectory(tmp_path, tokenizer, batch_size, accumulation)
    torch.testing.assert_close(split, whole_batches, rtol=1e-5, atol=0)
