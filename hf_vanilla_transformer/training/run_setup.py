"""What `train` builds before the training: pairs, tokenizer, model, token ids, Trainer, callbacks."""

import json
import logging
from functools import partial
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from datasets import Dataset, DatasetDict
from transformers import (
    AutoConfig,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    IntervalStrategy,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Seq2SeqTrainer,
)
from transformers.trainer_utils import HubStrategy

from ..data.cleaning import clean_pairs, hold_out
from ..data.evenly_spaced_rows import pick_evenly_spaced_rows
from ..data.length_filter import filter_pairs, pair_lengths
from ..data.pair_arguments import TrainingDataArguments
from ..data.sentencepiece_tokenizer import train_sentencepiece
from ..data.target_language import TargetCodes, codes_of
from ..data.token_budget_batches import TokenBudgetBatchSampler
from ..data.tokenized_pairs import tokenize_pairs
from ..data.tokenizer import train_tokenizer
from ..evaluation.metrics import make_compute_metrics
from ..hub.native_folder import IMPORTERS, native_folder
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.input_checks import (
    LETTERLESS_SHARE_FIELD,
    check_vocabulary,
    has_letters,
    is_blank,
    saved_letterless_share,
    teaches_letterless,
)
from ..model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from ..model.tokenization_two_vocabularies import TwoVocabularyTokenizer
from ..support.memory_tuning import keep_freed_memory
from ..support.user_errors import InputError
from ..translation.model_loading import explaining_missing_files, load_model
from .checkpoints import CompleteCheckpoints, count_processes
from .optimizer_and_schedule import PaperSchedule
from .process_seeds import ProcessSeeds
from .r_drop import RDropTrainer
from .run_arguments import ModelArguments, RunArguments, Settings
from .run_checks import check_lengths, check_space, check_tokenizer
from .run_report import push_without_paths
from .token_metrics_trainer import TokenMetricsTrainer
from .trainer_callbacks import (
    CheckpointAtSigterm,
    EarlyStopping,
    LogExamples,
    LogRunSizes,
    RecordFacts,
    ReleaseMemory,
    StopWhenDiverged,
)
from .update_batches import (
    count_tokens_that_fit,
    find_longest_sentence,
    read_smallest_device_memory,
    set_batches_of_update,
)


# The default of save_total_limit, because the checkpoints of a long run would fill a disk.
CHECKPOINTS_KEPT = 10

logger = logging.getLogger(__name__)


def build_trainer(
    settings: Settings, pairs: DatasetDict, checkpoint: Path | None, facts: RecordFacts
) -> tuple[Settings, Seq2SeqTrainer]:
    """Build tokenizer, model and Trainer.

    Returns the settings, with the batches that fit into the memory of the device, and the Trainer.
    """
    model_args, args = settings.model, settings.args
    if args.save_total_limit is None:
        args.save_total_limit = max(CHECKPOINTS_KEPT, (model_args.average_last or 0) + 1)
    saves_at_sigterm, args.enable_jit_checkpoint = args.enable_jit_checkpoint, False
    # Before large allocations, which the allocator would return to the OS.
    keeps_freed_memory = args.device.type == "cpu" and keep_freed_memory()
    tokenizer, model = make_model(model_args, pairs, checkpoint)
    keep_zero_start(model)
    model.generation_config.update(**settings.decoding.generate_kwargs())
    data = tokenize(args, model_args, pairs, tokenizer, target_language_of(settings.data, tokenizer))
    set_languages(tokenizer, *settings.data.languages())
    set_letterless_share(tokenizer, pairs["train"], is_fine_tuned=model_args.model_name_or_path is not None)
    check_lengths(model.config, data)
    if model.config.position_embedding_type == "learned":  # Sinusoids have no limit.
        tokenizer.model_max_length = model.config.max_position_embeddings
    earlier, facts.pairs = facts.pairs, digest(data["train"])
    if earlier not in (None, facts.pairs):
        logger.warning(
            "the training pairs are not those of %s, so the run does not continue as if it had not been interrupted; "
            "give the same files, or fine-tune with --model_name_or_path.",
            checkpoint,
        )
    if checkpoint is not None:
        warn_of_other_processes(checkpoint, args.world_size)
    if args.tokens_per_update is not None:
        tokens_that_fit = count_tokens_that_fit(model, args, read_smallest_device_memory(args.device))
        settings = set_batches_of_update(settings, tokens_that_fit, find_longest_sentence(data["train"]))
    scored = pairs.get("validation", pairs["train"])
    trainer = make_trainer(args, tokenizer, model, data, settings.scoring.options(scored))
    log_run_sizes = LogRunSizes(model.num_parameters(), len(data["train"]))
    callbacks = [facts, log_run_sizes, StopWhenDiverged(), ProcessSeeds(trainer)]
    if args.eval_strategy != "no":
        callbacks.append(LogExamples(trainer, tokenizer, pairs["validation"]))
    if keeps_freed_memory:
        callbacks.append(ReleaseMemory())
    if args.early_stopping_patience is not None:
        callbacks.append(EarlyStopping(args.early_stopping_patience))
    if saves_at_sigterm:
        callbacks.append(CheckpointAtSigterm())
    for callback in callbacks:
        trainer.add_callback(callback)
    if args.process_index == 0:
        check_space(trainer, settings.output)
    return settings, trainer


