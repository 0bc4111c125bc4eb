"""The true word alignment of the number corpus, from English into German, by the digits that each word expresses.

"forty-two" and "zweiundvierzig" are one word each. Spelled in parts ("forty two", "zwei und vierzig") they are aligned
part by part, in another order.

Usage: python -m tests.number_alignment FOLDER, of the model that `hf-vanilla-transformer demo` trains.
"""

import sys
from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

from hf_vanilla_transformer import align, load_pairs
from hf_vanilla_transformer.translation.alignment import Links
from hf_vanilla_transformer.translation.model_loading import load
from tests.support.gold_links import GoldLinks, alignment_error_rate


BELOW_TWENTY = """
zero null, one ein, two zwei, three drei, four vier, five fünf, six sechs, seven sieben, eight acht, nine neun,
ten zehn, eleven elf, twelve zwölf, thirteen dreizehn, fourteen vierzehn, fifteen fünfzehn, sixteen sechzehn,
seventeen siebzehn, eighteen achtzehn, nineteen neunzehn
"""
ENGLISH, GERMAN = zip(*(pair.split() for pair in BELOW_TWENTY.split(",")), strict=True)
ENGLISH_TENS = ["-", "-", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
GERMAN_TENS = ["-", "-", "zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"]
LARGE = {1: ("thousand", "tausend"), 2: ("million", "Million")}


class Part(NamedTuple):
    """A part of a word: what joins it to the part before it, its text, and the digits that it expresses.

    A digit is its power of ten, and a multiplier ("hundred") the power of ten plus a half. A word that joins others
    ("and", "und") expresses none. The group is the power of a thousand.
    """

    joined_by: str
    text: str
    digits: frozenset[float]
    group: int


def groups(number: int) -> list[tuple[int, int]]:
    """Digits in threes, with their powers of a thousand: 12345 is [(1, 12), (0, 345)]."""
    threes = [(power, number // 1000**power % 1000) for power in (2, 1, 0)]
    return [(power, three) for power, three in threes if three] or [(0, 0)]


def english(number: int) -> list[Part]:
    parts: list[Part] = []
    for power, three in groups(number):
        zero, hundreds, below_hundred = 3 * power, three // 100, three % 100
        if hundreds:
            parts.append(Part(", ", ENGLISH[hundreds], frozenset([zero + 2]), power))
            parts.append(Part(" ", "hundred", frozenset([zero + 2.5]), power))
        if below_hundred and parts and (hundreds or power == 0):
            parts.append(Part(" ", "and", frozenset(), power))
        between = " " if parts and parts[-1].text == "and" else ", "
        if below_hundred >= 20:
            parts.append(Part(between, ENGLISH_TENS[below_hundred // 10], frozenset([zero + 1]), power))
            if below_hundred % 10:
                parts.append(Part("-", ENGLISH[below_hundred % 10], frozenset([zero]), power))
        elif below_hundred or not number:
            parts.append(Part(between, ENGLISH[below_hundred], digits_below_twenty(zero, below_hundred), power))
        if power:
            parts.append(Part(" ", LARGE[power][0], frozenset([zero + 0.5]), power))
    return parts


def german(number: int) -> list[Part]:
    parts: list[Part] = []
    for power, three in groups(number):
        zero, hundreds, below_hundred = 3 * power, three // 100, three % 100
        first = len(parts)
        if hundreds:
            parts.append(Part("", GERMAN[hundreds], frozenset([zero + 2]), power))
            parts.append(Part("", "hundert", frozenset([zero + 2.5]), power))
        if below_hundred >= 20:
            if below_hundred % 10:
                parts.append(Part("", GERMAN[below_hundred % 10], frozenset([zero]), power))
                parts.append(Part("", "und", frozenset(), power))
            parts.append(Part("", GERMAN_TENS[below_hundred // 10], frozenset([zero + 1]), power))
        elif below_hundred or not number:
            ending = ("s" if hundreds or power == 0 else ["", "", "e"][power]) if below_hundred == 1 else ""
            parts.append(Part("", GERMAN[below_hundred] + ending, digits_below_twenty(zero, below_hundred), power))
        if power:
            text = LARGE[power][1] + ("en" if power == 2 and three > 1 else "")
            parts.append(Part(" " if power == 2 else "", text, frozenset([zero + 0.5]), power))
        if first and parts[first - 1].group == 2:
            parts[first] = parts[first]._replace(joined_by=" ")
    return parts


def digits_below_twenty(zero: int, number: int) -> frozenset[float]:
    return frozenset([zero] if number < 10 else [zero, zero + 1])


def spell(parts: list[Part], in_parts: bool = False) -> str:
    """The number, as num2words spells it, or with each part as a word of its own."""
    if in_parts:
        return " ".join(part.text for part in parts)
    return "".join(part.text if index == 0 else part.joined_by + part.text for index, part in enumerate(parts))


def words(parts: list[Part], in_parts: bool = False) -> Iterator[list[Part]]:
    """The parts of each word of `spell`."""
    word: list[Part] = []
    for part in parts:
        if word and (in_parts or part.joined_by.endswith(" ")):
            yield word
            word = []
        word.append(part)
    yield word


def gold(number: int, in_parts: bool = False) -> GoldLinks:
    """Return the sure links of English and German words, which express a common digit, and the possible ones.

    A link is possible, too, of a word that only joins others to any word of the same three digits: the languages join
    different parts.
    """
    sure, possible = set(), set()
    for source, source_word in enumerate(words(english(number), in_parts)):
        for target, target_word in enumerate(words(german(number), in_parts)):
            digits = [frozenset().union(*(part.digits for part in word)) for word in (source_word, target_word)]
            is_joining = not all(digits)
            if digits[0] & digits[1]:
                sure.add((source, target))
            elif is_joining and {part.group for part in source_word} & {part.group for part in target_word}:
                possible.add((source, target))
    return GoldLinks(sure, sure | possible)


def diagonal(sources: Sequence[str], targets: Sequence[str]) -> list[Links]:
    """Links of words at the same height in both sentences: each word of either side has at least one."""
    sizes = [(len(source.split()), len(target.split())) for source, target in zip(sources, targets, strict=True)]
    return [
        sorted(
            {(int((row + 0.5) * source / target), row) for row in range(target)}
            | {(row, int((row + 0.5) * target / source)) for row in range(source)}
        )
        for source, target in sizes
    ]


def main(folder: str) -> None:
    """Print the alignment error rates of a model of English and German numbers, on the numbers of the test split."""
    tokenizer, model = load(folder)
    test_pairs = load_pairs("numbers", source="en", target="de", train_size=9)["test"]
    sources = list(test_pairs["source"])
    targets = list(test_pairs["target"])
    true_links = [gold(number) for number in test_pairs["number"]]

    def report(name: str, alignments: list[Links]) -> None:
        rate = alignment_error_rate(alignments, true_links)
        print(f"{name:25} {100 * rate:5.1f} %")

    report("diagonal", diagonal(sources, targets))
    model.config.alignment_heads = list(product(range(model.config.decoder_layers), range(model.config.num_heads)))
    report("average of all heads", align(model, tokenizer, sources, targets))
    model.config.alignment_heads = None
    report("default", align(model, tokenizer, sources, targets))


if __name__ == "__main__":
    main(*sys.argv[1:])
