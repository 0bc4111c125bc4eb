"""Plan a training run: choose settings that suit the corpus and the machine, and estimate what the run will cost.

A plan starts from a recipe, i.e. a named set of run arguments that is bundled with the package. It adapts the recipe to
the corpus and the machine. Arguments that the user gives are kept.
"""

import math
import sys
import unicodedata
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any, NamedTuple

import torch
from datasets import Dataset, DatasetDict
from transformers import PreTrainedTokenizerBase

from ..data.evenly_spaced_rows import pick_evenly_spaced_rows
from ..data.length_filter import pair_lengths
from ..data.long_texts import is_long
from ..data.tokenized_pairs import tokenize_pairs
from ..evaluation.choose_search import PAIRS_TO_CHOOSE_SEARCH
from ..model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from ..support.recipes import read_recipe
from ..support.user_errors import InputError
from .corpus import Corpus, MeasuredPairs
from .cost_estimate import Costs, estimate_costs
from .model_and_tokenizer import load_tokenizer, train_new_tokenizer
from .model_arguments import ModelArguments
from .run_arguments import TOKENS_PER_PROCESS, Arguments, RunArguments, Settings
from .run_checks import check_numbers
from .training_pairs import find_target_language
from .update_batches import (
    DeviceMemory,
    count_tokens_that_fit,
    read_device_memory,
    split_update,
    with_batches_of_update,
)


# The recipes that a plan chooses from, each with the minimum number of training pairs. The recipes small, medium and
# base were written for 30,000, 200,000 and 5 million pairs. The last two minimums are the geometric means of these
# numbers.
FEWEST_PAIRS = {"tiny": 10, "small": 10_000, "medium": 80_000, "base": 1_000_000}
# Limits of the number of updates. Fewer updates do not train a useful model, and more would take weeks on a CPU.
FEWEST_UPDATES = 1_000
MOST_UPDATES = 100_000
# Runs with fewer epochs than this underfit if they have more dropout than this (docs/experiments.md).
_FEW_EPOCHS = 30
_DROPOUT_FOR_FEW_EPOCHS = 0.1
# Minimum bytes of text (sources and targets together) per token of the vocabulary. On 2,000 captions, 2,000 tokens, one
# for each 134 bytes, gave 26.3 BLEU, and 900 tokens gave 14.7 (docs/experiments.md).
_BYTES_PER_TOKEN = 130
# The smallest vocabulary of a plan. Byte-level BPE needs tokens for 256 bytes, and some special tokens.
_FEWEST_TOKENS = 300
# SentencePiece needs tokens for 256 bytes, `<s>`, `</s>`, `<unk>` and the character that stands for a space.
_BYTES_AND_SPECIAL_TOKENS = 260
# Number of pairs that are tokenized to plan a run. Tokenizing them takes seconds.
_SAMPLED_PAIRS = 20_000
# A number of tokens for a device of unknown memory. It is so large that memory never splits an update.
_TOKENS_OF_UNKNOWN_MEMORY = sys.maxsize
# Recipe arguments that need validation pairs.
_VALIDATION_ARGUMENTS = ("eval_strategy", "eval_steps", "keep_better", "choose_search")
# Maps an argument that a user may give to the recipe arguments that it replaces or excludes.
_REPLACED_BY = {
    "load_best_model_at_end": ("average_last",),
    "save_only_model": ("average_last",),
    "save_strategy": ("average_last",),
    "save_total_limit": ("average_last",),
    "num_layers": ("config_overrides",),
    "num_train_epochs": ("max_steps",),
    "per_device_train_batch_size": ("tokens_per_batch", "max_tokens"),
    "rate_factor": ("learning_rate", "lr_scheduler_type"),
    "tokenizer_name": ("vocab_size",),
}


class Plan(NamedTuple):
    """The result of [`plan`]: the chosen arguments, the reasons for them, and the estimated costs of the run.

    Args:
        arguments (`dict`): the chosen arguments of `train` by name, without the arguments that the user gave.
        reasons (`list[str]`): lines of text that say what was chosen and why.
        costs (`Costs`): parameters, target tokens per epoch, updates, seconds, and bytes of memory and disk.
    """

    arguments: dict[str, Any]
    reasons: list[str]
    costs: Costs

    def lines(self) -> list[str]:
        """Return lines of text that state the reasons and then the costs."""
        return [
            *self.reasons,
            f"parameters: {self.costs.parameters:,}",
            f"target tokens: {self.costs.tokens:,} in an epoch",
            f"updates: {self.costs.updates:,}",
            f"time: {format_duration(self.costs.seconds)}",
            f"memory: {_format_size(self.costs.memory)}",
            f"disk: {_format_size(self.costs.disk)}",
        ]


