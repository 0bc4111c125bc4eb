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
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Seq2SeqTrainer,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

from hf_vanilla_transformer import (
    PaperTrainingArguments,
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    make_compute_metrics,
    paper_optimizers,
    score_translations,
    tokenize_pairs,
    train_tokenizer,
    translate,
)
from hf_vanilla_transformer.training.model_card import fill_model_card
from hf_vanilla_transformer.training.output import check_output_folder, staged
from scripts.common import DataArguments, ScoringArguments, describe_search, parse, plain_errors


DEFAULT_RECIPE = Path(__file__).parents[1] / "recipes" / "numbers.yaml"


@dataclass
class ModelArguments:
    """Which model: an existing one to fine-tune, or a row of Table 3 with changes."""

    _argument_group_name = "model"

    model: str | None = field(
        default=None, metadata={"help": "Fine-tune this model, a folder or a name on the Hub, with its tokenizer."}
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
    set_seed(args.seed)
    with plain_errors():
        checkpoint = find_checkpoint(args)
        check_output_folder(Path(args.output_dir), overwrite=model_args.overwrite, resume=checkpoint is not None)
        pairs = data_args.load()
        tokenizer, model = make_model(model_args, pairs, checkpoint)
    trainer, seconds = train(args, tokenizer, model, tokenize_pairs(pairs, tokenizer), checkpoint)
    if trainer.is_world_process_zero():
        scores = score(model, tokenizer, pairs, scoring)
        save(trainer, model_args, data_args, pairs, scores, seconds)
    return Path(args.output_dir)


def find_checkpoint(args: PaperTrainingArguments) -> str | None:
    """The checkpoint to resume from: the one named, or the last one of the output folder for "last"."""
    wanted = args.resume_from_checkpoint
    if wanted is None:
        return None
    if wanted.lower() not in ("last", "true"):
        return wanted
    found = get_last_checkpoint(args.output_dir) if Path(args.output_dir).is_dir() else None
    if found is None:
        raise ValueError(f"{args.output_dir} holds no checkpoint to resume from; leave out --resume_from_checkpoint.")
    return found


def make_model(
    model_args: ModelArguments, pairs: DatasetDict, checkpoint: str | None
) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    """Tokenizer and model: of a checkpoint, of an existing model, or new ones."""
    existing = checkpoint or model_args.model
    options = {"attn_implementation": model_args.attn_implementation} if model_args.attn_implementation else {}
    if existing is None:
        texts = chain(pairs["train"]["source"], pairs["train"]["target"])
        tokenizer = train_tokenizer(texts, vocab_size=model_args.vocab_size)
        config = model_args.config(tokenizer)
        return tokenizer, VanillaTransformerForConditionalGeneration._from_config(config, **options)
    tokenizer = AutoTokenizer.from_pretrained(existing)
    model = AutoModelForSeq2SeqLM.from_pretrained(existing, **options, **model_args.regularization())
    if len(tokenizer) > model.config.vocab_size:
        raise ValueError(
            f"the tokenizer of {existing} has {len(tokenizer)} tokens, but the model's vocabulary "
            f"{model.config.vocab_size}; fine-tune a model with the tokenizer that it was trained with."
        )
    return tokenizer, model


def train(
    args: PaperTrainingArguments,
    tokenizer: PreTrainedTokenizerBase,
    model: PreTrainedModel,
    data: DatasetDict,
    checkpoint: str | None,
) -> tuple[Seq2SeqTrainer, float]:
    """Run the Trainer; returns it, and the seconds that training took."""
    args.dataloader_pin_memory = args.dataloader_pin_memory and torch.accelerator.is_available()
    trainer = Seq2SeqTrainer(
        model=model,
        args=args,
        train_dataset=data["train"],
        eval_dataset=data.get("validation"),
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
        compute_metrics=make_compute_metrics(tokenizer) if args.predict_with_generate else None,
        optimizers=paper_optimizers(model, args) if uses_the_paper_s_schedule(args) else (None, None),
    )
    started = time.monotonic()
    trainer.train(resume_from_checkpoint=checkpoint)
    return trainer, time.monotonic() - started


def uses_the_paper_s_schedule(args: PaperTrainingArguments) -> bool:
    """Whether the command line left the learning rate to Eq. 3, which depends on d_model."""
    defaults = PaperTrainingArguments
    return (args.learning_rate, args.lr_scheduler_type) == (defaults.learning_rate, defaults.lr_scheduler_type)


def score(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, pairs: DatasetDict, scoring: ScoringArguments
) -> dict[str, Any] | None:
    """Scores on the test pairs, if there are any, by the model's own search."""
    if "test" not in pairs:
        return None
    hypotheses = translate(model, tokenizer, pairs["test"]["source"], show_progress=True)
    return score_translations(hypotheses, pairs["test"]["target"], **scoring.options())


def save(
    trainer: Seq2SeqTrainer,
    model_args: ModelArguments,
    data_args: DataArguments,
    pairs: DatasetDict,
    scores: dict[str, Any] | None,
    seconds: float,
) -> None:
    """Write model, tokenizer, scores and model card into the output folder, each file whole."""
    args, model = trainer.args, trainer.model
    source_language, target_language = data_args.languages()
    card = fill_model_card(
        model,
        args,
        title=Path(args.output_dir).name,
        data=data_args.describe(),
        source_language=source_language,
        target_language=target_language,
        scores=scores,
        decoding=describe_search(model),
        example_source=pairs["train"][0]["source"],
        training_facts={
            "pairs": f"{len(pairs['train']):,}",
            "updates": f"{trainer.state.global_step:,}",
            "seconds": round(seconds),
        },
        base_model=model_args.model,
        license=model_args.license,
    )
    with staged(Path(args.output_dir)) as folder:
        trainer.save_model(str(folder))
        (folder / "training_args.bin").unlink(missing_ok=True)  # A pickle, which a folder to share should not hold.
        (folder / "README.md").write_text(card.content, encoding="utf-8")
        if scores is not None:
            (folder / "scores.json").write_text(json.dumps(scores, indent=2) + "\n", encoding="utf-8")
    if scores is not None:
        print(f"test: BLEU {scores['bleu']:.2f}, chrF {scores['chrf']:.2f}, exact match {scores['exact_match']:.1f}")
    print(f"the model is in {args.output_dir}")


if __name__ == "__main__":
    main()
