"""What a run reports after its training: scores, model card, results file; and the push to the Hub."""

import json
import logging
import shlex
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from datasets import DatasetDict
from transformers import AutoConfig, AutoModelForSeq2SeqLM, Seq2SeqTrainer

from ..acceleration.int8_quantization import Int8Config
from ..data.evenly_spaced_rows import pick_evenly_spaced_rows
from ..data.target_language import TargetCodes
from ..evaluation.choose_search import PAIRS_TO_CHOOSE_SEARCH, choose_search
from ..evaluation.curve_files import write_curve
from ..evaluation.evaluate import describe_scores, describe_search, evaluate
from ..hub.model_card import BUILT_IN, About, argument_facts, average_facts, fill_model_card, location_of, name_of_base
from ..hub.model_folder import INT8, NOT_TO_SHARE, staged
from ..hub.push_to_hub import describe_error, prepare_repository, push_run
from ..support.atomic_files import write_text
from ..support.machine_and_versions import describe_environment
from ..translation.model_loading import load
from .checkpoints import remove_path_of_best
from .paper_arguments import describe_precision
from .run_arguments import Settings
from .run_saving import RunStoppedError, save_arguments, save_average
from .trainer_callbacks import RecordFacts


logger = logging.getLogger(__name__)


def report(
    trainer: Seq2SeqTrainer, settings: Settings, pairs: DatasetDict, averaged: list[str], record: dict[str, Any]
) -> None:
    """Evaluate the saved model, write curve, scores, card and results, log the scores, and push if asked.

    Args:
        averaged: names of the checkpoints whose average was saved; empty without `average_last`.
        record: what `describe_run` returned, for the results file, and `started`, the time by `time.monotonic()`.
    """
    args, updates = settings.args, trainer.state.global_step
    model: Any = trainer.model
    # restore_callback_states_from_checkpoint replaces callbacks by copies.
    facts = next(each for each in trainer.callback_handler.callbacks if isinstance(each, RecordFacts))
    curve = save_records(trainer, settings)
    compared = compare_average(settings, pairs, averaged[-1]) if averaged and "validation" in pairs else {}
    is_last_kept = settings.model.keep_better and compared != {} and _gain(compared) < 0
    if is_last_kept:
        averaged = save_average(settings.output, 1)
        save_records(trainer, settings)  # The other weights replaced all files of the run.
    search = save_chosen_search(settings, pairs) if settings.model.choose_search and "validation" in pairs else {}
    scores = evaluate_saved("test", settings, pairs)
    int8: dict[str, str] = {}
    int8_scores = None
    if settings.teacher.teacher:
        int8_scores = save_int8(settings, pairs)
        int8 = {"int8": describe_int8(int8_scores)}
    best = trainer.state.best_global_step if args.load_best_model_at_end else None
    weights = {} if best is None else {"weights": f"of update {best:,}, the best by {args.metric_for_best_model}"}
    outcome = {"optimizer": facts.optimizer, "precision": describe_precision(args), **weights}
    card_facts = {
        "data": settings.data.describe("train"),
        **record.get("distillation", {}),
        **argument_facts(args),
        **adam_facts(trainer),
        **outcome,
        "pairs": f"{len(pairs['train']):,}",
        "updates": f"{updates:,}",
        "seconds": round(facts.seconds),
        **({"R-Drop": f"weight {args.r_drop_alpha:g}"} if args.r_drop_alpha else {}),
        **({"weights": f"of {averaged[0]}, better than the average"} if is_last_kept else average_facts(averaged)),
        **({"validation BLEU": describe_average(compared)} if compared else {}),
        **search,
        **int8,
    }
    tokenizer: Any = trainer.processing_class
    codes = TargetCodes(tokenizer)
    target_code = codes.default or next(iter(codes.codes), "")
    about_model = describe_model(settings, pairs, scores, card_facts, target_code)
    save_card(model, settings.output, about_model, card_facts, compared)
    if settings.teacher.teacher:
        save_int8_card(settings.output / INT8, about_model, int8_scores, model.num_parameters(), card_facts)
    for line in describe_scores(scores) if scores is not None else []:
        logger.info(line)
    logger.info("the model is in %s", settings.output)
    if args.results:
        started = record.pop("started")
        validation = {} if search or is_last_kept else compared.get("average")
        validation = validation or evaluate_saved("validation", settings, pairs)
        last = {"validation_of_last_checkpoint": compared["last_checkpoint"]} if compared else {}
        results = {
            **record,
            **outcome,
            "parameters": model.num_parameters(),
            "updates": updates,
            "training_seconds": facts.seconds - facts.evaluation_seconds,
            "evaluation_seconds": facts.evaluation_seconds,
            "curve": curve,
            "data": {split: settings.data.describe(split) for split in pairs},
            "scores": {"validation": validation, "test": scores, **last},
            "total_seconds": None if started is None else time.monotonic() - started,
        }
        write_text(args.results, json.dumps(results, indent=2) + "\n")
        logger.info("the results are in %s", args.results)
    if args.push_to_hub:
        push(settings, updates, scores)


