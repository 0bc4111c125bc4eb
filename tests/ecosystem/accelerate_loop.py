"""A training loop as the documentation of accelerate writes it, with transformers' and torch's own parts.

Usage: python accelerate_loop.py --model_name_or_path FOLDER --output_dir FOLDER
"""

import argparse
import json
import os
import signal

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, DataCollatorForSeq2Seq, get_scheduler

import hf_vanilla_transformer  # noqa: F401


EPOCHS, BATCH_SIZE = 2, 4
SOURCES = ["one", "two", "forty-two", "seven", "one hundred", "eight", "nineteen", "ten"] * 3
TARGETS = ["eins", "zwei", "zweiundvierzig", "sieben", "hundert", "acht", "neunzehn", "zehn"] * 3


def main() -> None:
    """Train, save the state after every epoch, and print the losses."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_name_or_path")
    parser.add_argument("--output_dir")
    parser.add_argument("--resume_from_checkpoint")
    parser.add_argument("--die_after", type=int)
    args = parser.parse_args()
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
    set_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
    model = AutoModelForSeq2SeqLM.from_pretrained(args.model_name_or_path)

    def preprocess(examples: dict) -> dict:
        return tokenizer(examples["source"], text_target=examples["target"], max_length=64, truncation=True)

    pairs = Dataset.from_dict({"source": SOURCES, "target": TARGETS})
    dataset = pairs.map(preprocess, batched=True, remove_columns=["source", "target"])
    collator = DataCollatorForSeq2Seq(tokenizer, model=model, label_pad_token_id=-100)
    loader = DataLoader(dataset, shuffle=True, collate_fn=collator, batch_size=BATCH_SIZE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scheduler = get_scheduler("linear", optimizer, num_warmup_steps=1, num_training_steps=EPOCHS * len(loader))
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    losses, first = [], 0
    if args.resume_from_checkpoint:
        accelerator.load_state(args.resume_from_checkpoint)
        first = int(args.resume_from_checkpoint.rpartition("epoch_")[2]) + 1
    for epoch in range(first, EPOCHS):
        model.train()
        loader.set_epoch(epoch)
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            losses.append(loss.item())
            if len(losses) == args.die_after:
                os.kill(os.getpid(), signal.SIGKILL)
        accelerator.save_state(f"{args.output_dir}/epoch_{epoch}")
    accelerator.wait_for_everyone()
    accelerator.unwrap_model(model).save_pretrained(args.output_dir, save_function=accelerator.save)
    tokenizer.save_pretrained(args.output_dir)
    print(json.dumps(losses))


if __name__ == "__main__":
    main()