def load_training_pairs(args: RunArguments, data_args: TrainingDataArguments) -> DatasetDict:
    """Load and prepare the pairs, in the main process first; ValueError if there are no training pairs."""
    with args.main_process_first(desc="loading the pairs"):
        pairs = data_args.load()
        if "train" not in pairs:
            raise InputError(f"the data has no training pairs, only {', '.join(pairs)}; give --train_file.")
        return prepare_pairs(pairs, data_args)


def prepare_pairs(pairs: DatasetDict, data_args: TrainingDataArguments) -> DatasetDict:
    """Sample and clean the training pairs, and hold out validation pairs, as the arguments say; log the counts.

    Raises ValueError if no training pairs would remain, or validation pairs are there already.
    """
    pairs, held_out = DatasetDict(pairs), data_args.validation_size
    if held_out is not None and "validation" in pairs:
        raise InputError(f"validation_size is {held_out}, but validation pairs are given; leave out one of the two.")
    if data_args.max_train_samples is not None:
        pairs["train"] = pairs["train"].select(
            pick_evenly_spaced_rows(len(pairs["train"]), data_args.max_train_samples)
        )
    if data_args.clean:
        given, evaluated = pairs["train"], [pairs[name] for name in ("validation", "test") if name in pairs]
        pairs["train"], removed = clean_pairs(given, evaluated)
        log_removed(removed, len(given))
    if held_out is not None:
        pairs["train"], pairs["validation"] = hold_out(pairs["train"], held_out)
        logger.info(f"held out {len(pairs['validation']):,} training pairs for validation")
    return pairs


def check_has_validation(settings: Settings, pairs: DatasetDict) -> None:
    """Raise ValueError if a run that evaluates or chooses has no validation pairs."""
    strategy = IntervalStrategy(settings.args.eval_strategy).value
    asked = {"eval_strategy": strategy != "no" and strategy}
    asked |= {name: getattr(settings.model, name) for name in ("keep_better", "choose_search")}
    for name, value in asked.items():
        if value and "validation" not in pairs:
            raise InputError(
                f"{name} is {value}, but the data has no validation pairs, only {', '.join(pairs)}; give "
                "--validation_file or --validation_size, or leave it out."
            )


def make_model(
    model_args: ModelArguments, pairs: DatasetDict, checkpoint: Path | None
) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    """Tokenizer and model: of a checkpoint, of an existing model, or new ones."""
    existing = checkpoint or model_args.model_name_or_path
    attention = {"attn_implementation": model_args.attn_implementation} if model_args.attn_implementation else {}
    if existing is None:
        tokenizer = make_tokenizer(model_args, pairs)
        config = model_args.config(tokenizer)
        model = VanillaTransformerForConditionalGeneration._from_config(config, **attention)
        if config.decoder_start_token_id == config.pad_token_id:
            model.get_decoder().embed_tokens.weight.data[config.pad_token_id] = 0  # As in Marian.
        return tokenizer, model
    name, options = existing, {} if checkpoint else model_args.options()
    with explaining_missing_files(existing):
        config = AutoConfig.from_pretrained(existing, **options)
        if checkpoint is None and config.model_type in IMPORTERS:
            existing, options = native_folder(str(existing), model_args.revision, model_args.token), {}
            config = AutoConfig.from_pretrained(existing)
    if config.model_type != VanillaTransformerConfig.model_type:
        raise InputError(
            f"{existing} is a {config.model_type} model; this command trains {VanillaTransformerConfig.model_type}."
        )
    model_args.check_sizes(config, existing)
    if checkpoint is None:
        kind = "" if existing == name else ", converted into a model of this package"
        logger.info("fine-tuning %s%s, with its sizes and its tokenizer", name, kind)
    with explaining_missing_files(existing):
        tokenizer = AutoTokenizer.from_pretrained(existing, padding_side="right", **options)
        check_vocabulary(config, tokenizer)
        # In 16 bits, small updates would be rounded away.
        model = load_model(existing, dtype=torch.float32, **options, **attention, **model_args.regularization())
    return tokenizer, model


