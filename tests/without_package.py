"""Load models where hf_vanilla_transformer cannot be imported; tests run this file in a process of its own.

Usage: python -I without_package.py RESULTS.json NAME_OR_FOLDER ... [--int8 FOLDER] [--save FOLDER] [--run FILE.py]
"""

import argparse
import importlib.abc
import json
import sys
import tempfile
from pathlib import Path

import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    pipeline,
)


SENTENCES = ["forty-two", "seven", "one hundred and one"]


class NoPackage(importlib.abc.MetaPathFinder):
    """Raises ModuleNotFoundError for the package."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "hf_vanilla_transformer":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


SEARCHES = {
    "beams": {},
    "greedy": {"num_beams": 1},
    "sampling": {"num_beams": 1, "do_sample": True, "temperature": 2.0},
    "sampling with beams": {"num_beams": 3, "do_sample": True, "temperature": 8.0},
    "hf penalty": {"length_penalty_type": "hf", "length_penalty": 1.5, "num_return_sequences": 3},
    "static cache": {"cache_implementation": "static", "disable_compile": True},
    "greedy, static cache": {"num_beams": 1, "cache_implementation": "static", "disable_compile": True},
    "no cache": {"use_cache": False},
}


def tokens_of_searches(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> dict[str, list[list[int]]]:
    """Token ids of each kind of search."""
    tokens = {}
    for name, settings in SEARCHES.items():
        torch.manual_seed(0)
        tokens[name] = model.generate(**inputs, **settings).tolist()
    return tokens


def tokens_after_training(name: str, tokenizer: object, inputs: dict[str, torch.Tensor]) -> list[list[int]]:
    """Token ids after some updates by the stock Trainer, without dropout, so that no random numbers differ."""
    model = AutoModelForSeq2SeqLM.from_pretrained(name, trust_remote_code=True, dropout=0.0)
    pairs = [("seven", "sieben"), ("forty-two", "zweiundvierzig"), ("one hundred and one", "vierundvierzig")] * 4
    data = [tokenizer(source, text_target=target) for source, target in pairs]
    with tempfile.TemporaryDirectory() as folder:
        arguments = Seq2SeqTrainingArguments(
            folder,
            max_steps=6,
            per_device_train_batch_size=6,
            learning_rate=1e-3,
            lr_scheduler_type="constant",
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
        )
        collator = DataCollatorForSeq2Seq(tokenizer, model=model)
        Seq2SeqTrainer(model, arguments, data_collator=collator, train_dataset=data, processing_class=tokenizer).train()
    return model.eval().generate(**inputs).tolist()


def tokens_with_adapter(name: str, inputs: dict[str, torch.Tensor]) -> list[list[int]] | None:
    """Token ids with an adapter of PEFT that changes the model; None without PEFT."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        return None
    model = AutoModelForSeq2SeqLM.from_pretrained(name, trust_remote_code=True)
    torch.manual_seed(0)
    adapter = LoraConfig(task_type="SEQ_2_SEQ_LM", target_modules=["q_proj", "fc1"], r=4, init_lora_weights=False)
    return get_peft_model(model, adapter).eval().generate(**inputs).tolist()


def tokens_of(name: str) -> dict[str, list[list[int]] | None]:
    """Token ids of a model in each kind of search, after training, and with an adapter."""
    tokenizer = AutoTokenizer.from_pretrained(name)
    model = AutoModelForSeq2SeqLM.from_pretrained(name, trust_remote_code=True)
    inputs = dict(tokenizer(SENTENCES, padding=True, return_tensors="pt"))
    return {
        **tokens_of_searches(model, inputs),
        "trained": tokens_after_training(name, tokenizer, inputs),
        "adapter": tokens_with_adapter(name, inputs),
    }


def describe(name: str) -> dict:
    """Classes that the Auto classes and `pipeline()` return for a model, its translations and hidden states."""
    tokenizer = AutoTokenizer.from_pretrained(name)
    config = AutoConfig.from_pretrained(name, trust_remote_code=True)
    base = AutoModel.from_pretrained(name, trust_remote_code=True)
    model = AutoModelForSeq2SeqLM.from_pretrained(name, trust_remote_code=True)
    inputs = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = base(**inputs, decoder_input_ids=inputs.input_ids).last_hidden_state
    translator = pipeline("translation", model=name, trust_remote_code=True, device="cpu")
    return {
        "classes": [type(loaded).__name__ for loaded in (tokenizer, config, base, model, translator)],
        "modules": [type(loaded).__module__.partition(".")[0] for loaded in (config, base, model, translator)],
        "dtype": str(model.dtype),
        "attention": model.config._attn_implementation,
        "tokens": tokens_of_searches(model, dict(inputs)),
        "states": states.tolist(),
        "translations": [translation["translation_text"] for translation in translator(SENTENCES)],
    }


def main() -> None:
    """Describe models, save the first again, and run some code."""
    sys.meta_path.insert(0, NoPackage())
    parser = argparse.ArgumentParser()
    parser.add_argument("results")
    parser.add_argument("names", nargs="+")
    parser.add_argument("--int8")
    parser.add_argument("--save")
    parser.add_argument("--run")
    args = parser.parse_args()
    results = {name: describe(name) for name in args.names}
    results["tokens"] = tokens_of(args.names[0])
    if args.int8:
        try:
            AutoModelForSeq2SeqLM.from_pretrained(args.int8, trust_remote_code=True)
        except ValueError as error:
            results["int8"] = str(error)
    if args.save:
        AutoModelForSeq2SeqLM.from_pretrained(args.names[0], trust_remote_code=True).save_pretrained(args.save)
        AutoTokenizer.from_pretrained(args.names[0]).save_pretrained(args.save)
        results["saved again"] = describe(args.save)
    try:
        AutoModelForSeq2SeqLM.from_pretrained(args.names[0])
    except ValueError as error:
        results["without trust"] = str(error)
    if args.run:
        exec(compile(Path(args.run).read_text(), args.run, "exec"), {})
    Path(args.results).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
