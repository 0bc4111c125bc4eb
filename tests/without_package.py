"""Load models where hf_vanilla_transformer cannot be imported; tests run this file in a process of its own.

Usage: python -I without_package.py RESULTS.json NAME_OR_FOLDER ... [--save FOLDER] [--run FILE.py]
"""

import argparse
import importlib.abc
import json
import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer, pipeline


SENTENCES = ["forty-two", "seven", "one hundred and one"]


class NoPackage(importlib.abc.MetaPathFinder):
    """Raises ModuleNotFoundError for the package."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "hf_vanilla_transformer":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def supports_cpu_decoder(model: torch.nn.Module) -> bool:
    """Whether the CPU decoder that the model's own code imported supports the model."""
    folder, _, _ = type(model).__module__.rpartition(".")
    return sys.modules[f"{folder}.cpu_decoder"].supports_cpu_decoder(model)


def describe(name: str) -> dict:
    """Classes that the Auto classes and `pipeline()` return for a model, its translations and hidden states."""
    tokenizer = AutoTokenizer.from_pretrained(name)
    config = AutoConfig.from_pretrained(name, trust_remote_code=True)
    base = AutoModel.from_pretrained(name, trust_remote_code=True)
    model = AutoModelForSeq2SeqLM.from_pretrained(name, trust_remote_code=True)
    inputs = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = base(**inputs, decoder_input_ids=inputs.input_ids).last_hidden_state
        supports = supports_cpu_decoder(model)
    translator = pipeline("translation", model=name, trust_remote_code=True, device="cpu")
    return {
        "classes": [type(loaded).__name__ for loaded in (tokenizer, config, base, model, translator)],
        "modules": [type(loaded).__module__.partition(".")[0] for loaded in (config, base, model, translator)],
        "dtype": str(model.dtype),
        "supports_cpu_decoder": supports,
        "output": model.generate(**inputs).tolist(),
        "greedy": model.generate(**inputs, num_beams=1).tolist(),
        "states": states.tolist(),
        "translations": [found["translation_text"] for found in translator(SENTENCES)],
    }


def main() -> None:
    """Describe models, save the first again, and run some code."""
    sys.meta_path.insert(0, NoPackage())
    parser = argparse.ArgumentParser()
    parser.add_argument("results")
    parser.add_argument("names", nargs="+")
    parser.add_argument("--save")
    parser.add_argument("--run")
    args = parser.parse_args()
    results = {name: describe(name) for name in args.names}
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
