"""Train a Transformer from scratch, or fine-tune one, and score it on the test pairs.

With no arguments at all it trains on the built-in number corpus, as recipes/numbers.yaml says. A first argument that
ends in .yaml or .json is a file of arguments; those that follow override it.
"""

import json
import logging
import shlex
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any


# Run as a file, Python looks in the file's folder first, where evaluate.py hides the library of that name.
if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from datasets import Dataset, DatasetDict, disable_progress_bars
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
    CompleteCheckpoints,
    PaperTrainingArguments,
    TokenBudgetBatchSampler,
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    filter_pairs,
    make_compute_metrics,
    paper_optimizers,
    tokenize_pairs,
    train_tokenizer,
)
from hf_vanilla_transformer.data.bpe_dropout import tokenize_with_dropout
from hf_vanilla_transformer.evaluation.curves import write_curve
from hf_vanilla_transformer.evaluation.results import changed_arguments, describe_surroundings
from hf_vanilla_transformer.training.arguments import RunArguments, describe_precision
from hf_vanilla_transformer.training.averaging import averaged_from, last_checkpoints, write_average
from hf_vanilla_transformer.training.checkpoints import early_stopping, find_checkpoint, is_finished, remove_checkpoints
from hf_vanilla_transformer.training.checks import (
    check_average,
    check_counts,
    check_effects,
    check_lengths,
    check_processes,
    check_validation,
    check_validation_pairs,
    check_vocabulary,
)
from hf_vanilla_transformer.training.hub import describe_error, prepare_repository, push_run
from hf_vanilla_transformer.training.memory import GiveBackMemory, keep_freed_memory, peak_memory
from hf_vanilla_transformer.training.model_card import FactsOfTheRun, card_metadata, fill_model_card
from hf_vanilla_transformer.training.output import check_output_folder, check_writable, staged
from hf_vanilla_transformer.training.r_drop import RDropTrainer
from scripts.common import (
    DataArguments,
    DecodingArguments,
    ScoringArguments,
    check_can_write,
    finding,
    load,
    parse,
    plain_errors,
    score,
    show,
    write,
)


DEFAULT_RECIPE = Path(__file__).parents[1] / "recipes" / "numbers.yaml"


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
    whitespace_words: bool = field(
        default=False, metadata={"help": "Cut texts at blanks alone, for text that is tokenised already."}
    )
    bpe_dropout: float | None = field(
        default=None,
        metadata={"help": "Cut the training pairs at random, leaving out merges with this probability, 0.1 or so."},
    )
    bpe_dropout_copies: int = field(
        default=10, metadata={"help": "Copies of the training pairs, each cut in its own way, with --bpe_dropout."}
    )
    num_layers: int | None = field(default=None, metadata={"help": "N, of either stack, instead of the row's."})
    d_model: int | None = field(default=None, metadata={"help": "Instead of the row's."})
    d_ff: int | None = field(default=None, metadata={"help": "Instead of the row's."})
    num_heads: int | None = field(default=None, metadata={"help": "h, instead of the row's."})
    dropout: float | None = field(default=None, metadata={"help": "P_drop, instead of the row's, or the model's."})
    label_smoothing: float | None = field(default=None, metadata={"help": "epsilon_ls, likewise."})
    attn_implementation: str | None = field(default=None, metadata={"help": "eager or sdpa; chosen if not given."})
    license: str | None = field(default=None, metadata={"help": "Licence of the weights, for the model card."})
    max_tokens: int | None = field(
        default=None,
        metadata={"help": "Leave out training pairs that are empty or longer than this on one side."},
    )
    overwrite: bool = field(default=False, metadata={"help": "Replace the model that the output folder holds."})
    average_last: int | None = field(
        default=None,
        metadata={
            "help": "Save the average of the last so many checkpoints, instead of the weights after the last update. "
            "The paper averages 5, and 20 of the big model."
        },
    )

    def __post_init__(self) -> None:
        if self.bpe_dropout is None and self.bpe_dropout_copies != type(self).bpe_dropout_copies:
            raise ValueError(
                f"bpe_dropout_copies is {self.bpe_dropout_copies}, but bpe_dropout is missing; give both, such as "
                "--bpe_dropout 0.1, or neither."
            )

    def regularization(self) -> dict[str, float]:
        """What may be set for a model that is fine-tuned, too."""
        values = {"dropout": self.dropout, "label_smoothing": self.label_smoothing}
        return {name: value for name, value in values.items() if value is not None}

    def check_sizes(self, config: VanillaTransformerConfig, name: str | Path) -> None:
        """Make sure that no other size than an existing model's is asked for.

        Raises:
            ValueError: if one is.
        """
        sizes = {"num_layers": "encoder_layers", "d_model": "d_model", "d_ff": "d_ff", "num_heads": "num_heads"}
        for argument, size in sizes.items():
            wanted, there = getattr(self, argument), getattr(config, size)
            if wanted not in (None, there):
                raise ValueError(f"{argument} is {wanted}, but {name} has {there}, which training does not change.")

    def config(self, tokenizer: PreTrainedTokenizerBase) -> VanillaTransformerConfig:
        """The configuration of a model from scratch."""
        sizes = {"encoder_layers": self.num_layers, "decoder_layers": self.num_layers}
        sizes |= {"d_model": self.d_model, "d_ff": self.d_ff, "num_heads": self.num_heads}
        given = {name: value for name, value in sizes.items() if value is not None}
        return VanillaTransformerConfig.from_paper(
            self.row, vocab_size=len(tokenizer), **given, **self.regularization()
        )


