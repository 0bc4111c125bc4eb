"""Finish a run after training: choose weights and search settings, evaluate, and write the model card and results."""

import logging
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

from datasets import Dataset, DatasetDict
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
    """A run whose training has ended and whose model is saved.

    Args:
        settings: the run's settings.
        pairs: the sentence pairs of all splits.
        trainer: the Trainer after the training.
        description: a description of the run, recorded before the training.
        peak_memory_bytes: the peak memory of the training, or None if the system does not report it.
    """

    settings: Settings
    pairs: DatasetDict
    trainer: Seq2SeqTrainer
    description: RunDescription
    peak_memory_bytes: int | None

    @property
    def model(self) -> PreTrainedModel:
        """The trained model in memory. It may still compute in the precision of the training, such as bfloat16."""
        return cast(PreTrainedModel, self.trainer.model)

    @property
    def recorded_facts(self) -> RecordFacts:
        """The callback that recorded facts about the run, such as the training time.

        With `restore_callback_states_from_checkpoint`, a resumed Trainer replaces its callbacks by copies. Therefore,
        the callback is looked up in the Trainer.
        """
        for callback in self.trainer.callback_handler.callbacks:
            if isinstance(callback, RecordFacts):
                return callback
        raise LookupError("the Trainer has no callback that records facts.")


@dataclass(frozen=True)
class AverageComparison:
    """Validation scores that compare the averaged weights of several checkpoints with the last checkpoint alone."""

    average: Scores
    last_checkpoint: Scores

    @property
    def gain(self) -> float:
        """The BLEU of the average minus the BLEU of the last checkpoint."""
        return self.average["bleu"] - self.last_checkpoint["bleu"]

    def describe(self) -> str:
        """Return both BLEU scores as text, such as "average 40.10, last checkpoint 39.80"."""
        return f"average {self.average['bleu']:.2f}, last checkpoint {self.last_checkpoint['bleu']:.2f}"


@dataclass(frozen=True)
class SavedWeights:
    """A record of which weights a run saved: the final ones, an average of checkpoints, or the last checkpoint.

    Args:
        checkpoints: the names of the checkpoints whose weights were saved; empty if nothing was averaged.
        comparison: the comparison of the average with the last checkpoint, or None if they were not compared.
        is_last_kept: True if the last checkpoint had a higher BLEU and was saved instead of the average.
        curve: the content of `curve.json`, or None if the run had no evaluations.
    """

    checkpoints: list[str]
    comparison: AverageComparison | None
    is_last_kept: bool
    curve: Curve | None

    def describe(self) -> str | None:
        """Return a text such as "average of 2 checkpoints: checkpoint-8, checkpoint-9", or None without an average."""
        if self.is_last_kept:
            last_checkpoint = self.checkpoints[0]
            return f"of {last_checkpoint}, better than the average"
        # Without checkpoints, `average_facts` returns {}.
        return average_facts(self.checkpoints).get("weights")


@dataclass(frozen=True)
class SavedModel:
    """A record of the choices that led to the saved model, and of its scores on the test pairs.

    Args:
        weights: which weights were saved.
        search: a text about the chosen search settings, or None if none were chosen.
        test_scores: the scores on the test pairs, or None if there are none.
        has_int8_copy: True if there is an int8 copy of the model.
        int8_scores: the scores of the int8 copy on the test pairs, or None without test pairs or without a copy.
    """

    weights: SavedWeights
    search: str | None
    test_scores: Scores | None
    has_int8_copy: bool
    int8_scores: Scores | None


def finish_run(run: TrainedRun) -> None:
    """Finish a run after its training: complete and evaluate the saved model, write its files, and push it.

    The run's settings decide which of these steps are taken. Only the main process calls this function.
    """
    settings = run.settings
    # The facts and the scores below are those of the model that this call leaves in the output folder.
    saved_model = complete_saved_model(run)
    facts = collect_facts(run, saved_model)
    write_cards(run, saved_model, facts)

    if saved_model.test_scores is not None:
        for line in describe_scores(saved_model.test_scores):
            logger.info(line)
    logger.info("the model is in %s", settings.output_folder)
    if settings.args.results:
        scores = collect_scores(run, saved_model)
        results = collect_results(run, facts, saved_model.weights, scores)
        write_results(settings.args.results, results)
    # Pushing comes last, because it uploads the files that the steps before it have written.
    if settings.args.push_to_hub:
        push(settings, facts.updates, saved_model.test_scores)