def save_records(trainer: Seq2SeqTrainer, settings: Settings) -> Any:
    """Write arguments and curve of the run; returns the curve."""
    save_arguments(settings, is_trained=True)
    with staged(settings.output) as folder:
        return write_curve(folder, trainer.state.log_history)


def adam_facts(trainer: Seq2SeqTrainer) -> dict[str, str]:
    """Adam's values in effect: those of the checkpoint that the optimizer was loaded from, whatever the arguments."""
    group = trainer.optimizer.param_groups[0] if trainer.optimizer is not None else {}
    if not {"betas", "eps"} <= group.keys():
        return {}
    return {"beta_1, beta_2, epsilon": ", ".join(map(str, (*group["betas"], group["eps"])))}


def describe_run(settings: Settings) -> dict[str, Any]:
    """What the results file records of a run in addition to its outcome."""
    base, args = settings.model.model_name_or_path, settings.args
    return {
        "seed": args.seed,
        "base_model": name_of_base(base),
        "settings": settings.to_record(),
        **(describe_environment(args.device) if args.results else {}),
    }


def compare_average(settings: Settings, pairs: DatasetDict, checkpoint: str) -> dict[str, Any]:
    """Scores of the saved average and of its last checkpoint on the validation pairs; logs which has more BLEU."""
    last = settings.output / checkpoint
    logger.info("comparing the average with %s on %s validation pairs", last.name, f"{len(pairs['validation']):,}")
    folders = {"average": settings.output, "last_checkpoint": last}
    scores: dict[str, Any] = {
        name: evaluate_saved("validation", settings, pairs, folder) for name, folder in folders.items()
    }
    gain = _gain(scores)
    verdict = "the average is better" if gain > 0 else "both are equal"
    if gain < 0:
        kept = "is kept" if settings.model.keep_better else f"is in {last}; --keep_better would keep it"
        verdict = f"the last checkpoint is better, and {kept}"
    logger.info("validation BLEU: %s; %s", describe_average(scores), verdict)
    return scores


def _gain(compared: dict[str, Any]) -> float:
    return compared["average"]["bleu"] - compared["last_checkpoint"]["bleu"]


def describe_average(scores: dict[str, Any]) -> str:
    return f"average {scores['average']['bleu']:.2f}, last checkpoint {scores['last_checkpoint']['bleu']:.2f}"


def evaluate_saved(
    split: str, settings: Settings, pairs: DatasetDict, folder: Path | None = None
) -> dict[str, Any] | None:
    """Scores of the saved model, or of another `folder`, on a split, with its own search; None without this split.

    The model in memory may still use the precision of the training; users load the saved one.
    """
    if split not in pairs:
        return None
    tokenizer, model = load(str(folder or settings.output), settings.args.device)
    return evaluate(
        model,
        pairs[split],
        tokenizer,
        data=settings.data.describe(split),
        token_error_rate=settings.scoring.token_error_rate,
        **settings.scoring.options(pairs[split]),
        **settings.decoding.generate_kwargs(),
    ).scores


def save_chosen_search(settings: Settings, pairs: DatasetDict) -> dict[str, str]:
    """Choose what was not given of the search, and save it with the model; returns a row for the card."""
    tokenizer, model = load(str(settings.output), settings.args.device)
    sample = pairs["validation"].select(pick_evenly_spaced_rows(len(pairs["validation"]), PAIRS_TO_CHOOSE_SEARCH))
    logger.info("choosing length penalty and stopping rule on %s validation pairs", f"{len(sample):,}")
    chosen, scores = choose_search(model, tokenizer, sample, settings.scoring, **settings.decoding.generate_kwargs())
    for described, bleu in scores.items():
        logger.info("validation BLEU %.2f: %s", bleu, described)
    model.generation_config.update(**chosen)
    with staged(settings.output) as folder:
        model.generation_config.save_pretrained(folder)
    return {"search": f"the best of {len(scores)} on {len(sample):,} validation pairs: {describe_search(model)}"}


def save_int8(settings: Settings, pairs: DatasetDict) -> dict[str, Any] | None:
    """Save a student in int8, too; return its scores on the test pairs, if there are any, and log them."""
    folder = settings.output / INT8
    tokenizer, _ = load(str(settings.output), "cpu")
    model = AutoModelForSeq2SeqLM.from_pretrained(settings.output, quantization_config=Int8Config())
    with staged(folder, replace_run=True) as staging:
        model.save_pretrained(staging)
        tokenizer.save_pretrained(staging)
    return evaluate_saved("test", settings, pairs, folder)