@dataclass
class ResultArguments:
    """What is told of the run besides its model card."""

    _argument_group_name = "results"

    results: str | None = field(
        default=None,
        metadata={"help": "Write settings, scores on validation and test pairs, times and versions into this file."},
    )
    bleu_targets: list[float] = field(
        default_factory=list,
        metadata={"help": "Validation BLEU whose first reaching the curve tells, such as 35 38 40."},
    )


def main(arguments: Sequence[str] | None = None) -> Path:
    """Train as the command line says; returns the folder of the trained model."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    model_args, data_args, decoding, scoring, result_args, args = parse(
        [ModelArguments, DataArguments, DecodingArguments, ScoringArguments, ResultArguments, RunArguments],
        __doc__,
        arguments or [str(DEFAULT_RECIPE)],
    )
    output = Path(args.output_dir)
    with plain_errors():
        scoring = scoring.for_target(data_args.languages()[1])
        keeps_freed_memory = keep_freed_memory()
        if args.process_index > 0:
            stay_silent()
        set_seed(args.seed)
        checkpoint = find_checkpoint(args.resume_from_checkpoint, output) if args.resume_from_checkpoint else None
        resumes = checkpoint is not None and checkpoint.resolve().parent == output.resolve()
        check_settings(args, model_args, result_args, checkpoint, resumes)
        facts = FactsOfTheRun.of_checkpoint(checkpoint) if checkpoint else FactsOfTheRun()
        facts.base_model = model_args.model = located(model_args.model) or facts.base_model
        facts.optimizer = facts.optimizer or args.describe_optimizer()
        described: dict[str, Any] = {"base_model": name_of(model_args.model)}
        described |= {"settings": changed_arguments(model_args, data_args, decoding, scoring, args)}
        described |= describe_surroundings(args.device) if result_args.results else {}
        pairs = load_with_training_pairs(args, data_args)
        if args.push_to_hub:
            prepare_push(args, model_args, data_args)
        tokenizer, model = make_model(model_args, pairs, checkpoint)
        model.generation_config.update(**decoding.generate_kwargs())
        data = tokenize(args, model_args, pairs, tokenizer)
        check_lengths(model.config, data)
        trainer = make_trainer(args, tokenizer, model, data, scoring.options(pairs["train"]))
        trainer.add_callback(facts)
        if keeps_freed_memory and args.device.type == "cpu":
            trainer.add_callback(GiveBackMemory())
        if args.early_stopping_patience is not None:
            trainer.add_callback(early_stopping(args.early_stopping_patience, checkpoint))
    if trainer.is_world_process_zero():
        print(f"training in {describe_precision(args)}")
        if not resumes:
            remove_checkpoints(output)
    run(trainer, checkpoint)
    # The Trainer may have put a copy of it in its place, with restore_callback_states_from_checkpoint.
    facts = next(each for each in trainer.callback_handler.callbacks if isinstance(each, FactsOfTheRun))
    save_model(trainer, output)
    if trainer.is_world_process_zero():
        if model_args.average_last is not None:
            save_average(output, model_args.average_last)
        with staged(output) as folder:
            curve = write_curve(folder, trainer.state.log_history, result_args.bleu_targets)
        scores = score_pairs("test", output, pairs, data_args, decoding, scoring, args.device)
        save_card(trainer, model_args, data_args, pairs, scores, facts)
        if scores is not None:
            show(scores)
        print(f"the model is in {output}")
        if result_args.results:
            of_validation = score_pairs("validation", output, pairs, data_args, decoding, scoring, args.device)
            described["data"] = {split: data_args.describe(split) for split in pairs}
            described["scores"] = {"validation": of_validation, "test": scores}
            save_results(result_args.results, trainer, facts, curve, described)
        if args.push_to_hub:
            push(trainer, scores)
    return output


def check_settings(
    args: RunArguments, model_args: ModelArguments, result_args: ResultArguments, checkpoint: Path | None, resumes: bool
) -> None:
    """Find out before any work what would stop the run, or spoil another's.

    Raises:
        OSError: if something cannot be written.
        ValueError: if settings do not go together.
    """
    check_counts(args)
    check_validation(args)
    check_effects(args)
    check_processes(args)
    check_output_folder(Path(args.output_dir), overwrite=model_args.overwrite, resume=resumes)
    # Of several processes only the first one writes, but for checkpoints.
    if args.process_index == 0:
        check_can_write(result_args.results)
    if args.process_index == 0 or args.save_strategy != "no":
        check_writable(Path(args.output_dir))
    if model_args.average_last is not None:
        check_average(args, model_args.average_last, resumes)
        if checkpoint is not None and not resumes and is_finished(args, checkpoint):
            raise ValueError(
                f"{checkpoint} is the end of the run already, so {args.output_dir} would get no checkpoints to "
                "average; average those of the earlier run with scripts/average_checkpoints.py."
            )


def load_with_training_pairs(args: RunArguments, data_args: DataArguments) -> DatasetDict:
    """The pairs, in the main process first.

    Raises:
        ValueError: if there are none to train on, or none for the evaluations that are asked for.
    """
    with args.main_process_first(desc="loading the pairs"):
        pairs = data_args.load()
    if "train" not in pairs:
        raise ValueError(f"there are no training pairs; there is: {', '.join(pairs)}. Give --train_files.")
    check_validation_pairs(args, pairs)
    return pairs


def tokenize(
    args: RunArguments, model_args: ModelArguments, pairs: DatasetDict, tokenizer: PreTrainedTokenizerBase
) -> DatasetDict:
    """Token ids of all pairs; of the training pairs with BPE dropout, and without those that do not fit, if asked."""
    with args.main_process_first(desc="tokenising the pairs"):
        if model_args.bpe_dropout is None:
            data = tokenize_pairs(pairs, tokenizer)
        else:
            data = tokenize_pairs(DatasetDict({split: pairs[split] for split in pairs if split != "train"}), tokenizer)
            options = (model_args.bpe_dropout, model_args.bpe_dropout_copies, args.seed)
            data["train"] = tokenize_with_dropout(pairs["train"], tokenizer, *options)
        if model_args.max_tokens is not None:
            data["train"] = leave_out(data["train"], tokenizer, model_args.max_tokens)
    return data


def located(model: str | None) -> str | None:
    """A model's name on the Hub, or its folder from the root, which is never taken for a name."""
    return str(Path(model).resolve()) if model is not None and Path(model).is_dir() else model


