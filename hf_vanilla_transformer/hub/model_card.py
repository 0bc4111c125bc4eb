"""The README.md of a trained folder, filled from the run."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from huggingface_hub.utils import HFValidationError, validate_repo_id
from transformers import PreTrainedConfig, TrainingArguments

from ..model.pretrained_model import INT8
from ..support.language_codes import language_of


# An installed package holds the template itself; a checkout has it in the root folder.
_TEMPLATE_PATHS = (Path(__file__).parents[1] / "model_card.md", Path(__file__).parents[2] / "model_card.md")
# Libraries that tokenizers need, by the names of their classes.
LIBRARIES = {"MarianTokenizer": "sentencepiece", "FairseqTokenizer": "sacremoses"}
# Fields in which models of other systems differ from the paper.
_OF_OTHERS = ("source_vocab_size", "activation_function", "lm_head_bias", "stack_layer_norm", "position_offset")
# The data set that is not on the Hub.
BUILT_IN = "numbers"


@dataclass(frozen=True)
class About:
    """What a card says about a model besides its sizes and its training.

    Args:
        title: heading, and the model's name in the metadata of its scores.
        dataset: the data set's name on the Hub, or `BUILT_IN`; None for files.
        source_language, target_language: codes, such as `"en"` or `"en_US"`; other values are omitted.
        base_model: the fine-tuned model, a name on the Hub or a folder, of which the card shows the last part only.
        scores: of [`~hf_vanilla_transformer.score_translations`] on the test pairs, with `data` and `decoding`, which
            describe the pairs and the decoding in words.
        data: the training data in words.
        tokenizer_class: of the tokenizer; some need a library.
        target_code: a code such as `">>fr<<"`, with which the example's source begins if the model has several target
            languages.
        location, revision: what the example passes to `from_pretrained`; by default the title alone.
    """

    title: str
    dataset: str | None = None
    dataset_config: str | None = None
    source_language: str | None = None
    target_language: str | None = None
    base_model: str | None = None
    license: str | None = None
    scores: dict[str, Any] | None = None
    data: str = "its training data"
    tokenizer_class: str | None = None
    location: str | None = None
    revision: str | None = None
    example_source: str = "A sentence to translate."
    target_code: str = ""

    def metadata(self) -> ModelCardData:
        """The card's metadata, limited to values that the Hub knows."""
        languages = map(language_of, (self.source_language, self.target_language))
        hub_dataset, metrics = _hub_name(self.dataset), _metrics_and_exact_match(self.scores)[0]
        return ModelCardData(
            language=list(dict.fromkeys(filter(None, languages))) or None,
            license=self.license,
            library_name="transformers",
            pipeline_tag="translation",
            tags=["translation", "vanilla-transformer", "arxiv:1706.03762"],
            datasets=[hub_dataset] if hub_dataset else None,
            metrics=[metric.hub_type for metric in metrics.values()] or None,
            # Names of folders lack the user.
            base_model=_hub_name(self.base_model) if "/" in (self.base_model or "") else None,
            model_name=self.title if self.scores else None,
            eval_results=[self._eval_result(*entry) for entry in metrics.items()] or None,
        )

    def _eval_result(self, name: str, metric: Any) -> EvalResult:
        scores: Any = self.scores
        return EvalResult(
            task_type="translation",
            dataset_type=_hub_name(self.dataset) or (self.dataset if self.dataset == BUILT_IN else "own-files"),
            dataset_name=scores["data"],
            dataset_config=self.dataset_config,
            dataset_split="test",
            metric_type=metric.hub_type,
            metric_name=metric.label,
            metric_value=round(scores[name], 2),
            metric_args={"signature": scores[f"{name}_signature"]},
        )

    def direction(self) -> str:
        """The languages in words."""
        if language_of(self.source_language) and language_of(self.target_language):
            return f"from {self.source_language} to {self.target_language}"
        return "one language to another"


