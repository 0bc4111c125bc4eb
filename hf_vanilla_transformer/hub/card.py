"""The README.md of a trained folder, filled from the run."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from huggingface_hub.utils import HFValidationError, validate_repo_id
from transformers import PreTrainedConfig, PreTrainedModel, TrainingArguments
from transformers.training_args import OptimizerNames

from ..data.languages import language_of


# An installed package holds the template itself; a checkout has it in the root folder.
_TEMPLATE_PATHS = (Path(__file__).parents[1] / "model_card.md", Path(__file__).parents[2] / "model_card.md")
BUILT_IN = "numbers"
# Type and display name on the Hub of each metric of `score_translations`.
_METRICS_ON_THE_HUB = {"bleu": ("sacrebleu", "BLEU"), "chrf": ("chrf", "chrF")}


def card_metadata(
    *,
    title: str,
    dataset: str | None = None,
    dataset_config: str | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
    scores: dict[str, Any] | None = None,
    base_model: str | None = None,
    license: str | None = None,
) -> ModelCardData:
    """Metadata of a card, limited to values that the Hub knows; arguments as for [`fill_model_card`]."""
    languages = [language for language in map(language_of, (source_language, target_language)) if language]
    hub_dataset = _hub_name(dataset)
    return ModelCardData(
        language=list(dict.fromkeys(languages)) or None,
        license=license,
        library_name="transformers",
        pipeline_tag="translation",
        tags=["translation", "vanilla-transformer", "arxiv:1706.03762"],
        datasets=[hub_dataset] if hub_dataset else None,
        metrics=[kind for kind, _ in _METRICS_ON_THE_HUB.values()] if scores else None,
        base_model=_hub_name(base_model),
        model_name=title if scores else None,
        eval_results=_eval_results(scores, dataset, dataset_config) if scores else None,
    )


def fill_model_card(
    model: PreTrainedModel,
    args: TrainingArguments,
    *,
    title: str,
    data: str,
    precision: str,
    location: str | None = None,
    revision: str | None = None,
    dataset: str | None = None,
    dataset_config: str | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
    scores: dict[str, Any] | None = None,
    example_source: str = "",
    training_facts: dict[str, Any] | None = None,
    averaged_from: Sequence[str] = (),
    base_model: str | None = None,
    license: str | None = None,
) -> ModelCard:
    """Fill the template `model_card.md` from a run.

    Args:
        model (`PreTrainedModel`): the trained model.
        args (`TrainingArguments`): arguments of the training.
        title (`str`): heading, and the model's name in the metadata of its scores.
        data (`str`): the training data in words.
        precision (`str`): the precision of the training in words.
        location (`str`, *optional*): folder or `"user/name"` that the example passes to `from_pretrained`. Default:
            the title.
        revision (`str`, *optional*): a branch of that repository, other than `"main"`.
        dataset (`str`, *optional*): the data set's name on the Hub, or `"numbers"`; None for files.
        dataset_config (`str`, *optional*): its configuration.
        source_language, target_language (`str`, *optional*): language codes, such as `"en"` or `"en_US"`; other values
            are omitted.
        scores (`dict`, *optional*): scores of [`~hf_vanilla_transformer.score_translations`] on the test pairs, with
            `data` and `decoding`, which describe the pairs and the decoding in words.
        example_source (`str`): a sentence for the example.
        training_facts (`dict`, *optional*): more rows for the training table, such as updates and seconds.
        averaged_from (`list` of `str`): names of the averaged checkpoints, if the weights are an average.
        base_model (`str`, *optional*): the fine-tuned model, a name on the Hub or a folder; of a folder the card shows
            the last part only.
        license (`str`, *optional*): licence of the weights; if None, the card says that it is not stated.

    Returns:
        `ModelCard`: text and metadata; its `content` is the text of README.md.
    """
    metadata = card_metadata(
        title=title,
        dataset=dataset,
        dataset_config=dataset_config,
        source_language=source_language,
        target_language=target_language,
        scores=scores,
        base_model=base_model,
        license=license,
    )
    return _from_template(
        metadata,
        title=title,
        location=location or title,
        at_revision=f', revision="{revision}"' if revision else "",
        data=data,
        languages=_direction(source_language, target_language),
        scores=scores,
        example_source=example_source,
        model_facts={**_model_facts(model.config, model.num_parameters()), **_smoothing_facts(args)},
        training_facts={
            **_training_facts(args, data, precision),
            **(training_facts or {}),
            **_average_facts(averaged_from),
        },
        base_model=_hub_name(base_model) or (base_model and Path(base_model).resolve().name),
        license=license,
    )


def fill_card_of_average(
    config: PreTrainedConfig, parameters: int, *, title: str, averaged_from: Sequence[str]
) -> ModelCard:
    """Fill the template for an average of checkpoints without facts about their training.

    Args:
        config (`PreTrainedConfig`): the model's configuration.
        parameters (`int`): number of parameters.
        title (`str`): heading, and the name that the example loads.
        averaged_from (`list` of `str`): names of the averaged checkpoints.
    """
    return _from_template(
        card_metadata(title=title),
        title=title,
        location=title,
        at_revision="",
        data="its training data",
        languages=_direction(None, None),
        scores=None,
        example_source="A sentence to translate.",
        model_facts=_model_facts(config, parameters),
        training_facts=_average_facts(averaged_from),
        base_model=None,
        license=None,
    )


def _from_template(metadata: ModelCardData, *, example_source: str, **values: Any) -> ModelCard:
    template = next(path for path in _TEMPLATE_PATHS if path.is_file())
    quoted = json.dumps(example_source, ensure_ascii=False)
    return ModelCard.from_template(metadata, template_path=str(template), example_source=quoted, **values)


def _average_facts(averaged_from: Sequence[str]) -> dict[str, str]:
    if not averaged_from:
        return {}
    return {"weights": f"average of {len(averaged_from)} checkpoints: {', '.join(averaged_from)}"}


def _eval_results(scores: dict[str, Any], dataset: str | None, dataset_config: str | None) -> list[EvalResult]:
    return [
        EvalResult(
            task_type="translation",
            dataset_type=_hub_name(dataset) or (BUILT_IN if dataset == BUILT_IN else "own-files"),
            dataset_name=scores["data"],
            dataset_config=dataset_config,
            dataset_split="test",
            metric_type=kind,
            metric_name=label,
            metric_value=round(scores[name], 2),
            metric_args={"signature": scores[f"{name}_signature"]},
        )
        for name, (kind, label) in _METRICS_ON_THE_HUB.items()
    ]


def _direction(source_language: str | None, target_language: str | None) -> str:
    if language_of(source_language) and language_of(target_language):
        return f"from {source_language} to {target_language}"
    return "one language to another"


def _hub_name(name: str | None) -> str | None:
    """The name if it may be on the Hub; None for a folder and for the built-in corpus."""
    if name is None or name == BUILT_IN or Path(name).exists():
        return None
    try:
        validate_repo_id(name)
    except HFValidationError:
        return None
    return name


def _model_facts(config: PreTrainedConfig, parameters: int) -> dict[str, Any]:
    return {
        "parameters": f"{parameters:,}",
        "layers (encoder, decoder)": f"{config.encoder_layers}, {config.decoder_layers}",
        "d_model": config.d_model,
        "d_ff": config.d_ff,
        "heads": config.num_heads,
        "vocabulary": f"{config.vocab_size:,}",
        "positions": config.position_embedding_type,
        "P_drop": config.dropout,
        "label smoothing": config.label_smoothing,
    }


def _batch_facts(args: TrainingArguments) -> dict[str, int]:
    batches = args.gradient_accumulation_steps * args.world_size
    tokens = getattr(args, "tokens_per_batch", None)
    if tokens is not None:
        return {"tokens an update and side, at most": tokens * batches}
    return {"sentences an update": args.train_batch_size * batches}


def _smoothing_facts(args: TrainingArguments) -> dict[str, float]:
    """The Trainer's label smoothing, which replaces the model's."""
    return {"label smoothing": args.label_smoothing_factor} if args.label_smoothing_factor else {}


def _adam_facts(args: TrainingArguments) -> dict[str, str]:
    if "adam" not in OptimizerNames(args.optim).value:
        return {}
    return {"beta_1, beta_2, epsilon": f"{args.adam_beta1}, {args.adam_beta2}, {args.adam_epsilon}"}


def _training_facts(args: TrainingArguments, data: str, precision: str) -> dict[str, Any]:
    # A value below 1 is a share of all updates.
    warmup = f"{args.warmup_steps:.3g} of all" if 0 < args.warmup_steps < 1 else int(args.warmup_steps)
    return {
        "data": data,
        **_batch_facts(args),
        "warm-up updates": warmup,
        **_adam_facts(args),
        "precision": precision,
        "seed": args.seed,
    }
