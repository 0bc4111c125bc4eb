"""transformers' common suites on this package's classes.

Only `run.py` collects this file, after it has unpacked transformers' tests as the package `transformers_tests`. The
tests are all transformers'; this file provides what they require: sizes, inputs, a trained tokenizer.
"""

import unittest
from tempfile import TemporaryDirectory

import torch
from transformers.models.auto import modeling_auto
from transformers.testing_utils import torch_device
from transformers_tests.generation.test_utils import GenerationTesterMixin
from transformers_tests.test_configuration_common import ConfigTester
from transformers_tests.test_modeling_common import ModelTesterMixin
from transformers_tests.test_tokenization_common import TokenizerTesterMixin
from transformers_tests.test_tokenizers_backend_mixin import TokenizersBackendTesterMixin
from transformers_tests.test_training_mixin import TrainingTesterMixin

from hf_vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerModel,
    VanillaTransformerTokenizer,
    train_tokenizer,
)
from tests.models import IMPORTED


# The suites look classes up by name in these dictionaries, which registration does not fill.
MODEL_TYPE = VanillaTransformerConfig.model_type
modeling_auto.MODEL_MAPPING_NAMES[MODEL_TYPE] = VanillaTransformerModel.__name__
modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES[MODEL_TYPE] = (
    VanillaTransformerForConditionalGeneration.__name__
)

TRAINING_TEXTS = [
    "This is a test of a small tokenizer, trained on a few sentences.",
    "Das ist ein Test eines kleinen Tokenizers, trainiert auf wenigen Sätzen.",
    "Hello, how are you doing? I was born in 1992, and this is true.",
]


class ModelTester:
    """A small model and its inputs; the attributes have the names that the suites read."""

    is_training = True
    batch_size = 4
    seq_length = encoder_seq_length = decoder_seq_length = key_length = 7
    vocab_size = 99
    hidden_size = 32
    num_hidden_layers = 2
    num_attention_heads = 4
    causal_lm_class = VanillaTransformerForConditionalGeneration

    def __init__(self, **fields):
        self.fields = fields

    def get_config(self) -> VanillaTransformerConfig:
        return VanillaTransformerConfig(
            vocab_size=self.vocab_size,
            d_model=self.hidden_size,
            d_ff=48,
            num_heads=self.num_attention_heads,
            encoder_layers=self.num_hidden_layers,
            decoder_layers=self.num_hidden_layers,
            **self.fields,
        )

    def prepare_config_and_inputs_for_common(self) -> tuple[VanillaTransformerConfig, dict[str, torch.Tensor]]:
        config = self.get_config()
        shape = (self.batch_size, self.seq_length)
        source = torch.randint(3, config.source_vocab_size or config.vocab_size, shape, device=torch_device)
        target = torch.randint(3, config.vocab_size, shape, device=torch_device)
        inputs = {
            "input_ids": source,
            "attention_mask": torch.ones_like(source),
            "decoder_input_ids": target,
            "decoder_attention_mask": torch.ones_like(target),
        }
        return config, inputs


class VanillaTransformerModelTest(ModelTesterMixin, GenerationTesterMixin, unittest.TestCase):
    suite = "model"
    fields = {}
    all_model_classes = (VanillaTransformerModel, VanillaTransformerForConditionalGeneration)
    is_encoder_decoder = True
    test_can_init_all_missing_weights_before_2023 = True
    _torch_compile_train_cls = VanillaTransformerForConditionalGeneration

    def setUp(self):
        self.model_tester = ModelTester(**self.fields)


class UntiedLearnedModelTest(VanillaTransformerModelTest):
    suite = "model-untied-learned"
    fields = {"tie_word_embeddings": False, "position_embedding_type": "learned", "max_position_embeddings": 64}


class TwoVocabulariesModelTest(VanillaTransformerModelTest):
    suite = "model-two-vocabularies"
    fields = {"source_vocab_size": 61}


class OtherSystemModelTest(VanillaTransformerModelTest):
    suite = "model-other-system"
    fields = IMPORTED


class VanillaTransformerConfigTest(unittest.TestCase):
    suite = "configuration"

    def test_config(self):
        self.model_tester = ModelTester()
        fields = {"d_model": 48, "num_heads": 6, "d_k": 5, "encoder_layers": 3, "dropout": 0.2}
        ConfigTester(self, config_class=VanillaTransformerConfig, **fields).run_common_tests()


class TrainedTokenizer:
    """Trains a tokenizer into a temporary folder, which the suites load it from."""

    tokenizer_class = rust_tokenizer_class = VanillaTransformerTokenizer

    @classmethod
    def setUpClass(cls):
        folder = TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        train_tokenizer(TRAINING_TEXTS, vocab_size=400, show_progress=False).save_pretrained(folder.name)
        cls.from_pretrained_id = folder.name
        super().setUpClass()


class VanillaTransformerTokenizationTest(TrainedTokenizer, TokenizerTesterMixin, unittest.TestCase):
    suite = "tokenizer"


class SpecialTokensTokenizationTest(VanillaTransformerTokenizationTest):
    suite = "tokenizer-special-tokens"
    from_pretrained_kwargs = {"split_special_tokens": False}


class TokenizersBackendTest(TrainedTokenizer, TokenizersBackendTesterMixin, unittest.TestCase):
    suite = "tokenizers-backend"


class VanillaTransformerTrainingTest(TrainingTesterMixin, unittest.TestCase):
    suite = "training"
    # The suite requires the loss to fall by 90 %, which dropout and label smoothing prevent.
    model_tester = ModelTester(dropout=0.0, label_smoothing=0.0)

    def _create_text_training_batch(self, batch_size: int, seq_length: int, vocab_size: int) -> dict[str, torch.Tensor]:
        """The suite's batch for a model that has an encoder and does not shift its labels.

        The source is the sequence's first token, which the suite later generates from; the labels are the others.
        """
        sequences = super()._create_text_training_batch(batch_size, seq_length + 1, vocab_size)["input_ids"]
        source_mask = torch.zeros_like(sequences[:, :-1])
        source_mask[:, 0] = 1
        return {"input_ids": sequences[:, :-1], "attention_mask": source_mask, "labels": sequences[:, 1:]}
