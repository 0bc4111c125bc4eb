"""Generate the built-in corpus: numbers spelled out in two languages by the library num2words.

Translating such numbers requires reordering, as real translation does ("forty-two", "zweiundvierzig"). The corpus needs
no license, it can be as large as needed, and translations can be scored exactly, because every number has only one
correct translation.
"""

import os
import random
from typing import NamedTuple

from datasets import Dataset, DatasetDict

from ..support.argument_checks import check_number
from ..support.user_errors import InputError, needing


# The validation and test splits together get at most this share of the numbers of each length, so that most numbers
# remain for training.
_LARGEST_HELD_OUT_SHARE = 0.1
# With fewer pairs than this, starting a process takes longer than spelling the numbers.
_PAIRS_PER_PROCESS = 5000


def number_pairs(
    source_language: str = "en",
    target_language: str = "de",
    train_size: int = 200_000,
    validation_size: int = 500,
    test_size: int = 3_000,
    max_digits: int = 9,
    seed: int = 0,
) -> DatasetDict:
    """Generate a corpus of random numbers, spelled out in two languages, such as "forty-two" and "zweiundvierzig".

    The numbers range from 0 to 10^max_digits - 1, and no number occurs in more than one split. The training split has
    equally many numbers of each length in digits, as far as enough numbers of that length exist. In the validation and
    test splits, half of the numbers are long: they have more than two thirds of `max_digits` digits.

    Args:
        source_language, target_language (`str`): language codes that num2words knows, such as `"en"`, `"de"`, `"fr"` or
            `"pt_BR"`.
        train_size, validation_size, test_size (`int`): the number of pairs in each split. A split gets fewer pairs if
            there are not enough numbers.
        max_digits (`int`): the number of digits of the longest numbers. With 4 or fewer, a test split of the default
            size uses up all numbers that may be held out, so there is no validation split.
        seed (`int`): the seed for drawing the numbers.

    Returns:
        `DatasetDict`: the splits `train`, `validation` and `test` with the columns `number`, `source` and `target`.
            Empty splits are omitted.

    Raises:
        ImportError: if num2words is missing. The message names the extra to install.
        TypeError, ValueError: if num2words does not know a language, or if a size is out of range.
    """
    _check_languages(source_language, target_language)
    check_number("train_size", train_size, 1)
    check_number("validation_size", validation_size, 0)
    check_number("test_size", test_size, 0)
    check_number("max_digits", max_digits, 1, 18)  # Longer numbers do not fit in 64 bits.
    sizes = _SplitSizes(train_size, validation_size, test_size)
    numbers_by_split = _draw_splits(sizes, max_digits, seed)

    corpus = DatasetDict()
    for split, numbers in numbers_by_split.items():
        if numbers:
            corpus[split] = _spell_all(numbers, (source_language, target_language), split)
    return corpus


class _SplitSizes(NamedTuple):
    """The number of pairs to generate in each split."""

    train: int
    validation: int
    test: int


def _draw_splits(sizes: _SplitSizes, max_digits: int, seed: int) -> dict[str, list[int]]:
    """Draw the numbers of each split. A number is in one split at most.

    All splits are drawn from one generator, the test split first. Therefore, the test numbers do not depend on the
    sizes of the other splits, and the validation numbers do not depend on the size of the training split.
    """
    generator = random.Random(seed)
    lengths = range(1, max_digits + 1)
    test = _draw_halves(generator, lengths, sizes.test, taken=set())
    validation = _draw_halves(generator, lengths, sizes.validation, taken=set(test))
    # largest_share=1.0 lets training use all remaining numbers.
    train = _draw(generator, lengths, sizes.train, taken={*test, *validation}, largest_share=1.0)
    return {"train": train, "validation": validation, "test": test}


def _check_languages(source_language: str, target_language: str) -> None:
    """Check that num2words is installed and knows both languages, and that the languages differ.

    Raises ImportError if num2words is missing, and ValueError if a language is wrong.
    """
    # If num2words is missing, needing() raises an error that names the extra "numbers".
    with needing("numbers", "the number corpus needs"):
        from num2words import CONVERTER_CLASSES
    for language in (source_language, target_language):
        if language not in CONVERTER_CLASSES:
            known_languages = ", ".join(sorted(CONVERTER_CLASSES))
            raise InputError(f'num2words has no language "{language}"; use one of: {known_languages}.')
    if source_language == target_language:
        raise InputError(f'source and target language are both "{source_language}"; give two different ones.')


