"""What `train` writes after the training: weights, scores, model card, results file, and the push to the Hub."""

import json
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from datasets import DatasetDict
from transformers import Seq2SeqTrainer
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ..cli.evaluate import evaluate_pairs, print_scores
from ..evaluation.curve_files import write_curve
from ..hub.model_card import BUILT_IN, About, argument_facts, average_facts, fill_model_card
from ..hub.push_to_hub import describe_error, prepare_repository, push_run
from ..hub.staged_folder import staged
from ..support.atomic_files import write_text
from ..support.checkpoint_marks import newest_complete
from ..support.disk_errors import is_disk_error
from ..support.environment import describe_environment
from ..translation.model_loading import load
from .checkpoint_averaging import averaged_from, last_checkpoints, write_average
from .paper_arguments import describe_precision
from .run_arguments import Settings, changed_arguments
from .run_facts import FactsOfTheRun


def prepare_push(settings: Settings) -> None:
    """Check before the training that its result can be pushed."""
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


def describe_run(settings: Settings) -> dict[str, Any]:
    """What the results file records of a run in addition to its outcome."""
    model_args, data_args, decoding, scoring, args = settings
    return {
        "base_model": public_name(model_args.model_name_or_path),
        "settings": changed_arguments(model_args, data_args, decoding, scoring, args),
        **(describe_environment(args.device) if args.results else {}),
    }


def public_name(model: str | None) -> str | None:
    """A model's name on the Hub, or the name of its folder without the path."""
    return Path(model).name if model is not None and Path(model).is_absolute() else model


def save_model(trainer: Seq2SeqTrainer, output: Path) -> None:
    """Replace an earlier run's model and tokenizer, each file atomically."""
    if not trainer.is_world_process_zero():
        trainer.save_model(_internal_call=True)  # Writes nothing; the main process may need its shards of the weights.
        return
    try:
        with staged(output, replace_run=True) as folder:
            # Without _internal_call the Trainer would push, with a card of its own.
            trainer.save_model(str(folder), _internal_call=True)
            (folder / "training_args.bin").unlink(missing_ok=True)  # A pickle, which a shared folder should not hold.
    except Exception as error:  # Whatever it is, the weights must not be lost.
        if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:  # To save again, all processes are needed.
            sys.exit(
                f"error: the model could not be written to {output} ({error}). Make room; {how_to_resume(output)}."
            )
        refuge = tempfile.mkdtemp(prefix=f"{output.name}-")
        trainer.save_model(refuge, _internal_call=True)
        Path(refuge, "training_args.bin").unlink(missing_ok=True)
        sys.exit(f"error: the model could not be written to {output} ({error}); it is in {refuge}, move it from there.")


def how_to_resume(output: Path) -> str:
    """What a user can do after a run that was stopped."""
    checkpoint = newest_complete(output)
    if checkpoint is None:
        return "the same command starts again, because there is no complete checkpoint"
    return f"the same command with --resume_from_checkpoint last resumes from {checkpoint.name}"


def save_average(output: Path, count: int, updates: int) -> None:
    """Replace the saved model by the average of the last checkpoints, including that of the last update."""
    checkpoints = last_checkpoints(output, count)
    if not checkpoints or checkpoints[-1].name != f"{PREFIX_CHECKPOINT_DIR}-{updates}":
        sys.exit(
            f"error: there is no checkpoint of update {updates:,} to average; the model in {output} has the weights of "
            "that update. The same command with --resume_from_checkpoint auto makes the average."
        )
    if len(checkpoints) < count:
        print(f"average_last is {count}, but the run left {len(checkpoints)} complete checkpoints; these are averaged")
    try:
        with staged(output, replace_run=True) as folder:
            write_average(checkpoints, folder)
    except Exception as error:
        if not isinstance(error, (OSError, ValueError)) and not is_disk_error(error):
            raise
        rest = f" The model in {output} has the weights of the last update, not an average."
        sys.exit(f"error: {error}{rest if any(output.glob('*.safetensors')) else ''}")


