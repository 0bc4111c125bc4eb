"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017) for Hugging Face.

Importing this package makes `AutoConfig`, `AutoModel`, `AutoModelForSeq2SeqLM` and `AutoTokenizer` know the model, and
`pipeline("translation")` work.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .data.tokenizer import VanillaTransformerTokenizer, train_tokenizer
from .model.configuration_vanilla_transformer import VanillaTransformerConfig
from .model.int8_quantization import Int8Config
from .model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration, VanillaTransformerModel
from .model.pipeline_vanilla_transformer import TranslationPipeline
from .model.prepacked_weights import forget_packed
from .model.tokenization_two_vocabularies import TwoVocabularyTokenizer
from .registration import register
from .support.process_memory import keep_freed_memory
from .support.version import __version__ as __version__
from .translation.alignment import align
from .translation.alignment_error_rate import GoldLinks, alignment_error_rate
from .translation.choose_alignment import choose_alignment
from .translation.score import score
from .translation.translate import translate
from .translation.translation_details import Translation


if TYPE_CHECKING:
    from .data.length_filter import filter_pairs
    from .data.load_pairs import load_pairs
    from .data.token_budget_batches import TokenBudgetBatchSampler
    from .data.tokenized_pairs import tokenize_pairs
    from .engines.ctranslate2_engine import load_engine
    from .evaluation.metrics import Bleu, ChrF, make_compute_metrics, score_translations
    from .hub.push_to_hub import push_run
    from .support.paper_schedule import paper_learning_rate
    from .training.checkpoint_averaging import average_checkpoints
    from .training.checkpoints import CompleteCheckpoints, last_complete_checkpoint
    from .training.optimizer_and_schedule import paper_optimizers
    from .training.paper_arguments import PaperTrainingArguments
    from .training.r_drop import RDropTrainer
    from .training.token_metrics import TokenMetricsTrainer
    from .training.trainer_callbacks import DivergedError, ReleaseMemory, StopWhenDiverged


# Imported on first use, because these modules import datasets, evaluate and sacrebleu, which inference does not need.
_MODULE_OF = {
    "Bleu": "evaluation.metrics",
    "ChrF": "evaluation.metrics",
    "CompleteCheckpoints": "training.checkpoints",
    "DivergedError": "training.trainer_callbacks",
    "PaperTrainingArguments": "training.paper_arguments",
    "RDropTrainer": "training.r_drop",
    "TokenMetricsTrainer": "training.token_metrics",
    "ReleaseMemory": "training.trainer_callbacks",
    "StopWhenDiverged": "training.trainer_callbacks",
    "TokenBudgetBatchSampler": "data.token_budget_batches",
    "average_checkpoints": "training.checkpoint_averaging",
    "filter_pairs": "data.length_filter",
    "last_complete_checkpoint": "training.checkpoints",
    "load_engine": "engines.ctranslate2_engine",
    "load_pairs": "data.load_pairs",
    "make_compute_metrics": "evaluation.metrics",
    "paper_learning_rate": "support.paper_schedule",
    "paper_optimizers": "training.optimizer_and_schedule",
    "push_run": "hub.push_to_hub",
    "score_translations": "evaluation.metrics",
    "tokenize_pairs": "data.tokenized_pairs",
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