def name_of(model: str | None) -> str | None:
    """A model's name on the Hub, or its folder's, which does not say where that lies."""
    return Path(model).name if model is not None and Path(model).is_absolute() else model


def leave_out(data: Dataset, tokenizer: PreTrainedTokenizerBase, max_tokens: int) -> Dataset:
    """Training pairs without those that are empty or too long; says how many those are."""
    kept, dropped = filter_pairs(data, tokenizer, max_tokens)
    if PartialState().is_main_process:
        print(
            f"left out {len(data) - len(kept)} of {len(data)} training pairs: {dropped['empty']} empty on one side, "
            f"{dropped['too long']} longer than {max_tokens} tokens"
        )
    return kept


def run(trainer: Seq2SeqTrainer, checkpoint: Path | None) -> None:
    """Train, from the beginning or from a checkpoint."""
    if checkpoint is None:
        trainer.train()
        return
    if is_finished(trainer.args, checkpoint):
        # From the last checkpoint the Trainer would make one update more.
        trainer.args.max_steps, trainer.args.num_train_epochs = -1, 0
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint))
    except (KeyError, ValueError) as error:
        if "parameter group" not in str(error) and not is_raised_by_an_optimizer(error):
            raise
        sys.exit(
            f"error: {checkpoint} was written with another optimizer ({error}); resume with the same learning_rate, "
            "lr_scheduler_type and optim."
        )


