"""Imports are trained further by transformers' own trainer."""

from pathlib import Path

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, DataCollatorForSeq2Seq, Seq2SeqTrainer

from hf_vanilla_transformer import PaperTrainingArguments, translate
from hf_vanilla_transformer.training.model_arguments import ModelArguments


def check_fine_tuning(folder: Path, sources: list[str], targets: list[str], output: Path) -> None:
    """Train 20 updates by the stock Seq2SeqTrainer, evaluate, save and load: the loss falls, and nothing is lost.

    And the tokenizer fits a new model, such as a student, which then has as many vocabularies.
    """
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    new = ModelArguments().make_config(tokenizer)
    assert [new.source_vocab_size, new.vocab_size] == [model.config.source_vocab_size, model.config.vocab_size]
    rows = [tokenizer(source, text_target=target) for source, target in zip(sources, targets, strict=True)]
    args = PaperTrainingArguments(
        str(output / "run"),
        max_steps=20,
        warmup_steps=5,
        save_strategy="no",
        logging_steps=10,
        predict_with_generate=True,
        generation_max_length=8,
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Seq2SeqTrainer(
        model,
        args,
        train_dataset=rows * 4,
        eval_dataset=rows,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
    )
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before
    trainer.save_model(str(output / "tuned"))
    tuned = AutoModelForSeq2SeqLM.from_pretrained(output / "tuned")
    saved_tokenizer = AutoTokenizer.from_pretrained(output / "tuned")
    assert type(saved_tokenizer) is type(tokenizer)
    assert saved_tokenizer(sources, text_target=targets).data == tokenizer(sources, text_target=targets).data
    state = tuned.state_dict()
    assert all(torch.equal(weight, state[name]) for name, weight in model.state_dict().items())
    settings = {"num_beams": 1, "max_new_tokens": 20}
    expected = translate(model.eval(), tokenizer, sources, **settings)
    assert translate(tuned, saved_tokenizer, sources, **settings) == expected
