"""Train a Transformer from scratch, or fine-tune one, and score it on the test pairs.

With no arguments at all it trains on the built-in number corpus, as recipes/numbers.yaml says. A first argument that
ends in .yaml or .json is a file of arguments; those that follow override it.
"""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any


# Run as a file, Python looks in the file's folder first, where evaluate.py hides the library of that name.
if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
from datasets import DatasetDict
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Seq2SeqTrainer,
    set_seed,
)

from hf_vanilla_transformer import (
    PaperTrainingArguments,
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    make_compute_metrics,
    paper_optimizers,
    tokenize_pairs,
    train_tokenizer,
)
from hf_vanilla_transformer.training.model_card import fill_model_card
from hf_vanilla_transformer.training.output import (
    check_output_folder,
    find_checkpoint,
    remove_checkpoints,
    staged,
)
from scripts.common import (
    DataArguments,
    DecodingArguments,
    ScoringArguments,
    load,
    parse,
    plain_errors,
    score,
    show,
)


DEFAULT_RECIPE = Path(__file__).parents[1] / "recipes" / "numbers.yaml"
# Section 5.3 is left as soon as one of these is given.
OPTIMIZER_ARGUMENTS = ("learning_rate", "lr_scheduler_type", "optim")


@dataclass
class ModelArguments:
    """Which model: an existing one to fine-tune, or a row of Table 3 with changes."""

    _argument_group_name = "model"

    model: str | None = field(
        default=None,
        metadata={"help": "Fine-tune this model, a folder or a name on the Hub, with its tokenizer and sizes."},
    )
    row: str = field(
        default="base", metadata={"help": 'Row of Table 3 to begin from: "base", "big", "C N=2", "E", ...'}
    )
    vocab_size: int = field(default=37000, metadata={"help": "Most tokens of the joint byte-pair encoding."})
    num_layers: int | None = field(default=None, metadata={"help": "N, of either stack, instead of the row's."})
    d_model: int | None = field(default=None, metadata={"help": "Instead of the row's."})
    d_ff: int | None = field(default=None, metadata={"help": "Instead of the row's."})
    num_heads: int | None = field(default=None, metadata={"help": "h, instead of the row's."})
    dropout: float | None = field(default=None, metadata={"help": "P_drop, instead of the row's, or the model's."})
    label_smoothing: float | None = field(default=None, metadata={"help": "epsilon_ls, likewise."})
    attn_implementation: str | None = field(default=None, metadata={"help": "eager or sdpa; chosen if not given."})
    license: str | None = field(default=None, metadata={"help": "Licence of the weights, for the model card."})
    overwrite: bool = field(default=False, metadata={"help": "Replace the model that the output folder holds."})

    def regularization(self) -> dict[str, float]:
        """What may be set for a model that is fine-tuned, too."""
        values = {"dropout": self.dropout, "label_smoothing": self.label_smoothing}
        return {name: value for name, value in values.items() if value is not None}

    def config(self, tokenizer: PreTrainedTokenizerBase) -> VanillaTransformerConfig:
        """The configuration of a model from scratch."""
        sizes = {"encoder_layers": self.num_layers, "decoder_layers": self.num_layers}
        sizes |= {"d_model": self.d_model, "d_ff": self.d_ff, "num_heads": self.num_heads}
        given = {name: value for name, value in sizes.items() if value is not None}
        return VanillaTransformerConfig.from_paper(
            self.row, vocab_size=len(tokenizer), **given, **self.regularization()
        )