def is_raised_by_an_optimizer(error: Exception) -> bool:
    """Whether an error comes out of torch.optim, as where an optimizer is given another's state."""
    *_, innermost = traceback.walk_tb(error.__traceback__)
    return innermost[0].f_globals["__name__"].startswith("torch.optim.")


def stay_silent() -> None:
    """Leave speaking to the main process."""
    disable_progress_bars()
    logging.getLogger("hf_vanilla_transformer").setLevel(logging.ERROR)


def make_model(
    model_args: ModelArguments, pairs: DatasetDict, checkpoint: Path | None
) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    """Tokenizer and model: of a checkpoint, of an existing model, or new ones."""
    existing = checkpoint or model_args.model
    options = {"attn_implementation": model_args.attn_implementation} if model_args.attn_implementation else {}
    if existing is None:
        tokenizer = make_tokenizer(model_args, pairs)
        config = model_args.config(tokenizer)
        return tokenizer, VanillaTransformerForConditionalGeneration._from_config(config, **options)
    with finding(existing):
        config = AutoConfig.from_pretrained(existing)
    if config.model_type != VanillaTransformerConfig.model_type:
        raise ValueError(
            f"{existing} is a {config.model_type} model; this command trains {VanillaTransformerConfig.model_type}."
        )
    model_args.check_sizes(config, existing)
    tokenizer = AutoTokenizer.from_pretrained(existing)
    check_vocabulary(existing, config, tokenizer)
    # Weights of 16 bits would lose updates that are smaller than they can tell.
    model = AutoModelForSeq2SeqLM.from_pretrained(
        existing, dtype=torch.float32, **options, **model_args.regularization()
    )
    return tokenizer, model


def make_tokenizer(model_args: ModelArguments, pairs: DatasetDict) -> PreTrainedTokenizerBase:
    """Learn a tokenizer from the training pairs in the main process, for all processes."""
    tokenizers: list[Any] = [None]
    if PartialState().is_main_process:
        texts = chain(pairs["train"]["source"], pairs["train"]["target"])
        options = {"vocab_size": model_args.vocab_size, "whitespace_words": model_args.whitespace_words}
        tokenizers = [train_tokenizer(texts, **options)]
    return broadcast_object_list(tokenizers)[0]


