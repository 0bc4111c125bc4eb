"""The settings that `train` chooses for a corpus and a machine where none are given, and what the run will cost."""

import math
import sys
from collections.abc import Mapping
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
from .run_arguments import TOKENS_PER_PROCESS, ModelArguments, Settings
from .run_checks import check_numbers
from .run_setup import target_language_of, tokenizer_of
from .update_batches import DeviceMemory, count_tokens_that_fit, read_device_memory, set_batches_of_update, split_update


# Recipes, and the fewest training pairs of each. The last two bounds are the geometric means of the 30,000, 200,000
# and 5 million pairs that the recipes are for.
ROWS = {"tiny": 10, "small": 10_000, "medium": 80_000, "base": 1_000_000}
# Fewer updates train nothing; more would take weeks on a CPU.
FEWEST_UPDATES, MOST_UPDATES = 1_000, 100_000
# Runs of fewer epochs underfit with more dropout (docs/experiments.md).
_FEW_EPOCHS, _DROPOUT_OF_FEW = 30, 0.1
# Bytes of text, both sides together, for each token of the vocabulary; Multi30k has 600 with its 6,000 tokens.
_BYTES_PER_TOKEN, _SMALLEST_VOCABULARY = 300, 300
_SAMPLE = 20_000
# Arguments of a recipe that need validation pairs.
_OF_VALIDATION = ("eval_strategy", "eval_steps", "keep_better", "choose_search")
# Arguments of a recipe that a given argument replaces or excludes.
_OF_CHECKPOINTS = ("load_best_model_at_end", "save_only_model", "save_strategy", "save_total_limit")
_REPLACED = {
    **dict.fromkeys(_OF_CHECKPOINTS, ("average_last",)),
    "num_layers": ("config_overrides",),
    "num_train_epochs": ("max_steps",),
    "per_device_train_batch_size": ("tokens_per_batch", "max_tokens"),
    "rate_factor": ("learning_rate", "lr_scheduler_type"),
    "tokenizer_name": ("vocab_size",),
}


class Plan(NamedTuple):
    """What [`plan`] returns.

    Args:
        arguments (`dict`): arguments of `train` by name, without those that were given.
        reasons (`list[str]`): what was chosen and why, a line each.
        costs (`Costs`): parameters, target tokens of an epoch, updates, seconds, and bytes of memory and of disk.
    """

    arguments: dict[str, Any]
    reasons: list[str]
    costs: Costs

    def lines(self) -> list[str]:
        """The reasons, then the costs."""
        costs = self.costs
        return [
            *self.reasons,
            f"parameters: {costs.parameters:,}",
            f"target tokens: {costs.tokens:,} in an epoch",
            f"updates: {costs.updates:,}",
            f"time: {spoken_duration(costs.seconds)}",
            *(f"{name}: {_size(getattr(costs, name))}" for name in ("memory", "disk")),
        ]