def keep_zero_start(model: PreTrainedModel) -> None:
    """Keep the decoder's start token a zero vector in training, if it is one as in Marian: other runtimes need that."""
    start, weight = model.config.decoder_start_token_id, model.get_decoder().embed_tokens.weight
    if not weight[start].any():
        weight.register_hook(lambda gradient: gradient.index_fill(0, torch.tensor(start, device=gradient.device), 0))


def make_tokenizer(model_args: ModelArguments, pairs: DatasetDict) -> PreTrainedTokenizerBase:
    """An existing tokenizer, or one that the main process trains on the training pairs for all processes."""
    if model_args.tokenizer_name is not None:
        return tokenizer_of(model_args, pairs)
    if model_args.tokenizer_type == "sentencepiece" and PartialState().num_processes > 1:
        raise InputError("several processes cannot train a SentencePiece model; train one first, for --tokenizer_name.")
    tokenizers = [tokenizer_of(model_args, pairs) if PartialState().is_main_process else None]
    return broadcast_object_list(tokenizers)[0]


def tokenizer_of(model_args: ModelArguments, pairs: DatasetDict) -> PreTrainedTokenizerBase:
    """An existing tokenizer, or one that this process trains on the training pairs."""
    if model_args.tokenizer_name is not None:
        options = {**model_args.options(), "revision": None}  # The revision is the model's.
        with explaining_missing_files(model_args.tokenizer_name, ["tokenizer_config.json"]):
            tokenizer = AutoTokenizer.from_pretrained(model_args.tokenizer_name, padding_side="right", **options)
        check_tokenizer(model_args.tokenizer_name, tokenizer)
        return tokenizer
    if model_args.tokenizer_type == "sentencepiece":
        return train_sentencepiece(chain(pairs["train"]["source"], pairs["train"]["target"]), model_args.vocab_size)
    options = {name: getattr(model_args, name) for name in ("vocab_size", "whitespace_words", "normalization")}
    options["characters"] = model_args.tokenizer_type == "char"
    sides = [pairs["train"]["source"], pairs["train"]["target"]]
    if model_args.joint_vocabulary:
        return train_tokenizer(chain(*sides), **options)
    return TwoVocabularyTokenizer.of(*(train_tokenizer(texts, **options) for texts in sides))