def fill_model_card(
    about: About, config: PreTrainedConfig, parameters: int, training_facts: dict[str, Any], *, converted: bool = False
) -> ModelCard:
    """Fill the template `model_card.md`; the card's `content` is the text of README.md.

    The facts are rows of the table of the training, or with `converted` of the conversion from another system.
    """
    metrics, exact_match = _metrics_and_exact_match(about.scores)
    model_facts = _model_facts(config, parameters)
    example_source = about.example_source
    if about.target_code:
        example_source = f"{about.target_code} {example_source}"
    if converted:  # Of further training, not of the model's.
        del model_facts["label smoothing"]
    return ModelCard.from_template(
        about.metadata(),
        template_path=str(next(path for path in _TEMPLATE_PATHS if path.is_file())),
        title=about.title,
        location=about.location or about.title,
        at_revision=f', revision="{about.revision}"' if about.revision else "",
        data=about.data,
        is_int8=_is_int8(config),
        library=LIBRARIES.get(about.tokenizer_class or ""),
        languages=about.direction(),
        scores=about.scores,
        metrics=metrics,
        exact_match=exact_match,
        example_source=json.dumps(example_source, ensure_ascii=False),
        model_facts=model_facts,
        training_facts=training_facts,
        base_model=name_of_base(about.base_model),
        license=about.license,
        converted=converted,
    )


def _is_int8(config: PreTrainedConfig) -> bool:
    """Return whether a configuration is of weights in int8, which load with the package only."""
    settings = getattr(config, "quantization_config", None) or {}
    return dict(settings if isinstance(settings, dict) else vars(settings)).get("quant_method") == INT8


def _metrics_and_exact_match(scores: dict[str, Any] | None) -> tuple[dict[str, Any], str | None]:
    """The classes of the metrics by name, and the exact match in words; none for a model without scores."""
    if not scores:
        return {}, None
    # Not at the top, because converted models have no scores.
    from ..evaluation.metrics import METRICS, describe_exact_match

    return {name: metric for name, metric in METRICS.items() if name in scores}, describe_exact_match(scores)


def average_facts(averaged_from: Sequence[str]) -> dict[str, str]:
    """The row of a card that names the averaged checkpoints; none for a model that is not an average."""
    if not averaged_from:
        return {}
    return {"weights": f"average of {len(averaged_from)} checkpoints: {', '.join(averaged_from)}"}


def argument_facts(args: TrainingArguments) -> dict[str, Any]:
    """The rows of a card that arguments of the Trainer give."""
    batches, tokens = args.gradient_accumulation_steps * args.world_size, getattr(args, "tokens_per_batch", None)
    if tokens is None:
        facts: dict[str, Any] = {"sentences per update": args.train_batch_size * batches}
    else:
        facts = {"tokens per update and side, at most": tokens * batches}
    # A value below 1 is a share of all updates.
    is_share = 0 < args.warmup_steps < 1
    facts["warm-up updates"] = f"{args.warmup_steps:.3g} of all" if is_share else int(args.warmup_steps)
    if "adam" in args.optim:
        facts["beta_1, beta_2, epsilon"] = f"{args.adam_beta1}, {args.adam_beta2}, {args.adam_epsilon}"
    if args.label_smoothing_factor:
        facts["label smoothing by the Trainer"] = args.label_smoothing_factor
    return {**facts, "seed": args.seed}


def _model_facts(config: PreTrainedConfig, parameters: int) -> dict[str, Any]:
    paper = type(config)()
    differing = [name for name in _OF_OTHERS if getattr(config, name) != getattr(paper, name)]
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
        **{name: getattr(config, name) for name in differing},
    }


def location_of(folder: Path) -> str:
    """The path in the example of a card; of an absolute one, which would describe this machine, the last part."""
    return folder.name if folder.is_absolute() else str(folder)


def name_of_base(base: str | None) -> str | None:
    """A model's name on the Hub, or of a folder the last part, because its path would describe this machine."""
    return base and (_hub_name(base) or Path(base).resolve().name)


def _hub_name(name: str | None) -> str | None:
    """The name if it may be on the Hub; None for a folder and for the built-in corpus."""
    if name is None or name == BUILT_IN or Path(name).exists():
        return None
    try:
        validate_repo_id(name)
    except HFValidationError:
        return None
    return name
