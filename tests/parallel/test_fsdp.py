"""Two processes that keep half of every matrix and of every batch each compute what one does."""

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from tests.invariants.killed import run_as_two
from tests.parallel import fsdp
from tests.parallel.models import (
    BEAMS,
    NAMES,
    PROCESSES,
    TIED_TO_THE_SOFTMAX,
    TRAINED,
    inputs,
    save_models,
    translations,
)
from tests.parallel.training import SAVED_AT, UPDATES, make_trainer, prediction, trajectory


pytestmark = [pytest.mark.slow, pytest.mark.several_processes]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fsdp")
    save_models(folder / "models")
    run_as_two(fsdp.main, folder, folder=folder)
    return folder


@pytest.fixture(scope="module")
def trained_alone(folder):
    """The Trainer's run in one process."""
    tokenizer = AutoTokenizer.from_pretrained(TRAINED)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder / "models" / "tied")
    trainer = make_trainer(model, tokenizer, folder / "alone", use_cpu=True)
    trainer.train()
    return {"trajectory": trajectory(trainer), "prediction": prediction(trainer, tokenizer)}


def assert_halves(parts, weights):
    """Each process has a part of every matrix, and all have the whole of it."""
    for name, part in parts[0].items():
        elements = [process[name] for process in parts]
        assert sum(elements) == weights[name].numel()
        assert max(elements) < 0.6 * sum(elements), (name, part)


def test_every_rule_of_the_plan_applies(folder):
    assert "match nothing" not in (folder / "log0").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_each_process_keeps_a_part(processes, one_process, name):
    parts = [process[name]["parts"] for process in processes]
    assert set(parts[0]) == set(one_process[name]["gradients"])
    assert_halves(parts, one_process[name]["weights"])


@pytest.mark.parametrize("name", NAMES)
def test_logits_and_loss(processes, one_process, name):
    results = [process[name] for process in processes]
    logits = torch.cat([result["logits"] for result in results])
    torch.testing.assert_close(logits, one_process[name]["logits"], rtol=0, atol=1e-5)
    loss = sum(result["loss"] for result in results)
    torch.testing.assert_close(loss, one_process[name]["loss"], rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_gradients(processes, one_process, name):
    for process in processes:
        # Each loss is a part of the sum, of which FSDP2 takes the mean.
        summed = {key: PROCESSES * gradient for key, gradient in process[name]["gradients"].items()}
        torch.testing.assert_close(summed, one_process[name]["gradients"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_generated_tokens(folder, processes, name):
    model = AutoModelForSeq2SeqLM.from_pretrained(folder / "models" / name)
    for rank, process in enumerate(processes):
        half = {key: rows.chunk(PROCESSES)[rank] for key, rows in inputs().items()}
        expected = translations(model, half)
        for num_beams in BEAMS:
            assert torch.equal(process[name]["translations"][num_beams], expected[num_beams])


@pytest.mark.parametrize("name", NAMES)
def test_tied_matrices_stay_one(processes, name):
    for process in processes:
        assert process[name]["tied"] == TIED_TO_THE_SOFTMAX[name]


@pytest.mark.parametrize("name", NAMES)
def test_save_and_load_in_one_process(folder, one_process, name):
    weights = AutoModelForSeq2SeqLM.from_pretrained(folder / "saved" / name).state_dict()
    assert set(weights) == set(one_process[name]["weights"])
    assert all(torch.equal(weight, weights[key]) for key, weight in one_process[name]["weights"].items())


@pytest.mark.parametrize("engine", ["shared when loaded", "accelerate"])
def test_the_trainer_s_trajectory(processes, trained_alone, engine):
    assert trained_alone["trajectory"].shape == (UPDATES, 2)
    for process in processes:
        torch.testing.assert_close(process[engine]["trajectory"], trained_alone["trajectory"], rtol=1e-5, atol=0)
        assert process[engine]["tied"] == TIED_TO_THE_SOFTMAX["tied"]


def test_accelerate_shares_the_model(processes, one_process):
    assert [process["accelerate"]["engine"] for process in processes] == ["DistributedType.FSDP"] * PROCESSES
    assert_halves([process["accelerate"]["parts"] for process in processes], one_process["tied"]["weights"])


def test_predictions(processes, trained_alone):
    expected = trained_alone["prediction"]
    for process in processes:
        result = process["accelerate"]["prediction"]
        assert result["loss"] == pytest.approx(expected["loss"], rel=1e-5)
        assert torch.equal(result["tokens"], expected["tokens"])


def test_the_saved_model_is_the_trained_one(folder, processes):
    tokenizer = AutoTokenizer.from_pretrained(TRAINED)
    saved = AutoModelForSeq2SeqLM.from_pretrained(folder / "accelerate")
    trainer = make_trainer(saved, tokenizer, folder / "again", use_cpu=True)
    result = prediction(trainer, tokenizer)
    expected = processes[0]["accelerate"]["prediction"]
    assert result["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert torch.equal(result["tokens"], expected["tokens"])


def test_resuming(folder, processes):
    for process in processes:
        after = process["resumed"]["trajectory"][SAVED_AT:]
        assert len(after) == UPDATES - SAVED_AT
        torch.testing.assert_close(after, process["accelerate"]["trajectory"][SAVED_AT:], rtol=1e-6, atol=0)
    whole, resumed = (
        AutoModelForSeq2SeqLM.from_pretrained(folder / run).state_dict() for run in ("accelerate", "resumed")
    )
    assert all(torch.equal(weight, resumed[name]) for name, weight in whole.items())
