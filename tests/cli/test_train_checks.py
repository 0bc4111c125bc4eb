"""Checks of `train` before any work; tests of `train` cover most of them."""

import pytest

from hf_vanilla_transformer.cli.train_checks import check_vocabulary
from tests.models import small_config


@pytest.mark.parametrize("ends", [2, [7, 2]])
def test_a_tokenizer_goes_with_a_model_that_has_its_tokens(tokenizer, ends):
    check_vocabulary("mine", small_config(vocab_size=len(tokenizer) + 5, eos_token_id=ends), tokenizer)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pad_token_id": 7}, "pad_token_id is 0 in the tokenizer of mine and 7 in the model; fine-tune a model with"),
        ({"eos_token_id": 7}, "eos_token_id is 2 in the tokenizer of mine and 7 in the model; fine-tune a model with"),
        ({"eos_token_id": [7, 8]}, r"eos_token_id is 2 in the tokenizer of mine and \[7, 8\] in the model"),
        ({"source_vocab_size": 100}, r"the tokenizer of mine has \d+ tokens, but the model's vocabulary 100"),
    ],
)
def test_a_tokenizer_of_another_model(tokenizer, fields, message):
    with pytest.raises(ValueError, match=message):
        check_vocabulary("mine", small_config(**{"vocab_size": len(tokenizer), **fields}), tokenizer)
