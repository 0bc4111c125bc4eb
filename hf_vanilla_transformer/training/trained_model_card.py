"""Write the model card of a trained model: its description on the Hub, with facts about the training."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from datasets import DatasetDict
from transformers import AutoConfig, PreTrainedModel, PreTrainedTokenizerBase, Seq2SeqTrainer

from ..data.target_language import TargetCodes
from ..evaluation.metrics import Scores
from ..hub.model_card import BUILT_IN, About, fill_model_card, location_of
from ..hub.model_folder import INT8, staged
from .run_arguments import Settings


@dataclass(frozen=True)
class TrainingFacts:
    """Facts about a training run, for the table in the model card.

    Most facts that are None have no row in the table.

    Args:
        data: a text about the training data.
        distillation: rows about the teacher and its translations; empty without a teacher.
        arguments: rows that describe arguments of the Trainer.
        adam: the optimizer's beta_1, beta_2 and epsilon.
        optimizer: a text about the optimizer and the schedule.
        precision: a text about the precision of matmuls.
        best_weights: a text that names the update of the saved weights, if the run kept its best model.
        pairs: the number of training pairs.
        updates: the number of updates.
        seconds: the duration of the training.
        r_drop_alpha: the weight of the R-Drop loss, or 0 without R-Drop.
        averaged_weights: a text that names the checkpoints of the saved weights, if the run averages checkpoints.
        validation_bleu: a text with the validation BLEU of the average and of the last checkpoint.
        search: a text about how the search settings were chosen.
        int8: a text about the int8 model: where it is, and its BLEU.
    """

    data: str
    distillation: Mapping[str, str]
    arguments: Mapping[str, object]
    adam: str | None
    optimizer: str | None
    precision: str
    best_weights: str | None
    pairs: int
    updates: int
    seconds: float
    r_drop_alpha: float
    averaged_weights: str | None
    validation_bleu: str | None
    search: str | None
    int8: str | None

    def rows(self) -> dict[str, object]:
        """Return the rows of the table, as a dict from row labels to values. The table has the same order."""
        r_drop = None
        if self.r_drop_alpha:
            r_drop = f"weight {self.r_drop_alpha:g}"
        return {
            "data": self.data,
            **self.distillation,
            **self.arguments,
            **_make_optional_row("beta_1, beta_2, epsilon", self.adam),
            "optimizer": self.optimizer,
            "precision": self.precision,
            # A run has either this text or `averaged_weights`, which comes below.
            **_make_optional_row("weights", self.best_weights),
            "pairs": f"{self.pairs:,}",
            "updates": f"{self.updates:,}",
            "seconds": round(self.seconds),
            **_make_optional_row("R-Drop", r_drop),
            **_make_optional_row("weights", self.averaged_weights),
            **_make_optional_row("validation BLEU", self.validation_bleu),
            **_make_optional_row("search", self.search),
            **_make_optional_row("int8", self.int8),
        }


def _make_optional_row(label: str, text: str | None) -> dict[str, str]:
    """Return a dict with a single row of the table; an empty dict if there is no text."""
    if text is None:
        return {}
    return {label: text}


def describe_adam(trainer: Seq2SeqTrainer) -> str | None:
    """Return the optimizer's beta_1, beta_2 and epsilon as text, or None if this optimizer is not a variant of Adam.

    They are read from the optimizer, because a resumed run uses the values in its checkpoint instead of its arguments.
    """
    if trainer.optimizer is None:
        return None
    # All parameter groups have the same values, so the first group is enough.
    parameter_group = trainer.optimizer.param_groups[0]
    if "betas" not in parameter_group or "eps" not in parameter_group:
        return None
    beta_1, beta_2 = parameter_group["betas"]
    return f"{beta_1}, {beta_2}, {parameter_group['eps']}"


def describe_run_for_card(settings: Settings, scores: Scores | None = None) -> About:
    """Collect the facts that a run's settings provide for its model card, such as the title and the languages.

    They are also used for the metadata of a new Hub repository, before there is a model.

    Args:
        settings: the run's settings.
        scores: the scores on the test pairs, or None if there are none.
    """
    folder_or_repository = str(settings.args.output_dir)
    if settings.args.push_to_hub and settings.args.hub_model_id:
        folder_or_repository = settings.args.hub_model_id
    source_language, target_language = settings.data.languages()
    # The title is the last part of a path or of "user/name". `absolute` gives a name to the path ".".
    return About(
        title=Path(folder_or_repository).absolute().name,
        dataset=settings.data.dataset_name,
        dataset_config=settings.data.dataset_config_name,
        source_language=source_language,
        target_language=target_language,
        base_model=settings.model.model_name_or_path,
        license=settings.output.license,
        scores=scores,
    )


def describe_trained_model(
    settings: Settings, pairs: DatasetDict, tokenizer: PreTrainedTokenizerBase, scores: Scores | None
) -> About:
    """Collect the facts about a trained model for its card, including an example sentence and the test scores.

    Args:
        settings: the run's settings.
        pairs: the sentence pairs of all splits.
        tokenizer: the model's tokenizer.
        scores: the scores on the test pairs, or None if there are none.
    """
    tokenizer_class = _read_tokenizer_class(settings.output_folder)
    source_of_model = _find_source_of_model(settings)
    about_run = describe_run_for_card(settings, scores)
    return replace(
        about_run,
        data=settings.data.describe("train"),
        tokenizer_class=tokenizer_class,
        location=source_of_model.location,
        revision=source_of_model.revision,
        # The default is an invented sentence.
        example_source=_choose_example_source(settings, pairs, default=about_run.example_source),
        target_code=_choose_example_code(tokenizer),
    )


class _SourceOfModel(NamedTuple):
    """Where the card's example loads the model from: a Hub repository with a revision, or a local folder."""

    location: str | None
    revision: str | None


