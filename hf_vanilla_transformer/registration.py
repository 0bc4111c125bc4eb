"""Register the package's classes and functions with transformers, and with the package's own registries.

Importing the package calls [`register`]. Calling it again changes nothing. `acceleration/replacements.py` registers the
fast operations, the attention implementation and the quantizer.
"""

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer, pipelines

from .acceleration.replacements import replace_operations
from .data.tokenizer import VanillaTransformerTokenizer
from .hub.native_folder import IMPORTERS
from .model.configuration_vanilla_transformer import VanillaTransformerConfig
from .model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration, VanillaTransformerModel
from .model.tokenization_fairseq import FairseqTokenizer
from .model.tokenization_two_vocabularies import TwoVocabularyTokenizer
from .translation.engine import ENGINES
from .translation.pipeline import TranslationPipeline


# The plugin calls these functions of `apps`. They are registered as strings, because the plugin must not import `apps`.
# A function is imported when it is first needed.
_IMPORTERS = {
    "marian": "hf_vanilla_transformer.apps.conversion.hf_marian:from_hf_marian",
    "fsmt": "hf_vanilla_transformer.apps.conversion.fsmt:from_fsmt",
}
_ENGINES = {"ctranslate2": "hf_vanilla_transformer.apps.conversion.ctranslate2_engine:load_ctranslate2"}


def register() -> None:
    """Register everything that becomes available when the package is imported.

    The steps do not depend on each other. All of them may be repeated, because the package may be imported again.
    """
    # Faster operations replace the model's plain operations.
    replace_operations()
    _register_functions_of_apps()
    _register_classes()
    _register_pipeline()


def _register_functions_of_apps() -> None:
    """Register importers, which convert models of other types, and inference engines."""
    # A path names a function as "module:function". The registries import the function when it is first needed.
    for model_type, path in _IMPORTERS.items():
        IMPORTERS.register(model_type, path)
    for name, path in _ENGINES.items():
        ENGINES.register(name, path)


def _register_classes() -> None:
    """Add the model and its tokenizers to the Auto classes of transformers."""
    AutoConfig.register(VanillaTransformerConfig.model_type, VanillaTransformerConfig, exist_ok=True)
    AutoModel.register(VanillaTransformerConfig, VanillaTransformerModel, exist_ok=True)
    AutoModelForSeq2SeqLM.register(VanillaTransformerConfig, VanillaTransformerForConditionalGeneration, exist_ok=True)
    # `tokenizer_class` is the model's default tokenizer. Registering the other classes allows a tokenizer_config.json
    # to name them.
    for other_tokenizer in (TwoVocabularyTokenizer, FairseqTokenizer):
        AutoTokenizer.register(
            VanillaTransformerConfig,
            tokenizer_class=VanillaTransformerTokenizer,
            slow_tokenizer_class=other_tokenizer,
            exist_ok=True,
        )


def _register_pipeline() -> None:
    """Make the translation pipeline available as `pipeline("translation")`, unless that task is registered already."""
    # Recent versions of transformers reject the tasks in this dictionary before they read the registry.
    getattr(pipelines, "REMOVED_TASKS", {}).pop("translation", None)
    registry = pipelines.PIPELINE_REGISTRY
    if "translation" not in registry.supported_tasks:
        registry.register_pipeline("translation", TranslationPipeline, pt_model=AutoModelForSeq2SeqLM, type="text")
