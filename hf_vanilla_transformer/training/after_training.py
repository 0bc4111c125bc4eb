"""Finish a run after its training: choose weights and search, evaluate, and write the card and the results."""

import logging
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

from datasets import DatasetDict
from transformers import AutoModelForSeq2SeqLM, PreTrainedModel, PreTrainedTokenizerBase, Seq2SeqTrainer

from ..acceleration.int8_quantization import Int8Config
from ..data.evenly_spaced_rows import pick_evenly_spaced_rows
from ..evaluation.choose_search import PAIRS_TO_CHOOSE_SEARCH, choose_search
from ..evaluation.curve_files import Curve, write_curve
from ..evaluation.evaluate import describe_scores, describe_search, evaluate
from ..evaluation.metrics import Scores
from ..hub.model_card import argument_facts, average_facts
from ..hub.model_folder import INT8, staged
from ..translation.model_loading import load
from .paper_arguments import describe_precision
from .pushing import push
from .results_file import Results, RunDescription, write_results
from .run_arguments import Settings
from .run_saving import save_arguments, save_average
from .trained_model_card import TrainingFacts, describe_adam, describe_trained_model, save_card, save_int8_card
from .trainer_callbacks import RecordFacts


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainedRun:
    """A run after its training, whose model is saved.

    Args:
        settings: the settings of the run.
        pairs: the sentence pairs of all splits.
        trainer: the Trainer after the training.
        description: the description of the run, from before the training.
        peak_memory_bytes: the peak memory of the training, if the system reports it.
    """

    settings: Settings
    pairs: DatasetDict
    trainer: Seq2SeqTrainer
    description: RunDescription
    peak_memory_bytes: int | None

    @property
    def model(self) -> PreTrainedModel:
        """The model in memory, which may still use the precision of the training."""
        return cast(PreTrainedModel, self.trainer.model)

    @property
    def recorded_facts(self) -> RecordFacts:
        """The facts that the Trainer recorded.

        They are read from the Trainer's callback, because `restore_callback_states_from_checkpoint` replaces callbacks
        by copies.
        """
        for callback in self.trainer.callback_handler.callbacks:
            if isinstance(callback, RecordFacts):
                return callback
        raise LookupError("the Trainer has no callback that records facts.")


@dataclass(frozen=True)
class AverageComparison:
    """Scores of an average of checkpoints and of the last one of these checkpoints, on the validation pairs."""

    average: Scores
    last_checkpoint: Scores

    @property
    def gain(self) -> float:
        """The BLEU of the average minus the BLEU of the last checkpoint."""
        return self.average["bleu"] - self.last_checkpoint["bleu"]

    def describe(self) -> str:
        """Describe both scores in words."""
        return f"average {self.average['bleu']:.2f}, last checkpoint {self.last_checkpoint['bleu']:.2f}"


@dataclass(frozen=True)
class SavedWeights:
    """The weights that a run saved.

    Args:
        checkpoints: the names of the checkpoints whose average was saved; empty if nothing was averaged.
        comparison: the comparison of the average with the last checkpoint, if there was one.
        is_last_kept: True if the last checkpoint was better, and was saved in place of the average.
        curve: the content of `curve.json`.
    """

    checkpoints: list[str]
    comparison: AverageComparison | None
    is_last_kept: bool
    curve: Curve | None

    def describe(self) -> str | None:
        """Describe in words which checkpoints the weights are of, or return None if nothing was averaged."""
        if self.is_last_kept:
            return f"of {self.checkpoints[0]}, better than the average"
        return average_facts(self.checkpoints).get("weights")


def finish_run(run: TrainedRun) -> None:
    """Choose weights and search of the saved model, evaluate it, write its card and the results file, and push it.

    The settings of the run decide which of these steps are taken. Only the main process calls this function.
    """
    settings = run.settings
    weights = choose_weights(run)
    search = None
    if settings.evaluation.choose_search and "validation" in run.pairs:
        search = save_chosen_search(settings, run.pairs)
    test_scores = evaluate_saved("test", settings, run.pairs)
    int8 = None
    int8_scores = None
    if settings.distillation.teacher:
        int8_scores = save_int8(settings, run.pairs)
        int8 = describe_int8(int8_scores)

    facts = collect_facts(run, weights, search, int8)
    tokenizer = cast(PreTrainedTokenizerBase, run.trainer.processing_class)
    about = describe_trained_model(settings, run.pairs, tokenizer, test_scores)
    compared_scores = asdict(weights.comparison) if weights.comparison else None
    save_card(run.model, settings.output_folder, about, facts, compared_scores)
    if settings.distillation.teacher:
        save_int8_card(settings.output_folder, about, int8_scores, run.model.num_parameters(), facts)

    if test_scores is not None:
        for line in describe_scores(test_scores):
            logger.info(line)
    logger.info("the model is in %s", settings.output_folder)
    if settings.args.results:
        scores = collect_scores(run, weights, search, test_scores)
        write_results(settings.args.results, collect_results(run, facts, weights, scores))
    if settings.args.push_to_hub:
        push(settings, facts.updates, test_scores)


