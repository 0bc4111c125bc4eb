"""Models for CTranslate2 without a tokenizer, and child processes, one for each setting that a user would try."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from hf_vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.apps.conversion.ctranslate2 import specification
from hf_vanilla_transformer.apps.conversion.ctranslate2_process import CTranslate2Process, Setting


def token_text(token_id: int, config: VanillaTransformerConfig) -> str:
    """The text of a token of a model without a tokenizer: `"<pad>"`, `"<s>"`, `"</s>"`, or its id."""
    special = {config.pad_token_id: "<pad>", config.bos_token_id: "<s>", config.eos_token_id: "</s>"}
    return special.get(token_id, str(token_id))


def write_ctranslate2(model: VanillaTransformerForConditionalGeneration, folder: Path) -> None:
    """Write a model without a tokenizer, whose tokens have the texts of `token_text`, into a new folder."""
    config = model.config
    sizes = (config.source_vocab_size or config.vocab_size, config.vocab_size)
    spec = specification(model, *([token_text(token, config) for token in range(size)] for size in sizes))
    folder.mkdir(parents=True)
    spec.save(str(folder))


def settings(threads: int) -> list[Setting]:
    """The settings a user would try: one worker with all threads, or one worker per thread."""
    # CTranslate2's default does not include AVX-512.
    instructions = ["", "AVX512"] if torch.backends.cpu.get_cpu_capability() == "AVX512" else [""]
    shapes = dict.fromkeys([(1, threads), (threads, 1)])
    return [Setting(*shape, kind) for shape in shapes for kind in instructions]


class CTranslate2Processes:
    """One CTranslate2 process per setting; each job runs in the fastest.

    Args:
        folder (`Path`): a model from `write_ctranslate2`.
        compute_type (`str`): `"float32"` or `"int8"`.
        threads (`int`): number of threads to use.
    """

    def __init__(self, folder: Path, compute_type: str, threads: int):
        self._processes = {each: CTranslate2Process(folder, compute_type, each) for each in settings(threads)}
        self._chosen: tuple[Setting, Mapping[str, Any]] | None = None
        self.described = ""

    def choose(self, sources: Sequence[Sequence[str]], *options: Mapping[str, Any]) -> None:
        """Choose the fastest setting and options for a job; each is timed as the best of four runs."""
        seconds = {}
        for setting, process in self._processes.items():
            for number, each in enumerate(options):
                seconds[setting, number] = min(process.translate(sources, **each)[0] for _ in range(4))
        setting, number = min(seconds, key=seconds.__getitem__)
        self._chosen = setting, options[number]
        self.described = f"{setting}, {dict(options[number])}"

    def translate(self, sources: Sequence[Sequence[str]]) -> tuple[float, list[list[str]]]:
        """Seconds in the child process, and the best translation of each source, with the chosen setting.

        Raises:
            ValueError: if `choose` was not called.
        """
        if self._chosen is None:
            raise ValueError("no setting is chosen; call choose() before translate().")
        setting, options = self._chosen
        seconds, results = self._processes[setting].translate(sources, **options)
        return seconds, [hypotheses[0] for hypotheses, *_ in results]

    def close(self) -> None:
        """End the processes."""
        for process in self._processes.values():
            process.close()