def complete_saved_model(run: TrainedRun) -> SavedModel:
    """Choose the saved model's weights and search settings, evaluate it and, after distillation, save an int8 copy.

    The order matters: the weights must be final before the search settings are chosen for them, and both must be saved
    before the model is evaluated or copied.
    """
    settings = run.settings
    weights = choose_weights(run)
    search_text = None
    if settings.evaluation.choose_search and "validation" in run.pairs:
        search_text = save_chosen_search(settings, run.pairs)
    test_scores = evaluate_saved("test", settings, run.pairs)
    # A student of a teacher is meant to be fast, so it is also saved in int8.
    has_int8_copy = bool(settings.distillation.teacher)
    int8_scores = None
    if has_int8_copy:
        int8_scores = save_int8(settings, run.pairs)
    return SavedModel(weights, search_text, test_scores, has_int8_copy, int8_scores)


def write_cards(run: TrainedRun, saved_model: SavedModel, facts: TrainingFacts) -> None:
    """Write the saved model's card and, if there is an int8 copy, a second card in the copy's folder."""
    output = run.settings.output_folder
    tokenizer = cast(PreTrainedTokenizerBase, run.trainer.processing_class)
    # The facts about the model, such as its title and its languages. The second card has other test scores.
    about = describe_trained_model(run.settings, run.pairs, tokenizer, saved_model.test_scores)
    validation_scores = None
    if saved_model.weights.comparison is not None:
        # The scores by name: "average" and "last_checkpoint".
        validation_scores = asdict(saved_model.weights.comparison)
    save_card(run.model, output, about, facts, validation_scores)
    if saved_model.has_int8_copy:
        save_int8_card(output, about, saved_model.int8_scores, run.model.num_parameters(), facts)


def choose_weights(run: TrainedRun) -> SavedWeights:
    """Save the final weights of a run, which are an average of its last checkpoints if the settings ask for it.

    If there are validation pairs, the average is compared with the last checkpoint. With `keep_better`, the last
    checkpoint is saved if its BLEU is higher.
    """
    output = run.settings.output
    if output.average_last is None:
        # The trained model is saved already. Only the arguments and the curve are missing.
        return SavedWeights([], comparison=None, is_last_kept=False, curve=save_arguments_and_curve(run))

    averaged, curve = replace_by_average(run, output.average_last)
    can_be_compared = bool(averaged) and "validation" in run.pairs
    if not can_be_compared:
        return SavedWeights(averaged, comparison=None, is_last_kept=False, curve=curve)

    last_checkpoint = averaged[-1]
    comparison = compare_average(run.settings, run.pairs, checkpoint_name=last_checkpoint)
    is_last_better = comparison.gain < 0
    if output.keep_better and is_last_better:
        # An average of one checkpoint has the weights of this checkpoint.
        averaged_last, curve_of_last = replace_by_average(run, count=1)
        return SavedWeights(averaged_last, comparison, is_last_kept=True, curve=curve_of_last)
    return SavedWeights(averaged, comparison, is_last_kept=False, curve=curve)


def replace_by_average(run: TrainedRun, count: int) -> tuple[list[str], Curve | None]:
    """Replace the saved model with an average of the run's last `count` checkpoints.

    If the run has no checkpoints, the model stays as it is, and the list of names is empty.

    Returns the names of the averaged checkpoints, and the content of `curve.json`.
    """
    averaged_checkpoints = save_average(run.settings.output_folder, count)
    # `save_average` may remove all files of the run except for its checkpoints, so these files are written after it.
    curve = save_arguments_and_curve(run)
    return averaged_checkpoints, curve


def save_arguments_and_curve(run: TrainedRun) -> Curve | None:
    """Write the run's arguments and its curve into the output folder. Return the content of `curve.json`."""
    save_arguments(run.settings, is_trained=True)
    with staged(run.settings.output_folder) as folder:
        return write_curve(folder, run.trainer.state.log_history)