def plan(
    pairs: DatasetDict,
    *,
    tflops: float | None = None,
    chooses: bool = True,
    memory: DeviceMemory | None = None,
    **given_arguments: Any,
) -> Plan:
    """Choose the arguments of `train` for sentence pairs and this machine, and estimate what the run will cost.

    The number of training pairs determines the recipe (a bundled set of arguments). Batch sizes, the number of updates
    and the vocabulary size depend on the texts. The costs are measured by a trial that takes at most a minute. Nothing
    is printed or written, and random states do not change.

    ```python
    lines = plan(load_pairs(train_files=["train.en", "train.de"])).lines()
    ```

    Args:
        pairs (`DatasetDict`): the split `train` and optionally `validation` and `test`, with the columns `source` and
            `target`.
        tflops (`float`, *optional*): the peak TFLOP/s of a GPU that is not in this machine. The plan is then for that
            GPU. Time and memory are computed instead of measured, and each update is a single batch.
        chooses (`bool`): whether to choose the arguments that are not given. If False, these arguments have the
            defaults of `train`, and the plan contains only the costs.
        memory (`DeviceMemory`, *optional*): the memory that the batches must fit into. If several processes train, pass
            the memory of the device with the least free memory. The default is the memory of this process's GPU.
        **given_arguments: arguments of `train`. The plan keeps them.

    Raises:
        TypeError, ValueError: if an argument is wrong, if a model is to be fine-tuned, or if there are fewer than 10
            training pairs.
        UserError: if the trial fails, for example because the memory is too small.
    """
    settings = Settings.from_arguments(**given_arguments)
    _check_plan(settings, len(pairs["train"]), tflops)
    device = _PlannedDevice(settings.args.device, memory, tflops)
    if chooses:
        return _choose_arguments(settings, given_arguments, pairs, device)
    return _estimate_costs_only(settings, pairs, device)


@dataclass(frozen=True)
class _PlannedDevice:
    """The device that a plan is for: the one of this process, or a GPU that is not in this machine.

    Args:
        device: this process's device.
        memory: the memory that batches must fit into. If it is None, the memory of `device` counts.
        tflops: the peak TFLOP/s of a GPU that is not in this machine, or None if the plan is for this process's device.
    """

    device: torch.device
    memory: DeviceMemory | None
    tflops: float | None

    @property
    def is_elsewhere(self) -> bool:
        """True if the plan is for a GPU that is not in this machine."""
        return self.tflops is not None

    @property
    def is_cpu(self) -> bool:
        """True if the plan is for a CPU."""
        return not self.is_elsewhere and self.device.type == "cpu"

    def estimate_batch_limit(self, settings: Settings, tokenizer: PreTrainedTokenizerBase) -> int:
        """Return the number of tokens on each side of a batch that fit into the device's memory.

        For a GPU that is not in this machine, the memory is unknown, and the result is a number that no batch reaches.

        Args:
            settings: the settings of the model, and the precision of the training.
            tokenizer: the tokenizer, which determines the vocabulary size of the model.
        """
        if self.is_elsewhere:
            # The plan states how much memory an update needs as a single batch.
            return _TOKENS_OF_UNKNOWN_MEMORY
        memory = self.memory
        if memory is None:
            memory = read_device_memory(self.device)
        # The meta device allocates no memory for the weights.
        with torch.device("meta"):
            model = VanillaTransformerForConditionalGeneration(settings.model.make_config(tokenizer))
        # If the memory is None, as on CPUs, the result is a fixed number.
        return count_tokens_that_fit(model, settings.args, memory)

    def describe_source_of_costs(self) -> str:
        """Return a text that says whether the time and the memory in a plan were computed or measured."""
        if self.is_elsewhere:
            return f"time and memory: computed for {self.tflops:g} TFLOP/s, not measured"
        return "time and memory: measured by a trial of some updates"


@dataclass(frozen=True)
class _UpdateSize:
    """The size of an update, and the maximum size of the batches that it is split into.

    Args:
        tokens: the number of tokens on each side of an update, over all its batches and all processes.
        most_tokens_per_batch: the maximum number of tokens on each side of a batch.
    """

    tokens: int
    most_tokens_per_batch: int


@dataclass(frozen=True)
class _RunForecast:
    """A forecast of a run: its complete settings, its number of epochs, and its costs.

    Args:
        settings: the run's settings, with final batch sizes, and with the numbers of updates after which the run saves
            and evaluates.
        epochs: the number of epochs.
        costs: the estimated costs.
    """

    settings: Settings
    epochs: float
    costs: Costs


def _check_plan(settings: Settings, train_size: int, tflops: float | None) -> None:
    """Raise InputError if a model is to be fine-tuned, if there are too few pairs, or if a number is invalid."""
    if settings.model.model_name_or_path is not None:
        raise InputError("a plan is for a new model; give learning_rate and max_steps to fine-tune one.")
    # The recipe "tiny" is the one for the fewest pairs.
    fewest_pairs = FEWEST_PAIRS["tiny"]
    if train_size < fewest_pairs:
        raise InputError(f"there are {train_size} training pairs, too few for a plan, which needs {fewest_pairs}.")
    check_numbers(settings.args)
    if tflops is not None and not 0 < tflops < math.inf:
        raise InputError(f"tflops is {tflops}; give the TFLOP/s of a GPU, such as 100.")


def _choose_arguments(
    given_settings: Settings, given_arguments: Arguments, pairs: DatasetDict, device: _PlannedDevice
) -> Plan:
    """Make a plan that chooses all arguments that the user has not given.

    Later choices need settings that earlier ones determine, so settings are built in stages. Each stage contains the
    given arguments and those that are chosen so far:

    - `given_settings` contain no chosen arguments. They are enough to choose a recipe.
    - `model_settings` are enough to measure sentence lengths, and to estimate how many tokens fit into memory.
    - `chosen_settings` contain all chosen arguments.

    `forecast.settings` are completed for the estimate of the costs, so the plan does not contain them.

    Args:
        given_settings: the settings that follow from the given arguments alone.
        given_arguments: arguments that the user has given.
        pairs: the sentence pairs of all splits.
        device: the device that the plan is for.
    """
    training_pairs = len(pairs["train"])
    sample = _sample_pairs(pairs)
    recipe_name = _choose_recipe_for_run(given_settings, training_pairs, has_gpu=not device.is_cpu)
    recipe = _adapt_recipe(recipe_name, given_settings, sample["train"], training_pairs)

    model_settings = _build_settings(_select_model_arguments(recipe, given_arguments), given_arguments)
    measured_pairs = _measure_pairs(pairs, sample, model_settings)
    tokens_that_fit = device.estimate_batch_limit(model_settings, measured_pairs.tokenizer)

    chosen_arguments = fit_recipe(
        recipe,
        measured_pairs.corpus,
        # The number of processes does not depend on chosen arguments.
        processes=given_settings.args.world_size,
        given_arguments=given_arguments,
        targets_per_source=_count_targets_per_source(given_settings),
        tokens_that_fit=tokens_that_fit,
    )
    chosen_settings = _build_settings(chosen_arguments, given_arguments)

    forecast = _forecast_run(chosen_settings, measured_pairs, tokens_that_fit, device.tflops)
    explanation = _explain(recipe_name, forecast.settings, measured_pairs.corpus, forecast.epochs)
    return Plan(chosen_arguments, [*explanation, device.describe_source_of_costs()], forecast.costs)