def report(
    trainer: Seq2SeqTrainer, settings: Settings, pairs: DatasetDict, record: dict[str, Any], started: float | None
) -> None:
    """Evaluate the saved model, write curve, scores, card and results, print the scores, and push if asked.

    Args:
        record: what `describe_run` returned, for the results file.
        started: time of the start by `time.monotonic()`; None if the run was resumed.
    """
    # Not `start.facts`: restore_callback_states_from_checkpoint replaces callbacks by copies.
    facts = next(each for each in trainer.callback_handler.callbacks if isinstance(each, FactsOfTheRun))
    with staged(settings.output) as folder:
        curve = write_curve(folder, trainer.state.log_history)
    compares = settings.model.average_last is not None and "validation" in pairs
    of_average = compare_average(settings, pairs, trainer.state.global_step) if compares else {}
    scores = evaluate_saved("test", settings, pairs)
    save_card(trainer, settings, pairs, scores, facts, of_average)
    if scores is not None:
        print_scores(scores)
    print(f"the model is in {settings.output}")
    if settings.args.results:
        record["data"] = {split: settings.data.describe(split) for split in pairs}
        validation = of_average.get("average") or evaluate_saved("validation", settings, pairs)
        record["scores"] = {"validation": validation, "test": scores}
        if of_average:
            record["scores"]["validation_of_last_checkpoint"] = of_average["last_checkpoint"]
        record["total_seconds"] = None if started is None else time.monotonic() - started
        save_results(settings.args.results, trainer, facts, curve, record)
    if settings.args.push_to_hub:
        push(settings, trainer.state.global_step, scores)


def compare_average(settings: Settings, pairs: DatasetDict, updates: int) -> dict[str, Any]:
    """Scores of the saved average and of the last checkpoint on the validation pairs; prints which has more BLEU."""
    last = settings.output / f"{PREFIX_CHECKPOINT_DIR}-{updates}"
    print(f"comparing the average with {last.name} on {len(pairs['validation']):,} validation pairs")
    folders = {"average": settings.output, "last_checkpoint": last}
    scores: dict[str, Any] = {
        name: evaluate_saved("validation", settings, pairs, folder) for name, folder in folders.items()
    }
    gain = scores["average"]["bleu"] - scores["last_checkpoint"]["bleu"]
    verdict = "the average is better" if gain > 0 else "both are equal"
    if gain < 0:
        verdict = f"the last checkpoint is better; --average_last saves the average, and {last} is the other"
    print(f"validation BLEU: {describe_average(scores)}; {verdict}")
    return scores


def describe_average(scores: dict[str, Any]) -> str:
    return f"average {scores['average']['bleu']:.2f}, last checkpoint {scores['last_checkpoint']['bleu']:.2f}"


def evaluate_saved(
    split: str, settings: Settings, pairs: DatasetDict, folder: Path | None = None
) -> dict[str, Any] | None:
    """Scores of the saved model on a split, with the model's own search; None if the data has no such split.

    The model in memory may still use the precision of the training; users load the saved one.

    Args:
        folder: another model of the run.
    """
    if split not in pairs:
        return None
    tokenizer, model = load(str(folder or settings.output), settings.args.device)
    data = settings.data.describe(split)
    return evaluate_pairs(model, tokenizer, pairs[split], data, settings.decoding, settings.scoring)[0]