def make_trainer(
    args: RunArguments,
    tokenizer: PreTrainedTokenizerBase,
    model: PreTrainedModel,
    data: DatasetDict,
    scoring: dict[str, Any] | None = None,
) -> Seq2SeqTrainer:
    """Stock `Seq2SeqTrainer`, or R-Drop's, with the paper's schedule unless the command line chose another."""
    args.dataloader_pin_memory = args.dataloader_pin_memory and args.device.type != "cpu"
    if args.ddp_find_unused_parameters is None:
        args.ddp_find_unused_parameters = False  # Every weight takes part in every update.
    optimizers = paper_optimizers(model, args) if args.uses_the_paper_s_schedule else None
    kind: Any = partial(RDropTrainer, r_drop=args.r_drop) if args.r_drop else Seq2SeqTrainer
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
                "there is no learning rate of Eq. 3; give --learning_rate, and --lr_scheduler_type and --warmup_steps "
                "as you like."
            )
        trainer.optimizer, trainer.lr_scheduler = optimizers
    if args.tokens_per_batch is not None:
        TokenBudgetBatchSampler.use_in(trainer, args.tokens_per_batch)
    if trainer.is_fsdp_enabled:
        # FSDP2 refuses a matrix that is in two modules, such as the embeddings of both stacks.
        model.set_input_embeddings(model.get_input_embeddings())
    return trainer


def save_model(trainer: Seq2SeqTrainer, output: Path) -> None:
    """Write model and tokenizer in place of an earlier run's, each file whole."""
    if not trainer.is_world_process_zero():
        trainer.save_model(_internal_call=True)  # Writes nothing; the main process may need its share of the weights.
        return
    with staged(output, replace_run=True) as folder:
        # As the Trainer itself calls it, or it would push, too, with a card of its own.
        trainer.save_model(str(folder), _internal_call=True)
        (folder / "training_args.bin").unlink(missing_ok=True)  # A pickle, which a folder to share should not hold.


def save_average(output: Path, count: int) -> None:
    """Put the average of the last checkpoints, of which the last update's is one, in the place of the saved model."""
    checkpoints = last_checkpoints(output, count)
    if len(checkpoints) < count:
        print(f"average_last is {count}, but the run left {len(checkpoints)} complete checkpoints; these are averaged")
    try:
        with staged(output, replace_run=True) as folder:
            write_average(checkpoints, folder)
    except (OSError, ValueError) as error:
        rest = f" The model in {output} is that of the last update, not an average."
        sys.exit(f"error: {error}{rest if any(output.glob('*.safetensors')) else ''}")


def score_pairs(
    split: str,
    output: Path,
    pairs: DatasetDict,
    data_args: DataArguments,
    decoding: DecodingArguments,
    scoring: ScoringArguments,
    device: torch.device,
) -> dict[str, Any] | None:
    """Scores of the saved model on a split, if there is such a one, by the model's own search.

    The model in memory may still compute as it was trained, in bfloat16 for example; others will load the saved one.
    """
    if split not in pairs:
        return None
    tokenizer, model = load(str(output), device)
    return score(model, tokenizer, pairs[split], data_args.describe(split), decoding, scoring)[0]


def save_card(
    trainer: Seq2SeqTrainer,
    model_args: ModelArguments,
    data_args: DataArguments,
    pairs: DatasetDict,
    scores: dict[str, Any] | None,
    facts: FactsOfTheRun,
) -> None:
    """Write the model card and the scores beside the model."""
    output = Path(trainer.args.output_dir)
    card = fill_model_card(
        trainer.model,
        trainer.args,
        **describe_for_the_hub(trainer.args, model_args, data_args),
        data=data_args.describe("train"),
        **describe_location(trainer.args),
        scores=scores,
        # A sentence of one's own files may not be for the public.
        example_source=pairs["train"][0]["source"] if data_args.dataset else "A sentence to translate.",
        training_facts={
            "optimizer": facts.optimizer,
            "pairs": f"{len(pairs['train']):,}",
            "updates": f"{trainer.state.global_step:,}",
            "seconds": round(facts.seconds),
            **describe_regularizers(trainer.args, model_args),
        },
        averaged_from=averaged_from(output),
    )
    with staged(output) as folder:
        (folder / "README.md").write_text(card.content, encoding="utf-8")
        if scores is not None:
            (folder / "scores.json").write_text(json.dumps(scores, indent=2) + "\n", encoding="utf-8")


