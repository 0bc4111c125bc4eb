"""What is told of a training: scores, model card, results, and the push to the Hub."""

import json
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from datasets import DatasetDict
from transformers import Seq2SeqTrainer

from .. import PaperTrainingArguments
from ..evaluation.curves import write_curve
from ..evaluation.environment import describe_environment
from ..evaluation.results import changed_arguments
from ..hub.card import BUILT_IN, card_metadata, fill_model_card
from ..hub.folder import staged
from ..hub.push import describe_error, prepare_repository, push_run
from ..training.arguments import RunArguments, describe_precision
from ..training.averaging import averaged_from
from ..training.facts import FactsOfTheRun
from .arguments import DataArguments, ModelArguments, Settings
from .common import load, score, show, write


def prepare_push(
    args: PaperTrainingArguments, model_args: ModelArguments, data_args: DataArguments, has_scores: bool
) -> None:
    """Find out before the training whether its result can be pushed, with scores on test pairs if it will have some."""
    args.hub_model_id = args.hub_model_id or Path(args.output_dir).absolute().name
    if args.process_index == 0:
        unknown = {"bleu": 0.0, "bleu_signature": "", "chrf": 0.0, "chrf_signature": ""}
        scores = {**unknown, "data": data_args.describe("test")} if has_scores else None
        metadata = card_metadata(**describe_for_the_hub(args, model_args, data_args), scores=scores)
        options = {"token": args.hub_token, "private": args.hub_private_repo, "revision": args.hub_revision}
        args.hub_model_id = prepare_repository(args.hub_model_id, metadata, **options)


def describe_run(settings: Settings) -> dict[str, Any]:
    """What the results tell of a run besides what came out of it."""
    model_args, data_args, decoding, scoring, result_args, args = settings
    return {
        "base_model": name_of(model_args.model),
        "settings": changed_arguments(model_args, data_args, decoding, scoring, args),
        **(describe_environment(args.device) if result_args.results else {}),
    }


def name_of(model: str | None) -> str | None:
    """A model's name on the Hub, or its folder's, which does not say where that lies."""
    return Path(model).name if model is not None and Path(model).is_absolute() else model


def report(
    trainer: Seq2SeqTrainer, settings: Settings, pairs: DatasetDict, told: dict[str, Any], began: float | None
) -> None:
    """Score the saved model, write what is to be known of it beside it, say so, and push it, if asked.

    Args:
        told: what the results tell besides.
        began: when, by `time.monotonic()`; None where that is not all that the model took.
    """
    model_args, data_args, _, _, result_args, args = settings
    # The Trainer may have put a copy of it in its place, with restore_callback_states_from_checkpoint.
    facts = next(each for each in trainer.callback_handler.callbacks if isinstance(each, FactsOfTheRun))
    with staged(settings.output) as folder:
        curve = write_curve(folder, trainer.state.log_history, result_args.bleu_targets)
    scores = score_pairs("test", settings, pairs)
    save_card(trainer, model_args, data_args, pairs, scores, facts)
    if scores is not None:
        show(scores)
    print(f"the model is in {settings.output}")
    if result_args.results:
        told["data"] = {split: data_args.describe(split) for split in pairs}
        told["scores"] = {"validation": score_pairs("validation", settings, pairs), "test": scores}
        told["total_seconds"] = None if began is None else time.monotonic() - began
        save_results(result_args.results, trainer, facts, curve, told)
    if args.push_to_hub:
        push(trainer, scores)


def score_pairs(split: str, settings: Settings, pairs: DatasetDict) -> dict[str, Any] | None:
    """Scores of the saved model on a split, if there is such a one, by the model's own search.

    The model in memory may still compute as it was trained, in bfloat16 for example; others will load the saved one.
    """
    if split not in pairs:
        return None
    tokenizer, model = load(str(settings.output), settings.args.device)
    data = settings.data.describe(split)
    return score(model, tokenizer, pairs[split], data, settings.decoding, settings.scoring)[0]


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
        precision=describe_precision(trainer.args),
        **describe_location(trainer.args),
        scores=scores,
        # A sentence of one's own, or of a private data set, may not be for the public.
        example_source=pairs["train"][0]["source"] if data_args.dataset == BUILT_IN else "A sentence to translate.",
        training_facts={
            "optimizer": facts.optimizer,
            "pairs": f"{len(pairs['train']):,}",
            "updates": f"{trainer.state.global_step:,}",
            "seconds": round(facts.seconds),
            **describe_regularizers(trainer.args, model_args),
            **describe_best(trainer),
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


def describe_best(trainer: Seq2SeqTrainer) -> dict[str, str]:
    """Which update the weights are of, where that is not the last one."""
    args, best = trainer.args, trainer.state.best_global_step
    if not args.load_best_model_at_end or best is None:
        return {}
    return {"weights": f"of update {best:,}, the best by {args.metric_for_best_model}"}


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
        **describe_best(trainer),
        "training_seconds": facts.seconds - facts.evaluation_seconds,
        "evaluation_seconds": facts.evaluation_seconds,
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
