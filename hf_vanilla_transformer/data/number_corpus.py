"""The built-in corpus: numbers spelled out in two languages by num2words.

It is real translation with reordering ("forty-two", "zweiundvierzig"), has no licence, is as large as needed, and can
be scored exactly, because every number has one correct translation.
"""

import os
import random

from datasets import Dataset, DatasetDict

from ..support.argument_checks import check_number
from ..support.user_errors import InputError, needing


# Most numbers of one length, as a share, that validation and test take together.
_LARGEST_HELD_OUT_SHARE = 0.1
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
    """Numbers from 0 to 10^max_digits - 1, spelled in two languages; the three splits are disjoint.

    Training numbers are drawn evenly by number of digits, as far as enough numbers of each length exist. Half of the
    validation and test numbers have more than two thirds of `max_digits` digits (7 or more of 9), the other half fewer.

    Args:
        source_language, target_language (`str`): codes of num2words, such as `"en"`, `"de"`, `"fr"`, `"pt_BR"`.
        train_size, validation_size, test_size (`int`): number of pairs; fewer if not enough numbers exist.
        max_digits (`int`): digits of the longest numbers; with 4 or fewer the test split takes all held-out numbers.
        seed (`int`): of the random numbers.

    Returns:
        `DatasetDict`: splits `train`, `validation`, `test` with columns `number`, `source` and `target`; empty splits
            are omitted.

    Raises:
        ImportError: if num2words is missing; the message names the extra to install.
        TypeError, ValueError: if num2words does not have a language, or a size is out of range.
    """
    _check_languages(source_language, target_language)
    check_number("train_size", train_size, 1)
    check_number("validation_size", validation_size, 0)
    check_number("test_size", test_size, 0)
    check_number("max_digits", max_digits, 1, 18)  # Longer numbers do not fit in 64 bits.
    generator = random.Random(seed)
    lengths = range(1, max_digits + 1)
    test = _draw_halves(generator, lengths, test_size, taken=set())
    validation = _draw_halves(generator, lengths, validation_size, taken=set(test))
    train = _draw(generator, lengths, train_size, taken={*test, *validation}, largest_share=1.0)
    languages, splits = (source_language, target_language), {"train": train, "validation": validation, "test": test}
    return DatasetDict({name: _spell_all(numbers, languages, name) for name, numbers in splits.items() if numbers})


def _check_languages(*languages: str) -> None:
    with needing("numbers", "the number corpus needs"):
        from num2words import CONVERTER_CLASSES
    for language in languages:
        if language not in CONVERTER_CLASSES:
            known = ", ".join(sorted(CONVERTER_CLASSES))
            raise InputError(f'num2words has no language "{language}"; use one of: {known}.')
    if len(set(languages)) == 1:
        raise InputError(f'source and target language are both "{languages[0]}"; give two different ones.')


def _draw_halves(generator: random.Random, lengths: range, size: int, taken: set[int]) -> list[int]:
    split = (2 * len(lengths)) // 3
    long_numbers = _draw(generator, lengths[split:], size - size // 2, taken, _LARGEST_HELD_OUT_SHARE)
    return _draw(generator, lengths[:split], size // 2, taken, _LARGEST_HELD_OUT_SHARE) + long_numbers


def _draw(generator: random.Random, lengths: range, size: int, taken: set[int], largest_share: float) -> list[int]:
    """Draw `size` distinct numbers evenly by length; longer lengths fill up where a length has too few numbers."""
    drawn: list[int] = []
    for index, digits in enumerate(lengths):
        numbers = range(0 if digits == 1 else 10 ** (digits - 1), 10**digits)
        free = int(len(numbers) * largest_share) - sum(number in numbers for number in taken)
        share = (size - len(drawn)) // (len(lengths) - index)
        wanted = max(0, min(share, free))
        candidates = generator.sample(numbers, min(len(numbers), wanted + len(taken)))
        drawn += [number for number in candidates if number not in taken][:wanted]
    return drawn


def _spell_all(numbers: list[int], languages: tuple[str, str], name: str) -> Dataset:
    processes = min(os.cpu_count() or 1, len(numbers) // _PAIRS_PER_PROCESS)
    num_proc = processes if processes > 1 else None  # With 1 datasets would start a process, too.
    return Dataset.from_dict({"number": numbers}).map(
        _spell, fn_kwargs={"languages": languages}, num_proc=num_proc, desc=f"spelling {name} numbers"
    )


def _spell(row: dict[str, int], languages: tuple[str, str]) -> dict[str, str]:
    from num2words import num2words

    source, target = (num2words(row["number"], lang=language) for language in languages)
    return {"source": source, "target": target}
