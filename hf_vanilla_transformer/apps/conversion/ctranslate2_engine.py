"""CTranslate2 in the place of a model: its generate(), log-probabilities and attention."""

import copy
import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig, GenerationConfig
from transformers.generation import StoppingCriteria

from ...acceleration.fast_path_checks import has_avx512
from ...hub.model_folder import CERTIFICATE
from ...hub.native_folder import native_folder
from ...hub.user_cache import convert_once
from ...model.generation_settings import (
    SEARCH_SETTINGS,
    check_search,
    check_token_ids,
    length_penalty_of,
    limits_length,
    only_watches,
)
from ...support.user_errors import InputError
from ...translation.engine import Engine
from .ctranslate2 import QUANTIZATIONS, always_given, import_library, to_ctranslate2
from .ctranslate2_process import CTranslate2Process, Setting


# Arguments of generate() that CTranslate2 has, too.
_PASSED_ON = ("repetition_penalty", "no_repeat_ngram_size")
# Settings of the search that CTranslate2 lacks.
_LACKING = ("do_sample", "stop_strings")
_ARGUMENTS = (
    *(name for name in SEARCH_SETTINGS if name not in _LACKING),
    *("min_length", "min_new_tokens", *_PASSED_ON, "forced_bos_token_id", "bad_words_ids", "suppress_tokens"),
)
_LENGTH_LIMITS = [name for name, setting in SEARCH_SETTINGS.items() if setting.limits_length]
# Settings that change no token of a search: those of sampling, of caches, of outputs besides tokens. Scores are
# normalized in any case.
_WITHOUT_EFFECT = (
    *("temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff", "do_sample"),
    *("use_cache", "cache_implementation", "cache_config", "max_cache_len", "compile_config", "disable_compile"),
    *("output_attentions", "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate"),
    *("renormalize_logits", "remove_invalid_values", "pad_token_id", "bos_token_id", "decoder_start_token_id"),
    *("transformers_version", "_from_model_config", "_original_object_hash"),
)
# Processes of one setting; more would only share the processor.
_CONCURRENT = 2
_Rows = list[list[int]]


def load_ctranslate2(
    folder: str, compute_type: str | None, threads: int | None, revision: str | None, token: str | None
) -> "CTranslate2Engine":
    """Convert a trained folder for CTranslate2 if the user's cache does not hold the result, and load it.

    Arguments and errors are those of [`~hf_vanilla_transformer.load_engine`].
    """
    kind = compute_type or "float32"
    types = [name for name in QUANTIZATIONS if name in import_library().get_supported_compute_types("cpu")]
    if kind not in types:
        raise InputError(f'compute_type is "{kind}"; choose one of {", ".join(types)}, which this processor has.')
    local = native_folder(folder, revision, token)
    return CTranslate2Engine(local, converted(local, kind), kind, threads or torch.get_num_threads())


def converted(folder: Path, compute_type: str) -> Path:
    """Return the folder of CTranslate2 in the user's cache, made if it is not there."""

    def convert(source: str, output: str) -> None:
        to_ctranslate2(source, output, quantization=compute_type)

    return convert_once(compute_type, folder, {"ctranslate2": import_library().__version__}, convert)


