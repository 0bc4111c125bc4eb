"""Translate, score and align with CTranslate2, an inference engine, instead of PyTorch."""

import copy
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
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
from .ctranslate2 import QUANTIZATIONS, fixed_translate_options, import_library, to_ctranslate2
from .ctranslate2_process import CTranslate2Process, Hypotheses, Setting
from .parity_certificate import Rows


# Arguments of generate() that CTranslate2 accepts under the same names.
_SHARED_ARGUMENTS = ("repetition_penalty", "no_repeat_ngram_size")
# Search settings that the engine does not support.
_MISSING_SETTINGS = ("do_sample", "stop_strings")
# Arguments that the engine's generate() accepts.
_ARGUMENTS = (
    *(name for name in SEARCH_SETTINGS if name not in _MISSING_SETTINGS),
    "min_length",
    "min_new_tokens",
    *_SHARED_ARGUMENTS,
    "forced_bos_token_id",
    "bad_words_ids",
    "suppress_tokens",
)
_LENGTH_LIMITS = [name for name, setting in SEARCH_SETTINGS.items() if setting.limits_length]
# Settings that do not change the tokens that a search returns, so generation_config.json may give them any value.
_WITHOUT_EFFECT = (
    # Sampling:
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "top_h",
    "typical_p",
    "epsilon_cutoff",
    "eta_cutoff",
    "do_sample",
    # Caches and compilation:
    "use_cache",
    "cache_implementation",
    "cache_config",
    "max_cache_len",
    "compile_config",
    "disable_compile",
    # Additional outputs:
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "output_logits",
    "return_dict_in_generate",
    # Normalization of scores, which CTranslate2 always applies:
    "renormalize_logits",
    "remove_invalid_values",
    # Tokens that the engine reads from config.json:
    "pad_token_id",
    "bos_token_id",
    "decoder_start_token_id",
    # Internal records of transformers:
    "transformers_version",
    "_from_model_config",
    "_original_object_hash",
)
# The largest number of processes with the same setting. More processes would only compete for the CPU.
_MOST_PROCESSES = 2


def load_ctranslate2(
    folder: str, compute_type: str | None, threads: int | None, revision: str | None, token: str | None
) -> "CTranslate2Engine":
    """Load a trained model into CTranslate2, and convert it first unless the user's cache already holds the result.

    [`~hf_vanilla_transformer.load_engine`] describes the arguments and the errors.
    """
    if compute_type is None:
        compute_type = "float32"
    supported_types = import_library().get_supported_compute_types("cpu")
    choices = [name for name in QUANTIZATIONS if name in supported_types]
    if compute_type not in choices:
        raise InputError(
            f'compute_type is "{compute_type}"; choose one of {", ".join(choices)}, which this processor has.'
        )
    local_folder = native_folder(folder, revision, token)
    converted_folder = converted(local_folder, compute_type)
    return CTranslate2Engine(local_folder, converted_folder, compute_type, threads or torch.get_num_threads())


def converted(folder: Path, compute_type: str) -> Path:
    """Return the folder in the user's cache that holds the CTranslate2 version of a model.

    If the cache does not hold it yet, the model in `folder` is converted first.
    """

    def convert(source: str, output: str) -> None:
        to_ctranslate2(source, output, quantization=compute_type)

    return convert_once(compute_type, folder, {"ctranslate2": import_library().__version__}, convert)


