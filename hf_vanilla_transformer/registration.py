"""The registrations that importing this package makes, with transformers and with the package's own registries.

Repeating them changes nothing. The operations, the attention and the quantizer are registered in
`acceleration/replacements.py`.
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


# Functions of applications that the plugin calls. They are given as strings, because the plugin must not import an
# application; a function is imported when it is first needed.
_IMPORTERS = {
    "marian": "hf_vanilla_transformer.apps.conversion.hf_marian:from_hf_marian",
    "fsmt": "hf_vanilla_transformer.apps.conversion.fsmt:from_fsmt",
}
_ENGINES = {"ctranslate2": "hf_vanilla_transformer.apps.conversion.ctranslate2_engine:load_ctranslate2"}


def register() -> None:
    """Register everything that importing the package makes available.

    - Fast operations replace the model's plain ones.
    - The plugin's registries get the importers of models of other types, and the engines.
    - The Auto classes get the model and its tokenizers, and `pipeline("translation")` gets the pipeline.
    """
    replace_operations()
    for model_type, path in _IMPORTERS.items():
        IMPORTERS.register(model_type, path)
    for name, path in _ENGINES.items():
        ENGINES.register(name, path)
    AutoConfig.register(VanillaTransformerConfig.model_type, VanillaTransformerConfig, exist_ok=True)
    AutoModel.register(VanillaTransformerConfig, VanillaTransformerModel, exist_ok=True)
    AutoModelForSeq2SeqLM.register(VanillaTransformerConfig, VanillaTransformerForConditionalGeneration, exist_ok=True)
    # `tokenizer_class` is the default tokenizer of the model. Registering the others makes their classes known, so that
    # a tokenizer_config.json can name them.
    for other_tokenizer in (TwoVocabularyTokenizer, FairseqTokenizer):
        AutoTokenizer.register(
            VanillaTransformerConfig,
            tokenizer_class=VanillaTransformerTokenizer,
            slow_tokenizer_class=other_tokenizer,
            exist_ok=True,
        )

    # Recent versions of transformers reject the tasks on this list before they read the registry.
    getattr(pipelines, "REMOVED_TASKS", {}).pop("translation", None)
    registry = pipelines.PIPELINE_REGISTRY
    if "translation" not in registry.supported_tasks:
        registry.register_pipeline("translation", TranslationPipeline, pt_model=AutoModelForSeq2SeqLM, type="text")