def _choose_recipe_for_run(settings: Settings, training_pairs: int, has_gpu: bool) -> str:
    """Return the name of the recipe for a run. A source that occurs with two targets counts once."""
    sources = training_pairs // _count_targets_per_source(settings)
    return choose_recipe(sources, has_gpu)


def _build_settings(chosen_arguments: Arguments, given_arguments: Arguments) -> Settings:
    """Return settings with chosen arguments and given arguments. If both contain an argument, the given one counts."""
    return Settings.from_arguments(**{**chosen_arguments, **given_arguments})


def _estimate_costs_only(settings: Settings, pairs: DatasetDict, device: _PlannedDevice) -> Plan:
    """Make a plan that chooses nothing, and contains only the estimated costs of a run with these settings."""
    measured_pairs = _measure_pairs(pairs, _sample_pairs(pairs), settings)
    tokens_that_fit = device.estimate_batch_limit(settings, measured_pairs.tokenizer)
    forecast = _forecast_run(settings, measured_pairs, tokens_that_fit, device.tflops)
    return Plan({}, [device.describe_source_of_costs()], forecast.costs)


def choose_recipe(pairs: int, has_gpu: bool) -> str:
    """Return the name of the recipe for a number of training pairs. Without a GPU, the result is never `"base"`."""
    # This is the result also if there are fewer pairs than any recipe needs.
    chosen_name = "tiny"
    # `FEWEST_PAIRS` maps the recipes, from the smallest to the largest, to the numbers of pairs that they need. The
    # largest recipe for which there are enough pairs is chosen.
    for name, fewest_pairs in FEWEST_PAIRS.items():
        if name == "base" and not has_gpu:
            # Without a GPU, this recipe would be too slow.
            continue
        if pairs >= fewest_pairs:
            chosen_name = name
    return chosen_name


def _count_targets_per_source(settings: Settings) -> int:
    """Return how often each source occurs in the training pairs.

    The result is 2 if the run distills a teacher and keeps the given targets next to the translations, and otherwise 1.
    """
    if settings.distillation.teacher and not settings.distillation.distilled_only:
        return 2
    return 1


def _sample_pairs(pairs: DatasetDict) -> DatasetDict:
    """Return evenly spaced samples of the training and validation pairs, with at most 20,000 pairs each.

    The samples are copied into memory. If they stayed on disk, their tokens would be written to the data set cache.
    """
    sample = DatasetDict()
    for split in ("train", "validation"):
        if split in pairs:
            rows = pick_evenly_spaced_rows(len(pairs[split]), _SAMPLED_PAIRS)
            columns = pairs[split].select(rows).select_columns(["source", "target"])
            sample[split] = Dataset.from_dict(columns.to_dict())
    return sample


