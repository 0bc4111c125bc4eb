"""What `train` builds before the training: pairs, tokenizer, model, token ids, Trainer."""

import logging
from functools import partial
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
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Seq2SeqTrainer,
)

from ..data.length_filter import filter_pairs, set_model_max_length
from ..data.pair_arguments import DataArguments
from ..data.token_budget_batches import TokenBudgetBatchSampler
from ..data.tokenized_pairs import tokenize_pairs
from ..data.tokenizer import train_tokenizer
from ..evaluation.metrics import make_compute_metrics
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from ..model.pipeline_vanilla_transformer import check_vocabulary
from ..model.tokenization_two_vocabularies import TwoVocabularyTokenizer
from ..translation.model_loading import explaining_missing_files, load_model
from .checkpoints import CompleteCheckpoints
from .optimizer_and_schedule import paper_optimizers
from .r_drop import RDropTrainer
from .run_arguments import ModelArguments, RunArguments
from .run_checks import check_tokenizer, check_validation_pairs
from .token_metrics import TokenMetricsTrainer


logger = logging.getLogger(__name__)


def load_training_pairs(args: RunArguments, data_args: DataArguments) -> DatasetDict:
    """Load the pairs, in the main process first.

    Raises:
        ValueError: if training pairs are missing, or validation pairs that `eval_strategy` needs.
    """
    with args.main_process_first(desc="loading the pairs"):
        pairs = data_args.load()
    if "train" not in pairs:
        raise ValueError(f"the data has no training pairs, only {', '.join(pairs)}; give --train_file.")
    check_validation_pairs(args, pairs)
    return pairs


def make_model(
    model_args: ModelArguments, pairs: DatasetDict, checkpoint: Path | None
) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    """Tokenizer and model: of a checkpoint, of an existing model, or new ones."""
    existing = checkpoint or model_args.model_name_or_path
    attention = {"attn_implementation": model_args.attn_implementation} if model_args.attn_implementation else {}
    if existing is None:
        tokenizer = make_tokenizer(model_args, pairs)
        config = model_args.config(tokenizer)
        return tokenizer, VanillaTransformerForConditionalGeneration._from_config(config, **attention)
    options = {} if checkpoint else model_args.options()
    with explaining_missing_files(existing):
        config = AutoConfig.from_pretrained(existing, **options)
    if config.model_type != VanillaTransformerConfig.model_type:
        raise ValueError(
            f"{existing} is a {config.model_type} model; this command trains {VanillaTransformerConfig.model_type}."
        )
    model_args.check_sizes(config, existing)
    if checkpoint is None and PartialState().is_main_process:
        logger.info("fine-tuning %s, with its sizes and its tokenizer", existing)
    with explaining_missing_files(existing):
        tokenizer = AutoTokenizer.from_pretrained(existing, padding_side="right", **options)
        check_vocabulary(config, tokenizer)
        # In 16 bits, small updates would be rounded away.
        model = load_model(existing, dtype=torch.float32, **options, **attention, **model_args.regularization())
    return tokenizer, model


def make_tokenizer(model_args: ModelArguments, pairs: DatasetDict) -> PreTrainedTokenizerBase:
    """An existing tokenizer, or one that the main process trains on the training pairs for all processes."""
    if model_args.tokenizer_name is not None:
        options = {**model_args.options(), "revision": None}  # The revision is the model's.
        with explaining_missing_files(model_args.tokenizer_name, ["tokenizer_config.json"]):
            tokenizer = AutoTokenizer.from_pretrained(model_args.tokenizer_name, padding_side="right", **options)
        check_tokenizer(model_args.tokenizer_name, tokenizer)
        return tokenizer
    tokenizers: list[Any] = [None]
    if PartialState().is_main_process:
        options = {"vocab_size": model_args.vocab_size, "whitespace_words": model_args.whitespace_words}
        sides = [pairs["train"]["source"], pairs["train"]["target"]]
        if model_args.joint_vocabulary:
            tokenizers = [train_tokenizer(chain(*sides), **options)]
        else:
            tokenizers = [TwoVocabularyTokenizer.of(*(train_tokenizer(texts, **options) for texts in sides))]
    return broadcast_object_list(tokenizers)[0]


def tokenize(
    args: RunArguments, model_args: ModelArguments, pairs: DatasetDict, tokenizer: PreTrainedTokenizerBase
) -> DatasetDict:
    """Token ids of all pairs, without the training pairs that are empty or too long."""
    with args.main_process_first(desc="tokenizing the pairs"):
        data = tokenize_pairs(pairs, tokenizer, model_args.preprocessing_num_workers)
        data["train"] = remove_unfit(data["train"], tokenizer, model_args.max_tokens)
    set_model_max_length(tokenizer, data["train"])
    return data


def set_languages(tokenizer: PreTrainedTokenizerBase, languages: tuple[str | None, str | None]) -> None:
    """Save the language codes of a model with its tokenizer, under the names that `MarianTokenizer` has for them."""
    for name, code in zip(("source_lang", "target_lang"), languages, strict=True):
        if code is not None and not hasattr(tokenizer, name):
            tokenizer.init_kwargs.setdefault(name, code)


def remove_unfit(data: Dataset, tokenizer: PreTrainedTokenizerBase, max_tokens: int | None) -> Dataset:
    """Remove training pairs that are empty or too long, and log how many."""
    kept, dropped = filter_pairs(data, tokenizer, max_tokens)
    too_long = "" if max_tokens is None else f", {dropped['too long']} longer than {max_tokens} tokens"
    if PartialState().is_main_process and (too_long or len(kept) < len(data)):
        logger.info(
            f"removed {len(data) - len(kept)} of {len(data)} training pairs: {dropped['empty']} empty on one side"
            f"{too_long}"
        )
    return kept


def make_trainer(
    args: RunArguments,
    tokenizer: PreTrainedTokenizerBase,
    model: PreTrainedModel,
    data: DatasetDict,
    scoring: dict[str, Any] | None = None,
) -> Seq2SeqTrainer:
    """`TokenMetricsTrainer`, or R-Drop's, with the paper's schedule unless the arguments choose another.

    Raises:
        ValueError: if FSDP or DeepSpeed would have to use the paper's schedule.
    """
    args.dataloader_pin_memory = args.dataloader_pin_memory and args.device.type != "cpu"
    if args.ddp_find_unused_parameters is None:
        args.ddp_find_unused_parameters = False  # Every weight gets a gradient in every update.
    optimizers = paper_optimizers(model, args, args.rate_factor) if args.uses_paper_schedule else None
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
    if optimizers is not None:
        if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
            raise ValueError(
                f"{'FSDP' if trainer.is_fsdp_enabled else 'DeepSpeed'} needs an optimizer that the Trainer makes, so "
                "the learning rate of Eq. 3 is not available; give --learning_rate, and --lr_scheduler_type and "
                "--warmup_steps as you like."
            )
        trainer.optimizer, trainer.lr_scheduler = optimizers
    if args.tokens_per_batch is not None:
        TokenBudgetBatchSampler.use_in(trainer, args.tokens_per_batch)
    if trainer.is_fsdp_enabled:
        # FSDP2 does not accept a matrix that two modules hold, such as the embeddings of both stacks.
        model.set_input_embeddings(model.get_input_embeddings())
    return trainer
