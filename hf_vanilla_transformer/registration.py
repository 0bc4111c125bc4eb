"""Every registration of this package with transformers, in one place. Registering twice changes nothing."""

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer
from transformers.pipelines import PIPELINE_REGISTRY, REMOVED_TASKS

from .configuration_vanilla_transformer import VanillaTransformerConfig
from .modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration, VanillaTransformerModel
from .pipeline_vanilla_transformer import TranslationPipeline
from .tokenization_vanilla_transformer import VanillaTransformerTokenizer


def register() -> None:
    """Make the Auto classes of transformers load this model and its tokenizer, and `pipeline("translation")` work."""
    AutoConfig.register(VanillaTransformerConfig.model_type, VanillaTransformerConfig, exist_ok=True)
    AutoModel.register(VanillaTransformerConfig, VanillaTransformerModel, exist_ok=True)
    AutoModelForSeq2SeqLM.register(VanillaTransformerConfig, VanillaTransformerForConditionalGeneration, exist_ok=True)
    AutoTokenizer.register(VanillaTransformerConfig, tokenizer_class=VanillaTransformerTokenizer, exist_ok=True)
    # A list of tasks that pipeline() refuses before it looks at what is registered.
    REMOVED_TASKS.pop("translation", None)
    if "translation" not in PIPELINE_REGISTRY.supported_tasks:
        PIPELINE_REGISTRY.register_pipeline(
            "translation", TranslationPipeline, pt_model=AutoModelForSeq2SeqLM, type="text"
        )
