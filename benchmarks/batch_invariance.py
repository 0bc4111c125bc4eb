"""Count the sentences that have the same translation alone, in batches of similar length, and in batches at random."""

import json
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
from tqdm import tqdm
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla_transformer.cli.parsing import parse, plain_errors
from hf_vanilla_transformer.cli.writing import check_can_write
from hf_vanilla_transformer.files import write_text
from hf_vanilla_transformer.model.generation_vanilla_transformer import length_penalty_of


@dataclass
class CountArguments:
    """What to translate, and where to put the result."""

    model: str = field(metadata={"help": "A folder or a name on the Hub."})
    file: str = field(metadata={"help": "Sentences, one a line."})
    batch_size: int = field(default=64, metadata={"help": "Sentences of a batch."})
    num_beams: int | None = field(default=None, metadata={"help": "Default: the model's own search."})
    tie: float = field(default=1e-4, metadata={"help": "Translations whose scores differ by less are a tie."})
    output: str | None = field(default=None, metadata={"help": "Write the figures into this JSON file, too."})

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size is {self.batch_size}; it must be at least 1.")


def batches(order: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """Places in groups of one size."""
    return (order[begin : begin + size] for begin in range(0, len(order), size))


def translate_in(
    groups: Iterable[Sequence[int]], model: Any, tokenizer: Any, sources: list[list[int]], **options: Any
) -> list[list[int]]:
    """Tokens of each sentence's translation, without padding, translated in groups."""
    found: list[list[int]] = [[] for _ in sources]
    for group in groups:
        inputs = tokenizer.pad({"input_ids": [sources[place] for place in group]}, return_tensors="pt")
        for place, row in zip(group, model.generate(**inputs, **options)[:, 1:].tolist(), strict=True):
            found[place] = [token for token in row if token != tokenizer.pad_token_id]
    return found


def score_of(model: Any, source: list[int], target: list[int]) -> float:
    """log P(Y | X) / lp(Y) by one forward pass."""
    labels = torch.tensor([target])
    logits = model(input_ids=torch.tensor([source]), labels=labels).logits
    total = logits.log_softmax(dim=-1).gather(-1, labels[..., None]).sum()
    return float(total / length_penalty_of(model.generation_config)(len(target)))


@torch.inference_mode()
def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Count as the command line says; returns the counts."""
    (args,) = parse([CountArguments], __doc__, arguments)
    with plain_errors():
        check_can_write(args.output)
        tokenizer = AutoTokenizer.from_pretrained(args.model)
        model = AutoModelForSeq2SeqLM.from_pretrained(args.model, dtype=torch.float32).eval()
        sentences = [line for line in Path(args.file).read_text(encoding="utf-8").splitlines() if line.strip()]
    sources = tokenizer(sentences).input_ids
    options = {} if args.num_beams is None else {"num_beams": args.num_beams}
    by_length = sorted(range(len(sources)), key=lambda place: len(sources[place]))
    at_random = random.Random(0).sample(range(len(sources)), len(sources))
    one_by_one = tqdm(list(batches(by_length, 1)), desc="one by one")
    alone = translate_in(one_by_one, model, tokenizer, sources, **options)
    figures: dict[str, Any] = {"sentences": len(sources)}
    for name, order in (("of similar length", by_length), ("at random", at_random)):
        groups = tqdm(list(batches(order, args.batch_size)), desc=f"in batches {name}")
        together = translate_in(groups, model, tokenizer, sources, **options)
        other = [place for place in by_length if alone[place] != together[place]]
        differences = [
            abs(score_of(model, sources[place], alone[place]) - score_of(model, sources[place], together[place]))
            for place in other
        ]
        figures[name] = {
            "same": len(sources) - len(other),
            "ties": sum(difference < args.tie for difference in differences),
            "others": sum(difference >= args.tie for difference in differences),
            "score_differences": differences,
        }
        print(
            f"in batches of {args.batch_size} {name}: {figures[name]['same']} of {len(sources)} translations as alone, "
            f"{figures[name]['ties']} ties, {figures[name]['others']} others"
        )
    if args.output is not None:
        write_text(args.output, json.dumps(figures, indent=2) + "\n")
    return figures


if __name__ == "__main__":
    main()
