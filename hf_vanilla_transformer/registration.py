"""Every registration of this package with transformers, in one place. Registering twice changes nothing."""

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer

from .configuration_vanilla_transformer import VanillaTransformerConfig
from .modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration, VanillaTransformerModel
from .tokenization_vanilla_transformer import VanillaTransformerTokenizer


def register() -> None:
    """Make the Auto classes of transformers load this model and its tokenizer."""
    AutoConfig.register(VanillaTransformerConfig.model_type, VanillaTransformerConfig, exist_ok=True)
    AutoModel.register(VanillaTransformerConfig, VanillaTransformerModel, exist_ok=True)
    AutoModelForSeq2SeqLM.register(VanillaTransformerConfig, VanillaTransformerForConditionalGeneration, exist_ok=True)
    AutoTokenizer.register(VanillaTransformerConfig, tokenizer_class=VanillaTransformerTokenizer, exist_ok=True)