class CTranslate2Engine(torch.nn.Module, Engine):
    """An engine that runs a trained model with CTranslate2, in child processes.

    You get it from [`~hf_vanilla_transformer.load_engine`]. Its beam search differs from the PyTorch model's in these
    points:

    - A sentence is finished when the number of its finished hypotheses reaches the number of beams
      (`early_stopping=True`).
    - Only the best `num_beams` candidates of a step may finish.
    - All sentences of a batch have the same length limit, which follows from the longest source.
    - If tokens are suppressed, the probabilities of the other tokens are renormalized, as with
      `renormalize_logits=True`.

    Finished hypotheses are ranked by the model's own length penalty.

    Args:
        folder (`Path`): the folder of the trained model, from which the configurations are read.
        converted (`Path`): the folder of the same model for CTranslate2.
        compute_type (`str`): the precision, such as `"float32"` or `"int8"`.
        threads (`int`): the number of CPU threads.
    """

    device = torch.device("cpu")

    def __init__(self, folder: Path, converted: Path, compute_type: str, threads: int):
        super().__init__()
        self.config: Any = AutoConfig.from_pretrained(folder)
        if (folder / "generation_config.json").is_file():
            self.generation_config: Any = GenerationConfig.from_pretrained(folder)
        else:
            self.generation_config = GenerationConfig()
        self.generation_config.early_stopping = True
        self._folder = converted
        self._compute_type = compute_type
        self._threads = threads

        certificate = json.loads((converted / CERTIFICATE).read_text(encoding="utf-8"))
        self.max_positions = certificate["max_positions"]
        # Empty if CTranslate2 cannot average the alignment heads, or if an earlier version wrote the folder.
        self.alignment_heads = [(layer, head) for layer, head in certificate.get("alignment_heads", [])]

        # CTranslate2 writes two vocabularies, or one if they are equal.
        source_path = converted / "source_vocabulary.json"
        target_path = converted / "target_vocabulary.json"
        if not source_path.is_file():
            source_path = target_path = converted / "shared_vocabulary.json"
        self._source_texts: list[str] = json.loads(source_path.read_text(encoding="utf-8"))
        self._target_texts: list[str] = json.loads(target_path.read_text(encoding="utf-8"))
        self._target_ids = {text: token for token, text in enumerate(self._target_texts)}

        self._processes: dict[Setting, list[CTranslate2Process]] = {}
        # Held while a process is chosen or started.
        self._choosing = threading.Lock()

    def generate(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        stopping_criteria: Sequence[StoppingCriteria] = (),
        **kwargs: Any,
    ) -> torch.LongTensor:
        """Translate a batch of tokenized sources with greedy search or beam search.

        Args:
            input_ids, attention_mask (`torch.LongTensor` of shape `(batch, source)`): the sources' token ids, and their
                mask, which is 1 for tokens and 0 for padding.
            stopping_criteria: criteria that only watch the search, for example to show progress; see
                [`~hf_vanilla_transformer.model.generation_settings.only_watches`]. They are called with `input_ids`
                several times per second. If one of them raises an error, the search ends.
            **kwargs: search settings that override `generation_config`: the number of beams, length limits, the length
                penalty, limits on repetitions, and tokens that are forced, are suppressed, or end a translation.

        Returns:
            `torch.LongTensor` of shape `(batch * num_return_sequences, target)`: token ids. Each row begins with the
            start token, and is padded on the right.

        Raises:
            RuntimeError: if CTranslate2 fails.
            ValueError: if the engine does not support a setting, or if a source is longer than its position table.
        """
        settings = self._merge_settings(kwargs)
        watch = _make_watch(stopping_criteria, input_ids)
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        sources = [row[is_token.bool()].tolist() for row, is_token in zip(input_ids, mask, strict=True)]
        source_texts = self._to_source_texts(sources)
        num_beams = settings.num_beams or 1
        count = settings.num_return_sequences or 1
        if count > num_beams:
            raise InputError(f"num_return_sequences is {count}, but there are {num_beams} num_beams; give fewer.")

        longest_source = max(len(source) for source in sources)
        max_length = self._max_length(settings, longest_source)
        end_tokens = self._end_tokens(settings)
        options = self._search_options(settings, num_beams, max_length, end_tokens)
        if settings.forced_bos_token_id is not None:
            first_token = self._target_texts[settings.forced_bos_token_id]
            options["target_prefix"] = [[first_token]] * len(sources)
        _, results = self._choose_process(len(sources)).translate(source_texts, watch, **options)

        length_penalty = length_penalty_of(settings)
        sequences = []
        for hypotheses in results:
            for tokens in _rank(hypotheses, length_penalty)[:count]:
                ids = [self._target_ids[token] for token in tokens]
                is_truncated = len(ids) == max_length and ids[-1] not in end_tokens
                if is_truncated and settings.forced_eos_token_id is not None:
                    # transformers forces this token at the length limit.
                    ids[-1] = settings.forced_eos_token_id
                sequences.append(torch.tensor([self.config.decoder_start_token_id, *ids]))
        padded: Any = pad_sequence(sequences, batch_first=True, padding_value=self.config.pad_token_id)
        return padded

    def _search_options(
        self, settings: GenerationConfig, num_beams: int, max_length: int, end_tokens: Sequence[int]
    ) -> dict[str, Any]:
        """Convert search settings of `generate()` to arguments of CTranslate2's `translate_batch`."""
        # min_length counts the start token, but min_new_tokens does not.
        min_length = max(settings.min_new_tokens or 0, (settings.min_length or 1) - 1)
        options = {
            # All sources form one batch, which `CTranslate2Process` splits among the workers.
            "max_batch_size": 0,
            "beam_size": num_beams,
            # All hypotheses are returned, because the model's own length penalty ranks them.
            "num_hypotheses": num_beams,
            # With this length penalty, a score is log P divided by the length. See `_rank`.
            "length_penalty": 1,
            "return_scores": True,
            "max_decoding_length": max_length,
            "min_decoding_length": min(min_length, max_length),
            "end_token": [self._target_texts[token] for token in end_tokens],
            "return_end_token": True,
            **fixed_translate_options(settings, self._target_texts),
        }
        for name in _SHARED_ARGUMENTS:
            value = getattr(settings, name)
            if value is not None:
                options[name] = value
        return options

    def _max_length(self, settings: GenerationConfig, longest_source: int) -> int:
        """Return the maximum number of tokens in a translation, not counting the start token.

        The limit is the same for all sentences of a batch. `longest_source` is the length of its longest source.
        """
        offset = getattr(settings, "max_length_offset", None)
        if settings.max_new_tokens:
            max_length = settings.max_new_tokens
        elif offset is not None and not limits_length(settings):
            # The paper's length limit, which depends on the length of the source (section 6.1).
            max_length = longest_source + offset
        else:
            # max_length counts the start token.
            max_length = (settings.max_length or GenerationConfig().max_length or self.max_positions) - 1
        return min(max_length, self.max_positions)

    def _end_tokens(self, settings: GenerationConfig) -> list[int]:
        """Return the ids of the tokens that end a translation: those in the settings, or else the model's EOS."""
        end_tokens = settings.eos_token_id
        if not isinstance(end_tokens, list):
            end_tokens = [end_tokens]
        return [self.config.eos_token_id if token is None else token for token in end_tokens]

    def log_probs(self, sources: Rows, targets: Rows) -> list[list[float]]:
        """Return the log-probabilities of each target's tokens, in nats.

        The targets end in `</s>`. Raises the same errors as `generate`.
        """
        source_texts = self._to_source_texts(sources)
        target_texts = self._to_target_texts(targets)
        scores = self._choose_process(len(sources)).score(source_texts, target_texts)
        return [log_probs[: len(target)] for log_probs, target in zip(scores, targets, strict=True)]

    def attention(self, sources: Rows, targets: Rows) -> list[torch.Tensor]:
        """Return each pair's cross-attention weights, with shape `(target, source)`, averaged over `alignment_heads`.

        Row i contains the weights in the decoding step that predicts target token i. A target need not end in `</s>`.
        Raises the same errors as `generate`.
        """
        source_texts = self._to_source_texts(sources)
        prefixes = self._to_target_texts(targets)
        longest_prefix = max(len(prefix) for prefix in prefixes)
        # CTranslate2 returns no attention under teacher forcing, so each target is forced as the prefix of a
        # translation. One more step computes the attention for </s>. The search is greedy because, in a beam search
        # over a batch, the attention of the first step is wrong where the source is padded (CTranslate2 4.8).
        _, results = self._choose_process(len(sources)).translate(
            source_texts,
            target_prefix=prefixes,
            beam_size=1,
            max_decoding_length=longest_prefix + 1,
            max_batch_size=0,
            return_attention=True,
            return_end_token=True,
            **fixed_translate_options(GenerationConfig(), []),
        )
        matrices = []
        for hypotheses, target in zip(results, targets, strict=True):
            best_attention = hypotheses.attention[0]
            matrices.append(torch.tensor(best_attention[: len(target)]))
        return matrices

    def close(self) -> None:
        """End the child processes. Without this call, they run until the parent process ends."""
        while self._processes:
            _, processes = self._processes.popitem()
            for process in processes:
                process.close()

    def _merge_settings(self, arguments: Mapping[str, Any]) -> Any:
        """Merge `generation_config` with the arguments of a `generate()` call, which take precedence.

        Raises ValueError if the engine does not support the settings.
        """
        for name, value in arguments.items():
            turns_sampling_off = name == "do_sample" and not value
            if name not in _ARGUMENTS and not turns_sampling_off:
                raise InputError(f"{name} is {value!r}, but the engine has {', '.join(_ARGUMENTS)} only.")
        settings = copy.copy(self.generation_config)
        if any(arguments.get(name) for name in _LENGTH_LIMITS):
            # A length limit in the call replaces all length limits in generation_config.
            for name in _LENGTH_LIMITS:
                setattr(settings, name, None)
        for name, value in arguments.items():
            setattr(settings, name, value)
        self._check_settings(settings)
        return settings

    def _check_settings(self, settings: GenerationConfig) -> None:
        """Raise ValueError if the engine does not support one of the settings."""
        check_search(vars(settings))
        if settings.early_stopping is not True:
            raise InputError(
                f"early_stopping is {settings.early_stopping!r}, but CTranslate2 ends a sentence when as many "
                "hypotheses have finished as there are beams, which is True; leave it out, or use the engine torch."
            )
        if settings.do_sample:
            raise InputError("do_sample is True, but the engine cannot sample; use the engine torch.")
        start_token = self.config.decoder_start_token_id
        if settings.decoder_start_token_id not in (None, start_token):
            raise InputError(
                f"decoder_start_token_id is {settings.decoder_start_token_id}, but the engine starts from "
                f"{start_token}; change it in config.json, or use the engine torch."
            )
        check_token_ids(settings, len(self._target_texts))
        defaults = GenerationConfig._get_default_generation_params()
        for name, value in vars(settings).items():
            is_set = value is not None and value != defaults.get(name)
            if is_set and name not in _ARGUMENTS and name not in _WITHOUT_EFFECT:
                raise InputError(f"{name} is {value!r}, which the engine lacks; use the engine torch.")

    def _to_source_texts(self, sources: Rows) -> list[list[str]]:
        """Convert source token ids to token texts. Raises ValueError if a source is too long."""
        self._check_length("source", sources)
        return [[self._source_texts[token] for token in source] for source in sources]

    def _to_target_texts(self, targets: Rows) -> list[list[str]]:
        """Convert target token ids to token texts, without `</s>`, which CTranslate2 appends itself.

        Raises ValueError if a target is too long.
        """
        self._check_length("target", targets)
        eos = self.config.eos_token_id
        return [[self._target_texts[token] for token in target if token != eos] for target in targets]

    def _check_length(self, side: str, rows: Rows) -> None:
        """Raise ValueError if a sentence is longer than CTranslate2's position table.

        `side` is `"source"` or `"target"`, and is used in the message.
        """
        length = max(len(row) for row in rows)
        if length > self.max_positions:
            raise InputError(
                f"a {side} has {length:,} tokens, but the engine has {self.max_positions:,} positions; split the "
                "sentence, or use the engine torch."
            )

    def _choose_process(self, batch_size: int) -> CTranslate2Process:
        """Return the child process for the next batch, and start one if necessary.

        A batch with at least two sentences per thread is split among workers with one thread each. For a smaller batch,
        one worker uses all threads.

        If the process with this setting is busy, a second one is used, so that a short call need not wait for a long
        one. If both are busy, the one whose current call started last is used.
        """
        has_two_sentences_per_thread = batch_size >= 2 * self._threads
        workers = self._threads if has_two_sentences_per_thread else 1
        instructions = ""
        # By default, CTranslate2 uses at most AVX2. An instruction set that the user has chosen takes precedence.
        if has_avx512() and "CT2_FORCE_CPU_ISA" not in os.environ:
            instructions = "AVX512"
        setting = Setting(workers, self._threads // workers, instructions)
        with self._choosing:
            processes = [process for process in self._processes.get(setting, []) if not process.has_ended]
            if len(processes) < _MOST_PROCESSES and all(process.is_busy for process in processes):
                processes.append(CTranslate2Process(self._folder, self._compute_type, setting))
            self._processes[setting] = processes
            # `called` is infinite for idle processes, so they are chosen before busy ones.
            return max(processes, key=lambda process: process.called)


def _make_watch(criteria: Sequence[StoppingCriteria], input_ids: torch.Tensor) -> Callable[[], None] | None:
    """Return a function that calls all stopping criteria with `input_ids`, or None if there are no criteria.

    Raises ValueError if a criterion may stop hypotheses, which CTranslate2 does not support.
    """
    for criterion in criteria:
        if not only_watches(criterion):
            raise InputError(
                f"the stopping criterion {type(criterion).__name__} may stop hypotheses, which CTranslate2 cannot "
                "do; set its stops_hypotheses = False if it does not, or use the engine torch."
            )
    if not criteria:
        return None

    def call_criteria() -> None:
        for criterion in criteria:
            criterion(input_ids, None)

    return call_criteria


def _rank(hypotheses: Hypotheses, length_penalty: Callable[[int], float]) -> list[list[str]]:
    """Return the tokens of one source's hypotheses, sorted by their length-penalized scores, best first.

    `length_penalty` maps the length of a hypothesis to the divisor of log P. CTranslate2's scores are log P divided by
    the length, so they are multiplied by the length first.
    """
    penalized_scores = []
    for tokens, score in zip(hypotheses.tokens, hypotheses.scores, strict=True):
        log_prob = score * len(tokens)
        penalized_scores.append(log_prob / length_penalty(max(1, len(tokens))))
    # The sort is stable, so hypotheses with equal scores keep CTranslate2's order.
    order = sorted(range(len(penalized_scores)), key=lambda index: -penalized_scores[index])
    return [hypotheses.tokens[index] for index in order]
