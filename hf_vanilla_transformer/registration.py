"""Every registration of this package with transformers, in one place. Registering twice changes nothing.

But for that of its attention, which stands in `functional_vanilla_transformer.py`, because saved models carry it with
them.
"""

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer, pipelines

from .model.configuration_vanilla_transformer import VanillaTransformerConfig
from .model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration, VanillaTransformerModel
from .model.pipeline_vanilla_transformer import TranslationPipeline
from .tokenization_vanilla_transformer import VanillaTransformerTokenizer


def register() -> None:
    """Make the Auto classes of transformers load this model and its tokenizer, and `pipeline("translation")` work."""
    AutoConfig.register(VanillaTransformerConfig.model_type, VanillaTransformerConfig, exist_ok=True)
    AutoModel.register(VanillaTransformerConfig, VanillaTransformerModel, exist_ok=True)
    AutoModelForSeq2SeqLM.register(VanillaTransformerConfig, VanillaTransformerForConditionalGeneration, exist_ok=True)
    AutoTokenizer.register(VanillaTransformerConfig, tokenizer_class=VanillaTransformerTokenizer, exist_ok=True)
    # Newer versions refuse the tasks of this list before they look at what is registered.
    getattr(pipelines, "REMOVED_TASKS", {}).pop("translation", None)
    registry = pipelines.PIPELINE_REGISTRY
    if "translation" not in registry.supported_tasks:
        registry.register_pipeline("translation", TranslationPipeline, pt_model=AutoModelForSeq2SeqLM, type="text")