def main(arguments: Sequence[str] | None = None) -> Path:
    """Train as the command line says; returns the folder of the trained model."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    model_args, data_args, scoring, args = parse(
        [ModelArguments, DataArguments, ScoringArguments, PaperTrainingArguments],
        __doc__,
        arguments or [str(DEFAULT_RECIPE)],
    )
    output = Path(args.output_dir)
    with plain_errors():
        check_counts(args)
        set_seed(args.seed)
        checkpoint = find_checkpoint(args.resume_from_checkpoint, output) if args.resume_from_checkpoint else None
        resumes = checkpoint is not None and checkpoint.resolve().parent == output.resolve()
        check_output_folder(output, overwrite=model_args.overwrite, resume=resumes)
        pairs = data_args.load()
        if "train" not in pairs:
            raise ValueError(f"there are no training pairs; there is: {', '.join(pairs)}. Give --train_files.")
        tokenizer, model = make_model(model_args, pairs, checkpoint)
        data = tokenize_pairs(pairs, tokenizer)
        check_lengths(model.config, data)
        trainer = make_trainer(args, tokenizer, model, data)
    if trainer.is_world_process_zero() and not resumes:
        remove_checkpoints(output)
    started = time.monotonic()
    run(trainer, checkpoint)
    seconds = time.monotonic() - started
    if trainer.is_world_process_zero():
        save_model(trainer, output)
        scores = score_test_pairs(output, pairs, data_args, scoring)
        save_card(trainer, model_args, data_args, pairs, scores, seconds)
        if scores is not None:
            show(scores)
        print(f"the model is in {output}")
    return output


def run(trainer: Seq2SeqTrainer, checkpoint: Path | None) -> None:
    """Train, from the beginning or from a checkpoint."""
    if checkpoint is None:
        trainer.train()
        return
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint))
    except ValueError as error:
        if "parameter group" not in str(error):
            raise
        sys.exit(
            f"error: {checkpoint} was written with another optimizer ({error}); resume with the same learning_rate, "
            "lr_scheduler_type and optim."
        )


def check_counts(args: PaperTrainingArguments) -> None:
    """Numbers that transformers does not check.

    Raises:
        ValueError: if one of them is not a whole number of at least 1.
    """
    for name in ("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"):
        value = getattr(args, name)
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} is {value}; it must be a whole number of at least 1.")


def check_lengths(config: VanillaTransformerConfig, data: DatasetDict) -> None:
    """Make sure that every sentence has positions.

    Raises:
        ValueError: if a sentence is longer than a table of learned positions.
    """
    if config.position_embedding_type == "sinusoidal":
        return
    for name, split in data.items():
        longest = max(len(ids) for column in ("input_ids", "labels") for ids in split[column])
        if longest > config.max_position_embeddings:
            raise ValueError(
                f"the longest sentence of {name} has {longest} tokens, but the model {config.max_position_embeddings} "
                "learned positions; remove or split it, or train with sinusoidal positions."
            )


def make_model(
    model_args: ModelArguments, pairs: DatasetDict, checkpoint: Path | None
) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    """Tokenizer and model: of a checkpoint, of an existing model, or new ones."""
    existing = checkpoint or model_args.model
    options = {"attn_implementation": model_args.attn_implementation} if model_args.attn_implementation else {}
    if existing is None:
        texts = chain(pairs["train"]["source"], pairs["train"]["target"])
        tokenizer = train_tokenizer(texts, vocab_size=model_args.vocab_size)
        config = model_args.config(tokenizer)
        return tokenizer, VanillaTransformerForConditionalGeneration._from_config(config, **options)
    config = AutoConfig.from_pretrained(existing)
    if config.model_type != VanillaTransformerConfig.model_type:
        raise ValueError(
            f"{existing} is a {config.model_type} model; this command trains {VanillaTransformerConfig.model_type}."
        )
    tokenizer = AutoTokenizer.from_pretrained(existing)
    check_vocabulary(existing, config, tokenizer)
    model = AutoModelForSeq2SeqLM.from_pretrained(existing, **options, **model_args.regularization())
    return tokenizer, model


def check_vocabulary(name: str | Path, config: VanillaTransformerConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Make sure that a tokenizer is its model's.

    Raises:
        ValueError: if the model has too few embeddings for it, or other special tokens.
    """
    rows = min(config.vocab_size, config.source_vocab_size or config.vocab_size)
    if len(tokenizer) > rows:
        raise ValueError(
            f"the tokenizer of {name} has {len(tokenizer)} tokens, but the model's vocabulary {rows}; "
            "fine-tune a model with the tokenizer that it was trained with."
        )
    for token in ("pad_token_id", "eos_token_id"):
        of_the_model = getattr(config, token)
        if getattr(tokenizer, token) not in (of_the_model if isinstance(of_the_model, list) else [of_the_model]):
            raise ValueError(
                f"{token} is {getattr(tokenizer, token)} in the tokenizer of {name} and {of_the_model} in "
                "the model; fine-tune a model with the tokenizer that it was trained with."
            )