def plan(
    pairs: DatasetDict,
    *,
    tflops: float | None = None,
    chooses: bool = True,
    memory: DeviceMemory | None = None,
    **given: Any,
) -> Plan:
    """Choose the arguments of `train` for sentence pairs and this machine, and estimate what the run will cost.

    The number of training pairs selects a recipe; batches, updates and vocabulary follow from the texts. The costs are
    those of a trial of at most a minute. Nothing is printed or written, and random states do not change.

    ```python
    lines = plan(load_pairs(train_files=["train.en", "train.de"])).lines()
    ```

    Args:
        pairs (`DatasetDict`): columns `source` and `target`; the split `train`, and `validation` and `test` if any.
        tflops (`float`, *optional*): peak of a GPU that is not here, in TFLOP/s: the plan is for it, and its time and
            memory are computed, not measured. An update is one batch.
        chooses (`bool`): whether to choose what is not given; otherwise `train` has its defaults, and the plan has only
            costs.
        memory (`DeviceMemory`, *optional*): of the device that has least of it free, if several train; by default that
            of this process's GPU. The batches follow from it.
        **given: arguments of `train`, which the plan keeps.

    Raises:
        TypeError, ValueError: if an argument is wrong, a model is to be fine-tuned, or there are fewer than 10 pairs.
        UserError: if the trial fails, for example because the memory is too small.
    """
    settings, train = Settings.from_arguments(**given), pairs["train"]
    if settings.model.model_name_or_path is not None:
        raise InputError("a plan is for a new model; give learning_rate and max_steps to fine-tune one.")
    if len(train) < ROWS["tiny"]:
        raise InputError(f"there are {len(train)} training pairs, too few for a plan, which needs {ROWS['tiny']}.")
    check_numbers(settings.args)
    if tflops is not None and not 0 < tflops < math.inf:
        raise InputError(f"tflops is {tflops}; give the TFLOP/s of a GPU, such as 100.")
    # A student's sources occur twice: with the given target, and with the teacher's.
    targets = 2 if settings.teacher.teacher and not settings.teacher.distilled_only else 1
    name = row_for(len(train) // targets, tflops is not None or settings.args.device.type != "cpu")
    row = read_recipe(name, Settings)
    if settings.teacher.teacher:
        row = student_recipe(row)
    # In memory, because tokens of other pairs would be written to the cache of data sets.
    sample = DatasetDict({split: _sample(pairs[split]) for split in ("train", "validation") if split in pairs})
    texts = [text for column in ("source", "target") for text in sample["train"][column]]
    size = sum(len(text.encode()) for text in texts) * len(train) // len(sample["train"])
    row["vocab_size"] = min(row["vocab_size"], max(_SMALLEST_VOCABULARY, size // _BYTES_PER_TOKEN))
    of_tokenizer = {"vocab_size": row["vocab_size"]} if chooses and not settings.model.tokenizer_name else {}
    tokenizer = tokenizer_of(Settings.from_arguments(**{**of_tokenizer, **given}).model, sample)
    data = tokenize_pairs(sample, tokenizer, target_lang=target_language_of(settings.data, tokenizer))
    validation, test = (len(pairs.get(split, [])) for split in ("validation", "test"))
    corpus = Corpus(len(train), validation, test, *pair_lengths(data["train"]))
    if tflops is not None:
        # The memory of a GPU that is not here is unknown. The plan says how much one batch needs.
        tokens_that_fit = sys.maxsize
    else:
        memory = memory or read_device_memory(settings.args.device)
        tokens_that_fit = _count_tokens_that_fit(row if chooses else {}, given, tokenizer, memory)
    arguments = {}
    if chooses:
        arguments = choose(row, corpus, settings.args.world_size, given, targets, tokens_that_fit)
    planned = Settings.from_arguments(**{**arguments, **given})
    max_tokens = planned.model.max_tokens or planned.args.tokens_per_batch
    kept = corpus.drop_pairs_over(max_tokens)
    # The trial takes pairs by their numbers in the corpus that is left.
    data["train"] = data["train"].select(corpus.find_rows_up_to(max_tokens))
    planned = set_batches_of_update(planned, tokens_that_fit, kept.longest_sentence)
    per_epoch = updates_of_epoch(corpus, planned.given, settings.args.world_size)
    # As the Trainer counts them.
    steps, epochs = planned.args.max_steps, planned.args.num_train_epochs
    updates = steps if steps > 0 else math.ceil(epochs * per_epoch)
    for kind in ("save", "eval"):
        if getattr(planned.args, f"{kind}_strategy") == "epoch":  # The same by steps, which the costs count.
            setattr(planned.args, f"{kind}_steps", per_epoch)
    costs = estimate_costs(planned, updates, kept, tokenizer, data, tflops)
    how = "measured by a trial of some updates" if tflops is None else f"computed for {tflops:g} TFLOP/s, not measured"
    reasons = _reasons(name, planned, corpus, updates / per_epoch) if chooses else []
    return Plan(arguments, [*reasons, f"time and memory: {how}"], costs)


def _count_tokens_that_fit(
    row: Mapping[str, Any], given: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase, memory: DeviceMemory | None
) -> int:
    """Compute how many tokens of a batch fit into the memory of a device, for the model of a recipe."""
    names = {field.name for field in fields(ModelArguments)} | {"r_drop_alpha"}
    sizes = {name: value for name, value in _without_replaced(row, given).items() if name in names}
    settings = Settings.from_arguments(**{**sizes, **given})
    with torch.device("meta"):
        model = VanillaTransformerForConditionalGeneration(settings.model.config(tokenizer))
    return count_tokens_that_fit(model, settings.args, memory)


def row_for(pairs: int, on_gpu: bool) -> str:
    """The recipe for a number of training pairs; on CPUs never the paper's base."""
    return [name for name, fewest in ROWS.items() if fewest <= pairs and (on_gpu or name != "base")][-1]


def student_recipe(row: dict[str, Any]) -> dict[str, Any]:
    """A recipe for a student: a deep encoder, and one decoder layer, because decoding takes most time of a translation.

    Kasai et al. 2021, "Deep Encoder, Shallow Decoder"; the initial weights of deep encoders are those of Wang et al.
    2022, "DeepNet".
    """
    layers = 2 * row["num_layers"]
    overrides = {"encoder_layers": layers, "decoder_layers": 1}
    return {**row, "config_overrides": overrides, "initializer_factor": round((8 * layers) ** -0.25, 2)}


def _sample(split: Dataset) -> Dataset:
    rows = split.select(pick_evenly_spaced_rows(len(split), _SAMPLE)).select_columns(["source", "target"])
    return Dataset.from_dict(rows.to_dict())


def updates_of_epoch(corpus: Corpus, arguments: Mapping[str, Any], processes: int) -> int:
    """The number of updates in an epoch, with some arguments of `train`."""
    kept = corpus.drop_pairs_over(arguments.get("max_tokens") or arguments.get("tokens_per_batch"))
    batches = len(kept.make_batches(arguments.get("tokens_per_batch"), arguments.get("per_device_train_batch_size", 8)))
    of_process = math.ceil(batches * kept.training_pairs / len(kept.source_lengths) / processes)
    return math.ceil(of_process / arguments.get("gradient_accumulation_steps", 1))


def choose(
    row: Mapping[str, Any],
    corpus: Corpus,
    processes: int,
    given: Mapping[str, Any],
    targets: int = 1,
    tokens_that_fit: int = TOKENS_PER_PROCESS,
) -> dict[str, Any]:
    """Fit a recipe to a corpus.

    Args:
        row: arguments of the recipe; steps below 1 are fractions of the run.
        processes: that train together; the recipe's update is of all of them.
        given: arguments that the choice keeps.
        targets: of each source.
        tokens_that_fit: into the memory of a device, on each side of a batch.

    Returns:
        The arguments that were not given.
    """
    fitted = _fit_batches(row, corpus, processes, given, tokens_that_fit)
    chosen = _without_replaced({**row, **fitted}, given)
    # The batches follow from it.
    chosen.pop("tokens_per_update", None)
    merged = {**chosen, **given}
    per_epoch = updates_of_epoch(corpus, merged, processes)
    updates = math.ceil(merged["num_train_epochs"] * per_epoch)
    if given.get("max_steps", -1) > 0:
        # The Trainer prefers it to a number of epochs.
        updates = given["max_steps"]
    elif "num_train_epochs" not in given:
        updates = min(max(updates, FEWEST_UPDATES), row.get("max_steps", MOST_UPDATES))
        chosen["max_steps"] = updates
    del chosen["num_train_epochs"]
    if targets * updates / per_epoch < _FEW_EPOCHS:
        chosen["dropout"] = min(row["dropout"], _DROPOUT_OF_FEW)
    chosen["warmup_steps"] = max(1, min(int(row["warmup_steps"]), updates // 10))
    chosen |= {name: math.ceil(row[name] * updates) for name in ("logging_steps", "eval_steps", "save_steps")}
    if given.get("load_best_model_at_end"):
        # Each model that is evaluated is saved.
        chosen["eval_steps"] = given.get("save_steps", chosen["eval_steps"])
        chosen["save_steps"] = given.get("eval_steps", chosen["eval_steps"])
        if "eval_strategy" in given:
            chosen["save_strategy"] = given["eval_strategy"]
        # With "best" the Trainer saves when it evaluates, and the plan says when that is.
        if given.get("save_strategy", "best") != "best":
            chosen["eval_strategy"] = given["save_strategy"]
    if not merged.get("average_last"):
        del chosen["keep_better"]
    if given.get("num_beams") == 1:
        # A greedy search has neither a length penalty nor a stopping rule.
        del chosen["choose_search"]
    if not corpus.validation_pairs:
        chosen = {name: value for name, value in chosen.items() if name not in _OF_VALIDATION}
    return {name: value for name, value in chosen.items() if name not in given}


def _without_replaced(row: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a recipe that no given argument replaces or excludes."""
    replaced = {name for argument, names in _REPLACED.items() if given.get(argument) for name in names}
    return {name: value for name, value in row.items() if name not in replaced}


def _fit_batches(
    recipe: Mapping[str, Any], corpus: Corpus, processes: int, given: Mapping[str, Any], tokens_that_fit: int
) -> dict[str, Any]:
    """Choose batches so that an update has as many tokens as the recipe says, whatever the number of processes."""
    longest_sentence = corpus.longest_sentence
    tokens_per_update = given.get("tokens_per_update") or recipe.get("tokens_per_update")
    most_tokens = tokens_that_fit
    if tokens_per_update is None:
        # A recipe for fewer pairs has updates of one batch, which fits everywhere.
        tokens_per_update = given.get("tokens_per_batch") or recipe["tokens_per_batch"]
        most_tokens = tokens_per_update
    elif given.get("per_device_train_batch_size"):
        # The tokens of such a batch are not known, so the update is split as on CPUs.
        most_tokens = TOKENS_PER_PROCESS
    batches = split_update(
        tokens_per_update,
        processes,
        most_tokens,
        # Longer sentences are removed.
        min(longest_sentence, recipe["max_tokens"]),
        tokens_per_batch=given.get("tokens_per_batch"),
        gradient_accumulation_steps=given.get("gradient_accumulation_steps"),
    )
    if given.get("tokens_per_batch"):
        max_tokens = batches.tokens_per_batch
    else:
        # Which pairs are too long must not depend on the memory of a device.
        max_tokens = min(batches.tokens_per_batch, recipe["max_tokens"])
    # An evaluation keeps no activations, so its batch may have more tokens than a batch of the training.
    evaluated_sentences = 4 * recipe["max_tokens"] // longest_sentence
    return {
        "tokens_per_batch": batches.tokens_per_batch,
        "max_tokens": max_tokens,
        "gradient_accumulation_steps": batches.gradient_accumulation_steps,
        "per_device_eval_batch_size": max(1, min(recipe["per_device_eval_batch_size"], evaluated_sentences)),
    }


def _reasons(name: str, settings: Settings, corpus: Corpus, epochs: float) -> list[str]:
    """What was chosen and why, a line each."""
    args, model, config = settings.args, settings.model, settings.model.config()
    sizes = f"d_model {config.d_model}, d_ff {config.d_ff}, {config.num_heads} heads, dropout {config.dropout:g}"
    factor = f", initial weights times {config.initializer_factor:g}" if config.initializer_factor != 1 else ""
    means = f"{corpus.source_lengths.mean():.1f} source and {corpus.target_lengths.mean():.1f} target tokens on average"
    is_limited = model.vocab_size < read_recipe(name, Settings)["vocab_size"]
    limit = f", one for each {_BYTES_PER_TOKEN} bytes of text" if is_limited else ""
    batches = args.gradient_accumulation_steps * args.world_size
    tokens = args.tokens_per_batch and f"{args.tokens_per_batch * batches:,} tokens on each side"
    r_drop = f", two dropout masks per batch (R-Drop {args.r_drop_alpha:g})" if args.r_drop_alpha else ""
    removed = corpus.training_pairs - corpus.drop_pairs_over(model.max_tokens).training_pairs
    weights = f"average of the last {model.average_last} checkpoints" if model.average_last else "of the last update"
    lines = [
        f"recipe {name}, for {ROWS[name]:,} pairs and more: {corpus.training_pairs:,} training pairs of {means}",
        f"model: {config.encoder_layers} + {config.decoder_layers} layers, {sizes}{factor}",
        f"vocabulary: {model.tokenizer_name or f'at most {model.vocab_size:,} tokens{limit}'}",
        f"update: {tokens or f'{args.per_device_train_batch_size * batches:,} pairs'}; {epochs:,.1f} epochs{r_drop}",
        f"schedule: {args.describe_optimizer()}, {args.warmup_steps:,g} warm-up updates",
        f"evaluation: {_when(args.eval_strategy, args.eval_steps)}, of {corpus.validation_pairs:,} pairs",
        f"weights: {weights}; a checkpoint {_when(args.save_strategy, args.save_steps)}",
    ]
    if model.keep_better:
        lines.append("after the training: the better of average and last checkpoint, by BLEU on the validation pairs")
    if model.choose_search:
        pairs = min(corpus.validation_pairs, PAIRS_TO_CHOOSE_SEARCH)
        lines.append(f"search: length penalty and stopping rule are chosen on {pairs:,} validation pairs")
    if (larger := row_for(corpus.training_pairs, on_gpu=True)) != name:
        lines.insert(1, f"{larger}, for so many pairs, needs a GPU; --config {larger} selects it on a CPU, too")
    if removed:
        lines.append(f"removed: about {removed:,} pairs of more than {model.max_tokens:,} tokens on a side")
    return lines


def spoken_duration(seconds: float) -> str:
    """A duration in words, rounded up."""
    minutes = math.ceil(seconds / 60)
    spoken = f"{minutes / 60:,.1f} hours" if minutes >= 90 else f"{minutes} minutes"
    return "1 minute" if minutes == 1 else spoken


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def _when(strategy: str, steps: Any) -> str:
    if strategy == "steps":
        return "every update" if steps == 1 else f"every {steps:,g} updates"
    return {"no": "never"}.get(strategy, "every epoch")