def save_card(
    trainer: Seq2SeqTrainer,
    settings: Settings,
    pairs: DatasetDict,
    scores: dict[str, Any] | None,
    facts: FactsOfTheRun,
    of_average: dict[str, Any],
) -> None:
    """Write the model card and the scores into the model's folder.

    Args:
        scores: on the test pairs.
        of_average: what `compare_average` returned, or nothing.
    """
    args = settings.args
    model: Any = trainer.model
    data = settings.data.describe("train")
    training_facts = {
        "data": data,
        **argument_facts(args),
        "precision": describe_precision(args),
        "optimizer": facts.optimizer,
        "pairs": f"{len(pairs['train']):,}",
        "updates": f"{trainer.state.global_step:,}",
        "seconds": round(facts.seconds),
        **({"R-Drop": f"weight {args.r_drop_alpha:g}"} if args.r_drop_alpha else {}),
        **describe_best(trainer),
        **average_facts(averaged_from(settings.output)),
        **({"validation BLEU": describe_average(of_average)} if of_average else {}),
    }
    # A sentence of the user's data may be private.
    example = {"example_source": pairs["train"][0]["source"]} if settings.data.dataset_name == BUILT_IN else {}
    location = {**describe_location(settings), **example}
    card = fill_model_card(
        about(settings, scores), model.config, model.num_parameters(), training_facts, data=data, **location
    )
    with staged(settings.output) as folder:
        (folder / "README.md").write_text(card.content, encoding="utf-8")
        if scores is not None or of_average:
            written = {**(scores or {}), **({"validation": of_average} if of_average else {})}
            (folder / "scores.json").write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")


def describe_best(trainer: Seq2SeqTrainer) -> dict[str, str]:
    """The update that the weights come from, if it is not the last one."""
    args, best = trainer.args, trainer.state.best_global_step
    if not args.load_best_model_at_end or best is None:
        return {}
    return {"weights": f"of update {best:,}, the best by {args.metric_for_best_model}"}


def save_results(
    path: str, trainer: Seq2SeqTrainer, facts: FactsOfTheRun, curve: dict[str, Any] | None, record: dict[str, Any]
) -> None:
    """Write the outcome of a run and its record into one JSON file."""
    model: Any = trainer.model
    results = {
        "seed": trainer.args.seed,
        **record,
        "parameters": model.num_parameters(),
        "optimizer": facts.optimizer,
        "precision": describe_precision(trainer.args),
        "updates": trainer.state.global_step,
        **describe_best(trainer),
        "training_seconds": facts.seconds - facts.evaluation_seconds,
        "evaluation_seconds": facts.evaluation_seconds,
        "curve": curve,
    }
    write_text(path, json.dumps(results, indent=2) + "\n")
    print(f"the results are in {path}")


def about(settings: Settings, scores: dict[str, Any] | None = None) -> About:
    """What the model card says besides sizes and training."""
    args, data_args = settings.args, settings.data
    name = (args.hub_model_id if args.push_to_hub else None) or str(args.output_dir)
    return About(
        Path(name).absolute().name,
        data_args.dataset_name,
        data_args.dataset_config_name,
        *data_args.languages(),
        settings.model.model_name_or_path,
        settings.model.license,
        scores,
    )


def describe_location(settings: Settings) -> dict[str, Any]:
    """Where the model card's example loads the model from."""
    args = settings.args
    if args.push_to_hub:
        return {"location": args.hub_model_id, "revision": args.hub_revision}
    # An absolute path would describe this machine.
    return {"location": settings.output.name if settings.output.is_absolute() else str(args.output_dir)}


def push(settings: Settings, updates: int, scores: dict[str, Any] | None) -> None:
    """Push the output folder; if that fails, print the command that pushes it later, because the model is trained."""
    args, output = settings.args, str(settings.args.output_dir)
    repository = str(args.hub_model_id)
    message = f"Train for {updates:,} updates"
    if scores is not None:
        message += f": BLEU {scores['bleu']:.2f}"
    try:
        address = push_run(
            settings.output, repository, message=message, token=args.hub_token, revision=args.hub_revision
        )
    except Exception as error:  # The network, the Hub, or the access rights.
        revision = ["--revision", args.hub_revision] if args.hub_revision else []
        excluded = ["--exclude", "checkpoint-*", "--exclude", "training_args.bin", "--exclude", ".*"]
        command = shlex.join(["hf", "upload", repository, output, ".", *revision, *excluded])
        sys.exit(
            f"error: the model could not be pushed to {repository} ({describe_error(error)}). It is complete in "
            f"{output}; push it later with: {command}"
        )
    print(f"the model is pushed to {repository}: {address}")
