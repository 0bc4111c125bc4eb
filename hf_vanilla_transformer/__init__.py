"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017) for Hugging Face.

Importing this package makes `AutoConfig`, `AutoModel`, `AutoModelForSeq2SeqLM` and `AutoTokenizer` know the model, and
`pipeline("translation")` work.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .model.configuration_vanilla_transformer import VanillaTransformerConfig
from .model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration, VanillaTransformerModel
from .model.pipeline_vanilla_transformer import TranslationPipeline
from .model.quantization import Int8Config
from .registration import register
from .tokenization_vanilla_transformer import VanillaTransformerTokenizer, train_tokenizer
from .translation import score, translate


if TYPE_CHECKING:
    from .data import TokenBudgetBatchSampler, filter_pairs, load_pairs, tokenize_pairs
    from .evaluation import Bleu, ChrF, make_compute_metrics, score_translations
    from .training import (
        CompleteCheckpoints,
        PaperTrainingArguments,
        average_checkpoints,
        last_complete_checkpoint,
        paper_learning_rate,
        paper_optimizers,
    )


__version__ = "0.1.0"

# Imported when first asked for: these folders import datasets, evaluate and sacrebleu, which a model does not need.
_FOLDER_OF = {
    "Bleu": "evaluation",
    "ChrF": "evaluation",
    "CompleteCheckpoints": "training",
    "PaperTrainingArguments": "training",
    "TokenBudgetBatchSampler": "data",
    "average_checkpoints": "training",
    "filter_pairs": "data",
    "last_complete_checkpoint": "training",
    "load_pairs": "data",
    "make_compute_metrics": "evaluation",
    "paper_learning_rate": "training",
    "paper_optimizers": "training",
    "score_translations": "evaluation",
    "tokenize_pairs": "data",
}

__all__ = [
    "Bleu",
    "ChrF",
    "CompleteCheckpoints",
    "Int8Config",
    "PaperTrainingArguments",
    "TokenBudgetBatchSampler",
    "TranslationPipeline",
    "VanillaTransformerConfig",
    "VanillaTransformerForConditionalGeneration",
    "VanillaTransformerModel",
    "VanillaTransformerTokenizer",
    "average_checkpoints",
    "filter_pairs",
    "last_complete_checkpoint",
    "load_pairs",
    "make_compute_metrics",
    "paper_learning_rate",
    "paper_optimizers",
    "score",
    "score_translations",
    "tokenize_pairs",
    "train_tokenizer",
    "translate",
]


def __getattr__(name: str) -> Any:
    if name not in _FOLDER_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_FOLDER_OF[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_FOLDER_OF})


register()
