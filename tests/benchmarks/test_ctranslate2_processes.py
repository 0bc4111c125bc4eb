"""CTranslate2 finds the same tokens with the same weights, for models without a tokenizer."""

from importlib.util import find_spec

import pytest
import torch

from benchmarks import generation
from benchmarks.peers.ctranslate2_processes import CTranslate2Processes, token_text, write_ctranslate2
from hf_vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration


pytestmark = pytest.mark.slow


@pytest.mark.skipif(find_spec("ctranslate2") is None, reason="ctranslate2 is not installed")
@torch.no_grad()
def test_the_same_weights_give_the_same_tokens(tmp_path):
    torch.manual_seed(0)
    config = VanillaTransformerConfig(
        vocab_size=50, d_model=32, d_ff=48, num_heads=4, encoder_layers=2, decoder_layers=3, tie_word_embeddings=False
    )
    model = VanillaTransformerForConditionalGeneration(config).eval()
    model.lm_head.weight.mul_(5)
    write_ctranslate2(model, tmp_path / "model")
    job = generation.make_job(3, 1, source=7, new=9)
    job.sources %= 40
    job.sources += 3
    processes = CTranslate2Processes(tmp_path / "model", "float32", 2)
    implementation = generation.InCTranslate2(config, processes)
    with pytest.raises(ValueError, match="no setting is chosen"):
        implementation.run(job)
    assert "Setting(workers=" in implementation.prepare(job)["setting"]
    _, tokens = implementation.run(job)
    processes.close()
    assert tokens == generation.InTransformers(model).run(job)[1]


def test_texts_of_tokens():
    config = VanillaTransformerConfig()
    assert [token_text(token, config) for token in range(5)] == ["<pad>", "<s>", "</s>", "3", "4"]