def describe_int8(scores: dict[str, Any] | None) -> str:
    """Say in the card of a student where it is in int8, and how well it translates then."""
    place = f"in the folder {INT8}, which is not pushed"
    if scores is None:
        return place
    return f"{place}: BLEU {scores['bleu']:.2f} on the test pairs"


def describe_model(
    settings: Settings, pairs: DatasetDict, scores: dict[str, Any] | None, facts: dict[str, Any], target_code: str
) -> About:
    """Return what the card says besides sizes and training, with the scores on test pairs."""
    args, output = settings.args, settings.output
    pushed = {"location": args.hub_model_id, "revision": args.hub_revision}
    location: dict[str, Any] = pushed if args.push_to_hub else {"location": location_of(output)}
    tokenizer = json.loads((output / "tokenizer_config.json").read_text(encoding="utf-8")).get("tokenizer_class")
    described = replace(about(settings, scores), data=facts["data"], tokenizer_class=tokenizer, **location)
    described = replace(described, target_code=target_code)
    if settings.data.dataset_name == BUILT_IN:  # A sentence of the user's data may be private.
        described = replace(described, example_source=pairs["train"][0]["source"])
    return described


def save_card(model: Any, output: Path, about_model: About, facts: dict[str, Any], compared: dict[str, Any]) -> None:
    """Write the model card, with a table of facts, and the scores on test and on validation pairs."""
    card = fill_model_card(about_model, model.config, model.num_parameters(), facts)
    with staged(output) as staging:
        (staging / "README.md").write_text(card.content, encoding="utf-8")
        written = {**(about_model.scores or {}), **({"validation": compared} if compared else {})}
        if written:
            (staging / "scores.json").write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")


def save_int8_card(
    folder: Path, about_model: About, scores: dict[str, Any] | None, parameters: int, facts: dict[str, Any]
) -> None:
    """Write the card of a student in int8, whose example needs the package."""
    about_int8 = replace(about_model, scores=scores, location=location_of(folder), revision=None)
    facts_of_int8 = {name: fact for name, fact in facts.items() if name != "int8"}
    card = fill_model_card(about_int8, AutoConfig.from_pretrained(folder), parameters, facts_of_int8)
    with staged(folder) as staging:
        (staging / "README.md").write_text(card.content, encoding="utf-8")


def about(settings: Settings, scores: dict[str, Any] | None = None) -> About:
    """What the model card says besides sizes and training."""
    args, data = settings.args, settings.data
    name = (args.hub_model_id if args.push_to_hub else None) or str(args.output_dir)
    of_data = (data.dataset_name, data.dataset_config_name, *data.languages())
    return About(
        Path(name).absolute().name, *of_data, settings.model.model_name_or_path, settings.model.license, scores
    )


def prepare_push(settings: Settings) -> None:
    """Check before the training that its result can be pushed, and create the repository."""
    args = settings.args
    args.hub_model_id = args.hub_model_id or settings.output.absolute().name
    if args.process_index == 0:
        args.hub_model_id = prepare_repository(
            args.hub_model_id,
            about(settings).metadata(),
            token=args.hub_token,
            private=args.hub_private_repo,
            revision=args.hub_revision,
        )


def push_without_paths(trainer: Any) -> None:
    """Keep paths of this machine out of what the Trainer pushes during the training."""
    push = trainer._push_from_checkpoint

    def push_checkpoint(folder: str) -> None:
        if trainer.is_world_process_zero():
            remove_path_of_best(Path(folder))
        push(folder)

    trainer._push_from_checkpoint = push_checkpoint


def push(settings: Settings, updates: int, scores: dict[str, Any] | None) -> None:
    """Push the output folder; if that fails, the error has the command that pushes it later."""
    args, output = settings.args, str(settings.args.output_dir)
    repository = str(args.hub_model_id)
    message = f"Train for {updates:,} updates"
    if scores is not None:
        message += f": BLEU {scores['bleu']:.2f}"
    try:
        url = push_run(settings.output, repository, message=message, token=args.hub_token, revision=args.hub_revision)
    except Exception as error:  # The network, the Hub, or the access rights.
        revision = ["--revision", args.hub_revision] if args.hub_revision else []
        excluded = [word for pattern in ("checkpoint-*", *NOT_TO_SHARE, ".*") for word in ("--exclude", pattern)]
        command = shlex.join(["hf", "upload", repository, output, ".", *revision, *excluded])
        raise RunStoppedError(
            f"the model could not be pushed to {repository} ({describe_error(error)}). It is complete in "
            f"{output}; push it later with: {command}"
        ) from error
    logger.info("the model is pushed to %s: %s", repository, url)