def target_language_of(data_args: TrainingDataArguments, tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Return the language whose code sources get; None if the tokenizer has no codes of target languages."""
    # A model of one language may be fine-tuned for another one.
    return data_args.target_language_for(tokenizer) if codes_of(tokenizer) else None


def tokenize(
    args: RunArguments,
    model_args: ModelArguments,
    pairs: DatasetDict,
    tokenizer: PreTrainedTokenizerBase,
    target_lang: str | None = None,
) -> DatasetDict:
    """Token ids of all pairs, without the training pairs that are empty or too long; logs how many these are."""
    longest = model_args.max_tokens or args.tokens_per_batch
    with args.main_process_first(desc="tokenizing the pairs"):
        data = tokenize_pairs(pairs, tokenizer, model_args.preprocessing_num_workers, target_lang=target_lang)
        data["train"], dropped = filter_pairs(data["train"], tokenizer, longest)
    removed = {"empty on one side": dropped["empty"], f"longer than {longest} tokens": dropped["too long"]}
    log_removed(removed, len(pairs["train"]))
    longest, field = int(pair_lengths(data["train"])[0].max()), "longest_training_source"
    # A model that came without the field, as of OPUS-MT, was trained on longer sources than those of a fine-tuning.
    if model_args.model_name_or_path is None or field in tokenizer.init_kwargs:
        tokenizer.init_kwargs[field] = max(longest, tokenizer.init_kwargs.get(field, 0))
    return data


def log_removed(counts: dict[str, int], total: int, what: str = "training pairs") -> None:
    """Log how many of the training pairs each rule removed, in one line, if any."""
    if any(counts.values()):
        reasons = ", ".join(f"{count:,} {rule}" for rule, count in counts.items() if count)
        logger.info(f"removed {sum(counts.values()):,} of {total:,} {what}: {reasons}")


def set_languages(tokenizer: PreTrainedTokenizerBase, *codes: str | None) -> None:
    """Save the languages with the tokenizer, by `MarianTokenizer`'s names; a fine-tuned model's may be other ones."""
    for name, code in zip(("source_lang", "target_lang"), codes, strict=True):
        if code is not None:
            tokenizer.init_kwargs[name] = code
            if hasattr(tokenizer, name):
                setattr(tokenizer, name, code)


def set_letterless_share(tokenizer: PreTrainedTokenizerBase, pairs: Dataset, is_fine_tuned: bool) -> None:
    """Save with the tokenizer which share of the pairs translates a source without letters into a different text.

    A fine-tuned model does not forget what its earlier training taught it. If that training is unknown, as of OPUS-MT,
    a small share of this one says nothing and is not saved.
    """
    share = translated_letterless_share(pairs, TargetCodes(tokenizer))
    if is_fine_tuned:
        earlier = saved_letterless_share(tokenizer)
        if earlier is None and not teaches_letterless(share):
            return
        share = max(share, earlier or 0.0)
    tokenizer.init_kwargs[LETTERLESS_SHARE_FIELD] = share


def translated_letterless_share(pairs: Dataset, codes: TargetCodes) -> float:
    """Compute the share of pairs whose source has no letter and whose target is a different text.

    White space at the ends makes no difference, and pairs with a blank side do not count. The code of a target language
    is no part of a source.
    """
    translated = 0
    for batch in pairs.select_columns(["source", "target"]).iter(batch_size=10_000):
        sources = [codes.read(source).text for source in batch["source"]]
        for source, target in zip(sources, batch["target"], strict=True):
            if has_letters(source) or source.strip() == target.strip():
                continue
            if not is_blank(source) and not is_blank(target):
                translated += 1
    return translated / len(pairs)


def digest(data: Dataset) -> str:
    """A hash of tokenized pairs, of all lengths and of 1,000 pairs evenly spread, because a corpus may be large."""
    pairs = data.select(pick_evenly_spaced_rows(len(data), 1000)).select_columns(["input_ids", "labels"]).to_dict()
    found = sha256(json.dumps(pairs).encode())
    for side in pair_lengths(data):
        found.update(side.astype("<i8").tobytes())
    return found.hexdigest()[:16]


def warn_of_other_processes(checkpoint: Path, processes: int) -> None:
    """Log a warning if another number of processes wrote the checkpoint from which this run resumes."""
    earlier = count_processes(checkpoint)
    if earlier not in (0, processes):
        logger.warning(
            "%s was written by %d processes, and this run has %d, so the batches of an update and the order of the "
            "pairs change; start %d to continue as if the run had not been interrupted.",
            checkpoint,
            earlier,
            processes,
            earlier,
        )


def make_trainer(
    args: RunArguments,
    tokenizer: PreTrainedTokenizerBase,
    model: PreTrainedModel,
    data: DatasetDict,
    scoring: dict[str, Any] | None = None,
) -> Seq2SeqTrainer:
    """`TokenMetricsTrainer`, or R-Drop's, with the paper's schedule unless the arguments choose another."""
    args.dataloader_pin_memory = args.dataloader_pin_memory and args.device.type != "cpu"
    if args.ddp_find_unused_parameters is None:
        args.ddp_find_unused_parameters = False  # Every weight gets a gradient in every update.
    kind: Any = partial(RDropTrainer, r_drop_alpha=args.r_drop_alpha) if args.r_drop_alpha else TokenMetricsTrainer
    trainer = kind(
        model=model,
        args=args,
        train_dataset=data["train"],
        eval_dataset=data.get("validation"),
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
        compute_metrics=make_compute_metrics(tokenizer, **(scoring or {})) if args.predict_with_generate else None,
        callbacks=[CompleteCheckpoints()],
    )
    if args.uses_paper_schedule:
        PaperSchedule.use_in(trainer, args.rate_factor)
    if args.tokens_per_batch is not None:
        TokenBudgetBatchSampler.use_in(trainer, args.tokens_per_batch)
    if args.push_to_hub and args.hub_strategy != HubStrategy.END:
        push_without_paths(trainer)
    if trainer.is_fsdp_enabled:
        # FSDP2 does not accept a matrix that two modules hold, such as the embeddings of both stacks.
        model.set_input_embeddings(model.get_input_embeddings())
    return trainer
