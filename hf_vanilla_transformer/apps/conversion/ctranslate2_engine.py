"""Translate, score and align sentences with the inference engine CTranslate2 instead of PyTorch."""

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


# Settings of the search that CTranslate2 lacks.
_MISSING_SETTINGS = ("do_sample", "stop_strings")
# Arguments that the engine's generate() supports: the other settings of the search, and settings that are read by
# transformers only.
_SUPPORTED_ARGUMENTS = (
    *(name for name in SEARCH_SETTINGS if name not in _MISSING_SETTINGS),
    "min_length",
    "min_new_tokens",
    "repetition_penalty",
    "no_repeat_ngram_size",
    "forced_bos_token_id",
    "bad_words_ids",
    "suppress_tokens",
)
_LENGTH_LIMITS = [name for name, setting in SEARCH_SETTINGS.items() if setting.limits_length]
# Settings that do not change the tokens that a search returns, so generation_config.json may give them any value.
_SETTINGS_WITHOUT_EFFECT = (
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
    """Load a trained model into CTranslate2. It is converted first, unless the converted model is already cached.

    [`~hf_vanilla_transformer.load_engine`] describes the arguments and the errors.
    """
    if compute_type is None:
        compute_type = "float32"
    _check_compute_type(compute_type)
    # By default, the engine has as many threads as PyTorch.
    if not threads:
        threads = torch.get_num_threads()
    # `folder` may be a name on the Hub, and `local_folder` is the folder on this machine.
    local_folder = native_folder(folder, revision, token)
    converted_folder = converted(local_folder, compute_type)
    return CTranslate2Engine(local_folder, converted_folder, compute_type, threads)


def _check_compute_type(compute_type: str) -> None:
    """Raise ValueError if an export or this processor does not support the precision."""
    supported_types = import_library().get_supported_compute_types("cpu")
    choices = [name for name in QUANTIZATIONS if name in supported_types]
    if compute_type not in choices:
        raise InputError(
            f'compute_type is "{compute_type}"; choose one of {", ".join(choices)}, which this processor has.'
        )


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
        # `folder` has the trained model in this package's format, and `converted` has the same model for CTranslate2.
        self.config: Any = AutoConfig.from_pretrained(folder)
        self.generation_config: Any = _load_generation_config(folder)
        self._converted_folder = converted
        self._compute_type = compute_type
        self._threads = threads

        certificate = json.loads((converted / CERTIFICATE).read_text(encoding="utf-8"))
        # The number of rows in CTranslate2's position table, which limits the length of sources and translations.
        self.max_positions = certificate["max_positions"]
        # Empty if CTranslate2 cannot average the alignment heads, or if an earlier version wrote the folder.
        self.alignment_heads = [(layer, head) for layer, head in certificate.get("alignment_heads", [])]

        # The text of each token, in the order of the token ids.
        self._source_texts, self._target_texts = _read_vocabularies(converted)
        self._target_token_ids = {text: token_id for token_id, text in enumerate(self._target_texts)}

        # The running child processes by their setting, i.e. by how they use the CPU.
        self._processes: dict[Setting, list[CTranslate2Process]] = {}
        # Held while a process is chosen or started, so that several threads do not change `_processes` at once.
        self._processes_lock = threading.Lock()

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
        sources = _remove_padding(input_ids, attention_mask)
        source_texts = self._to_source_texts(sources)
        num_returned = _choose_num_returned(settings)
        longest_source = max(len(source) for source in sources)
        # Like the other lengths here, it does not count the start token.
        max_length = self._max_length(settings, longest_source)
        options = self._search_options(settings, max_length, len(sources))
        process = self._choose_process(len(sources))
        _seconds, hypotheses_by_source = process.translate(source_texts, watch, **options)

        length_penalty = length_penalty_of(settings)
        translations = []
        for hypotheses in hypotheses_by_source:
            best_first = _rank(hypotheses, length_penalty)
            for token_texts in best_first[:num_returned]:
                token_ids = self._to_token_ids(token_texts, settings, max_length)
                translations.append(torch.tensor([self.config.decoder_start_token_id, *token_ids]))
        padded: Any = pad_sequence(translations, batch_first=True, padding_value=self.config.pad_token_id)
        return padded

    def _to_token_ids(self, token_texts: Sequence[str], settings: GenerationConfig, max_length: int) -> list[int]:
        """Convert the token texts of a hypothesis to token ids, and apply `forced_eos_token_id` as transformers does.

        transformers replaces the last token by `forced_eos_token_id` if the hypothesis reaches the length limit,
        `max_length`, without a token that ends it.
        """
        token_ids = [self._target_token_ids[text] for text in token_texts]
        has_longest_length = len(token_ids) == max_length
        is_truncated = has_longest_length and token_ids[-1] not in self._end_tokens(settings)
        if is_truncated and settings.forced_eos_token_id is not None:
            token_ids[-1] = settings.forced_eos_token_id
        return token_ids

    def _search_options(self, settings: GenerationConfig, max_length: int, num_sources: int) -> dict[str, Any]:
        """Convert search settings of `generate()` to arguments of CTranslate2's `translate_batch`.

        Args:
            settings: the search settings.
            max_length: the maximum number of tokens in a translation, not counting the start token.
            num_sources: the number of sources in the batch.
        """
        num_beams = settings.num_beams or 1
        return {
            # All sources form one batch, which `CTranslate2Process` splits among the workers.
            "max_batch_size": 0,
            "beam_size": num_beams,
            # All hypotheses are returned, because the model's own length penalty ranks them.
            "num_hypotheses": num_beams,
            # With this length penalty, a score is log P divided by the length. See `_rank`.
            "length_penalty": 1,
            "return_scores": True,
            # Neither of these lengths counts the start token.
            "max_decoding_length": max_length,
            "min_decoding_length": min(_min_length(settings), max_length),
            "end_token": [self._target_texts[token] for token in self._end_tokens(settings)],
            "return_end_token": True,
            **fixed_translate_options(settings, self._target_texts),
            **self._optional_search_options(settings, num_sources),
        }

    def _optional_search_options(self, settings: GenerationConfig, num_sources: int) -> dict[str, Any]:
        """Return the arguments of `translate_batch` for those settings that are not None."""
        options: dict[str, Any] = {}
        if settings.repetition_penalty is not None:
            options["repetition_penalty"] = settings.repetition_penalty
        if settings.no_repeat_ngram_size is not None:
            options["no_repeat_ngram_size"] = settings.no_repeat_ngram_size
        if settings.forced_bos_token_id is not None:
            # Each translation begins with a prefix that consists of this one token.
            first_token = self._target_texts[settings.forced_bos_token_id]
            options["target_prefix"] = [[first_token]] * num_sources
        return options

    def _max_length(self, settings: GenerationConfig, longest_source: int) -> int:
        """Return the maximum number of tokens in a translation, not counting the start token.

        `longest_source` is the number of tokens in the longest source. All sources of a batch have the same limit.
        """
        limit = self._choose_limit(settings, longest_source)
        # A translation of n tokens needs only n positions, because the decoder reads the start token, but not the last
        # token of the translation.
        return min(limit, self.max_positions)

    def _choose_limit(self, settings: GenerationConfig, longest_source: int) -> int:
        """Return the limit that the search settings, or else the defaults, set for the tokens after the start token.

        `max_new_tokens` and `max_length` take precedence over `max_length_offset`. For example, if the longest source
        has 10 tokens and the position table has 2,048 rows:

        | setting                | counts the start token | result  |
        |------------------------|------------------------|---------|
        | `max_new_tokens=20`    | no                     | 20      |
        | `max_length_offset=50` | no                     | 10 + 50 |
        | `max_length=20`        | yes                    | 20 - 1  |
        | no setting or default  |                        | 2,047   |
        """
        if settings.max_new_tokens:
            return settings.max_new_tokens
        # The settings of other models than this package's have no offset.
        max_length_offset: int | None = getattr(settings, "max_length_offset", None)
        if max_length_offset is not None and not limits_length(settings):
            # This is the paper's limit: the length of the source plus 50 (section 6.1).
            return longest_source + max_length_offset
        if settings.max_length:
            return settings.max_length - 1
        # Some versions of transformers have a default limit, which counts the start token, too.
        default_length = GenerationConfig().max_length
        if default_length:
            return default_length - 1
        return self.max_positions - 1

    def _end_tokens(self, settings: GenerationConfig) -> list[int]:
        """Return the ids of the tokens that end a translation. By default, the only one is the model's EOS."""
        end_tokens = settings.eos_token_id
        if end_tokens is None:
            return [self.config.eos_token_id]
        if isinstance(end_tokens, list):
            return end_tokens
        return [end_tokens]

    def log_probs(self, sources: Rows, targets: Rows) -> list[list[float]]:
        """Return the log-probabilities of each target's tokens, in nats.

        A target ends in `</s>`, unless it was truncated. Raises the same errors as `generate`.
        """
        source_texts = self._to_source_texts(sources)
        target_texts = self._to_target_texts(targets)
        process = self._choose_process(len(sources))
        # CTranslate2 appends </s> to each target, and scores it as well.
        scores_with_end = process.score(source_texts, target_texts)
        scores = []
        for token_scores, target in zip(scores_with_end, targets, strict=True):
            # A target that was truncated does not end in </s>, so the score of </s> is left out.
            scores.append(token_scores[: len(target)])
        return scores

    def attention(self, sources: Rows, targets: Rows) -> list[torch.Tensor]:
        """Return the cross-attention weights of each sentence pair, averaged over `alignment_heads`.

        The weights of a pair have the shape `(target, source)`. Row i contains the weights in the decoding step that
        predicts target token i. Raises the same errors as `generate`.

        CTranslate2 returns no attention when it scores a given target. Therefore, this method starts a translation that
        is forced to begin with the target without `</s>`, its prefix. In the step after its prefix, a search attends as
        it does when it predicts `</s>`, whichever token it really chooses. If the prefix is shorter than the longest
        one, needless steps may follow.

        Args:
            sources, targets: the token ids of at least one pair, without padding. A target has no start token, and need
                not end in `</s>`. `alignment_heads` must not be empty: otherwise, CTranslate2 returns the weights of a
                head that was not chosen for alignment.
        """
        source_texts = self._to_source_texts(sources)
        # `_to_target_texts` removes </s>.
        prefixes = self._to_target_texts(targets)
        longest_prefix = max(len(prefix) for prefix in prefixes)
        process = self._choose_process(len(sources))
        _seconds, hypotheses_by_source = process.translate(
            source_texts,
            target_prefix=prefixes,
            # One more step computes the attention for the </s> of the longest target.
            max_decoding_length=longest_prefix + 1,
            # In a beam search over a batch, the attention of the first step is wrong where the source is padded
            # (CTranslate2 4.8), so the search is greedy.
            beam_size=1,
            # 0 means that sources are not truncated.
            max_input_length=0,
            # 0 means that `CTranslate2Process` splits the sources evenly among its workers.
            max_batch_size=0,
            return_attention=True,
            return_end_token=True,
        )
        attention_matrices = []
        for hypotheses, target in zip(hypotheses_by_source, targets, strict=True):
            # Greedy search has one hypothesis. Its attention weights are a list with one row for each step.
            step_rows = hypotheses.attention[0]
            # The search may have continued a target with more tokens, whose rows are removed.
            attention_matrices.append(torch.tensor(step_rows[: len(target)]))  # (target, source)
        return attention_matrices

    def close(self) -> None:
        """End the child processes. If `close` is not called, they run until the parent process ends."""
        while self._processes:
            _, processes = self._processes.popitem()
            for process in processes:
                process.close()

    def _merge_settings(self, arguments: Mapping[str, Any]) -> Any:
        """Merge `generation_config` with the arguments of a `generate()` call. The arguments take precedence.

        Raises ValueError if the engine does not support the settings.
        """
        _check_supported(arguments)
        # `generation_config` itself must not change, because the arguments apply to only one call.
        settings = copy.copy(self.generation_config)
        # A length limit in the call replaces all length limits in generation_config, such as max_new_tokens.
        has_length_limit = any(arguments.get(name) for name in _LENGTH_LIMITS)
        if has_length_limit:
            for name in _LENGTH_LIMITS:
                setattr(settings, name, None)
        for name, value in arguments.items():
            setattr(settings, name, value)
        self._check_settings(settings)
        return settings

    def _check_settings(self, settings: GenerationConfig) -> None:
        """Raise ValueError if the engine does not support one of the settings."""
        # Checks the numbers of beams, hypotheses and tokens.
        check_search(vars(settings))
        _check_search_rules(settings)
        start_token = self.config.decoder_start_token_id
        if settings.decoder_start_token_id not in (None, start_token):
            raise InputError(
                f"decoder_start_token_id is {settings.decoder_start_token_id}, but the engine starts from "
                f"{start_token}; change it in config.json, or use the engine torch."
            )
        check_token_ids(settings, len(self._target_texts))
        _check_other_settings(settings)

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

        If the first process with the right setting is busy, a second one is used, so that a short call need not wait
        for a long one. If both are busy, the process whose current call started last is used, because an earlier call
        that is still running may be a long one.
        """
        setting = self._choose_setting(batch_size)
        # Without the lock, two threads could start a process each.
        with self._processes_lock:
            known_processes = self._processes.get(setting, [])
            processes = [process for process in known_processes if not process.has_ended]
            self._processes[setting] = processes
            idle_processes = [process for process in processes if not process.is_busy]
            if idle_processes:
                return idle_processes[0]
            if len(processes) < _MOST_PROCESSES:
                new_process = CTranslate2Process(self._converted_folder, self._compute_type, setting)
                # `processes` is the list in `self._processes`, so later calls find the new process.
                processes.append(new_process)
                return new_process
            return max(processes, key=lambda process: process.call_started)

    def _choose_setting(self, batch_size: int) -> Setting:
        """Choose the number of workers, the number of threads per worker, and the instruction set for a batch.

        A batch with at least two sentences per thread is split among workers with one thread each. For a smaller batch,
        one worker uses all threads.
        """
        workers = 1
        if batch_size >= 2 * self._threads:
            workers = self._threads
        threads_per_worker = self._threads // workers
        # The empty string stands for CTranslate2's default, which is at most AVX2.
        instructions = ""
        # An instruction set that the user has chosen in the environment takes precedence.
        if has_avx512() and "CT2_FORCE_CPU_ISA" not in os.environ:
            instructions = "AVX512"
        return Setting(workers, threads_per_worker, instructions)


def _load_generation_config(folder: Path) -> GenerationConfig:
    """Load the search settings of a trained model, or transformers' defaults if the folder has none."""
    if (folder / "generation_config.json").is_file():
        generation_config = GenerationConfig.from_pretrained(folder)
    else:
        generation_config = GenerationConfig()
    # CTranslate2 ends a sentence when as many hypotheses have finished as there are beams. transformers calls this rule
    # early_stopping=True, and CTranslate2 has no other rule.
    generation_config.early_stopping = True
    return generation_config


def _read_vocabularies(converted_folder: Path) -> tuple[list[str], list[str]]:
    """Return the texts of the source tokens and of the target tokens of a CTranslate2 model, in the order of their ids.

    CTranslate2 writes two vocabularies, or one if they are equal.
    """
    source_path = converted_folder / "source_vocabulary.json"
    target_path = converted_folder / "target_vocabulary.json"
    if not source_path.is_file():
        source_path = converted_folder / "shared_vocabulary.json"
        target_path = converted_folder / "shared_vocabulary.json"
    source_texts = json.loads(source_path.read_text(encoding="utf-8"))
    target_texts = json.loads(target_path.read_text(encoding="utf-8"))
    return source_texts, target_texts


def _remove_padding(input_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> Rows:
    """Return the token ids of each source without padding. Without a mask, the sources have no padding.

    `input_ids` and `attention_mask` have the shape `(batch, source)`. The mask is 1 for tokens and 0 for padding.
    """
    if attention_mask is None:
        return input_ids.tolist()
    sources = []
    for row, mask in zip(input_ids, attention_mask, strict=True):
        sources.append(row[mask.bool()].tolist())
    return sources


def _check_search_rules(settings: GenerationConfig) -> None:
    """Raise ValueError if the settings end a search in another way than CTranslate2, or sample."""
    if settings.early_stopping is not True:
        raise InputError(
            f"early_stopping is {settings.early_stopping!r}, but CTranslate2 ends a sentence when as many "
            "hypotheses have finished as there are beams, which is True; leave it out, or use the engine torch."
        )
    if settings.do_sample:
        raise InputError("do_sample is True, but the engine cannot sample; use the engine torch.")


def _check_other_settings(settings: GenerationConfig) -> None:
    """Raise ValueError if a setting that the engine lacks has an effect, and is not transformers' default."""
    defaults = GenerationConfig._get_default_generation_params()
    for name, value in vars(settings).items():
        if name in _SUPPORTED_ARGUMENTS or name in _SETTINGS_WITHOUT_EFFECT:
            continue
        if value is not None and value != defaults.get(name):
            raise InputError(f"{name} is {value!r}, which the engine lacks; use the engine torch.")


def _check_supported(arguments: Mapping[str, Any]) -> None:
    """Raise ValueError if the engine does not support one of the arguments of a `generate()` call."""
    for name, value in arguments.items():
        # do_sample=False is accepted, because the engine never samples.
        turns_sampling_off = name == "do_sample" and not value
        if name not in _SUPPORTED_ARGUMENTS and not turns_sampling_off:
            raise InputError(f"{name} is {value!r}, but the engine has {', '.join(_SUPPORTED_ARGUMENTS)} only.")


def _make_watch(criteria: Sequence[StoppingCriteria], input_ids: torch.Tensor) -> Callable[[], None] | None:
    """Return a function that calls all stopping criteria with `input_ids`, or None if there are no criteria.

    The engine calls this function during a search. A criterion can show progress, or end the search by an error. Raises
    ValueError if a criterion may stop single hypotheses, which CTranslate2 does not support.
    """
    if not criteria:
        return None
    for criterion in criteria:
        if not only_watches(criterion):
            raise InputError(
                f"the stopping criterion {type(criterion).__name__} may stop hypotheses, which CTranslate2 cannot "
                "do; set its stops_hypotheses = False if it does not, or use the engine torch."
            )

    def call_criteria() -> None:
        for criterion in criteria:
            criterion(input_ids, None)

    return call_criteria


def _choose_num_returned(settings: GenerationConfig) -> int:
    """Return the number of translations for each source. Raises ValueError if it exceeds the number of beams."""
    # A setting that is None counts as 1.
    num_beams = settings.num_beams or 1
    num_returned = settings.num_return_sequences or 1
    if num_returned > num_beams:
        raise InputError(f"num_return_sequences is {num_returned}, but there are {num_beams} num_beams; give fewer.")
    return num_returned


def _min_length(settings: GenerationConfig) -> int:
    """Return the minimum number of tokens in a translation, not counting the start token."""
    min_length = settings.min_new_tokens or 0
    if settings.min_length:
        # settings.min_length counts the start token, but min_new_tokens does not.
        min_length = max(min_length, settings.min_length - 1)
    return min_length


def _rank(hypotheses: Hypotheses, length_penalty: Callable[[int], float]) -> list[list[str]]:
    """Return the tokens of one source's hypotheses, sorted by their length-penalized scores, best first.

    `length_penalty` maps the length of a hypothesis, in tokens, to the divisor of its log-probability.
    """

    def penalized_score(index: int) -> float:
        length = len(hypotheses.tokens[index])
        # CTranslate2's score is the log-probability divided by the length.
        log_prob = hypotheses.scores[index] * length
        # An empty hypothesis has no length that could be penalized, so it counts as one token.
        return log_prob / length_penalty(max(1, length))

    # The sort is stable, so hypotheses with equal scores keep CTranslate2's order.
    indices = range(len(hypotheses.tokens))
    best_first = sorted(indices, key=penalized_score, reverse=True)
    return [hypotheses.tokens[index] for index in best_first]