def choose_weights(run: TrainedRun) -> SavedWeights:
    """Save the average of the last checkpoints, or the last one if it is better, as the settings say."""
    settings = run.settings
    checkpoints = []
    if settings.output.average_last is not None:
        checkpoints = save_average(settings.output_folder, settings.output.average_last)
    curve = save_arguments_and_curve(run)
    if not checkpoints or "validation" not in run.pairs:
        return SavedWeights(checkpoints, None, False, curve)
    comparison = compare_average(settings, run.pairs, checkpoints[-1])
    is_last_kept = settings.output.keep_better and comparison.gain < 0
    if is_last_kept:
        checkpoints = save_average(settings.output_folder, 1)
        # The other weights have replaced all files of the run.
        curve = save_arguments_and_curve(run)
    return SavedWeights(checkpoints, comparison, is_last_kept, curve)


def save_arguments_and_curve(run: TrainedRun) -> Curve | None:
    """Write the arguments and the curve of the run into its folder; return the content of the curve's file."""
    save_arguments(run.settings, is_trained=True)
    with staged(run.settings.output_folder) as folder:
        return write_curve(folder, run.trainer.state.log_history)


def compare_average(settings: Settings, pairs: DatasetDict, checkpoint_name: str) -> AverageComparison:
    """Evaluate the saved average and its last checkpoint on the validation pairs; log which has the higher BLEU."""
    checkpoint = settings.output_folder / checkpoint_name
    count = len(pairs["validation"])
    logger.info("comparing the average with %s on %s validation pairs", checkpoint_name, f"{count:,}")
    comparison = AverageComparison(
        average=_evaluate_folder(settings.output_folder, "validation", settings, pairs),
        last_checkpoint=_evaluate_folder(checkpoint, "validation", settings, pairs),
    )
    if comparison.gain > 0:
        verdict = "the average is better"
    elif comparison.gain == 0:
        verdict = "both are equal"
    elif settings.output.keep_better:
        verdict = "the last checkpoint is better, and is kept"
    else:
        verdict = f"the last checkpoint is better, and is in {checkpoint}; --keep_better would keep it"
    logger.info("validation BLEU: %s; %s", comparison.describe(), verdict)
    return comparison


def evaluate_saved(split: str, settings: Settings, pairs: DatasetDict) -> Scores | None:
    """Evaluate the saved model on a split with the search that it is saved with; return None without this split.

    The model in memory may still use the precision of the training, but users load the saved one.
    """
    if split not in pairs:
        return None
    return _evaluate_folder(settings.output_folder, split, settings, pairs)


def _evaluate_folder(folder: Path, split: str, settings: Settings, pairs: DatasetDict) -> Scores:
    """Evaluate the model in a folder on a split of the pairs."""
    tokenizer, model = load(str(folder), settings.args.device)
    evaluation = evaluate(
        model,
        pairs[split],
        tokenizer,
        data=settings.data.describe(split),
        token_error_rate=settings.scoring.token_error_rate,
        **settings.scoring.options(pairs[split]),
        **settings.decoding.generate_kwargs(),
    )
    return evaluation.scores


def save_chosen_search(settings: Settings, pairs: DatasetDict) -> str:
    """Choose the settings of the search that were not given, and save them with the model; describe the choice."""
    tokenizer, model = load(str(settings.output_folder), settings.args.device)
    rows = pick_evenly_spaced_rows(len(pairs["validation"]), PAIRS_TO_CHOOSE_SEARCH)
    sample = pairs["validation"].select(rows)
    logger.info("choosing length penalty and stopping rule on %s validation pairs", f"{len(sample):,}")
    chosen, bleu_by_search = choose_search(
        model, tokenizer, sample, settings.scoring, **settings.decoding.generate_kwargs()
    )
    for search, bleu in bleu_by_search.items():
        logger.info("validation BLEU %.2f: %s", bleu, search)
    model.generation_config.update(**chosen)
    with staged(settings.output_folder) as folder:
        model.generation_config.save_pretrained(folder)
    candidates = len(bleu_by_search)
    return f"the best of {candidates} on {len(sample):,} validation pairs: {describe_search(model)}"


