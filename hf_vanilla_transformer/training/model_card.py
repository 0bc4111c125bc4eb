"""The README.md of a trained folder, filled from the run."""

from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from transformers import PreTrainedModel, TrainingArguments


# In an installed package the template lies beside the modules, in a checkout at the top of the repository.
_TEMPLATE_PLACES = (Path(__file__).parents[1] / "model_card.md", Path(__file__).parents[2] / "model_card.md")


def fill_model_card(
    model: PreTrainedModel,
    args: TrainingArguments,
    *,
    title: str,
    data: str,
    source_language: str | None = None,
    target_language: str | None = None,
    scores: dict[str, Any] | None = None,
    example_source: str = "",
    training_facts: dict[str, Any] | None = None,
    base_model: str | None = None,
    license: str | None = None,
) -> ModelCard:
    """Fill the template `model_card.md` from a run.

    Args:
        model (`PreTrainedModel`): the trained model.
        args (`TrainingArguments`): what it was trained with.
        title (`str`): heading, and the name in the example.
        data (`str`): the training data, in words or as a Hub name.
        source_language, target_language (`str`, *optional*): language codes.
        scores (`dict`, *optional*): of [`~hf_vanilla_transformer.evaluation.score_translations`], with `data` and
            `decoding` in words, which the scores belong to.
        example_source (`str`): a sentence for the example.
        training_facts (`dict`, *optional*): more rows for the table of training, such as updates and seconds.
        base_model (`str`, *optional*): what was fine-tuned.
        license (`str`, *optional*): of the weights; the card says that it is not stated where it is None.

    Returns:
        `ModelCard`: text and metadata; its `content` is what README.md holds.
    """
    languages = [language for language in (source_language, target_language) if language]
    card_data = ModelCardData(
        language=languages or None,
        license=license,
        library_name="transformers",
        pipeline_tag="translation",
        tags=["translation", "vanilla-transformer", "arxiv:1706.03762"],
        metrics=["sacrebleu", "chrf"] if scores else None,
        base_model=base_model,
        model_name=title if scores else None,
        eval_results=_eval_results(scores) if scores else None,
    )
    template = next(path for path in _TEMPLATE_PLACES if path.is_file())
    return ModelCard.from_template(
        card_data,
        template_path=str(template),
        title=title,
        location=title,
        data=data,
        languages=f"from {source_language} to {target_language}" if len(languages) == 2 else "one language to another",
        scores=scores,
        example_source=example_source.replace('"', "'"),
        model_facts=_model_facts(model),
        training_facts={**_training_facts(args, data), **(training_facts or {})},
        base_model=base_model,
        license=license,
    )


def _eval_results(scores: dict[str, Any]) -> list[EvalResult]:
    return [
        EvalResult(
            task_type="translation",
            dataset_type=scores["data"],
            dataset_name=scores["data"],
            metric_type=metric,
            metric_value=round(scores[name], 2),
            metric_args={"signature": scores[f"{name}_signature"]},
        )
        for metric, name in (("sacrebleu", "bleu"), ("chrf", "chrf"))
    ]


def _model_facts(model: PreTrainedModel) -> dict[str, Any]:
    config = model.config
    return {
        "parameters": f"{model.num_parameters():,}",
        "layers (encoder, decoder)": f"{config.encoder_layers}, {config.decoder_layers}",
        "d_model": config.d_model,
        "d_ff": config.d_ff,
        "heads": config.num_heads,
        "vocabulary": f"{config.vocab_size:,}",
        "positions": config.position_embedding_type,
        "P_drop": config.dropout,
        "label smoothing": config.label_smoothing,
    }


def _training_facts(args: TrainingArguments, data: str) -> dict[str, Any]:
    return {
        "data": data,
        "sentences an update": args.train_batch_size * args.gradient_accumulation_steps * args.world_size,
        "warm-up updates": int(args.warmup_steps),
        "beta_1, beta_2, epsilon": f"{args.adam_beta1}, {args.adam_beta2}, {args.adam_epsilon}",
        "precision": "bfloat16 autocast" if args.bf16 else "float16 autocast" if args.fp16 else "float32",
        "seed": args.seed,
    }
