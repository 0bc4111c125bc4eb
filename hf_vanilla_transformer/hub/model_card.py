"""Write model cards. A model card is the README.md in a model's folder. It describes the model and its training."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from huggingface_hub.utils import HFValidationError, validate_repo_id
from transformers import PreTrainedConfig, TrainingArguments

from ..model.pretrained_model import INT8
from ..support.language_codes import language_of


if TYPE_CHECKING:
    from ..evaluation.metrics import SacreBleuMetric


# In an installed package, the template is inside the package. In a checkout, it is in the root folder.
_INSTALLED_TEMPLATE = Path(__file__).parents[1] / "model_card.md"
_CHECKOUT_TEMPLATE = Path(__file__).parents[2] / "model_card.md"
# The libraries that some tokenizers need, by the tokenizer's class name.
LIBRARIES = {"MarianTokenizer": "sentencepiece", "FairseqTokenizer": "sacremoses"}
# Configuration fields in which models converted from other systems may differ from the paper.
_FIELDS_OF_CONVERTED_MODELS = (
    "source_vocab_size",
    "activation_function",
    "lm_head_bias",
    "stack_layer_norm",
    "position_offset",
)
# The name of the built-in data set, which is not on the Hub.
BUILT_IN = "numbers"

# A table in the card: the value of each row, by the row's name.
Facts = dict[str, object]


@dataclass(frozen=True)
class About:
    """Facts about a model for its card, such as its languages, its data, its scores and its license.

    Args:
        title: the card's heading, and the model's name in the metadata about its scores.
        dataset: the data set's name on the Hub, or `BUILT_IN`; None if the pairs come from files.
        dataset_config: the configuration of the data set.
        source_language, target_language: codes such as `"en"` or `"en_US"`. The card leaves out unknown codes.
        base_model: the model that was fine-tuned: a name on the Hub, or a folder. The card shows only the last part of
            a folder's path.
        license: the license of the weights, by its identifier on the Hub.
        scores: the scores on the test pairs, computed by [`~hf_vanilla_transformer.score_translations`]. The entries
            `data` and `decoding` describe the pairs and the decoding in words.
        data: a description of the training data in words.
        tokenizer_class: the tokenizer's class name. If the class needs a library, the card names it.
        location, revision: the arguments of `from_pretrained` in the card's example. By default, the location is the
            title, and there is no revision.
        example_source: the sentence that the card's example translates.
        target_code: the code at the beginning of the example's source, such as `">>fr<<"`, if the model has several
            target languages.
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
        """Return the card's metadata, such as languages and scores, without values that the Hub does not know."""
        hub_dataset = _find_hub_name(self.dataset)
        metrics = _metrics_with_scores(self.scores)
        metric_types = [metric.hub_type for metric in metrics.values()]
        eval_results = [self._make_eval_result(name, metric) for name, metric in metrics.items()]
        # The Hub accepts None for missing values, but not empty lists, so `or None` replaces these.
        return ModelCardData(
            language=self._hub_languages() or None,
            license=self.license,
            library_name="transformers",
            pipeline_tag="translation",
            tags=["translation", "vanilla-transformer", "arxiv:1706.03762"],
            datasets=None if hub_dataset is None else [hub_dataset],
            metrics=metric_types or None,
            base_model=self._find_base_model_on_hub(),
            # The name belongs to the metadata about scores.
            model_name=self.title if self.scores else None,
            eval_results=eval_results or None,
        )

    def _find_base_model_on_hub(self) -> str | None:
        """Return the base model's name on the Hub, or None if it has none."""
        # Names on the Hub begin with `user/`. A name without a slash may be a folder, even if it does not exist here.
        if self.base_model is None or "/" not in self.base_model:
            return None
        return _find_hub_name(self.base_model)

    def _hub_languages(self) -> list[str]:
        """Return the codes of the source and target languages that the Hub knows, without repetitions."""
        languages = []
        for code in (self.source_language, self.target_language):
            language = language_of(code)
            if language is not None and language not in languages:
                languages.append(language)
        return languages

    def _make_eval_result(self, name: str, metric: "type[SacreBleuMetric]") -> EvalResult:
        """Return the card's metadata for the score that `self.scores` contains under `name`, computed by `metric`."""
        # The scores are a dict here, because there is a score to describe.
        scores: Any = self.scores
        # The metadata needs a type even if the dataset is not on the Hub. `BUILT_IN` is the corpus of this package.
        if self.dataset == BUILT_IN:
            dataset_type = BUILT_IN
        else:
            dataset_type = _find_hub_name(self.dataset) or "own-files"
        return EvalResult(
            task_type="translation",
            dataset_type=dataset_type,
            dataset_name=scores["data"],
            dataset_config=self.dataset_config,
            dataset_split="test",
            metric_type=metric.hub_type,
            metric_name=metric.label,
            metric_value=round(scores[name], 2),
            metric_args={"signature": scores[f"{name}_signature"]},
        )

    def direction(self) -> str:
        """Return the translation direction in words, such as "from en to de"."""
        if language_of(self.source_language) and language_of(self.target_language):
            return f"from {self.source_language} to {self.target_language}"
        return "one language to another"