def _adapt_recipe(name: str, settings: Settings, sample: Dataset, train_size: int) -> dict[str, object]:
    """Read a recipe, and adapt its vocabulary size to the amount of text. For distillation, also adapt its layers.

    Args:
        name: the name of the recipe.
        settings: the run's settings.
        sample: a sample of the training pairs.
        train_size: the number of all training pairs.
    """
    recipe = read_recipe(name, Settings)
    if settings.distillation.teacher:
        recipe = adapt_recipe_to_student(recipe)

    # Estimate the amount of text, sources and targets together, by extrapolating from the sample. Tokenizers are not
    # trained on long texts.
    sampled_texts = [text for text in chain(sample["source"], sample["target"]) if not is_long(text)]
    sampled_bytes = sum(len(text.encode()) for text in sampled_texts)
    corpus_bytes = sampled_bytes * train_size // len(sample)

    # With fewer than `_BYTES_PER_TOKEN` bytes of text per token, many tokens would occur too rarely to be learned.
    vocab_size = min(recipe["vocab_size"], corpus_bytes // _BYTES_PER_TOKEN)
    recipe["vocab_size"] = max(vocab_size, _find_smallest_vocabulary(settings.model, sampled_texts))
    return recipe


def _find_smallest_vocabulary(model_args: ModelArguments, texts: list[str]) -> int:
    """Return the smallest number of tokens with which a tokenizer can be trained on some texts.

    A byte-level BPE needs only the bytes and the special tokens. A SentencePiece model also needs a token for each
    character.
    """
    if model_args.tokenizer_type != "sentencepiece":
        return _FEWEST_TOKENS
    characters: set[str] = set()
    for text in texts:
        # SentencePiece normalizes texts in nearly the same way before it counts their characters. A few tokens too many
        # are harmless, but with too few, SentencePiece raises an error.
        characters.update(text, unicodedata.normalize("NFKC", text))
    return max(_FEWEST_TOKENS, _BYTES_AND_SPECIAL_TOKENS + len(characters))


def adapt_recipe_to_student(recipe: Arguments) -> dict[str, object]:
    """Return a copy of a recipe in which the model has twice as many encoder layers, but a single decoder layer.

    A student model with this shape translates faster, because the decoder takes most of the time (Kasai et al. 2021,
    "Deep Encoder, Shallow Decoder"). The deep encoder has initial weights as in Wang et al. 2022, "DeepNet".
    """
    # In "DeepNet", the initial weights of an encoder with N layers are multiplied by (8 N)^(-1/4).
    encoder_layers = 2 * recipe["num_layers"]
    return {
        **recipe,
        "config_overrides": {"encoder_layers": encoder_layers, "decoder_layers": 1},
        "initializer_factor": round((8 * encoder_layers) ** -0.25, 2),
    }


def _select_model_arguments(recipe: Arguments, given_arguments: Arguments) -> dict[str, object]:
    """Return the recipe arguments that determine the model, its tokenizer, and the memory that a batch needs."""
    names = {field.name for field in fields(ModelArguments)}
    # R-Drop runs every batch twice at once, so a batch needs more memory.
    names.add("r_drop_alpha")
    remaining_arguments = _drop_replaced(recipe, given_arguments)
    return {name: value for name, value in remaining_arguments.items() if name in names}


def _measure_pairs(pairs: DatasetDict, sample: DatasetDict, settings: Settings) -> MeasuredPairs:
    """Count the pairs of each split, and measure the sentence lengths of a sample of the pairs in tokens.

    Args:
        pairs: the sentence pairs of all splits.
        sample: samples of the training and validation pairs.
        settings: the run's settings, which determine the tokenizer and the target language.
    """
    tokenizer = _load_or_train_tokenizer(settings.model, sample)
    target_language = find_target_language(settings.data, tokenizer)
    tokenized_sample = tokenize_pairs(sample, tokenizer, target_lang=target_language)
    source_lengths, target_lengths = pair_lengths(tokenized_sample["train"])
    corpus = Corpus(
        training_pairs=len(pairs["train"]),
        validation_pairs=len(pairs.get("validation", [])),
        test_pairs=len(pairs.get("test", [])),
        source_lengths=source_lengths,
        target_lengths=target_lengths,
        longest_validation_sentence=_find_longest_sentence(tokenized_sample.get("validation")),
    )
    return MeasuredPairs(corpus, tokenizer, tokenized_sample)


def _load_or_train_tokenizer(model_args: ModelArguments, sample: DatasetDict) -> PreTrainedTokenizerBase:
    """Load the tokenizer that the arguments name. If they name none, train one on the sample in this process."""
    if model_args.tokenizer_name is not None:
        return load_tokenizer(model_args)
    return train_new_tokenizer(model_args, sample)


def _find_longest_sentence(pairs: Dataset | None) -> int:
    """Return the number of tokens in the longest source or target of tokenized pairs, or 0 if there are none."""
    if pairs is None or len(pairs) == 0:
        return 0
    source_lengths, target_lengths = pair_lengths(pairs)
    return int(max(source_lengths.max(), target_lengths.max()))


def _forecast_run(
    settings: Settings, measured_pairs: MeasuredPairs, tokens_that_fit: int, tflops: float | None
) -> _RunForecast:
    """Complete the settings of a run, count its epochs, and estimate its costs.

    Args:
        settings: the run's settings, as chosen or given.
        measured_pairs: the pairs that the run is given. Those that are too long for it are left out of the estimate.
        tokens_that_fit: the number of tokens on each side of a batch that fit into a device's memory.
        tflops: the peak TFLOP/s of a GPU that is not in this machine, or None if the run is for this machine.
    """
    short_pairs = measured_pairs.drop_pairs_over(_read_token_limit(settings))
    # The batches come first, because the number of updates in an epoch depends on them.
    batched_settings = with_batches_of_update(settings, tokens_that_fit, short_pairs.corpus.longest_sentence)
    args = batched_settings.args

    updates_per_epoch = count_updates_per_epoch(short_pairs.corpus, batched_settings.given_arguments, args.world_size)
    updates = _count_updates(args, updates_per_epoch)

    # The cost estimate counts evaluations and checkpoints by updates, even if they take place after every epoch.
    steps = _convert_epochs_to_steps(args, updates_per_epoch)
    complete_settings = batched_settings.change_training(**steps)
    costs = estimate_costs(complete_settings, updates, short_pairs, tflops)
    return _RunForecast(complete_settings, epochs=updates / updates_per_epoch, costs=costs)


def _read_token_limit(settings: Settings) -> int | None:
    """Return the maximum number of tokens in a source or a target of a run; None if there is no maximum."""
    if settings.data.max_tokens:
        return settings.data.max_tokens
    # A sentence must fit into a batch. Batches that have a fixed number of pairs have no maximum number of tokens.
    return settings.args.tokens_per_batch


def _count_updates(args: RunArguments, updates_per_epoch: int) -> int:
    """Return the number of updates of a run, rounded as in the Trainer."""
    # The Trainer's default, -1, means that the number of epochs decides.
    if args.max_steps > 0:
        return args.max_steps
    return math.ceil(args.num_train_epochs * updates_per_epoch)


def _convert_epochs_to_steps(args: RunArguments, updates_per_epoch: int) -> dict[str, int]:
    """Return `save_steps` and `eval_steps` for a run that saves or evaluates every epoch.

    If a strategy is not `"epoch"`, the result does not contain its number of steps. For example, a run that saves every
    epoch and never evaluates gets `{"save_steps": updates_per_epoch}`.
    """
    steps = {}
    if args.save_strategy == "epoch":
        steps["save_steps"] = updates_per_epoch
    if args.eval_strategy == "epoch":
        steps["eval_steps"] = updates_per_epoch
    return steps


def count_updates_per_epoch(corpus: Corpus, arguments: Arguments, processes: int) -> int:
    """Estimate the number of updates in an epoch.

    Args:
        corpus: the size of the corpus and a sample of its sentence lengths.
        arguments: arguments of `train`. Those that concern batches are used.
        processes: the number of processes that train together.
    """
    tokens_per_batch = arguments.get("tokens_per_batch")
    # The Trainer's default is 8. The number counts only if there is no `tokens_per_batch`.
    sentences_per_batch = arguments.get("per_device_train_batch_size", 8)
    # Without `max_tokens`, the training removes the pairs that do not fit into a batch.
    max_tokens = arguments.get("max_tokens") or tokens_per_batch
    short_corpus = corpus.drop_pairs_over(max_tokens)

    # Count the batches of the sampled pairs, and extrapolate to all training pairs.
    batches_of_sample = len(short_corpus.make_batches(tokens_per_batch, sentences_per_batch))
    sampled_pairs = len(short_corpus.source_lengths)
    batches_of_corpus = batches_of_sample * short_corpus.training_pairs / sampled_pairs

    # Each process trains on its share of the batches, and several batches of each process may make up an update.
    batches_per_process = math.ceil(batches_of_corpus / processes)
    return math.ceil(batches_per_process / arguments.get("gradient_accumulation_steps", 1))


def fit_recipe(
    recipe: Arguments,
    corpus: Corpus,
    processes: int,
    given_arguments: Arguments,
    targets_per_source: int = 1,
    tokens_that_fit: int = TOKENS_PER_PROCESS,
) -> dict[str, object]:
    """Adapt a recipe to a corpus and to the arguments that the user has given.

    Args:
        recipe: the recipe's arguments.
        corpus: the size of the corpus and a sample of its sentence lengths.
        processes: the number of processes that train together. The recipe's update is split among them.
        given_arguments: arguments that the user has given. They are not changed.
        targets_per_source: how often each source occurs; 2 if a student trains on given and translated targets.
        tokens_that_fit: the number of tokens on each side of a batch that fit into a device's memory.

    Returns:
        The chosen arguments, without the given ones.
    """
    # The run removes long pairs, so they must not affect the choices below.
    short_corpus = corpus.drop_pairs_over(_find_token_limit(recipe, given_arguments))

    batches = _fit_batches(recipe, short_corpus, processes, given_arguments, tokens_that_fit)
    recipe_with_batches = _drop_replaced(_replace_batches(recipe, batches), given_arguments)

    # An epoch can be counted in updates only after the batches are chosen.
    updates_per_epoch = count_updates_per_epoch(short_corpus, {**recipe_with_batches, **given_arguments}, processes)
    length = _choose_length(recipe, given_arguments, updates_per_epoch, targets_per_source)
    chosen = {**recipe_with_batches, **length}
    if given_arguments.get("load_best_model_at_end"):
        chosen.update(_match_saving_with_evaluation(chosen, given_arguments))

    left_out = {*given_arguments, *_find_names_without_effect(chosen, given_arguments, short_corpus)}
    return {name: value for name, value in chosen.items() if name not in left_out}


def _replace_batches(recipe: Arguments, batches: Arguments) -> dict[str, object]:
    """Return a copy of a recipe with the chosen batches, and without the arguments that a plan turns into updates.

    A plan has a number of updates instead of epochs, and batches instead of the tokens of an update. Otherwise a
    resumed run would derive these numbers again, perhaps with a different result.
    """
    replaced = {**recipe, **batches}
    replaced.pop("num_train_epochs")
    # Only some recipes have this argument.
    replaced.pop("tokens_per_update", None)
    return replaced


def _find_token_limit(recipe: Arguments, given_arguments: Arguments) -> int | None:
    """Return the maximum number of tokens in a source or a target that the run will train on; None for no limit."""
    if given_arguments.get("max_tokens"):
        return given_arguments["max_tokens"]
    if given_arguments.get("tokens_per_batch"):
        # A sentence must fit into a batch.
        return given_arguments["tokens_per_batch"]
    if given_arguments.get("per_device_train_batch_size"):
        # A batch has a number of pairs, so a pair can have any length.
        return None
    return recipe["max_tokens"]


def _drop_replaced(recipe: Arguments, given_arguments: Arguments) -> dict[str, Any]:
    """Return a copy of a recipe's arguments, without the arguments that a given argument replaces or excludes."""
    replaced_names: set[str] = set()
    # `_REPLACED_BY` maps an argument that the user may give to the names of the recipe arguments that it replaces.
    # For example, a given `num_train_epochs` replaces the recipe's `max_steps`.
    for argument, names in _REPLACED_BY.items():
        if given_arguments.get(argument):
            replaced_names.update(names)
    return {name: value for name, value in recipe.items() if name not in replaced_names}


def _fit_batches(
    recipe: Arguments, corpus: Corpus, processes: int, given_arguments: Arguments, tokens_that_fit: int
) -> dict[str, int]:
    """Choose batch sizes so that an update has the recipe's number of tokens, regardless of the number of processes.

    For example, the recipe "base" has updates of 25,000 tokens and a `max_tokens` of 3,125. If a single process trains,
    and 10,000 tokens fit into its memory, an update consists of 3 batches with a `tokens_per_batch` of 8,333, and
    `max_tokens` stays at 3,125.

    The result may include arguments that the user has given or excluded. The caller removes them.

    Args:
        recipe: the recipe's arguments.
        corpus: the size of the corpus and a sample of its sentence lengths, without the pairs that the run will remove.
        processes: the number of processes that train together.
        given_arguments: arguments that the user has given.
        tokens_that_fit: the number of tokens on each side of a batch that fit into a device's memory.
    """
    update_size = _choose_update_size(recipe, given_arguments, tokens_that_fit)
    batches = split_update(
        tokens_per_update=update_size.tokens,
        processes=processes,
        tokens_that_fit=update_size.most_tokens_per_batch,
        # Every batch has room for the longest sentence. Sentences above the recipe's limit, which the user may have
        # allowed, do not count, because they would make every batch too large.
        longest_sentence=min(corpus.longest_sentence, recipe["max_tokens"]),
        tokens_per_batch=given_arguments.get("tokens_per_batch"),
        gradient_accumulation_steps=given_arguments.get("gradient_accumulation_steps"),
    )
    return {
        "tokens_per_batch": batches.tokens_per_batch,
        "max_tokens": _choose_max_tokens(recipe, given_arguments, batches.tokens_per_batch),
        "gradient_accumulation_steps": batches.gradient_accumulation_steps,
        "per_device_eval_batch_size": _choose_evaluation_batch_size(recipe, corpus),
    }


def _choose_max_tokens(recipe: Arguments, given_arguments: Arguments, tokens_per_batch: int) -> int:
    """Return the maximum number of tokens in a source or a target of the run, which must fit into a batch."""
    if given_arguments.get("tokens_per_batch"):
        return tokens_per_batch
    # The size of a batch depends on a device's memory, which must not decide which pairs are too long.
    return min(tokens_per_batch, recipe["max_tokens"])


def _choose_update_size(recipe: Arguments, given_arguments: Arguments, tokens_that_fit: int) -> _UpdateSize:
    """Choose the size of an update over all processes, and the maximum size of its batches.

    Args:
        recipe: the recipe's arguments.
        given_arguments: arguments that the user has given.
        tokens_that_fit: the number of tokens on each side of a batch that fit into a device's memory.
    """
    tokens = given_arguments.get("tokens_per_update") or recipe.get("tokens_per_update")
    if tokens is None:
        # This is a recipe for few pairs. Its update is a single batch, which is so small that it fits into any memory.
        tokens_of_batch = given_arguments.get("tokens_per_batch") or recipe["tokens_per_batch"]
        return _UpdateSize(tokens_of_batch, most_tokens_per_batch=tokens_of_batch)
    if given_arguments.get("per_device_train_batch_size"):
        # It is unknown how many tokens such a batch has, so the update is split as on CPUs.
        return _UpdateSize(tokens, most_tokens_per_batch=TOKENS_PER_PROCESS)
    return _UpdateSize(tokens, most_tokens_per_batch=tokens_that_fit)


def _choose_evaluation_batch_size(recipe: Arguments, corpus: Corpus) -> int:
    """Return the evaluation batch size in pairs: the recipe's batch size, or less if there are long sentences."""
    # An evaluation keeps no activations, so its batches may have four times as many tokens as training batches.
    most_tokens = 4 * recipe["max_tokens"]
    longest_sentence = max(corpus.longest_sentence, corpus.longest_validation_sentence)
    pairs_that_fit = most_tokens // longest_sentence
    return max(1, min(recipe["per_device_eval_batch_size"], pairs_that_fit))


def _choose_length(
    recipe: Arguments, given_arguments: Arguments, updates_per_epoch: int, targets_per_source: int
) -> dict[str, object]:
    """Choose the number of updates of a run, and the arguments that depend on it.

    Args:
        recipe: the recipe's arguments.
        given_arguments: arguments that the user has given.
        updates_per_epoch: the number of updates in an epoch.
        targets_per_source: how often each source occurs in an epoch.
    """
    updates = _choose_updates(recipe, given_arguments, updates_per_epoch)
    chosen: dict[str, object] = {}
    # With a given number of epochs, the Trainer computes the number of updates itself.
    if "num_train_epochs" not in given_arguments:
        chosen["max_steps"] = updates
    # How often the model reads each source.
    epochs_over_sources = targets_per_source * updates / updates_per_epoch
    if epochs_over_sources < _FEW_EPOCHS:
        # The model would underfit with more dropout.
        chosen["dropout"] = min(recipe["dropout"], _DROPOUT_FOR_FEW_EPOCHS)
    chosen.update(_choose_steps(recipe, updates))
    return chosen


def _choose_updates(recipe: Arguments, given_arguments: Arguments, updates_per_epoch: int) -> int:
    """Choose the number of updates of a run. A number of updates or epochs that the user has given is kept.

    Args:
        recipe: the recipe's arguments. Without a given number, its number of epochs applies, but with at least
            `FEWEST_UPDATES` updates, and at most the recipe's `max_steps` or `MOST_UPDATES`.
        given_arguments: arguments that the user has given.
        updates_per_epoch: the number of updates in an epoch.
    """
    # The Trainer's default, -1, means that the number of epochs decides.
    given_updates = given_arguments.get("max_steps", -1)
    if given_updates > 0:
        # The Trainer prefers a number of updates to a number of epochs.
        return given_updates
    if "num_train_epochs" in given_arguments:
        return math.ceil(given_arguments["num_train_epochs"] * updates_per_epoch)
    updates = math.ceil(recipe["num_train_epochs"] * updates_per_epoch)
    # In a recipe, `max_steps` is an upper limit.
    most_updates = recipe.get("max_steps", MOST_UPDATES)
    return min(max(updates, FEWEST_UPDATES), most_updates)


def _choose_steps(recipe: Arguments, updates: int) -> dict[str, int]:
    """Choose the number of warm-up updates, and after how many updates the run logs, evaluates and saves.

    In a recipe, `warmup_steps` is a number of updates. The other three values, such as `eval_steps`, are fractions of
    the run.

    Args:
        recipe: the recipe's arguments.
        updates: the number of updates of the run.
    """
    # The warm-up takes at most a tenth of the run.
    longest_warmup = updates // 10
    steps = {"warmup_steps": max(1, min(int(recipe["warmup_steps"]), longest_warmup))}
    # For example, 0.02 of 9,000 updates are 180 updates.
    for name in ("logging_steps", "eval_steps", "save_steps"):
        fraction_of_run = recipe[name]
        steps[name] = math.ceil(fraction_of_run * updates)
    return steps


def _match_saving_with_evaluation(chosen: Arguments, given_arguments: Arguments) -> dict[str, object]:
    """Choose when a run evaluates and saves, so that it saves every model that it evaluates.

    `load_best_model_at_end` requires this. The steps and the strategies are matched independently of each other. If the
    user gives both values of a pair, they stay as they are. The result does not contain given arguments.

    Args:
        chosen: the arguments that the plan has chosen so far.
        given_arguments: arguments that the user has given.
    """
    return {**_match_steps(chosen, given_arguments), **_match_strategies(given_arguments)}


def _match_steps(chosen: Arguments, given_arguments: Arguments) -> dict[str, int | float]:
    """Return `eval_steps` and `save_steps`, both with the same value, without those that the user has given."""
    steps = _choose_common_steps(chosen, given_arguments)
    matching = {}
    for name in ("eval_steps", "save_steps"):
        if name not in given_arguments:
            matching[name] = steps
    return matching


def _choose_common_steps(chosen: Arguments, given_arguments: Arguments) -> int | float:
    """Return the number of steps for evaluating and saving: the given one or, if none is given, the plan's."""
    for name in ("eval_steps", "save_steps"):
        if name in given_arguments:
            return given_arguments[name]
    return chosen["eval_steps"]


def _match_strategies(given_arguments: Arguments) -> dict[str, str]:
    """Return the strategy that the user has not given, to match the given one; nothing if neither or both are given."""
    gives_eval_strategy = "eval_strategy" in given_arguments
    gives_save_strategy = "save_strategy" in given_arguments
    if gives_eval_strategy and not gives_save_strategy:
        return {"save_strategy": given_arguments["eval_strategy"]}
    # "best" is not a value of `eval_strategy`. With this save strategy, the Trainer saves only when it evaluates, so
    # the plan's evaluation strategy can stay.
    if gives_save_strategy and not gives_eval_strategy and given_arguments["save_strategy"] != "best":
        return {"eval_strategy": given_arguments["save_strategy"]}
    return {}


def _find_names_without_effect(chosen: Arguments, given_arguments: Arguments, corpus: Corpus) -> set[str]:
    """Return the names of chosen arguments that would have no effect in the run, or would make it fail.

    Args:
        chosen: the arguments that the plan has chosen.
        given_arguments: arguments that the user has given. They take precedence.
        corpus: the size of the corpus.
    """
    names: set[str] = set()
    if corpus.validation_pairs == 0:
        # These are the arguments that need validation pairs.
        names.update(_VALIDATION_ARGUMENTS)
    averaged_checkpoints = given_arguments.get("average_last", chosen.get("average_last"))
    if not averaged_checkpoints:
        # Without an average, there is nothing to compare the last checkpoint with.
        names.add("keep_better")
    if given_arguments.get("num_beams") == 1:
        # A greedy search has neither a length penalty nor a stopping rule.
        names.add("choose_search")
    return names


def _explain(recipe_name: str, settings: Settings, corpus: Corpus, epochs: float) -> list[str]:
    """Explain a plan in lines of text that say what was chosen and why.

    Args:
        recipe_name: the name of the chosen recipe.
        settings: the chosen settings.
        corpus: all pairs, including those that the run will remove because they are too long.
        epochs: the number of epochs of the run.
    """
    args = settings.args
    # Only the first and the last line take into account that the run removes long pairs.
    short_corpus = corpus.drop_pairs_over(settings.data.max_tokens)
    evaluation_frequency = _describe_frequency(args.eval_strategy, args.eval_steps)
    save_frequency = _describe_frequency(args.save_strategy, args.save_steps)
    return [
        _explain_recipe(recipe_name, short_corpus),
        *_explain_missing_gpu(recipe_name, settings, corpus.training_pairs),
        f"model: {_describe_model(settings)}",
        f"vocabulary: {_describe_vocabulary(recipe_name, settings.model)}",
        f"update: {_describe_update(args)}; {epochs:,.1f} epochs{_describe_r_drop(args)}",
        f"schedule: {args.describe_optimizer()}, {args.warmup_steps:,g} warm-up updates",
        f"evaluation: {evaluation_frequency}, of {corpus.validation_pairs:,} pairs",
        f"weights: {_describe_weights(settings)}; a checkpoint {save_frequency}",
        *_explain_choices_by_bleu(settings, corpus.validation_pairs),
        *_explain_removed_pairs(corpus.training_pairs, short_corpus.training_pairs, settings.data.max_tokens),
    ]


def _explain_missing_gpu(recipe_name: str, settings: Settings, training_pairs: int) -> list[str]:
    """Return a line about the recipe that a GPU would allow; no line if it is the chosen one."""
    recipe_for_gpu = _choose_recipe_for_run(settings, training_pairs, has_gpu=True)
    if recipe_for_gpu == recipe_name:
        return []
    return [
        f"{recipe_for_gpu}, the recipe for this number of pairs, needs a GPU; --config {recipe_for_gpu} selects it "
        "on a CPU nevertheless"
    ]


def _explain_choices_by_bleu(settings: Settings, validation_pairs: int) -> list[str]:
    """Return a line for each choice that the run makes after the training by BLEU on the validation pairs."""
    lines = []
    if settings.output.keep_better:
        lines.append("after the training: the better of average and last checkpoint, by BLEU on the validation pairs")
    if settings.evaluation.choose_search:
        pairs = min(validation_pairs, PAIRS_TO_CHOOSE_SEARCH)
        lines.append(f"search: length penalty and stopping rule are chosen on {pairs:,} validation pairs")
    return lines


def _explain_removed_pairs(all_pairs: int, remaining_pairs: int, max_tokens: int | None) -> list[str]:
    """Return a line about the pairs that the run removes because they are too long; no line if there are none."""
    removed_pairs = all_pairs - remaining_pairs
    if removed_pairs == 0:
        return []
    return [f"removed: about {removed_pairs:,} pairs of more than {max_tokens:,} tokens on a side"]


def _explain_recipe(recipe_name: str, corpus: Corpus) -> str:
    """Describe the recipe, with the minimum number of pairs that it is for, and the size of this corpus.

    `corpus` contains only the pairs that the run will train on.
    """
    source_mean = corpus.source_lengths.mean()
    target_mean = corpus.target_lengths.mean()
    return (
        f"recipe {recipe_name}, for {FEWEST_PAIRS[recipe_name]:,} pairs and more: {corpus.training_pairs:,} training "
        f"pairs of {source_mean:.1f} source and {target_mean:.1f} target tokens on average"
    )


def _describe_weights(settings: Settings) -> str:
    """Return a text about the weights that the run saves, such as "average of the last 10 checkpoints"."""
    if settings.output.average_last:
        return f"average of the last {settings.output.average_last} checkpoints"
    return "of the last update"


def _describe_model(settings: Settings) -> str:
    """Return a text about the model's sizes, such as its layers and its width."""
    config = settings.model.make_config()
    description = (
        f"{config.encoder_layers} + {config.decoder_layers} layers, d_model {config.d_model}, d_ff {config.d_ff}, "
        f"{config.num_heads} heads, dropout {config.dropout:g}"
    )
    if config.initializer_factor != 1:
        description += f", initial weights times {config.initializer_factor:g}"
    return description


def _describe_vocabulary(recipe_name: str, model_args: ModelArguments) -> str:
    """Return a text about the vocabulary: the name of the given tokenizer or, if a new one is trained, its size.

    The text about the size is, for example, "at most 6,000 tokens". If the size is smaller than in the recipe, the text
    also gives the reason: "at most 1,000 tokens, one for each 130 bytes of text".
    """
    if model_args.tokenizer_name:
        # The name of a tokenizer, or its folder. Its vocabulary size is not stated.
        return model_args.tokenizer_name
    description = f"at most {model_args.vocab_size:,} tokens"
    recipe = read_recipe(recipe_name, Settings)
    if model_args.vocab_size < recipe["vocab_size"]:
        # `_adapt_recipe` has reduced the size to one token for each `_BYTES_PER_TOKEN` bytes of text, but not below the
        # smallest vocabulary with which a tokenizer can be trained. A smaller size that the user has given gets the
        # same text.
        description += f", one for each {_BYTES_PER_TOKEN} bytes of text"
        if model_args.tokenizer_type == "sentencepiece":
            # The smallest vocabulary of SentencePiece contains every character of the sampled texts.
            description += ", but enough for all characters"
    return description


def _describe_update(args: RunArguments) -> str:
    """Return a text about the size of an update over all processes, such as "25,000 tokens on each side"."""
    # The number of batches in an update, over all processes.
    batches = args.gradient_accumulation_steps * args.world_size
    if args.tokens_per_batch:
        return f"{args.tokens_per_batch * batches:,} tokens on each side"
    return f"{args.per_device_train_batch_size * batches:,} pairs"


def _describe_r_drop(args: RunArguments) -> str:
    if not args.r_drop_alpha:
        return ""
    return f", two dropout masks per batch (R-Drop {args.r_drop_alpha:g})"


def _describe_frequency(strategy: str, steps: float | None) -> str:
    """Return a text that says how often a run evaluates or saves, such as "every 500 updates".

    Args:
        strategy: the Trainer's `eval_strategy` or `save_strategy`.
        steps: the Trainer's `eval_steps` or `save_steps`, which counts only if the strategy is `"steps"`.
    """
    if strategy == "no":
        return "never"
    if strategy == "best":
        # Only `save_strategy` can have this value.
        return "whenever an evaluation is the best so far"
    if strategy == "epoch":
        return "every epoch"
    # The strategy is "steps".
    if steps == 1:
        return "every update"
    return f"every {steps:,g} updates"


def format_duration(seconds: float) -> str:
    """Format a duration, such as "12 minutes" or "3.5 hours".

    Minutes are rounded up. From 90 minutes on, the duration is given in hours.
    """
    minutes = math.ceil(seconds / 60)
    if minutes == 1:
        return "1 minute"
    if minutes < 90:
        return f"{minutes} minutes"
    return f"{minutes / 60:,.1f} hours"


def _format_size(size: int) -> str:
    """Format a number of bytes in gigabytes, or in megabytes if it is below one gigabyte."""
    if size >= 1e9:
        return f"{size / 1e9:,.1f} GB"
    return f"{size / 1e6:.0f} MB"
