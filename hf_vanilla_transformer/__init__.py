"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017) for Hugging Face.

Importing this package makes `AutoConfig`, `AutoModel`, `AutoModelForSeq2SeqLM` and `AutoTokenizer` know the model, and
`pipeline("translation")` work.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .alignment import GoldLinks, align, alignment_error_rate, choose_alignment
from .details import Translation
from .memory import keep_freed_memory
from .model.configuration_vanilla_transformer import VanillaTransformerConfig
from .model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration, VanillaTransformerModel
from .model.packed_linear import forget_packed
from .model.pipeline_vanilla_transformer import TranslationPipeline
from .model.quantization import Int8Config
from .model.tokenization_two_vocabularies import TwoVocabularyTokenizer
from .registration import register
from .tokenization_vanilla_transformer import VanillaTransformerTokenizer, train_tokenizer
from .translation import score, translate


if TYPE_CHECKING:
    from .data.batches import TokenBudgetBatchSampler
    from .data.lengths import filter_pairs
    from .data.sources import load_pairs
    from .data.tokenization import tokenize_pairs
    from .evaluation.metrics import Bleu, ChrF, make_compute_metrics, score_translations
    from .hub.push import push_run
    from .schedule import paper_learning_rate
    from .serving.engine import load_engine
    from .training.arguments import PaperTrainingArguments
    from .training.averaging import average_checkpoints
    from .training.callbacks import DivergedError, ReleaseMemory, StopWhenDiverged
    from .training.checkpoints import CompleteCheckpoints, last_complete_checkpoint
    from .training.optimization import paper_optimizers
    from .training.r_drop import RDropTrainer
    from .training.token_metrics import TokenMetricsTrainer


__version__ = "0.1.0"

# Imported on first use, because these modules import datasets, evaluate and sacrebleu, which inference does not need.
_MODULE_OF = {
    "Bleu": "evaluation.metrics",
    "ChrF": "evaluation.metrics",
    "CompleteCheckpoints": "training.checkpoints",
    "DivergedError": "training.callbacks",
    "PaperTrainingArguments": "training.arguments",
    "RDropTrainer": "training.r_drop",
    "TokenMetricsTrainer": "training.token_metrics",
    "ReleaseMemory": "training.callbacks",
    "StopWhenDiverged": "training.callbacks",
    "TokenBudgetBatchSampler": "data.batches",
    "average_checkpoints": "training.averaging",
    "filter_pairs": "data.lengths",
    "last_complete_checkpoint": "training.checkpoints",
    "load_engine": "serving.engine",
    "load_pairs": "data.sources",
    "make_compute_metrics": "evaluation.metrics",
    "paper_learning_rate": "schedule",
    "paper_optimizers": "training.optimization",
    "push_run": "hub.push",
    "score_translations": "evaluation.metrics",
    "tokenize_pairs": "data.tokenization",
}

__all__ = [
    "Bleu",
    "ChrF",
    "CompleteCheckpoints",
    "DivergedError",
    "GoldLinks",
    "Int8Config",
    "PaperTrainingArguments",
    "RDropTrainer",
    "ReleaseMemory",
    "StopWhenDiverged",
    "TokenBudgetBatchSampler",
    "TokenMetricsTrainer",
    "Translation",
    "TranslationPipeline",
    "TwoVocabularyTokenizer",
    "VanillaTransformerConfig",
    "VanillaTransformerForConditionalGeneration",
    "VanillaTransformerModel",
    "VanillaTransformerTokenizer",
    "align",
    "alignment_error_rate",
    "average_checkpoints",
    "choose_alignment",
    "filter_pairs",
    "forget_packed",
    "keep_freed_memory",
    "last_complete_checkpoint",
    "load_engine",
    "load_pairs",
    "make_compute_metrics",
    "paper_learning_rate",
    "paper_optimizers",
    "push_run",
    "score",
    "score_translations",
    "tokenize_pairs",
    "train_tokenizer",
    "translate",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})


register()