def fill_model_card(
    about: About,
    config: PreTrainedConfig,
    parameters: int,
    training_facts: Mapping[str, object],
    *,
    converted: bool = False,
) -> ModelCard:
    """Fill in the template `model_card.md`, and return the model card. Its `content` is the text for README.md.

    Args:
        about: facts about the model, such as its languages and scores.
        config: the model's configuration.
        parameters: the model's number of parameters.
        training_facts: the rows of the table about the training run or about the conversion.
        converted: True if the model was converted from another system instead of trained.
    """
    template_path = _find_template()
    example_source = _write_example_source(about)
    # The template uses these names, and silently treats a variable that it does not get as empty.
    return ModelCard.from_template(
        about.metadata(),
        template_path=str(template_path),
        title=about.title,
        location=_location_in_example(about),
        revision_argument=_write_revision_argument(about),
        data=about.data,
        is_int8=_is_int8(config),
        library=_library_of_tokenizer(about),
        languages=about.direction(),
        scores=about.scores,
        metrics=_metrics_with_scores(about.scores),
        exact_match=_describe_exact_match_if_scored(about),
        example_source=json.dumps(example_source, ensure_ascii=False),
        model_facts=_model_facts(config, parameters, converted),
        training_facts=training_facts,
        base_model=name_of_base(about.base_model),
        license=about.license,
        converted=converted,
    )


def _find_template() -> Path:
    """Return the path of the template `model_card.md`. In a checkout, it is in the root folder, not in the package."""
    if _INSTALLED_TEMPLATE.is_file():
        return _INSTALLED_TEMPLATE
    return _CHECKOUT_TEMPLATE


def _write_example_source(about: About) -> str:
    """Return the sentence that the example translates, with the target-language code before it, if there is one."""
    if about.target_code:
        return f"{about.target_code} {about.example_source}"
    return about.example_source


def _location_in_example(about: About) -> str:
    """Return the location that the example passes to `from_pretrained`, by default the title."""
    if about.location:
        return about.location
    return about.title


def _write_revision_argument(about: About) -> str:
    """Return the code after the location in the example, as in `from_pretrained("user/name", revision="v2")`.

    It is empty if there is no revision.
    """
    if about.revision:
        return f', revision="{about.revision}"'
    return ""


def _library_of_tokenizer(about: About) -> str | None:
    """Return the library that the tokenizer's class needs, or None if it needs none or is not known."""
    if about.tokenizer_class is None:
        return None
    return LIBRARIES.get(about.tokenizer_class)


def _describe_exact_match_if_scored(about: About) -> str | None:
    """Return a description of the exact match of the scores, or None if the model has no scores."""
    if not about.scores:
        return None
    # Imported only now, because the metrics need `evaluate`, and models without scores do not.
    from ..evaluation.metrics import describe_exact_match

    return describe_exact_match(about.scores)


def _is_int8(config: PreTrainedConfig) -> bool:
    """Return True if a model has int8 weights, which can be loaded only with this package."""
    quantization = getattr(config, "quantization_config", None)
    if not quantization:
        return False
    # It is a dict if it was read from a file, and a transformers object if the model has just been quantized.
    if isinstance(quantization, dict):
        method = quantization.get("quant_method")
    else:
        method = getattr(quantization, "quant_method", None)
    return method == INT8