def compare_average(settings: Settings, pairs: DatasetDict, checkpoint_name: str) -> AverageComparison:
    """Evaluate the saved average and the last of its checkpoints on the validation pairs, and log which is better.

    The saved model is not changed.
    """
    checkpoint = settings.output_folder / checkpoint_name
    count = len(pairs["validation"])
    logger.info("comparing the average with %s on %s validation pairs", checkpoint_name, f"{count:,}")
    # The average is in the output folder, and the checkpoint is in a folder inside it.
    comparison = AverageComparison(
        average=_evaluate_folder(settings.output_folder, "validation", settings, pairs),
        last_checkpoint=_evaluate_folder(checkpoint, "validation", settings, pairs),
    )
    verdict = _describe_verdict(comparison, checkpoint, settings.output.keep_better)
    logger.info("validation BLEU: %s; %s", comparison.describe(), verdict)
    return comparison


def _describe_verdict(comparison: AverageComparison, checkpoint: Path, keep_better: bool) -> str:
    """Return a text that says whether the average or its last checkpoint is better, and which of them is kept."""
    if comparison.gain > 0:
        return "the average is better"
    if comparison.gain == 0:
        return "both are equal"
    if keep_better:
        return "the last checkpoint is better, and is kept"
    return f"the last checkpoint is better, and is in {checkpoint}; --keep_better would keep it"


def evaluate_saved(split: str, settings: Settings, pairs: DatasetDict) -> Scores | None:
    """Evaluate the saved model on a split, with its saved search settings. Return None if the split does not exist.

    The saved model is loaded again, because the model in memory may still use the precision of the training.
    """
    if split not in pairs:
        return None
    return _evaluate_folder(settings.output_folder, split, settings, pairs)


def _evaluate_folder(folder: Path, split: str, settings: Settings, pairs: DatasetDict) -> Scores:
    """Load the model in a folder, and evaluate it on a split of the pairs."""
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
    """Choose the length penalty and the stopping rule of the search, unless they are given, and save them.

    They are chosen by BLEU on validation pairs, and are saved in the model's `generation_config.json`. Returns a text
    about the choice for the model card.
    """
    tokenizer, model = load(str(settings.output_folder), settings.args.device)
    sample = _sample_validation_pairs(pairs)
    logger.info("choosing length penalty and stopping rule on %s validation pairs", f"{len(sample):,}")
    # `choose_search` keeps the search settings that the user has given.
    given_search = settings.decoding.generate_kwargs()
    chosen_search, bleu_by_search = choose_search(model, tokenizer, sample, settings.scoring, **given_search)
    for description, bleu in bleu_by_search.items():
        logger.info("validation BLEU %.2f: %s", bleu, description)
    model.generation_config.update(**chosen_search)
    _save_generation_config(model, settings.output_folder)
    return f"the best of {len(bleu_by_search)} on {len(sample):,} validation pairs: {describe_search(model)}"


def _sample_validation_pairs(pairs: DatasetDict) -> Dataset:
    """Return the validation pairs on which the search settings are chosen."""
    validation_pairs = pairs["validation"]
    rows = pick_evenly_spaced_rows(len(validation_pairs), PAIRS_TO_CHOOSE_SEARCH)
    return validation_pairs.select(rows)


def _save_generation_config(model: PreTrainedModel, output: Path) -> None:
    """Save a model's generation configuration in the folder that already has its weights."""
    with staged(output) as folder:
        model.generation_config.save_pretrained(folder)


def save_int8(settings: Settings, pairs: DatasetDict) -> Scores | None:
    """Save an int8 copy of the saved model in a folder inside the model's folder. An earlier copy is replaced.

    Returns the test scores of the copy, or None if there are no test pairs.
    """
    folder = settings.output_folder / INT8
    # Of the full-precision model, only the tokenizer is needed.
    tokenizer, _ = load(str(settings.output_folder), "cpu")
    # With this configuration, the weights are converted to int8 while they are loaded.
    model = AutoModelForSeq2SeqLM.from_pretrained(settings.output_folder, quantization_config=Int8Config())
    # The files get into `folder` only at the end of this block, so the copy is evaluated after it.
    with staged(folder, replace_run=True) as staging:
        model.save_pretrained(staging)
        tokenizer.save_pretrained(staging)
    if "test" not in pairs:
        return None
    return _evaluate_folder(folder, "test", settings, pairs)