def make_trainer(
    args: PaperTrainingArguments, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, data: DatasetDict
) -> Seq2SeqTrainer:
    """Stock `Seq2SeqTrainer`, with the paper's schedule unless the command line chose another."""
    args.dataloader_pin_memory = args.dataloader_pin_memory and torch.accelerator.is_available()
    return Seq2SeqTrainer(
        model=model,
        args=args,
        train_dataset=data["train"],
        eval_dataset=data.get("validation"),
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
        compute_metrics=make_compute_metrics(tokenizer) if args.predict_with_generate else None,
        optimizers=paper_optimizers(model, args) if uses_the_paper_s_schedule(args) else (None, None),
    )


def uses_the_paper_s_schedule(args: PaperTrainingArguments) -> bool:
    """Whether the command line left the optimizer and the learning rate to section 5.3."""
    return all(getattr(args, name) == getattr(PaperTrainingArguments, name) for name in OPTIMIZER_ARGUMENTS)


def save_model(trainer: Seq2SeqTrainer, output: Path) -> None:
    """Write model and tokenizer in place of an earlier run's, each file whole."""
    with staged(output, replace_run=True) as folder:
        trainer.save_model(str(folder))
        (folder / "training_args.bin").unlink(missing_ok=True)  # A pickle, which a folder to share should not hold.


def score_test_pairs(
    output: Path, pairs: DatasetDict, data_args: DataArguments, scoring: ScoringArguments
) -> dict[str, Any] | None:
    """Scores of the saved model on the test pairs, if there are any, by the model's own search.

    The model in memory may still compute as it was trained, in bfloat16 for example; others will load the saved one.
    """
    if "test" not in pairs:
        return None
    tokenizer, model = load(str(output))
    data = data_args.describe("test")
    return score(model, tokenizer, pairs["test"], data, DecodingArguments(), scoring)[0]


def save_card(
    trainer: Seq2SeqTrainer,
    model_args: ModelArguments,
    data_args: DataArguments,
    pairs: DatasetDict,
    scores: dict[str, Any] | None,
    seconds: float,
) -> None:
    """Write the model card and the scores beside the model."""
    output = Path(trainer.args.output_dir)
    source_language, target_language = data_args.languages()
    card = fill_model_card(
        trainer.model,
        trainer.args,
        title=output.name,
        data=data_args.describe("train"),
        source_language=source_language,
        target_language=target_language,
        scores=scores,
        # A sentence of one's own files may not be for the public.
        example_source=pairs["train"][0]["source"] if data_args.dataset else "A sentence to translate.",
        training_facts={
            "optimizer": describe_optimizer(trainer.args),
            "pairs": f"{len(pairs['train']):,}",
            "updates": f"{trainer.state.global_step:,}",
            "seconds": round(seconds),
        },
        base_model=model_args.model,
        license=model_args.license,
    )
    with staged(output) as folder:
        (folder / "README.md").write_text(card.content, encoding="utf-8")
        if scores is not None:
            (folder / "scores.json").write_text(json.dumps(scores, indent=2) + "\n", encoding="utf-8")


def describe_optimizer(args: PaperTrainingArguments) -> str:
    """Optimizer and schedule in words."""
    if uses_the_paper_s_schedule(args):
        return "Adam, learning rate of Eq. 3"
    return f"{args.optim.value}, learning rate {args.learning_rate:g}, schedule {args.lr_scheduler_type.value}"


if __name__ == "__main__":
    main()
