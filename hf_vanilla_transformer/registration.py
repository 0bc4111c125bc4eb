"""What importing this package changes: registrations with transformers and with the package's own registries.

Repeating them changes nothing. `acceleration/replacements.py` has the operations, the attention and the quantizer.
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


# Functions of applications that the plugin calls. They are strings, because the plugin imports no application.
_IMPORTERS = {
    "marian": "hf_vanilla_transformer.apps.conversion.hf_marian:from_hf_marian",
    "fsmt": "hf_vanilla_transformer.apps.conversion.fsmt:from_fsmt",
}
_ENGINES = {"ctranslate2": "hf_vanilla_transformer.apps.conversion.ctranslate2_engine:load_ctranslate2"}


def register() -> None:
    """Register the model and its tokenizers with the Auto classes, and the pipeline with `pipeline("translation")`.

    Fast operations take the place of the model's plain ones. The plugin's registries get importers of models of other
    types, and engines.
    """
    replace_operations()
    for model_type, path in _IMPORTERS.items():
        IMPORTERS.register(model_type, path)
    for name, path in _ENGINES.items():
        ENGINES.register(name, path)
    AutoConfig.register(VanillaTransformerConfig.model_type, VanillaTransformerConfig, exist_ok=True)
    AutoModel.register(VanillaTransformerConfig, VanillaTransformerModel, exist_ok=True)
    AutoModelForSeq2SeqLM.register(VanillaTransformerConfig, VanillaTransformerForConditionalGeneration, exist_ok=True)
    # The first is the model's; the others are found by their names in tokenizer_config.json.
    for other in (TwoVocabularyTokenizer, FairseqTokenizer):
        AutoTokenizer.register(
            VanillaTransformerConfig,
            tokenizer_class=VanillaTransformerTokenizer,
            slow_tokenizer_class=other,
            exist_ok=True,
        )
    # Newer versions of transformers reject the tasks of this list before they read the registry.
    getattr(pipelines, "REMOVED_TASKS", {}).pop("translation", None)
    registry = pipelines.PIPELINE_REGISTRY
    if "translation" not in registry.supported_tasks:
        registry.register_pipeline("translation", TranslationPipeline, pt_model=AutoModelForSeq2SeqLM, type="text")