def describe_regularizers(args: RunArguments, model_args: ModelArguments) -> dict[str, str]:
    """What was done against overfitting that the paper does not do."""
    described = {}
    if args.r_drop:
        described["R-Drop"] = f"weight {args.r_drop:g}"
    if model_args.bpe_dropout:
        described["BPE dropout"] = f"{model_args.bpe_dropout:g}, {model_args.bpe_dropout_copies} copies"
    return described


def save_results(
    path: str, trainer: Seq2SeqTrainer, facts: FactsOfTheRun, curve: dict[str, Any] | None, described: dict[str, Any]
) -> None:
    """Write what came out of a run into one file, with what it takes to make it again."""
    results = {
        "seed": trainer.args.seed,
        **described,
        "parameters": trainer.model.num_parameters(),
        "optimizer": facts.optimizer,
        "precision": describe_precision(trainer.args),
        "updates": trainer.state.global_step,
        "training_seconds": facts.seconds - facts.evaluation_seconds,
        "evaluation_seconds": facts.evaluation_seconds,
        "peak_memory_bytes": peak_memory(),
        "curve": curve,
    }
    write(path, json.dumps(results, indent=2) + "\n")
    print(f"the results are in {path}")


def describe_for_the_hub(
    args: PaperTrainingArguments, model_args: ModelArguments, data_args: DataArguments
) -> dict[str, str | None]:
    """What the model card's metadata says whatever comes out of the training."""
    source_language, target_language = data_args.languages()
    return {
        "title": Path(args.hub_model_id if args.push_to_hub else args.output_dir).absolute().name,
        "dataset": data_args.dataset,
        "dataset_config": data_args.dataset_config,
        "source_language": source_language,
        "target_language": target_language,
        "base_model": model_args.model,
        "license": model_args.license,
    }


def describe_location(args: PaperTrainingArguments) -> dict[str, str | None]:
    """Where the model card's example finds the model."""
    if args.push_to_hub:
        return {"location": args.hub_model_id, "revision": args.hub_revision}
    # A path from the root says more about a machine than a reader needs to know.
    folder = Path(args.output_dir)
    return {"location": folder.name if folder.is_absolute() else args.output_dir}


def prepare_push(args: PaperTrainingArguments, model_args: ModelArguments, data_args: DataArguments) -> None:
    """Find out before the training whether its result can be pushed."""
    args.hub_model_id = args.hub_model_id or Path(args.output_dir).absolute().name
    if args.process_index == 0:
        metadata = card_metadata(**describe_for_the_hub(args, model_args, data_args))
        options = {"token": args.hub_token, "private": args.hub_private_repo, "revision": args.hub_revision}
        args.hub_model_id = prepare_repository(args.hub_model_id, metadata, **options)


def push(trainer: Seq2SeqTrainer, scores: dict[str, Any] | None) -> None:
    """Push the output folder; where that fails, say how to do it later, for the model is trained."""
    args = trainer.args
    message = f"Train for {trainer.state.global_step:,} updates"
    if scores is not None:
        message += f": BLEU {scores['bleu']:.2f}"
    try:
        address = push_run(
            Path(args.output_dir),
            args.hub_model_id,
            message=message,
            token=args.hub_token,
            revision=args.hub_revision,
        )
    except Exception as error:  # Whatever it is: the network, the Hub, the rights.
        revision = ["--revision", args.hub_revision] if args.hub_revision else []
        left_out = ["--exclude", "checkpoint-*", "--exclude", "training_args.bin", "--exclude", ".*"]
        command = shlex.join(["hf", "upload", args.hub_model_id, args.output_dir, ".", *revision, *left_out])
        sys.exit(
            f"error: the model could not be pushed to {args.hub_model_id} ({describe_error(error)}). It is whole in "
            f"{args.output_dir}; push it later with: {command}"
        )
    print(f"the model is pushed to {args.hub_model_id}: {address}")


if __name__ == "__main__":
    main()
