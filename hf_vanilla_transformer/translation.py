"""Text in, text out."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase


_ONE_TRANSLATION_A_SENTENCE = {"num_return_sequences", "return_dict_in_generate"}


@torch.inference_mode()
def translate(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Iterable[str],
    batch_tokens: int = 4096,
    show_progress: bool = False,
    **generate_kwargs: Any,
) -> list[str]:
    """Translate sentences, in batches of similar length, and return the translations in the order of the sentences.

    Args:
        model (`PreTrainedModel`): used in evaluation mode, and left in the mode that it was in.
        tokenizer (`PreTrainedTokenizerBase`): of the model.
        sentences (`Iterable[str]`): sources; an empty or blank one has an empty translation.
        batch_tokens (`int`): most source tokens of a batch, padding included; a longer sentence is a batch of its own.
        show_progress (`bool`): whether to show a progress bar, in sentences.
        **generate_kwargs: arguments of `generate()`, such as `num_beams`.

    Returns:
        `list[str]`: one translation a sentence.

    Raises:
        TypeError: if `sentences` is one string, or holds something else than strings.
        ValueError: if `generate_kwargs` asks for more than one translation a sentence, or for more than tokens.
    """
    if isinstance(sentences, str):
        raise TypeError("sentences is one string; give a list of sentences, of one if need be.")
    sentences = list(sentences)
    for sentence in sentences:
        if not isinstance(sentence, str):
            raise TypeError(f"sentences holds {sentence!r}, a {type(sentence).__name__}; give strings.")
    for name in _ONE_TRANSLATION_A_SENTENCE & generate_kwargs.keys():
        raise ValueError(f"{name} does not go with one translation a sentence; call model.generate() for that.")
    translations = [""] * len(sentences)
    indices = [index for index, sentence in enumerate(sentences) if sentence.strip()]
    encoded = tokenizer([sentences[index] for index in indices]).input_ids if indices else []
    was_training = model.training
    model.eval()
    progress = tqdm(total=len(indices), desc="translating", unit=" sentences", disable=not show_progress)
    try:
        for batch in _batches([len(ids) for ids in encoded], batch_tokens):
            inputs = tokenizer.pad({"input_ids": [encoded[row] for row in batch]}, return_tensors="pt")
            output = model.generate(**inputs.to(model.device), **generate_kwargs)
            for row, text in zip(batch, tokenizer.batch_decode(output, skip_special_tokens=True), strict=True):
                translations[indices[row]] = text
            progress.update(len(batch))
    finally:
        progress.close()
        model.train(was_training)
    return translations


def _batches(lengths: list[int], batch_tokens: int) -> Iterator[list[int]]:
    """Rows sorted by length, longest first so that too large a batch shows at once, in groups of `batch_tokens`."""
    batch: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if batch and (len(batch) + 1) * lengths[batch[0]] > batch_tokens:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch
