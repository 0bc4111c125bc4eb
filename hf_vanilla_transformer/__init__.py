"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017) for Hugging Face.

Importing this package registers the model with `AutoConfig`, `AutoModel`, `AutoModelForSeq2SeqLM` and `AutoTokenizer`,
and makes `pipeline("translation")` available.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .registration import register
from .support.version import __version__ as __version__


# Type checkers read the public names here. At run time, each name is imported when it is first used, so that inference
# does not import datasets, evaluate and sacrebleu.
if TYPE_CHECKING:
    from .acceleration.int8_quantization import Int8Config as Int8Config
    from .acceleration.prepacked_weights import forget_packed as forget_packed
    from .apps.conversion.ctranslate2 import to_ctranslate2 as to_ctranslate2
    from .apps.conversion.fairseq import from_fairseq as from_fairseq
    from .apps.conversion.fsmt import from_fsmt as from_fsmt
    from .apps.conversion.hf_marian import from_hf_marian as from_hf_marian
    from .apps.conversion.hf_marian import to_hf_marian as to_hf_marian
    from .apps.conversion.marian import from_marian as from_marian
    from .apps.documents.translate_documents import translate_documents as translate_documents
    from .apps.pictures.attention import plot_attention as plot_attention
    from .apps.pictures.forward_pass import ForwardPass as ForwardPass
    from .apps.pictures.forward_pass import forward_pass as forward_pass
    from .apps.pictures.forward_pass import masks_of as masks_of
    from .apps.pictures.masks import plot_masks as plot_masks
    from .apps.pictures.paper_formulas import plot_positions as plot_positions
    from .apps.pictures.paper_formulas import plot_schedule as plot_schedule
    from .apps.pictures.token_labels import token_texts as token_texts
    from .apps.pictures.token_probabilities import plot_token_probabilities as plot_token_probabilities
    from .apps.terms.forced_phrases import ForcedPhrases as ForcedPhrases
    from .apps.terms.glossary import Glossary as Glossary
    from .data.cleaning import clean_pairs as clean_pairs
    from .data.cleaning import hold_out as hold_out
    from .data.length_filter import filter_pairs as filter_pairs
    from .data.load_pairs import load_pairs as load_pairs
    from .data.token_budget_batches import TokenBudgetBatchSampler as TokenBudgetBatchSampler
    from .data.tokenized_pairs import tokenize_pairs as tokenize_pairs
    from .data.tokenizer import VanillaTransformerTokenizer as VanillaTransformerTokenizer
    from .data.tokenizer import train_tokenizer as train_tokenizer
    from .evaluation.evaluate import Evaluation as Evaluation
    from .evaluation.evaluate import evaluate as evaluate
    from .evaluation.metrics import Bleu as Bleu
    from .evaluation.metrics import ChrF as ChrF
    from .evaluation.metrics import Ter as Ter
    from .evaluation.metrics import make_compute_metrics as make_compute_metrics
    from .evaluation.metrics import score_translations as score_translations
    from .evaluation.plot_curve import plot_curve as plot_curve
    from .hub.push_to_hub import push_run as push_run
    from .model.configuration_vanilla_transformer import VanillaTransformerConfig as VanillaTransformerConfig
    from .model.modeling_vanilla_transformer import (
        VanillaTransformerForConditionalGeneration as VanillaTransformerForConditionalGeneration,
    )
    from .model.modeling_vanilla_transformer import VanillaTransformerModel as VanillaTransformerModel
    from .model.tokenization_two_vocabularies import TwoVocabularyTokenizer as TwoVocabularyTokenizer
    from .support.figure_style import save_figure as save_figure
    from .support.memory_tuning import keep_freed_memory as keep_freed_memory
    from .support.paper_schedule import paper_learning_rate as paper_learning_rate
    from .training.checkpoint_averaging import average_checkpoints as average_checkpoints
    from .training.checkpoints import CompleteCheckpoints as CompleteCheckpoints
    from .training.checkpoints import last_complete_checkpoint as last_complete_checkpoint
    from .training.optimizer_and_schedule import PaperSchedule as PaperSchedule
    from .training.optimizer_and_schedule import paper_optimizers as paper_optimizers
    from .training.paper_arguments import PaperTrainingArguments as PaperTrainingArguments
    from .training.plan import Plan as Plan
    from .training.plan import plan as plan
    from .training.process_seeds import ProcessSeeds as ProcessSeeds
    from .training.r_drop import RDropTrainer as RDropTrainer
    from .training.run import distill as distill
    from .training.run import train as train
    from .training.run_saving import RunStoppedError as RunStoppedError
    from .training.token_metrics_trainer import TokenMetricsTrainer as TokenMetricsTrainer
    from .training.trainer_callbacks import DivergedError as DivergedError
    from .training.trainer_callbacks import ReleaseMemory as ReleaseMemory
    from .training.trainer_callbacks import StopWhenDiverged as StopWhenDiverged
    from .translation.alignment import align as align
    from .translation.engine import load_engine as load_engine
    from .translation.ensemble import Ensemble as Ensemble
    from .translation.pipeline import TranslationPipeline as TranslationPipeline
    from .translation.score import score as score
    from .translation.translate import translate as translate
    from .translation.translation_details import Translation as Translation


# `__getattr__` looks the same names up here, by module. transformers has a class for this purpose, `_LazyModule`, but
# it hides the error of an import that fails.
_NAMES_BY_MODULE = {
    "acceleration.int8_quantization": ["Int8Config"],
    "acceleration.prepacked_weights": ["forget_packed"],
    "apps.conversion.ctranslate2": ["to_ctranslate2"],
    "apps.conversion.fairseq": ["from_fairseq"],
    "apps.conversion.fsmt": ["from_fsmt"],
    "apps.conversion.hf_marian": ["from_hf_marian", "to_hf_marian"],
    "apps.conversion.marian": ["from_marian"],
    "apps.documents.translate_documents": ["translate_documents"],
    "apps.pictures.attention": ["plot_attention"],
    "apps.pictures.forward_pass": ["ForwardPass", "forward_pass", "masks_of"],
    "apps.pictures.masks": ["plot_masks"],
    "apps.pictures.paper_formulas": ["plot_positions", "plot_schedule"],
    "apps.pictures.token_labels": ["token_texts"],
    "apps.pictures.token_probabilities": ["plot_token_probabilities"],
    "apps.terms.forced_phrases": ["ForcedPhrases"],
    "apps.terms.glossary": ["Glossary"],
    "data.cleaning": ["clean_pairs", "hold_out"],
    "data.length_filter": ["filter_pairs"],
    "data.load_pairs": ["load_pairs"],
    "data.token_budget_batches": ["TokenBudgetBatchSampler"],
    "data.tokenized_pairs": ["tokenize_pairs"],
    "data.tokenizer": ["VanillaTransformerTokenizer", "train_tokenizer"],
    "evaluation.evaluate": ["Evaluation", "evaluate"],
    "evaluation.metrics": ["Bleu", "ChrF", "Ter", "make_compute_metrics", "score_translations"],
    "evaluation.plot_curve": ["plot_curve"],
    "hub.push_to_hub": ["push_run"],
    "model.configuration_vanilla_transformer": ["VanillaTransformerConfig"],
    "model.modeling_vanilla_transformer": ["VanillaTransformerForConditionalGeneration", "VanillaTransformerModel"],
    "model.tokenization_two_vocabularies": ["TwoVocabularyTokenizer"],
    "support.figure_style": ["save_figure"],
    "support.paper_schedule": ["paper_learning_rate"],
    "support.memory_tuning": ["keep_freed_memory"],
    "training.checkpoint_averaging": ["average_checkpoints"],
    "training.checkpoints": ["CompleteCheckpoints", "last_complete_checkpoint"],
    "training.optimizer_and_schedule": ["PaperSchedule", "paper_optimizers"],
    "training.paper_arguments": ["PaperTrainingArguments"],
    "training.plan": ["Plan", "plan"],
    "training.process_seeds": ["ProcessSeeds"],
    "training.r_drop": ["RDropTrainer"],
    "training.run": ["distill", "train"],
    "training.run_saving": ["RunStoppedError"],
    "training.token_metrics_trainer": ["TokenMetricsTrainer"],
    "training.trainer_callbacks": ["DivergedError", "ReleaseMemory", "StopWhenDiverged"],
    "translation.alignment": ["align"],
    "translation.engine": ["load_engine"],
    "translation.ensemble": ["Ensemble"],
    "translation.pipeline": ["TranslationPipeline"],
    "translation.score": ["score"],
    "translation.translate": ["translate"],
    "translation.translation_details": ["Translation"],
}
_MODULES_BY_NAME: dict[str, str] = {}
for _module, _names in _NAMES_BY_MODULE.items():
    for _name in _names:
        _MODULES_BY_NAME[_name] = _module
__all__ = sorted(_MODULES_BY_NAME)


def __getattr__(name: str) -> Any:
    """Import a public name of the package when it is first used."""
    if name not in _MODULES_BY_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f".{_MODULES_BY_NAME[name]}", __name__)
    return getattr(module, name)


def __dir__() -> list[str]:
    """Return the module's attributes and all public names, including those that are not imported yet."""
    return sorted({*globals(), *__all__})


register()
