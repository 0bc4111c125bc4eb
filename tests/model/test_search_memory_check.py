"""A search that cannot fit into memory ends in a sentence, and others are left alone."""

from types import SimpleNamespace

import pytest
import torch

from hf_vanilla_transformer import VanillaTransformerConfig
from hf_vanilla_transformer.model import search_memory_check
from hf_vanilla_transformer.model.search_memory_check import available_memory, check_memory
from tests.models import decisive_model, pad, sentences


@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_search_that_does_not_fit_does_not_begin(monkeypatch, num_beams):
    monkeypatch.setattr(search_memory_check, "_SMALL", 0)
    monkeypatch.setattr(search_memory_check, "available_memory", lambda device: 10_000)
    ids, mask = pad(sentences(5, 3))
    message = f"the search of 2 sentences with {num_beams} beams takes about .* GB, but .* GB are available; give fewer"
    with pytest.raises(ValueError, match=message):
        decisive_model().generate(ids, attention_mask=mask, num_beams=num_beams)


def test_the_base_model_with_20_000_beams_needs_more_than_100_gb(monkeypatch):
    model = SimpleNamespace(config=VanillaTransformerConfig(), device=torch.device("cpu"))
    settings = SimpleNamespace(max_length=70, num_beams=20_000)
    monkeypatch.setattr(search_memory_check, "available_memory", lambda device: 100 * 10**9)
    with pytest.raises(ValueError, match=r"of 1 sentences with 20000 beams takes about .* GB, but 100 GB"):
        check_memory(model, 20_000, 20, settings)
    settings.num_beams = 4
    check_memory(model, 4 * 64, 20, settings)


@pytest.mark.parametrize("options", [{"num_beams": 10**12}, {"num_return_sequences": 10**12, "do_sample": True}])
def test_not_even_the_copies_of_the_sentences_fit(options):
    message = r"the search of 2 sentences with 1000000000000 beams takes about .* GB, but .* GB are available"
    with pytest.raises(ValueError, match=message):
        decisive_model().generate(pad(sentences(5, 3))[0], **{"num_beams": 1, **options})


def test_what_is_available_is_what_the_system_says():
    available = available_memory(torch.device("cpu"))
    assert available is None or 2**27 < available < 2**50
    assert available_memory(torch.device("meta")) is None
