"""Two processes that have half of every layer each compute what one does."""

import json

import pytest
import torch
from transformers import AutoModel, AutoModelForSeq2SeqLM

from tests.invariants.killed import run_as_two
from tests.models import small_model
from tests.parallel import tensor_parallel
from tests.parallel.models import BEAMS, NAMES, PROCESSES, TIED_TO_THE_SOFTMAX, inputs, save_models


pytestmark = [pytest.mark.slow, pytest.mark.several_processes]

# What every process has whole: norms, biases added after the parts are summed, and learned positions.
WHOLE = ("layer_norm.weight", "layer_norm.bias", "out_proj.bias", "fc2.bias", "embed_positions.weight")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tensor_parallel")
    save_models(folder / "models")
    small_model(num_heads=3).save_pretrained(folder / "three-heads")
    run_as_two(tensor_parallel.main, folder, folder=folder)
    return folder


def test_every_rule_of_the_plan_applies(folder):
    assert "match nothing" not in (folder / "log0").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_each_process_has_a_part(processes, one_process, name):
    parts = [process[name]["parts"] for process in processes]
    assert set(parts[0]) == set(one_process[name]["gradients"])
    for weight, (_, size) in parts[0].items():
        local_sizes = [process[weight][0] for process in parts]
        if weight.endswith(WHOLE):
            assert local_sizes == [size] * PROCESSES, weight
        else:
            elements = [torch.Size(local).numel() for local in local_sizes]
            assert sum(elements) == torch.Size(size).numel(), weight
            assert max(elements) < 0.6 * sum(elements), weight


@pytest.mark.parametrize("name", NAMES)
def test_logits_and_loss(processes, one_process, name):
    for process in processes:
        for result in ("logits", "loss"):
            torch.testing.assert_close(process[name][result], one_process[name][result], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_gradients(processes, one_process, name):
    for process in processes:
        torch.testing.assert_close(process[name]["gradients"], one_process[name]["gradients"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_beams", BEAMS)
def test_generated_tokens(processes, one_process, name, num_beams):
    expected = one_process[name]["translations"][num_beams]
    assert len(set(map(tuple, expected.tolist()))) > 1
    for process in processes:
        assert torch.equal(process[name]["translations"][num_beams], expected)


@pytest.mark.parametrize("name", NAMES)
def test_tied_matrices_stay_one(processes, name):
    for process in processes:
        assert process[name]["tied"] == TIED_TO_THE_SOFTMAX[name]


@pytest.mark.parametrize("name", NAMES)
def test_save_and_load_in_one_process(folder, processes, one_process, name):
    saved = folder / "saved" / name
    weights = AutoModelForSeq2SeqLM.from_pretrained(saved).state_dict()
    assert set(weights) == set(one_process[name]["weights"])
    assert all(torch.equal(weight, weights[key]) for key, weight in one_process[name]["weights"].items())
    for file in ("config.json", "generation_config.json"):
        assert json.loads((saved / file).read_text()) == json.loads((folder / "models" / name / file).read_text())


def test_without_head(folder, processes):
    model = AutoModel.from_pretrained(folder / "models" / "tied").eval()
    batch = inputs()
    batch["decoder_input_ids"] = batch.pop("labels").clamp(min=0)
    with torch.no_grad():
        expected = model(**batch, output_attentions=True)
    results = [process["without head"] for process in processes]
    for result in results:
        torch.testing.assert_close(result["last_hidden_state"], expected.last_hidden_state, rtol=0, atol=1e-5)
    heads = torch.cat([result["cross_attentions"] for result in results], dim=1)
    torch.testing.assert_close(heads, expected.cross_attentions[0], rtol=0, atol=1e-5)


def test_static_cache_and_sampling(folder, processes):
    expected = tensor_parallel.other_translations(AutoModelForSeq2SeqLM.from_pretrained(folder / "models" / "trained"))
    for process in processes:
        for way, tokens in process["other translations"].items():
            assert torch.equal(tokens, expected[way]), way


def test_heads_that_cannot_be_shared(processes):
    for process in processes:
        assert process["message"] == (
            "tp_size is 2, but num_heads is 3; tensor parallelism assigns whole heads to processes, so choose a "
            "tp_size that divides num_heads."
        )