def save_int8(settings: Settings, pairs: DatasetDict) -> Scores | None:
    """Save the model in int8 as well, and evaluate that on the test pairs; return None without test pairs."""
    folder = settings.output_folder / INT8
    tokenizer, _ = load(str(settings.output_folder), "cpu")
    model = AutoModelForSeq2SeqLM.from_pretrained(settings.output_folder, quantization_config=Int8Config())
    with staged(folder, replace_run=True) as staging:
        model.save_pretrained(staging)
        tokenizer.save_pretrained(staging)
    if "test" not in pairs:
        return None
    return _evaluate_folder(folder, "test", settings, pairs)


def describe_int8(scores: Scores | None) -> str:
    """Describe where the model in int8 is, and how well it translates if it was evaluated."""
    place = f"in the folder {INT8}, which is not pushed"
    if scores is None:
        return place
    return f"{place}: BLEU {scores['bleu']:.2f} on the test pairs"


def collect_facts(run: TrainedRun, weights: SavedWeights, search: str | None, int8: str | None) -> TrainingFacts:
    """Collect the facts about the training for the model card.

    Args:
        run: the run after its training.
        weights: the weights that were saved.
        search: how the search was chosen, in words, or None if it was not.
        int8: where the model in int8 is, in words, or None if there is none.
    """
    args = run.settings.args
    state = run.trainer.state
    best_weights = None
    if args.load_best_model_at_end and state.best_global_step is not None:
        best_weights = f"of update {state.best_global_step:,}, the best by {args.metric_for_best_model}"
    return TrainingFacts(
        data=run.settings.data.describe("train"),
        distillation=run.description.distillation or {},
        arguments=argument_facts(args),
        adam=describe_adam(run.trainer),
        optimizer=run.recorded_facts.optimizer,
        precision=describe_precision(args),
        best_weights=best_weights,
        pairs=len(run.pairs["train"]),
        updates=state.global_step,
        seconds=run.recorded_facts.seconds,
        r_drop_alpha=args.r_drop_alpha,
        averaged_weights=weights.describe(),
        validation_bleu=weights.comparison.describe() if weights.comparison else None,
        search=search,
        int8=int8,
    )


def collect_scores(
    run: TrainedRun, weights: SavedWeights, search: str | None, test_scores: Scores | None
) -> dict[str, Scores | None]:
    """Collect the scores of the saved model on the validation and test pairs, and those of the last checkpoint.

    Scores of the average on the validation pairs are there already, if the run has compared it with the last checkpoint
    and has saved neither different weights nor a different search since.
    """
    is_average_saved = search is None and not weights.is_last_kept
    if weights.comparison is not None and is_average_saved:
        validation_scores: Scores | None = weights.comparison.average
    else:
        validation_scores = evaluate_saved("validation", run.settings, run.pairs)
    scores = {"validation": validation_scores, "test": test_scores}
    if weights.comparison is not None:
        scores["validation_of_last_checkpoint"] = weights.comparison.last_checkpoint
    return scores


def collect_results(
    run: TrainedRun, facts: TrainingFacts, weights: SavedWeights, scores: dict[str, Scores | None]
) -> Results:
    """Collect the content of the results file."""
    description = run.description
    recorded = run.recorded_facts
    total_seconds = None
    if description.started is not None:
        total_seconds = time.monotonic() - description.started
    return Results(
        seed=description.seed,
        base_model=description.base_model,
        settings=description.settings,
        machine=description.environment["machine"],
        versions=description.environment["versions"],
        commit=description.environment["commit"],
        distillation=description.distillation,
        peak_memory_bytes=run.peak_memory_bytes,
        optimizer=facts.optimizer,
        precision=facts.precision,
        weights=facts.best_weights,
        parameters=run.model.num_parameters(),
        updates=facts.updates,
        training_seconds=recorded.seconds - recorded.evaluation_seconds,
        evaluation_seconds=recorded.evaluation_seconds,
        curve=weights.curve,
        data={split: run.settings.data.describe(split) for split in run.pairs},
        scores=scores,
        total_seconds=total_seconds,
    )