class CTranslate2Engine(torch.nn.Module, Engine):
    """A model in CTranslate2, in a process of its own; see [`~hf_vanilla_transformer.load_engine`].

    Its search differs from the model's: a sentence ends when as many hypotheses have finished as there are beams
    (`early_stopping=True`), only those among the best `num_beams` candidates may finish, and the length limit of a
    batch is that of its longest source. Of the finished hypotheses, the best by the model's length penalty comes first.
    Probabilities are normalized again without suppressed tokens, as with `renormalize_logits=True`.
    """

    device = torch.device("cpu")

    def __init__(self, folder: Path, converted: Path, compute_type: str, threads: int):
        super().__init__()
        self.config: Any = AutoConfig.from_pretrained(folder)
        # Without a file, transformers' defaults.
        has_settings = (folder / "generation_config.json").is_file()
        self.generation_config: Any = GenerationConfig.from_pretrained(folder) if has_settings else GenerationConfig()
        self.generation_config.early_stopping = True
        self._folder, self._compute_type, self._threads = converted, compute_type, threads
        certificate = json.loads((converted / CERTIFICATE).read_text(encoding="utf-8"))
        self.max_positions = certificate["max_positions"]
        # Empty if CTranslate2 cannot average these heads, and in folders of an earlier version.
        self.alignment_heads = [(layer, head) for layer, head in certificate.get("alignment_heads", [])]
        names = [converted / f"{side}_vocabulary.json" for side in ("source", "target")]
        if not names[0].is_file():
            names = [converted / "shared_vocabulary.json"] * 2
        self._source, self._target = (json.loads(path.read_text(encoding="utf-8")) for path in names)
        self._ids = {text: token for token, text in enumerate(self._target)}
        self._processes: dict[Setting, list[CTranslate2Process]] = {}
        self._starting = threading.Lock()

    def generate(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        stopping_criteria: Sequence[StoppingCriteria] = (),
        **kwargs: Any,
    ) -> torch.LongTensor:
        """Translate a batch, as the model's `generate()` does.

        Args:
            input_ids, attention_mask (`torch.LongTensor` of shape `(batch, source)`): tokens; 0 for padding.
            stopping_criteria: criteria that only watch the search, see
                [`~hf_vanilla_transformer.model.generation_settings.only_watches`]. They are called with the sources
                several times per second; the error of one ends the search.
            **kwargs: settings of the search, in the place of those of `generation_config`: beams, lengths, length
                penalty, repetitions, and tokens that are forced, suppressed, or end a translation.

        Returns:
            `torch.LongTensor` of shape `(batch * num_return_sequences, target)`: each row begins with the start token.

        Raises:
            RuntimeError: if CTranslate2 fails.
            ValueError: if CTranslate2 has no such setting, or a sentence is longer than its table of positions.
        """
        settings = self._settings(kwargs)
        for criterion in stopping_criteria:
            if not only_watches(criterion):
                raise InputError(
                    f"the stopping criterion {type(criterion).__name__} may stop hypotheses, which CTranslate2 cannot "
                    "do; set its stops_hypotheses = False if it does not, or use the engine torch."
                )

        def call_criteria() -> None:
            for criterion in stopping_criteria:
                criterion(input_ids, None)

        watch = call_criteria if stopping_criteria else None
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        rows = [ids[real.bool()].tolist() for ids, real in zip(input_ids, mask, strict=True)]
        sources, longest = self._texts(rows, "source"), max(map(len, rows))
        beams, count = settings.num_beams or 1, settings.num_return_sequences or 1
        if count > beams:
            raise InputError(f"num_return_sequences is {count}, but there are {beams} num_beams; give fewer.")
        limit = self._limit(settings, longest)
        least = max(settings.min_new_tokens or 0, (settings.min_length or 1) - 1)
        ends = settings.eos_token_id if isinstance(settings.eos_token_id, list) else [settings.eos_token_id]
        ends = [self.config.eos_token_id if end is None else end for end in ends]
        options = {
            "beam_size": beams,
            "num_hypotheses": beams,
            "max_decoding_length": limit,
            "min_decoding_length": min(least, limit),
            "end_token": [self._target[token] for token in ends],
            **{name: getattr(settings, name) for name in _PASSED_ON if getattr(settings, name) is not None},
            **always_given(settings, self._target),
        }
        if settings.forced_bos_token_id is not None:
            options["target_prefix"] = [[self._target[settings.forced_bos_token_id]]] * len(rows)
        # With length_penalty 1 a score is log P divided by the length, from which the model's own penalty is computed.
        always = {"max_batch_size": 0, "length_penalty": 1, "return_scores": True, "return_end_token": True}
        _, results = self._process(len(rows)).translate(sources, watch=watch, **always, **options)
        penalty, sequences = length_penalty_of(settings), list[torch.Tensor]()
        for texts, scores, _ in results:
            ranks = [-each * len(text) / penalty(max(1, len(text))) for text, each in zip(texts, scores, strict=True)]
            for index in sorted(range(len(texts)), key=ranks.__getitem__)[:count]:
                ids = [self._ids[token] for token in texts[index]]
                if len(ids) == limit and ids[-1] not in ends and settings.forced_eos_token_id is not None:
                    ids[-1] = settings.forced_eos_token_id
                sequences.append(torch.tensor([self.config.decoder_start_token_id, *ids]))
        found: Any = pad_sequence(sequences, batch_first=True, padding_value=self.config.pad_token_id)
        return found

    def _limit(self, settings: Any, longest: int) -> int:
        """The most tokens of a translation, of a batch whose longest source has so many."""
        if settings.max_new_tokens:
            limit = settings.max_new_tokens
        elif (offset := getattr(settings, "max_length_offset", None)) is not None and not limits_length(settings):
            limit = longest + offset
        else:
            limit = (settings.max_length or GenerationConfig().max_length or self.max_positions) - 1
        return min(limit, self.max_positions)

    def log_probs(self, sources: _Rows, targets: _Rows) -> list[list[float]]:
        """Log-probabilities of the tokens of each target, which ends in `</s>`, in nats; raises as `generate` does."""
        texts = self._texts(sources, "source"), self._texts(targets, "target")
        found = self._process(len(sources)).score(*texts)
        return [log_probs[: len(row)] for log_probs, row in zip(found, targets, strict=True)]

    def attention(self, sources: _Rows, targets: _Rows) -> list[torch.Tensor]:
        """The cross-attention `(target, source)` of `alignment_heads`, averaged, in the step that predicts each token.

        A target need not end in `</s>`. Raises as `generate` does.
        """
        texts, prefixes = self._texts(sources, "source"), self._texts(targets, "target")
        # Greedy search after a forced prefix. In a beam search over a batch, the attention of the first step is wrong
        # where the source is padded (CTranslate2 4.8).
        options = {"beam_size": 1, "max_decoding_length": 1 + max(map(len, prefixes)), "max_batch_size": 0}
        always = {"return_attention": True, "return_end_token": True, **always_given(GenerationConfig(), [])}
        _, found = self._process(len(sources)).translate(texts, None, target_prefix=prefixes, **always, **options)
        return [torch.tensor(each[: len(row)]) for (_, _, (each,)), row in zip(found, targets, strict=True)]

    def close(self) -> None:
        """End the processes, which otherwise end with this one."""
        while self._processes:
            for process in self._processes.popitem()[1]:
                process.close()

    def _settings(self, given: dict[str, Any]) -> Any:
        for name, value in given.items():
            if name not in _ARGUMENTS and not (name == "do_sample" and not value):
                raise InputError(f"{name} is {value!r}, but the engine has {', '.join(_ARGUMENTS)} only.")
        settings = copy.copy(self.generation_config)
        if any(given.get(name) for name in _LENGTH_LIMITS):
            # A limit of the call replaces all limits of the model.
            for name in _LENGTH_LIMITS:
                setattr(settings, name, None)
        for name, value in given.items():
            setattr(settings, name, value)
        check_search(vars(settings))
        if settings.early_stopping is not True:
            raise InputError(
                f"early_stopping is {settings.early_stopping!r}, but CTranslate2 ends a sentence when as many "
                "hypotheses have finished as there are beams, which is True; leave it out, or use the engine torch."
            )
        if settings.do_sample:
            raise InputError("do_sample is True, but the engine searches only; use the engine torch.")
        if settings.decoder_start_token_id not in (None, start := self.config.decoder_start_token_id):
            raise InputError(
                f"decoder_start_token_id is {settings.decoder_start_token_id}, but the engine starts from {start}; "
                "change it in config.json, or use the engine torch."
            )
        check_token_ids(settings, len(self._target))
        defaults = GenerationConfig._get_default_generation_params()
        for name, value in vars(settings).items():
            is_set = value is not None and value != defaults.get(name)
            if is_set and name not in _ARGUMENTS + _WITHOUT_EFFECT:
                raise InputError(f"{name} is {value!r}, which the engine lacks; use the engine torch.")
        return settings

    def _texts(self, rows: _Rows, side: str) -> list[list[str]]:
        """The tokens of sources, or of targets without `</s>`, which CTranslate2 adds."""
        length = max(map(len, rows))
        if length > self.max_positions:
            raise InputError(
                f"a {side} has {length:,} tokens, but the engine has {self.max_positions:,} positions; split the "
                "sentence, or use the engine torch."
            )
        if side == "source":
            return [[self._source[token] for token in row] for row in rows]
        return [[self._target[token] for token in row if token != self.config.eos_token_id] for row in rows]

    def _process(self, rows: int) -> CTranslate2Process:
        """A process for a batch: sentences in parallel, or threads in parallel where there are few sentences.

        If all work, a second one, so that a short call does not wait for a long one; then the one with the newest job.
        """
        workers = self._threads if rows >= 2 * self._threads else 1
        # CTranslate2 uses AVX2 unless it is told otherwise.
        instructions = "AVX512" if has_avx512() and "CT2_FORCE_CPU_ISA" not in os.environ else ""
        setting = Setting(workers, self._threads // workers, instructions)
        with self._starting:
            processes = [each for each in self._processes.get(setting, []) if not each.has_ended]
            if len(processes) < _CONCURRENT and all(each.is_busy for each in processes):
                processes.append(CTranslate2Process(self._folder, self._compute_type, setting))
            self._processes[setting] = processes
            return max(processes, key=lambda each: each.called)
