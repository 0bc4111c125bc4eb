"""Loads a model from the Hub, with or without the package; tests run it in a process of its own.

Usage: python -I pull.py RESULTS.json with|without|weights NAME REVISION ...
"""

import hashlib
import json
import sys
from pathlib import Path

import torch


SENTENCES = ["forty-two", "seven", "one hundred and one"]


def digests(weights: dict[str, torch.Tensor]) -> dict[str, str]:
    """A checksum of each tensor's dtype, shape and bytes."""
    return {
        name: hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}".encode() + tensor.numpy().tobytes()).hexdigest()
        for name, tensor in weights.items()
    }


def describe_weights(name: str, revision: str) -> dict:
    """Weights alone, with the package."""
    from transformers import AutoModelForSeq2SeqLM

    return digests(AutoModelForSeq2SeqLM.from_pretrained(name, revision=revision).state_dict())


def describe_all(name: str, revision: str, **options: bool) -> dict:
    """Weights, tokens and translations."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

    tokenizer = AutoTokenizer.from_pretrained(name, revision=revision)
    model = AutoModelForSeq2SeqLM.from_pretrained(name, revision=revision, **options)
    inputs = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    translator = pipeline("translation", model=name, revision=revision, device="cpu", **options)
    return {
        "module": type(model).__module__.partition(".")[0],
        "digests": digests(model.state_dict()),
        "tokens": model.generate(**inputs).tolist(),
        "translations": [translation["translation_text"] for translation in translator(SENTENCES)],
    }


def load_both_data_sets() -> dict:
    """What `load_pairs` reads: parquet, CSV, and the CSV's first version."""
    from hf_vanilla_transformer import load_pairs

    options = {"source": "en", "target": "de"}
    return {
        "parquet": {split: table.to_dict() for split, table in load_pairs("user/pairs", **options).items()},
        "csv": load_pairs("user/csv", **options)["train"].to_dict(),
        "csv, v1": load_pairs("user/csv", revision="v1", **options)["train"].to_dict(),
    }


def main() -> None:
    """Describe revisions of a model."""
    results, mode, name, *revisions = sys.argv[1:]
    sys.path.append(str(Path(__file__).parents[3]))
    if mode != "without":
        import hf_vanilla_transformer  # noqa: F401
    else:
        from tests.without_package import NoPackage

        sys.meta_path.insert(0, NoPackage())
    options = {"trust_remote_code": True} if mode == "without" else {}
    describe = describe_weights if mode == "weights" else describe_all
    descriptions = {revision: describe(name, revision, **options) for revision in revisions}
    if mode == "with" and len(revisions) > 1:
        descriptions["data"] = load_both_data_sets()
    Path(results).write_text(json.dumps(descriptions))


if __name__ == "__main__":
    main()