def _draw_halves(generator: random.Random, lengths: range, size: int, taken: set[int]) -> list[int]:
    """Draw the numbers for the validation or test split: half of them short numbers, and half of them long ones.

    Args:
        generator: the source of randomness.
        lengths: the possible numbers of digits, starting from 1.
        size: how many numbers to draw.
        taken: numbers that are already in other splits.
    """
    # `lengths` starts from 1. With up to 9 digits, first_long is 6, and lengths[6:] are 7, 8 and 9 digits.
    first_long = (2 * len(lengths)) // 3
    # The two halves have different numbers of digits, so they have no number in common. The order of the draws is a
    # part of the corpus: in a different order, the same seed would give different numbers.
    long_numbers = _draw(generator, lengths[first_long:], size - size // 2, taken, _LARGEST_HELD_OUT_SHARE)
    short_numbers = _draw(generator, lengths[:first_long], size // 2, taken, _LARGEST_HELD_OUT_SHARE)
    return short_numbers + long_numbers


def _draw(generator: random.Random, lengths: range, size: int, taken: set[int], largest_share: float) -> list[int]:
    """Draw up to `size` different numbers, spread evenly over the lengths in digits.

    If there are too few numbers of one length, more numbers of the greater lengths are drawn instead.

    Args:
        lengths: the possible numbers of digits, in increasing order.
        size: how many numbers to draw.
        taken: numbers that are already in other splits and must not be drawn.
        largest_share: the maximum share of all numbers of one length that may be taken or drawn.
    """
    drawn: list[int] = []
    for index, digits in enumerate(lengths):
        numbers = _numbers_of_length(digits)
        # The numbers still to be drawn are divided evenly among this length and the following ones.
        remaining_size = size - len(drawn)
        remaining_lengths = len(lengths) - index
        even_count = remaining_size // remaining_lengths
        count = min(even_count, _count_drawable(numbers, taken, largest_share))
        drawn.extend(_draw_untaken(generator, numbers, count, taken))
    return drawn


def _count_drawable(numbers: range, taken: set[int], largest_share: float) -> int:
    """Return how many more numbers may be drawn until `largest_share` of the numbers is taken or drawn."""
    taken_count = sum(1 for number in taken if number in numbers)
    # More numbers may be taken than the share allows.
    return max(0, int(len(numbers) * largest_share) - taken_count)


def _numbers_of_length(digits: int) -> range:
    """Return all numbers with the given number of digits. 0 has one digit."""
    if digits == 1:
        return range(10)
    return range(10 ** (digits - 1), 10**digits)


def _draw_untaken(generator: random.Random, numbers: range, count: int, taken: set[int]) -> list[int]:
    """Draw `count` different numbers that are not taken. At least `count` untaken numbers must exist."""
    # Even if all taken numbers are among the candidates, `count` others remain.
    candidate_count = min(len(numbers), count + len(taken))
    candidates = generator.sample(numbers, candidate_count)
    untaken = [number for number in candidates if number not in taken]
    return untaken[:count]


def _spell_all(numbers: list[int], languages: tuple[str, str], split: str) -> Dataset:
    """Spell the numbers of a split in two languages, in several processes if there are many numbers."""
    processes = min(os.cpu_count() or 1, len(numbers) // _PAIRS_PER_PROCESS)
    # With None, datasets works in this process. With 1, it would start a second process.
    num_proc = processes if processes > 1 else None
    return Dataset.from_dict({"number": numbers}).map(
        _spell, fn_kwargs={"languages": languages}, num_proc=num_proc, desc=f"spelling {split} numbers"
    )


def _spell(row: dict[str, int], languages: tuple[str, str]) -> dict[str, str]:
    """Spell the number of one row in both languages, and return the texts as the new columns of the row."""
    from num2words import num2words

    source_language, target_language = languages
    source = num2words(row["number"], lang=source_language)
    target = num2words(row["number"], lang=target_language)
    return {"source": source, "target": target}