def describe_int8(scores: Scores | None) -> str:
    """Describe the int8 model for the model card: its folder and, if it was evaluated, its BLEU."""
    place = f"in the folder {INT8}, which is not pushed"
    if scores is None:
        return place
    return f"{place}: BLEU {scores['bleu']:.2f} on the test pairs"


def collect_facts(run: TrainedRun, saved_model: SavedModel) -> TrainingFacts:
    """Collect the facts about the training for the table in the model card. Texts that do not apply are None."""
    args = run.settings.args
    return TrainingFacts(
        data=run.settings.data.describe("train"),
        distillation=run.description.distillation or {},
        arguments=argument_facts(args),
        adam=describe_adam(run.trainer),
        optimizer=run.recorded_facts.optimizer,
        precision=describe_precision(args),
        best_weights=_describe_best_weights(run),
        pairs=len(run.pairs["train"]),
        updates=run.trainer.state.global_step,
        seconds=run.recorded_facts.seconds,
        r_drop_alpha=args.r_drop_alpha,
        averaged_weights=saved_model.weights.describe(),
        validation_bleu=_describe_comparison(saved_model.weights),
        search=saved_model.search,
        int8=_describe_int8_copy(saved_model),
    )


def _describe_best_weights(run: TrainedRun) -> str | None:
    """Return a text that names the update of the best model; None unless the run keeps its best model."""
    args = run.settings.args
    best_update = run.trainer.state.best_global_step
    if not args.load_best_model_at_end or best_update is None:
        return None
    return f"of update {best_update:,}, the best by {args.metric_for_best_model}"


def _describe_comparison(weights: SavedWeights) -> str | None:
    """Return the BLEU of the average and of the last checkpoint as text, or None if they were not compared."""
    if weights.comparison is None:
        return None
    return weights.comparison.describe()


def _describe_int8_copy(saved_model: SavedModel) -> str | None:
    """Return a text about the model's int8 copy, or None if there is none."""
    if not saved_model.has_int8_copy:
        return None
    return describe_int8(saved_model.int8_scores)


def collect_scores(run: TrainedRun, saved_model: SavedModel) -> dict[str, Scores | None]:
    """Collect the scores for the results file.

    The keys `"validation"` and `"test"` have the saved model's scores, or None if there are no such pairs. If the run
    compared the average with the last checkpoint, `"validation_of_last_checkpoint"` has the scores of the latter.
    """
    validation_scores = _find_validation_scores(run, saved_model)
    scores = {"validation": validation_scores, "test": saved_model.test_scores}
    comparison = saved_model.weights.comparison
    if comparison is not None:
        scores["validation_of_last_checkpoint"] = comparison.last_checkpoint
    return scores


def _find_validation_scores(run: TrainedRun, saved_model: SavedModel) -> Scores | None:
    """Return the saved model's scores on the validation pairs, or None if there are no such pairs."""
    comparison = saved_model.weights.comparison
    # The scores of the average hold only if neither its weights nor its search settings have been replaced since.
    is_average_saved = not saved_model.weights.is_last_kept
    is_search_unchanged = saved_model.search is None
    if comparison is not None and is_average_saved and is_search_unchanged:
        return comparison.average
    return evaluate_saved("validation", run.settings, run.pairs)


def collect_results(
    run: TrainedRun, facts: TrainingFacts, weights: SavedWeights, scores: dict[str, Scores | None]
) -> Results:
    """Collect the content of the results file from the run, the model card's facts, and the scores."""
    description = run.description
    recorded = run.recorded_facts
    data_by_split = {split: run.settings.data.describe(split) for split in run.pairs}
    # The total duration of a run that was resumed is unknown.
    total_seconds = None
    if description.started is not None:
        total_seconds = time.monotonic() - description.started
    # `description.environment` is filled only for runs that write a results file, as this one does.
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
        # None unless the run keeps its best model.
        weights=facts.best_weights,
        parameters=run.model.num_parameters(),
        updates=facts.updates,
        training_seconds=recorded.seconds - recorded.evaluation_seconds,
        evaluation_seconds=recorded.evaluation_seconds,
        curve=weights.curve,
        data=data_by_split,
        scores=scores,
        total_seconds=total_seconds,
    )
