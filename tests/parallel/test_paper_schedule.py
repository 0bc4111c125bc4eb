"""`PaperSchedule` in two processes: Eq. 3 in every update, and the weights of one process with `paper_optimizers`."""

import pytest
import torch
from transformers import AutoTokenizer

from hf_vanilla_transformer import paper_optimizers
from tests.invariants.killed import run_as_two
from tests.models import small_model
from tests.parallel import paper_schedule
from tests.parallel.models import PROCESSES, TRAINED, load_results
from tests.parallel.training import SAVED_AT, UPDATES, make_trainer


pytestmark = [pytest.mark.slow, pytest.mark.several_processes]

D_MODEL = 32
EXPECTED_ENGINES = {"DDP": "DistributedType.MULTI_CPU", "FSDP2": "DistributedType.FSDP"}


def equation_3(update):
    """Section 5.3, written out."""
    return D_MODEL**-0.5 * min(update**-0.5, update * paper_schedule.WARMUP**-1.5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paper_schedule")
    small_model(seed=2, dropout=0.0).save_pretrained(folder / "model")
    run_as_two(paper_schedule.main, folder, folder=folder)
    return folder


@pytest.fixture(scope="module")
def processes(folder):
    results = load_results(folder)
    assert len(results) == PROCESSES
    return results


@pytest.fixture(scope="module")
def expected_weights(folder):
    """The weights after a training in one process with `optimizers=paper_optimizers(model, args)`."""
    model = paper_schedule.load_model(folder / "model")
    tokenizer = AutoTokenizer.from_pretrained(TRAINED)
    trainer = make_trainer(model, tokenizer, folder / "alone", use_cpu=True, **paper_schedule.OPTIMIZATION)
    trainer.optimizer, trainer.lr_scheduler = paper_optimizers(model, trainer.args)
    trainer.train()
    return {name: weight.detach() for name, weight in model.named_parameters()}


@pytest.mark.parametrize("engine", paper_schedule.ENGINES)
def test_the_engine_is_the_one_that_was_asked_for(processes, engine):
    assert {process[engine]["engine"] for process in processes} == {EXPECTED_ENGINES[engine]}


@pytest.mark.parametrize("engine", paper_schedule.ENGINES)
def test_every_update_uses_equation_3(processes, engine):
    for process in processes:
        expected = {update: equation_3(update) for update in range(1, UPDATES + 1)}
        assert process[engine]["rates"] == pytest.approx(expected, rel=1e-12)
        after_resume = {update: equation_3(update) for update in range(SAVED_AT + 1, UPDATES + 1)}
        assert process[f"{engine}, resumed"]["rates"] == pytest.approx(after_resume, rel=1e-12)


def test_the_verb_trains_with_equation_3(processes):
    for process in processes:
        assert process["verb"]["engine"] == EXPECTED_ENGINES["FSDP2"]
        expected = {update: paper_schedule.RATE_FACTOR * equation_3(update) for update in (1, 2)}
        assert process["verb"]["rates"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("engine", paper_schedule.ENGINES)
@pytest.mark.parametrize("start", ["", ", resumed"], ids=["from the start", "resumed"])
def test_weights_equal_those_of_one_process(processes, expected_weights, engine, start):
    for process in processes:
        weights = {name.removeprefix("module."): weight for name, weight in process[engine + start]["weights"].items()}
        torch.testing.assert_close(weights, expected_weights, rtol=0, atol=1e-5)


def test_updates_move_the_weights_much_further_than_the_tolerance(folder, expected_weights):
    before = dict(paper_schedule.load_model(folder / "model").named_parameters())
    for name, weight in expected_weights.items():
        if name.endswith("k_proj.bias"):  # It adds the same to all logits of a query, so its gradient is 0.
            continue
        assert (weight - before[name]).abs().max() > 1e-2, name
