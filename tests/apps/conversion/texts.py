"""Sentences on which tokenizers are compared: real ones, and random Unicode."""

import os
import random
from itertools import cycle, islice
from pathlib import Path

from num2words import num2words

from hf_vanilla_transformer.apps.conversion.parity_certificate import SENTENCES


# `make test-bridges` tries 10,000.
COUNT = int(os.environ.get("TOKENIZER_SENTENCES", "600"))
_RANGES = ((32, 127), (32, 33), (0xA0, 0x3000), (0x3000, 0xD800), (0xE000, 0x20000))


def texts(language: str = "en", count: int = COUNT) -> list[str]:
    """So many sentences: a quarter spelled numbers, a quarter of Multi30k where it is, and half random Unicode."""
    generator = random.Random(0)
    numbers = [num2words(generator.randrange(10**6), lang=language) for _ in range(count // 4)]
    file = Path(os.environ.get("MULTI30K_DIR", ""), f"train.{language}")
    real = file.read_text(encoding="utf-8").splitlines() if file.is_file() else SENTENCES
    unicode = [_random_text(generator) for _ in range(count // 2)]
    return [*numbers, *islice(cycle(real), count - len(numbers) - len(unicode)), *unicode]


def _random_text(generator: random.Random) -> str:
    return "".join(chr(generator.randrange(*generator.choice(_RANGES))) for _ in range(generator.randrange(40)))