def _read_tokenizer_class(output: Path) -> str | None:
    """Return the class of the tokenizer in a model's folder, or None if the folder does not name it."""
    tokenizer_config = json.loads((output / "tokenizer_config.json").read_text(encoding="utf-8"))
    return tokenizer_config.get("tokenizer_class")


def _find_source_of_model(settings: Settings) -> _SourceOfModel:
    """Return the Hub repository that the run pushes to, or the output folder if the run does not push."""
    if settings.args.push_to_hub:
        return _SourceOfModel(settings.args.hub_model_id, settings.args.hub_revision)
    return _SourceOfModel(location_of(settings.output_folder), revision=None)


def _choose_example_source(settings: Settings, pairs: DatasetDict, default: str) -> str:
    """Return the source of the card's example: a training sentence of the built-in data, and otherwise the default."""
    if settings.data.dataset_name != BUILT_IN:
        # Other data may be private.
        return default
    first_pair = pairs["train"][0]
    return first_pair["source"]


def _choose_example_code(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the target language code of the card's example, such as `>>fr<<`, or "" if the model has no codes."""
    target_codes = TargetCodes(tokenizer)
    # `default` is the code for texts without a code, or "".
    if target_codes.codes and not target_codes.default:
        # Every text must begin with a code, and any code can be the example.
        return target_codes.codes[0]
    return target_codes.default


def save_card(
    model: PreTrainedModel,
    output: Path,
    about: About,
    facts: TrainingFacts,
    validation_scores: Mapping[str, object] | None,
) -> None:
    """Write a model's card to `README.md` and, if there are scores, write them to `scores.json`.

    Args:
        model: the trained model.
        output: the model's folder.
        about: what the card says about the model, including the scores on the test pairs.
        facts: what the card says about the training.
        validation_scores: the validation scores of the average and of the last checkpoint, or None if the run has not
            compared them.
    """
    card = fill_model_card(about, model.config, model.num_parameters(), facts.rows())
    scores = _join_scores(about.scores, validation_scores)
    with staged(output) as folder:
        (folder / "README.md").write_text(card.content, encoding="utf-8")
        if scores:
            (folder / "scores.json").write_text(json.dumps(scores, indent=2) + "\n", encoding="utf-8")


def _join_scores(test_scores: Scores | None, validation_scores: Mapping[str, object] | None) -> dict[str, object]:
    """Return the content of `scores.json`: the test scores, and the validation scores below "validation"."""
    scores: dict[str, object] = {}
    if test_scores is not None:
        scores.update(test_scores)
    if validation_scores is not None:
        scores["validation"] = validation_scores
    return scores


def save_int8_card(output: Path, about: About, scores: Scores | None, parameters: int, facts: TrainingFacts) -> None:
    """Write the card of the int8 model to the `README.md` in its folder.

    Args:
        output: the folder of the full-precision model, which contains the folder of the int8 model.
        about: what the card of the full-precision model says.
        scores: the int8 model's scores on the test pairs, or None if there are none.
        parameters: the number of parameters.
        facts: what the card says about the training.
    """
    folder = output / INT8
    config = AutoConfig.from_pretrained(folder)
    # The int8 model is not pushed, so it has no revision.
    about_int8 = replace(about, scores=scores, location=location_of(folder), revision=None)
    # The row "int8" says where the int8 model is, so only the card of the full-precision model needs it.
    facts_without_int8 = replace(facts, int8=None)
    card = fill_model_card(about_int8, config, parameters, facts_without_int8.rows())
    with staged(folder) as staged_folder:
        (staged_folder / "README.md").write_text(card.content, encoding="utf-8")