def _metrics_with_scores(scores: dict[str, Any] | None) -> "dict[str, type[SacreBleuMetric]]":
    """Return a dict from the name of each metric that the scores contain to the metric's class."""
    if not scores:
        return {}
    # Imported only now, because converted models have no scores, and the metrics need `evaluate`.
    from ..evaluation.metrics import METRICS

    return {name: metric for name, metric in METRICS.items() if name in scores}


def average_facts(averaged_from: Sequence[str]) -> dict[str, str]:
    """Return the card's row that lists the averaged checkpoints, or an empty dict if the model is not an average."""
    if not averaged_from:
        return {}
    return {"weights": f"average of {len(averaged_from)} checkpoints: {', '.join(averaged_from)}"}


def argument_facts(args: TrainingArguments) -> Facts:
    """Return the card's rows about settings in the Trainer's arguments, such as the batch size and the warm-up."""
    facts = _batch_size_fact(args)
    facts["warm-up updates"] = _describe_warmup(args.warmup_steps)
    # Several optimizers are variants of Adam, for example "adamw_torch_fused".
    if "adam" in args.optim:
        facts["beta_1, beta_2, epsilon"] = f"{args.adam_beta1}, {args.adam_beta2}, {args.adam_epsilon}"
    if args.label_smoothing_factor:
        facts["label smoothing by the Trainer"] = args.label_smoothing_factor
    facts["seed"] = args.seed
    return facts


def _batch_size_fact(args: TrainingArguments) -> Facts:
    """Return the card's row about the size of an update, in tokens if the arguments have `tokens_per_batch`."""
    # `world_size` is the number of processes, each of which has its own batches.
    batches_per_update = args.gradient_accumulation_steps * args.world_size
    tokens_per_batch = getattr(args, "tokens_per_batch", None)
    if tokens_per_batch is None:
        return {"sentences per update": args.train_batch_size * batches_per_update}
    return {"tokens per update and side, at most": tokens_per_batch * batches_per_update}


def _describe_warmup(warmup_steps: float) -> int | str:
    """Return the number of warm-up updates, or their share in words if the Trainer reads it as a share."""
    # The Trainer interprets a number below 1 as a share of all updates.
    if 0 < warmup_steps < 1:
        return f"{warmup_steps:.3g} of all"
    return int(warmup_steps)


def _model_facts(config: PreTrainedConfig, parameters: int, converted: bool) -> Facts:
    """Return the card's rows about the model: its sizes, and the settings in which it differs from the paper.

    `parameters` is the model's number of parameters. `converted` is True for a model that another system trained.
    """
    facts: Facts = {
        "parameters": f"{parameters:,}",
        "layers (encoder, decoder)": f"{config.encoder_layers}, {config.decoder_layers}",
        "d_model": config.d_model,
        "d_ff": config.d_ff,
        "heads": config.num_heads,
        "vocabulary": f"{config.vocab_size:,}",
        "positions": config.position_embedding_type,
        "P_drop": config.dropout,
    }
    # A converted model has this field only as a default for further training. It does not describe its own training.
    if not converted:
        facts["label smoothing"] = config.label_smoothing
    # The default configuration is the paper's. A converted model may differ from it in these fields, for example in
    # `activation_function`.
    paper_config = type(config)()
    for field in _FIELDS_OF_CONVERTED_MODELS:
        if getattr(config, field) != getattr(paper_config, field):
            facts[field] = getattr(config, field)
    return facts


def location_of(folder: Path) -> str:
    """Return the path of a model's folder for the example in the card.

    An absolute path is shortened to its last part, because the whole path would reveal details of this machine.
    """
    if folder.is_absolute():
        return folder.name
    return str(folder)


def name_of_base(base: str | None) -> str | None:
    """Return the base model's name for the card: its name on the Hub, or the last part of its folder's path.

    The folder's whole path is not used, because it would reveal details of this machine. If there is no base model, the
    argument is returned unchanged.
    """
    if not base:
        return base
    return _find_hub_name(base) or Path(base).resolve().name


def _find_hub_name(name: str | None) -> str | None:
    """Return a name unchanged if it may be a name on the Hub, and None otherwise.

    Existing folders and files, the built-in corpus, and names that the Hub does not allow are not names on the Hub.
    """
    if name is None or name == BUILT_IN or Path(name).exists():
        return None
    try:
        validate_repo_id(name)
    except HFValidationError:
        return None
    return name
