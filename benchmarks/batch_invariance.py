"""Count the sentences whose translation is the same alone, in batches sorted by length, and in random batches."""

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla_transformer.apps.cli.parser import parse, program
from hf_vanilla_transformer.model.generation_settings import length_penalty_of
from hf_vanilla_transformer.support.argument_checks import check_number
from hf_vanilla_transformer.support.atomic_files import write_text
from hf_vanilla_transformer.support.output_files import check_can_write


@dataclass
class CountArguments:
    """What to translate, and where to write the result."""

    model_name_or_path: str = field(metadata={"help": "A folder, or a name on the Hub."})
    file: str = field(metadata={"help": "Sentences to translate, one per line."})
    batch_size: int = field(default=64, metadata={"help": "Sentences per batch."})
    num_beams: int | None = field(default=None, metadata={"help": "The default is the model's generation_config."})
    tie: float = field(
        default=1e-4, metadata={"help": "Translations whose log-probabilities differ by less are a tie."}
    )
    output: str | None = field(default=None, metadata={"help": "Also write the figures into this JSON file."})

    def __post_init__(self) -> None:
        check_number("batch_size", self.batch_size, 1)


def split(order: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """Indices in batches of one size."""
    return (order[begin : begin + size] for begin in range(0, len(order), size))


def translate_batches(
    batches: Iterable[Sequence[int]], model: Any, tokenizer: Any, sources: list[list[int]], **options: Any
) -> list[list[int]]:
    """The tokens of each source's translation, without padding, in the order of the sources.

    Args:
        batches: indices of the sources in each batch.
        sources: token ids of each sentence.
    """
    found: list[list[int]] = [[] for _ in sources]
    for batch in batches:
        inputs = tokenizer.pad({"input_ids": [sources[index] for index in batch]}, return_tensors="pt")
        for index, row in zip(batch, model.generate(**inputs, **options)[:, 1:].tolist(), strict=True):
            found[index] = [token for token in row if token != tokenizer.pad_token_id]
    return found


def log_prob_of(model: Any, source: list[int], target: list[int]) -> float:
    """log P(Y | X) / lp(Y), from one forward pass."""
    labels = torch.tensor([target])
    logits = model(input_ids=torch.tensor([source]), labels=labels).logits
    total = logits.log_softmax(dim=-1).gather(-1, labels[..., None]).sum()
    return float(total / length_penalty_of(model.generation_config)(len(target)))


@torch.inference_mode()
@program
def main(arguments: list[str]) -> dict[str, Any]:
    """Run the command line; returns the counts."""
    args = parse(CountArguments, __doc__, arguments)
    check_can_write(args.output)
    tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
    model = AutoModelForSeq2SeqLM.from_pretrained(args.model_name_or_path, dtype=torch.float32).eval()
    sentences = [line for line in Path(args.file).read_text(encoding="utf-8").splitlines() if line.strip()]
    sources = tokenizer(sentences).input_ids
    options = {} if args.num_beams is None else {"num_beams": args.num_beams}
    by_length = sorted(range(len(sources)), key=lambda index: len(sources[index]))
    at_random = random.Random(0).sample(range(len(sources)), len(sources))
    one_by_one = tqdm(list(split(by_length, 1)), desc="one by one")
    alone = translate_batches(one_by_one, model, tokenizer, sources, **options)
    figures: dict[str, Any] = {"sentences": len(sources)}
    for name, order in (("sorted by length", by_length), ("random", at_random)):
        together = translate_batches(
            tqdm(list(split(order, args.batch_size)), desc=f"batches, {name}"), model, tokenizer, sources, **options
        )
        different = [index for index in by_length if alone[index] != together[index]]
        differences = [
            abs(log_prob_of(model, sources[index], alone[index]) - log_prob_of(model, sources[index], together[index]))
            for index in different
        ]
        figures[name] = {
            "same": len(sources) - len(different),
            "ties": sum(difference < args.tie for difference in differences),
            "different": sum(difference >= args.tie for difference in differences),
            "log_prob_differences": differences,
        }
        print(
            f"batches of {args.batch_size}, {name}: {figures[name]['same']} of {len(sources)} translations the same as "
            f"alone, {figures[name]['ties']} ties, {figures[name]['different']} different"
        )
    if args.output is not None:
        write_text(args.output, json.dumps(figures, indent=2) + "\n")
    return figures


if __name__ == "__main__":
    main()
