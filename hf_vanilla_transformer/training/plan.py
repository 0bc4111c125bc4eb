"""Plan a training run: choose settings that suit the corpus and the machine, and estimate what the run will cost.

A plan starts from a recipe, i.e. a named set of run arguments that is bundled with the package. It adapts the recipe to
the corpus and the machine. Arguments that the user gives are kept.
"""

import math
import sys
from dataclasses import fields
from typing import Any, NamedTuple

import torch
from datasets import Dataset, DatasetDict
from transformers import PreTrainedTokenizerBase

from ..data.evenly_spaced_rows import pick_evenly_spaced_rows
from ..data.length_filter import pair_lengths
from ..data.tokenized_pairs import tokenize_pairs
from ..evaluation.choose_search import PAIRS_TO_CHOOSE_SEARCH
from ..model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from ..support.recipes import read_recipe
from ..support.user_errors import InputError
from .corpus import Corpus
from .cost_estimate import Costs, estimate_costs
from .model_and_tokenizer import load_tokenizer, train_new_tokenizer
from .model_arguments import ModelArguments
from .run_arguments import TOKENS_PER_PROCESS, Arguments, RunArguments, Settings
from .run_checks import check_numbers
from .training_pairs import find_target_language
from .update_batches import DeviceMemory, count_tokens_that_fit, read_device_memory, set_batches_of_update, split_update


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
# Minimum bytes of text (sources and targets together) per token of the vocabulary. Multi30k with its 6,000 tokens has
# 600.
_BYTES_PER_TOKEN = 300
# Byte-level BPE starts with 256 bytes and some special tokens.
_SMALLEST_VOCABULARY = 300
# Number of pairs that are tokenized to plan a run. Tokenizing them takes seconds.
_SAMPLED_PAIRS = 20_000
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
    has_gpu = tflops is not None or settings.args.device.type != "cpu"
    targets_per_source = _count_targets_per_source(settings)
    recipe_name = choose_recipe(len(pairs["train"]) // targets_per_source, has_gpu)
    sample = _sample_pairs(pairs)
    recipe = _adapt_recipe(recipe_name, settings, sample["train"], len(pairs["train"]))

    # Measure the corpus in tokens, with a tokenizer that is trained on a sample of it.
    model_arguments = {}
    if chooses:
        model_arguments = _select_model_arguments(recipe, given_arguments)
    model_settings = Settings.from_arguments(**{**model_arguments, **given_arguments})
    tokenizer = _make_sample_tokenizer(model_settings.model, sample)
    tokenized_sample = tokenize_pairs(sample, tokenizer, target_lang=find_target_language(settings.data, tokenizer))
    source_lengths, target_lengths = pair_lengths(tokenized_sample["train"])
    corpus = Corpus(
        training_pairs=len(pairs["train"]),
        validation_pairs=len(pairs.get("validation", [])),
        test_pairs=len(pairs.get("test", [])),
        source_lengths=source_lengths,
        target_lengths=target_lengths,
    )
    if tflops is None:
        tokens_that_fit = _count_tokens_that_fit(model_settings, tokenizer, memory)
    else:
        # The memory of a GPU elsewhere is unknown. The plan states how much memory a single batch needs.
        tokens_that_fit = sys.maxsize

    # Choose the arguments, and drop the pairs that the run will remove.
    processes = settings.args.world_size
    arguments = {}
    if chooses:
        arguments = fit_recipe(recipe, corpus, processes, given_arguments, targets_per_source, tokens_that_fit)
    chosen = Settings.from_arguments(**{**arguments, **given_arguments})
    max_tokens = chosen.data.max_tokens or chosen.args.tokens_per_batch
    short_corpus = corpus.drop_pairs_over(max_tokens)
    # The trial selects pairs by their indices in the corpus without long pairs.
    tokenized_sample["train"] = tokenized_sample["train"].select(corpus.find_rows_up_to(max_tokens))
    planned = set_batches_of_update(chosen, tokens_that_fit, short_corpus.longest_sentence)

    # Estimate the costs.
    updates_per_epoch = count_updates_per_epoch(corpus, planned.given_arguments, processes)
    updates = planned.args.max_steps
    if updates <= 0:
        # The Trainer rounds in the same way.
        updates = math.ceil(planned.args.num_train_epochs * updates_per_epoch)
    by_steps = planned.change_training(**_convert_epochs_to_steps(planned.args, updates_per_epoch))
    costs = estimate_costs(by_steps, updates, short_corpus, tokenizer, tokenized_sample, tflops)
    reasons = []
    if chooses:
        reasons = _explain(recipe_name, by_steps, corpus, updates / updates_per_epoch)
    if tflops is None:
        reasons.append("time and memory: measured by a trial of some updates")
    else:
        reasons.append(f"time and memory: computed for {tflops:g} TFLOP/s, not measured")
    return Plan(arguments, reasons, costs)


def _check_plan(settings: Settings, train_size: int, tflops: float | None) -> None:
    """Raise InputError if no plan is possible: for fine-tuning, too few training pairs, or invalid numbers."""
    if settings.model.model_name_or_path is not None:
        raise InputError("a plan is for a new model; give learning_rate and max_steps to fine-tune one.")
    if train_size < FEWEST_PAIRS["tiny"]:
        raise InputError(
            f"there are {train_size} training pairs, too few for a plan, which needs {FEWEST_PAIRS['tiny']}."
        )
    check_numbers(settings.args)
    if tflops is not None and not 0 < tflops < math.inf:
        raise InputError(f"tflops is {tflops}; give the TFLOP/s of a GPU, such as 100.")


def choose_recipe(pairs: int, has_gpu: bool) -> str:
    """Return the name of the recipe that suits a number of training pairs. Without a GPU, it is never `"base"`."""
    chosen = "tiny"
    for name, fewest_pairs in FEWEST_PAIRS.items():
        is_possible = has_gpu or name != "base"
        if is_possible and fewest_pairs <= pairs:
            chosen = name
    return chosen


def _count_targets_per_source(settings: Settings) -> int:
    """Return how often each source occurs in the training pairs.

    The result is 2 if the run distills a teacher and keeps the given targets next to the translations, and otherwise 1.
    """
    has_teacher = bool(settings.distillation.teacher)
    return 2 if has_teacher and not settings.distillation.distilled_only else 1


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
    """Read a recipe, and adapt its model to distillation and its vocabulary size to the amount of text.

    Args:
        name: the name of the recipe.
        settings: the run's settings.
        sample: a sample of the training pairs.
        train_size: the number of all training pairs.
    """
    recipe = read_recipe(name, Settings)
    if settings.distillation.teacher:
        recipe = adapt_recipe_to_student(recipe)
    sample_bytes = 0
    for column in ("source", "target"):
        for text in sample[column]:
            sample_bytes += len(text.encode())
    corpus_bytes = sample_bytes * train_size // len(sample)
    # With a larger vocabulary, many tokens would occur too rarely to be learned.
    affordable = max(_SMALLEST_VOCABULARY, corpus_bytes // _BYTES_PER_TOKEN)
    recipe["vocab_size"] = min(recipe["vocab_size"], affordable)
    return recipe


def adapt_recipe_to_student(recipe: Arguments) -> dict[str, object]:
    """Return a copy of a recipe in which the model has twice as many encoder layers, but a single decoder layer.

    A student model with this shape translates faster, because the decoder takes most of the time (Kasai et al. 2021,
    "Deep Encoder, Shallow Decoder"). The deep encoder has initial weights as in Wang et al. 2022, "DeepNet".
    """
    encoder_layers = 2 * recipe["num_layers"]
    return {
        **recipe,
        "config_overrides": {"encoder_layers": encoder_layers, "decoder_layers": 1},
        "initializer_factor": round((8 * encoder_layers) ** -0.25, 2),
    }


def _select_model_arguments(recipe: Arguments, given_arguments: Arguments) -> dict[str, object]:
    """Return those recipe arguments that determine the model, its tokenizer, and the memory that a batch needs."""
    names = {field.name for field in fields(ModelArguments)}
    names.add("r_drop_alpha")
    return {name: value for name, value in _without_replaced(recipe, given_arguments).items() if name in names}


def _make_sample_tokenizer(model_args: ModelArguments, sample: DatasetDict) -> PreTrainedTokenizerBase:
    """Load the tokenizer that the arguments name. If they name none, this process trains one on the sample."""
    if model_args.tokenizer_name is not None:
        return load_tokenizer(model_args)
    return train_new_tokenizer(model_args, sample)


def _count_tokens_that_fit(settings: Settings, tokenizer: PreTrainedTokenizerBase, memory: DeviceMemory | None) -> int:
    """Return the number of tokens on each side of a batch that fit into memory.

    If `memory` is None, the memory of this process's device counts.
    """
    with torch.device("meta"):
        model = VanillaTransformerForConditionalGeneration(settings.model.make_config(tokenizer))
    return count_tokens_that_fit(model, settings.args, memory or read_device_memory(settings.args.device))


def _convert_epochs_to_steps(args: RunArguments, updates_per_epoch: int) -> dict[str, int]:
    """Return `save_steps` and `eval_steps` for a run that saves or evaluates every epoch.

    The cost estimate needs them, because it counts evaluations and checkpoints by updates. If a strategy is not
    `"epoch"`, its number of steps is not returned.
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
    short_corpus = corpus.drop_pairs_over(arguments.get("max_tokens") or tokens_per_batch)
    sample_batches = short_corpus.make_batches(tokens_per_batch, arguments.get("per_device_train_batch_size", 8))
    corpus_batches = len(sample_batches) * short_corpus.training_pairs / len(short_corpus.source_lengths)
    batches_per_process = math.ceil(corpus_batches / processes)
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
        recipe: the recipe's arguments. Steps below 1 are fractions of the run.
        corpus: the size of the corpus and a sample of its sentence lengths.
        processes: the number of processes that train together. The recipe's update is split among them.
        given_arguments: arguments that the user has given. They are not changed.
        targets_per_source: how often each source occurs; 2 if a student trains on given and translated targets.
        tokens_that_fit: the number of tokens on each side of a batch that fit into a device's memory.

    Returns:
        The chosen arguments, without the given ones.
    """
    batches = _fit_batches(recipe, corpus, processes, given_arguments, tokens_that_fit)
    chosen = _without_replaced({**recipe, **batches}, given_arguments)
    # The batches are derived from the tokens of an update. A resumed run must not derive them again.
    chosen.pop("tokens_per_update", None)

    # Choose the number of updates and the arguments that depend on it.
    epochs_of_recipe = chosen.pop("num_train_epochs")
    epochs = given_arguments.get("num_train_epochs", epochs_of_recipe)
    updates_per_epoch = count_updates_per_epoch(corpus, {**chosen, **given_arguments}, processes)
    updates = math.ceil(epochs * updates_per_epoch)
    if given_arguments.get("max_steps", -1) > 0:
        # The Trainer prefers a number of updates to a number of epochs.
        updates = given_arguments["max_steps"]
    elif "num_train_epochs" not in given_arguments:
        updates = min(max(updates, FEWEST_UPDATES), recipe.get("max_steps", MOST_UPDATES))
        chosen["max_steps"] = updates
    if targets_per_source * updates / updates_per_epoch < _FEW_EPOCHS:
        chosen["dropout"] = min(recipe["dropout"], _DROPOUT_FOR_FEW_EPOCHS)
    chosen["warmup_steps"] = max(1, min(int(recipe["warmup_steps"]), updates // 10))
    for name in ("logging_steps", "eval_steps", "save_steps"):
        chosen[name] = math.ceil(recipe[name] * updates)

    # Remove arguments that have no effect or contradict given ones.
    if given_arguments.get("load_best_model_at_end"):
        _save_what_is_evaluated(chosen, given_arguments)
    averages = given_arguments.get("average_last", chosen.get("average_last"))
    if not averages:
        del chosen["keep_better"]
    if given_arguments.get("num_beams") == 1:
        # A greedy search has neither a length penalty nor a stopping rule.
        del chosen["choose_search"]
    remaining = {}
    for name, value in chosen.items():
        lacks_pairs = name in _VALIDATION_ARGUMENTS and not corpus.validation_pairs
        if name not in given_arguments and not lacks_pairs:
            remaining[name] = value
    return remaining


def _save_what_is_evaluated(chosen: dict[str, Any], given_arguments: Arguments) -> None:
    """Make evaluations and checkpoints coincide, as `load_best_model_at_end` requires. This changes `chosen`."""
    # If one of the two numbers of steps is given, the other one is set to it.
    chosen["eval_steps"] = given_arguments.get("save_steps", chosen["eval_steps"])
    chosen["save_steps"] = given_arguments.get("eval_steps", chosen["eval_steps"])
    if "eval_strategy" in given_arguments:
        chosen["save_strategy"] = given_arguments["eval_strategy"]
    # With "best", the Trainer saves only when it evaluates, so the plan's evaluation strategy can stay.
    if given_arguments.get("save_strategy", "best") != "best":
        chosen["eval_strategy"] = given_arguments["save_strategy"]


def _without_replaced(recipe: Arguments, given_arguments: Arguments) -> dict[str, object]:
    """Return those recipe arguments that no given argument replaces or excludes."""
    replaced: set[str] = set()
    for argument, names in _REPLACED_BY.items():
        if given_arguments.get(argument):
            replaced.update(names)
    return {name: value for name, value in recipe.items() if name not in replaced}


def _fit_batches(
    recipe: Arguments, corpus: Corpus, processes: int, given_arguments: Arguments, tokens_that_fit: int
) -> dict[str, int]:
    """Choose batch sizes so that an update has the recipe's number of tokens, regardless of the number of processes."""
    tokens_per_update = given_arguments.get("tokens_per_update") or recipe.get("tokens_per_update")
    most_tokens_per_batch = tokens_that_fit
    if tokens_per_update is None:
        # In recipes for few pairs, an update is a single small batch, which fits into any memory.
        tokens_per_update = given_arguments.get("tokens_per_batch") or recipe["tokens_per_batch"]
        most_tokens_per_batch = tokens_per_update
    elif given_arguments.get("per_device_train_batch_size"):
        # It is unknown how many tokens such a batch has, so the update is split as on CPUs.
        most_tokens_per_batch = TOKENS_PER_PROCESS
    batches = split_update(
        tokens_per_update,
        processes,
        most_tokens_per_batch,
        # Longer sentences are removed from the training pairs.
        min(corpus.longest_sentence, recipe["max_tokens"]),
        tokens_per_batch=given_arguments.get("tokens_per_batch"),
        gradient_accumulation_steps=given_arguments.get("gradient_accumulation_steps"),
    )
    if given_arguments.get("tokens_per_batch"):
        max_tokens = batches.tokens_per_batch
    else:
        # A device's memory must not decide which pairs are too long.
        max_tokens = min(batches.tokens_per_batch, recipe["max_tokens"])
    # An evaluation keeps no activations, so its batches may have four times as many tokens as training batches.
    sentences_that_fit = 4 * recipe["max_tokens"] // corpus.longest_sentence
    evaluation_sentences = max(1, min(recipe["per_device_eval_batch_size"], sentences_that_fit))
    return {
        "tokens_per_batch": batches.tokens_per_batch,
        "max_tokens": max_tokens,
        "gradient_accumulation_steps": batches.gradient_accumulation_steps,
        "per_device_eval_batch_size": evaluation_sentences,
    }


def _explain(recipe_name: str, settings: Settings, corpus: Corpus, epochs: float) -> list[str]:
    """Return lines of text that explain what was chosen and why.

    Args:
        recipe_name: the name of the chosen recipe.
        settings: the chosen settings.
        corpus: the size of the corpus and a sample of its sentence lengths.
        epochs: the number of epochs of the run.
    """
    args = settings.args
    source_mean = corpus.source_lengths.mean()
    target_mean = corpus.target_lengths.mean()
    lines = [
        f"recipe {recipe_name}, for {FEWEST_PAIRS[recipe_name]:,} pairs and more: {corpus.training_pairs:,} training "
        f"pairs of {source_mean:.1f} source and {target_mean:.1f} target tokens on average"
    ]
    recipe_for_gpu = choose_recipe(corpus.training_pairs, has_gpu=True)
    if recipe_for_gpu != recipe_name:
        lines.append(
            f"{recipe_for_gpu}, the recipe for this number of pairs, needs a GPU; --config {recipe_for_gpu} selects it "
            "on a CPU nevertheless"
        )
    lines.append(f"model: {_describe_model(settings)}")
    lines.append(f"vocabulary: {_describe_vocabulary(recipe_name, settings.model)}")
    lines.append(f"update: {_describe_update(args)}; {epochs:,.1f} epochs{_describe_r_drop(args)}")
    lines.append(f"schedule: {args.describe_optimizer()}, {args.warmup_steps:,g} warm-up updates")
    lines.append(
        f"evaluation: {_describe_frequency(args.eval_strategy, args.eval_steps)}, of {corpus.validation_pairs:,} pairs"
    )
    weights = "of the last update"
    if settings.output.average_last:
        weights = f"average of the last {settings.output.average_last} checkpoints"
    lines.append(f"weights: {weights}; a checkpoint {_describe_frequency(args.save_strategy, args.save_steps)}")
    if settings.output.keep_better:
        lines.append("after the training: the better of average and last checkpoint, by BLEU on the validation pairs")
    if settings.evaluation.choose_search:
        pairs = min(corpus.validation_pairs, PAIRS_TO_CHOOSE_SEARCH)
        lines.append(f"search: length penalty and stopping rule are chosen on {pairs:,} validation pairs")
    removed = corpus.training_pairs - corpus.drop_pairs_over(settings.data.max_tokens).training_pairs
    if removed:
        lines.append(f"removed: about {removed:,} pairs of more than {settings.data.max_tokens:,} tokens on a side")
    return lines


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
    """Return a text about the vocabulary size, with the reason if it is smaller than in the recipe."""
    if model_args.tokenizer_name:
        return model_args.tokenizer_name
    description = f"at most {model_args.vocab_size:,} tokens"
    if model_args.vocab_size < read_recipe(recipe_name, Settings)["vocab_size"]:
        description += f", one for each {_BYTES_PER_TOKEN} bytes of text"
    return description


def _describe_update(args: RunArguments) -> str:
    batches = args.gradient_accumulation_steps * args.world_size
    if args.tokens_per_batch:
        return f"{args.tokens_per_batch * batches:,} tokens on each side"
    return f"{args.per_device_train_batch_size * batches:,} pairs"


def _describe_r_drop(args: RunArguments) -> str:
    if not args.r_drop_alpha:
        return ""
    return f", two dropout masks per batch (R-Drop {args.r_drop_alpha:g})"


def _describe_frequency(strategy: str, steps: float | None) -> str:
    """Return a text that says how often a run evaluates or saves, such as "every 500 updates"."""
    if strategy == "steps":
        return "every update" if steps == 1 else f"every {steps:,g} updates"
    if strategy == "no":
        return "never"
    return "every epoch"


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
