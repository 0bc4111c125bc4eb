"""Pushes models, a tokenizer, a Trainer's run and data sets; tests run it in a process of its own.

Usage: python push.py FOLDER_OF_A_MODEL FOLDER_TO_WRITE_TO
"""

import json
import sys
from pathlib import Path

import torch
from datasets import Dataset, DatasetDict
from huggingface_hub import HfApi, ModelCard
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, DataCollatorForSeq2Seq, Seq2SeqTrainer

from hf_vanilla_transformer import PaperTrainingArguments


PAIRS = {"en": ["one house", "two houses"], "de": ["ein Haus", "zwei Häuser"]}


def push_model(folder: str) -> dict[str, str]:
    """Three commits of one repository whose weights differ; returns their names."""
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    model.push_to_hub("user/model", commit_message="First")
    tokenizer.push_to_hub("user/model")
    api = HfApi()
    api.create_tag("user/model", tag="v1")
    change(model)
    model.push_to_hub("user/model", revision="try-out")
    change(model)
    last = model.push_to_hub("user/model", private=True)
    return {"tag": "v1", "branch": "try-out", "commit": last.oid, "main": "main"}


def change(model: torch.nn.Module) -> None:
    """Other weights, and other translations."""
    with torch.no_grad():
        model.model.encoder.layers[0].fc1.bias.sub_(1)


def push_run(folder: str, output: Path) -> None:
    """Stock `trainer.push_to_hub`, with its own card."""
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    args = PaperTrainingArguments(
        output_dir=output / "run", max_steps=1, save_strategy="no", use_cpu=True, hub_model_id="user/run"
    )
    data = [{"input_ids": [5, 6, 2], "attention_mask": [1, 1, 1], "labels": [7, 2]}] * 8
    collator = DataCollatorForSeq2Seq(tokenizer, model=model)
    trainer = Seq2SeqTrainer(model, args, data_collator=collator, train_dataset=data, processing_class=tokenizer)
    trainer.train()
    trainer.push_to_hub(language="en", dataset="user/pairs", tags="translation")
    ModelCard.load(output / "run" / "README.md").validate()


def push_data(output: Path) -> None:
    """The same pairs as parquet and as CSV; the first version of the latter has one pair less."""
    train = Dataset.from_dict(PAIRS)
    DatasetDict({"train": train, "test": train.select([0])}).push_to_hub("user/pairs", private=True)
    api = HfApi()
    api.create_repo("user/csv", repo_type="dataset")
    for rows in (1, 2):
        train.select(range(rows)).to_csv(output / "train.csv")
        options = {"path_in_repo": "train.csv", "repo_id": "user/csv", "repo_type": "dataset"}
        api.upload_file(path_or_fileobj=output / "train.csv", **options)
        api.create_tag("user/csv", tag=f"v{rows}", repo_type="dataset")


if __name__ == "__main__":
    output = Path(sys.argv[2])
    revisions = push_model(sys.argv[1])
    push_run(sys.argv[1], output)
    push_data(output)
    (output / "pushed.json").write_text(json.dumps(revisions))
