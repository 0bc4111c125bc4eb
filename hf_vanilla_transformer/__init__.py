"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017) for Hugging Face.

Importing this package makes `AutoConfig`, `AutoModel`, `AutoModelForSeq2SeqLM` and `AutoTokenizer` know the model.
"""

from .configuration_vanilla_transformer import VanillaTransformerConfig
from .modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration, VanillaTransformerModel
from .registration import register
from .tokenization_vanilla_transformer import VanillaTransformerTokenizer, train_tokenizer


__version__ = "0.1.0"

__all__ = [
    "VanillaTransformerConfig",
    "VanillaTransformerForConditionalGeneration",
    "VanillaTransformerModel",
    "VanillaTransformerTokenizer",
    "train_tokenizer",
]

register()
