from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM

import hf_vanilla_transformer
from hf_vanilla_transformer import registration
from tests.models import small_config


def test_auto_classes_know_the_model():
    config = small_config()
    assert type(AutoConfig.for_model("vanilla_transformer")) is hf_vanilla_transformer.VanillaTransformerConfig
    assert type(AutoModel.from_config(config)) is hf_vanilla_transformer.VanillaTransformerModel
    model = AutoModelForSeq2SeqLM.from_config(config)
    assert type(model) is hf_vanilla_transformer.VanillaTransformerForConditionalGeneration


def test_registering_twice_changes_nothing():
    registration.register()
    registration.register()
    test_auto_classes_know_the_model()


def test_public_names_exist():
    assert all(hasattr(hf_vanilla_transformer, name) for name in hf_vanilla_transformer.__all__)
