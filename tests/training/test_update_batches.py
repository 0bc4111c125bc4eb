"""An update has the same number of tokens on every device and any number of them, in batches that fit into memory."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from datasets import Dataset, DatasetDict
from hypothesis import given
from hypothesis import strategies as st

from hf_vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration, plan
from hf_vanilla_transformer.support.recipes import read_recipe
from hf_vanilla_transformer.training import plan as plan_module
from hf_vanilla_transformer.training import run, run_setup, update_batches
from hf_vanilla_transformer.training.corpus import Corpus
from hf_vanilla_transformer.training.cost_estimate import Costs
from hf_vanilla_transformer.training.plan import fit_recipe
from hf_vanilla_transformer.training.run_arguments import RunArguments, Settings
from hf_vanilla_transformer.training.update_batches import (
    DeviceMemory,
    TrainingMemory,
    UpdateBatches,
    count_tokens_that_fit,
    read_device_memory,
    read_smallest_device_memory,
    split_update,
    with_batches_of_update,
)
from tests.apps.cli.tiny_run import TINY
from tests.invariants.killed import run_as_two
from tests.training.test_plan import SMALL, make_corpus


UPDATE = 25_000
GIB = 2**30
# Measured on an H100 and an H200 with 25,000 tokens on each side and the optimizer, in bytes.
PEAKS = {"base": 9.4e9, "big": 18.9e9}


def model_of(preset):
    with torch.device("meta"):
        return VanillaTransformerForConditionalGeneration(VanillaTransformerConfig.from_paper(preset))


def gpu(gigabytes):
    """A GPU on which only its driver and torch's kernels take memory."""
    return DeviceMemory(gigabytes * GIB - 600_000_000, gigabytes * GIB)


def arguments(**changes):
    return RunArguments("unused", **{"bf16": True, "use_cpu": True, **changes})


def pretend_to_have_processes(count, monkeypatch):
    monkeypatch.setattr(RunArguments, "world_size", property(lambda self: count))


@pytest.mark.parametrize(
    ("processes", "tokens_that_fit", "expected"),
    [
        # CPUs.
        (1, 3_125, (3_125, 8)),
        (2, 3_125, (3_125, 4)),
        (8, 3_125, (3_125, 1)),
        # Large GPUs.
        (1, 200_000, (25_000, 1)),
        (2, 200_000, (12_500, 1)),
        (8, 200_000, (3_125, 1)),
        # Small GPUs.
        (1, 19_000, (12_500, 2)),
        (2, 7_000, (6_250, 2)),
        (8, 2_000, (1_562, 2)),
        # The longest sentence of 60 tokens is in a batch, even if that does not fit.
        (1, 10, (60, 417)),
    ],
)
def test_split_update(processes, tokens_that_fit, expected):
    assert split_update(UPDATE, processes, tokens_that_fit, 60) == UpdateBatches(*expected)


@given(
    tokens_per_update=st.integers(1, 10**6),
    processes=st.integers(1, 64),
    fit=st.integers(0, 10**6),
    longest=st.integers(1, 5_000),
)
def test_split_update_fits_and_has_no_more_batches_than_needed(tokens_per_update, processes, fit, longest):
    batches = split_update(tokens_per_update, processes, fit, longest)
    tokens = batches.tokens_per_batch
    count = batches.gradient_accumulation_steps
    assert tokens <= max(fit, longest)
    assert tokens >= longest
    # With one batch less in each process, the batches would not fit.
    assert (count - 1) * processes * max(fit, longest) < tokens_per_update
    # Each batch lacks less than one token of its share.
    if tokens > longest:
        assert tokens_per_update - count * processes < count * processes * tokens <= tokens_per_update


@pytest.mark.parametrize(
    ("explicit", "expected"),
    [
        ({"tokens_per_batch": 2_500}, (2_500, 10)),
        ({"tokens_per_batch": 3_000}, (3_000, 9)),
        ({"gradient_accumulation_steps": 4}, (6_250, 4)),
        ({"tokens_per_batch": 100, "gradient_accumulation_steps": 3}, (100, 3)),
    ],
    ids=str,
)
@pytest.mark.parametrize("fit", [10, 10**6])
def test_split_update_keeps_what_is_given(explicit, expected, fit):
    assert split_update(UPDATE, 1, fit, 60, **explicit) == UpdateBatches(*expected)


@pytest.mark.parametrize("preset", PEAKS)
def test_bytes_for_batch_are_the_measured_ones(preset):
    memory = TrainingMemory.for_model(model_of(preset), arguments(), gpu(80), in_16_bits=True)
    assert memory.bytes_for_batch(UPDATE) == pytest.approx(PEAKS[preset], rel=0.05)


@pytest.mark.parametrize("preset", PEAKS)
@pytest.mark.parametrize("gigabytes", [6, 8, 11, 16, 24, 40, 80])
@pytest.mark.parametrize("bf16", [True, False])
@pytest.mark.parametrize("processes", [1, 8])
def test_tokens_that_fit_into_small_gpus(preset, gigabytes, bf16, processes, monkeypatch):
    """The measured peak, scaled to the tokens of a batch; without 16 bits, activations have twice the bytes."""
    pretend_to_have_processes(processes, monkeypatch)
    model = model_of(preset)
    fit = count_tokens_that_fit(model, arguments(bf16=bf16), gpu(gigabytes))
    batches = split_update(UPDATE, processes, fit, 60)
    weights = 16 * model.num_parameters()
    activations = (PEAKS[preset] - weights) * batches.tokens_per_batch / UPDATE
    if not bf16:
        activations *= 2
    copies_of_gradients = 4 * model.num_parameters() if processes > 1 else 0
    assert weights + activations + copies_of_gradients < 0.95 * gpu(gigabytes).free
    assert batches.tokens_per_batch * batches.gradient_accumulation_steps * processes > UPDATE - 100


@pytest.mark.parametrize(
    ("gigabytes", "base", "big"),
    [(8, (2, 3), (5, 10)), (16, (1, 2), (2, 3)), (24, (1, 1), (1, 2)), (80, (1, 1), (1, 1))],
)
@pytest.mark.parametrize("bf16", [True, False])
def test_split_update_on_gpus(gigabytes, base, big, bf16):
    """The table in docs/token_budgets.md."""
    for preset, (in_16_bits, in_float32) in (("base", base), ("big", big)):
        fit = count_tokens_that_fit(model_of(preset), arguments(bf16=bf16), gpu(gigabytes))
        count = split_update(UPDATE, 1, fit, 60).gradient_accumulation_steps
        assert count == (in_16_bits if bf16 else in_float32), preset


def test_tokens_that_fit_into_a_gpu_with_r_drop():
    model = model_of("base")
    plain, r_drop = (count_tokens_that_fit(model, arguments(r_drop_alpha=alpha), gpu(80)) for alpha in (0.0, 2.0))
    assert 0 < r_drop < plain / 2
    assert (
        TrainingMemory.for_model(model, arguments(r_drop_alpha=2.0), gpu(80), in_16_bits=True).bytes_for_batch(r_drop)
        < 80 * GIB
    )


def test_count_tokens_that_fit_without_a_known_memory():
    """On CPUs, and on devices that do not report their memory."""
    assert count_tokens_that_fit(model_of("big"), arguments(), None) == 3_125


def test_read_device_memory(monkeypatch):
    assert read_device_memory(torch.device("cpu")) is None
    module = SimpleNamespace(
        mem_get_info=lambda device: (700, 1_000), memory_reserved=lambda device: 90, memory_allocated=lambda device: 30
    )
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    # 60 bytes are reserved, but in use by no tensor.
    assert read_device_memory(torch.device("cuda", 0)) == DeviceMemory(760, 1_000)
    del module.mem_get_info
    assert read_device_memory(torch.device("mps")) is None


def test_read_smallest_device_memory(monkeypatch):
    memories = [gpu(24), gpu(8), gpu(80)]
    monkeypatch.setattr(update_batches, "gather_object", lambda own: memories)
    assert read_smallest_device_memory(torch.device("cpu")) == gpu(8)
    memories[1] = None
    assert read_smallest_device_memory(torch.device("cpu")) is None


@pytest.mark.parametrize("processes", [1, 2, 8])
@pytest.mark.parametrize("memory", [None, gpu(6), gpu(8), gpu(80)], ids=["CPU", "6 GiB", "8 GiB", "80 GiB"])
@pytest.mark.parametrize("way", ["plan", "config"])
def test_update_of_base_has_25_000_tokens(way, memory, processes, monkeypatch):
    pretend_to_have_processes(processes, monkeypatch)
    recipe = read_recipe("base", Settings)
    settings = Settings.from_arguments(**recipe, output_dir="unused", bf16=True, use_cpu=True)
    fit = count_tokens_that_fit(model_of("base"), settings.args, memory)
    if way == "config":
        settings = with_batches_of_update(settings, fit, longest_sentence=40)
    else:
        chosen = fit_recipe(recipe, make_corpus(), processes, {}, tokens_that_fit=fit)
        settings = Settings.from_arguments(**chosen, output_dir="unused", use_cpu=True)
    args = settings.args
    assert args.tokens_per_batch * args.gradient_accumulation_steps * processes == UPDATE
    assert settings.data.max_tokens == 3_125
    if memory is None:
        assert args.tokens_per_batch == 3_125
    if memory == gpu(80):
        assert args.gradient_accumulation_steps == 1


@pytest.mark.parametrize("processes", [1, 2, 3, 8, 16])
@pytest.mark.parametrize("name", ["tiny", "small", "medium"])
@pytest.mark.parametrize("longest", [40, 1_500, 5_000])
@pytest.mark.parametrize(
    "explicit",
    [
        {},
        {"tokens_per_batch": 900},
        {"tokens_per_batch": 9_000},
        {"gradient_accumulation_steps": 3},
        {"tokens_per_batch": 900, "gradient_accumulation_steps": 3},
    ],
    ids=str,
)
def test_fit_recipe_on_cpus_as_in_earlier_releases(name, processes, longest, explicit):
    recipe = read_recipe(name, Settings)
    measured_corpus = Corpus(29_000, 0, 0, torch.tensor([2, longest, 7]).numpy(), torch.tensor([3, 4, 9]).numpy())
    chosen = fit_recipe(recipe, measured_corpus, processes, explicit)
    # The run removes longer pairs, so the plan does not depend on them. The next longest sentence has 9 tokens.
    limit = explicit.get("tokens_per_batch", recipe["max_tokens"])
    longest_remaining = longest if longest <= limit else 9
    # The formula of the releases before this one.
    accumulated = explicit.get("gradient_accumulation_steps", 1)
    tokens = max(recipe["tokens_per_batch"] // (accumulated * processes), longest_remaining)
    tokens = explicit.get("tokens_per_batch", tokens)
    sentences = max(1, min(recipe["per_device_eval_batch_size"], 4 * recipe["tokens_per_batch"] // longest_remaining))
    expected = {"tokens_per_batch": tokens, "max_tokens": tokens, "gradient_accumulation_steps": accumulated}
    expected["per_device_eval_batch_size"] = sentences
    actual = {argument: {**chosen, **explicit}[argument] for argument in expected}
    assert actual == expected


def pairs_of(count):
    pairs = Dataset.from_dict({"source": ["one", "twenty-two"] * count, "target": ["eins", "zweiundzwanzig"] * count})
    return DatasetDict(train=pairs)


@pytest.fixture
def on_a_gpu(monkeypatch):
    """`plan` chooses base, as for a GPU and 1,000,000 pairs, and measures nothing."""
    monkeypatch.setattr(plan_module, "choose_recipe", lambda pairs, has_gpu: "base")
    monkeypatch.setattr(plan_module, "estimate_costs", lambda *args: Costs(1, 1, 1, 1, 1, 1))


@pytest.mark.parametrize(
    ("memory", "given_arguments", "expected"),
    [
        (gpu(80), {}, (25_000, 1, 3_125)),
        (gpu(8), {"vocab_size": 37_000}, (12_500, 2, 3_125)),
        (gpu(80), {"preset": "big"}, (25_000, 1, 3_125)),
        (gpu(80), {"r_drop_alpha": 5.0}, (25_000, 1, 3_125)),
        (gpu(80), {"tokens_per_batch": 3_125}, (3_125, 8, 3_125)),
        (gpu(80), {"gradient_accumulation_steps": 4}, (6_250, 4, 3_125)),
        (gpu(80), {"tokens_per_update": 100_000}, (100_000, 1, 3_125)),
        (gpu(80), {"max_tokens": 50}, (25_000, 1, 50)),
        # The tokens of 64 pairs are not known, so there are as many batches as ever.
        (gpu(80), {"per_device_train_batch_size": 64}, (None, 8, None)),
    ],
    ids=str,
)
def test_plan_on_a_gpu(memory, given_arguments, expected, on_a_gpu):
    options = {"bf16": True, "use_cpu": True, "output_dir": "unused", **given_arguments}
    planned_arguments = plan(pairs_of(30), memory=memory, **options).arguments
    merged = {**planned_arguments, **given_arguments}
    names = ("tokens_per_batch", "gradient_accumulation_steps", "max_tokens")
    assert tuple(merged.get(name) for name in names) == expected
    assert "tokens_per_update" not in planned_arguments


def test_plan_asks_the_gpu_for_its_memory(on_a_gpu, monkeypatch):
    monkeypatch.setattr(plan_module, "read_device_memory", lambda device: gpu(8))
    planned_arguments = plan(pairs_of(30), bf16=True, use_cpu=True, output_dir="unused").arguments
    assert planned_arguments["gradient_accumulation_steps"] == 2


def test_plan_for_a_gpu_elsewhere_has_one_batch(monkeypatch):
    monkeypatch.setattr(plan_module, "choose_recipe", lambda pairs, has_gpu: "base")
    base_plan = plan(pairs_of(30), tflops=989, output_dir="unused")
    assert base_plan.arguments["tokens_per_batch"] == 25_000
    assert base_plan.arguments["gradient_accumulation_steps"] == 1
    # The pairs fill a part of a batch only.
    assert 16 * base_plan.costs.parameters < base_plan.costs.memory < PEAKS["base"]


def test_plan_without_a_choice_knows_the_batches():
    options = {"tflops": 1, "chooses": False, "num_train_epochs": 1, **SMALL}
    plan_by_update = plan(pairs_of(200), tokens_per_update=100, **options)
    plan_by_batch = plan(pairs_of(200), tokens_per_batch=100, **options)
    assert plan_by_update.arguments == {}
    assert plan_by_update.costs == plan_by_batch.costs


# The tiny run with batches by tokens of an update instead of pairs.
RUN = {name: value for name, value in TINY.items() if name != "per_device_train_batch_size"}


def saved_arguments(folder):
    return yaml.safe_load((folder / "arguments.yaml").read_text())


@pytest.mark.parametrize(("fit", "expected"), [(3_125, (200, 1)), (100, (100, 2)), (60, (50, 4))])
def test_train_saves_its_batches(fit, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(run_setup, "count_tokens_that_fit", lambda model, args, memory: fit)
    arguments = {**RUN, "tokens_per_update": 200, "results": str(tmp_path / "results.json"), "max_steps": 2}
    folder = run.train(output_dir=tmp_path / "run", **arguments)
    saved = saved_arguments(folder)
    assert (saved["tokens_per_batch"], saved["gradient_accumulation_steps"], saved["max_tokens"]) == (*expected, 200)
    assert "tokens_per_update" not in saved
    recorded = yaml.safe_load((tmp_path / "results.json").read_text())["settings"]
    assert (recorded["tokens_per_batch"], recorded["gradient_accumulation_steps"]) == expected
    assert f"{200:,}" in (folder / "README.md").read_text()


def train_base(folder):
    """Five updates by the recipe for base, with a small model."""
    changes = {"dataset_name": "numbers", "train_size": 60, "max_digits": 3, "max_steps": 5, "save_steps": 1}
    changes |= {"eval_strategy": "no", "keep_better": False, "choose_search": False, "disable_tqdm": True}
    run.train(config="base", output_dir=folder, max_new_tokens=5, bleu_tokenize="char", **changes, **SMALL)


def train_base_as_one_of_two(folder):
    train_base(Path(folder) / "run")


@pytest.mark.parametrize(("processes", "expected"), [(1, (3_125, 8)), (2, (3_125, 4))])
def test_train_with_config_base_on_cpus(processes, expected, tmp_path):
    if processes == 1:
        train_base(tmp_path / "run")
    else:
        run_as_two(train_base_as_one_of_two, str(tmp_path), folder=tmp_path)
    saved = saved_arguments(tmp_path / "run")
    assert (saved["tokens_per_batch"], saved["gradient_accumulation_steps"]) == expected
    assert (saved["max_tokens"], saved.get("tokens_per_update")) == (3_125, None)
    card = (tmp_path / "run" / "README.md").read_text()
    assert "25000" in card or "25,000" in card


def train_with_unequal_memory(folder):
    """Train in one of two processes, of which the second has a smaller device."""
    size = (100, 50)[int(os.environ["RANK"])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(update_batches, "read_device_memory", lambda device: DeviceMemory(size, 1_000))
        patch.setattr(run_setup, "count_tokens_that_fit", lambda model, args, memory: memory.free)
        run.train(output_dir=Path(folder) / "run", **{**RUN, "tokens_per_update": 200, "max_steps": 2})


def test_train_on_two_devices_fits_the_smaller_one(tmp_path):
    """Otherwise one process would wait for a batch that the other one does not have."""
    run_as_two(train_with_unequal_memory, str(tmp_path), folder=tmp_path)
    saved = saved_arguments(tmp_path / "run")
    assert (saved["tokens_per_batch"], saved["gradient_accumulation_steps"]) == (50, 2)


def test_train_resumes_with_its_batches(tmp_path, monkeypatch):
    """Even if another number would fit now, and the command names the tokens of an update again."""
    monkeypatch.setattr(run_setup, "count_tokens_that_fit", lambda model, args, memory: 100)
    arguments = {**RUN, "tokens_per_update": 200}
    folder = run.train(output_dir=tmp_path / "run", **arguments)
    before = saved_arguments(folder)
    monkeypatch.setattr(run_setup, "count_tokens_that_fit", lambda model, args, memory: 10**6)
    run.train(output_dir=folder, resume_from_checkpoint="last", **arguments)
    after = saved_arguments(folder)
    assert after == before
    assert after["gradient_accumulation_steps"] == 2


def test_train_fits_the_longest_pair_into_a_batch(tmp_path, monkeypatch):
    """No pair is removed because the memory is small."""
    monkeypatch.setattr(run_setup, "count_tokens_that_fit", lambda model, args, memory: 1)
    arguments = {**RUN, "tokens_per_update": 200, "max_steps": 1}
    folder = run.train(output_dir=tmp_path / "run", **arguments)
    saved = saved_arguments(folder)
    assert 1 < saved["tokens_per_batch"] < 20
    assert saved["gradient_accumulation_steps"] == -(-200 // saved["tokens_per_batch"])


def test_train_tokens_per_update_override_a_recipe(tmp_path):
    (tmp_path / "mine.yaml").write_text("tokens_per_batch: 100\ngradient_accumulation_steps: 3\n")
    arguments = {**RUN, "tokens_per_update": 200, "max_steps": 1}
    saved = saved_arguments(run.train(output_dir=tmp_path / "run", config=str(tmp_path / "mine.yaml"), **arguments))
    assert (saved["tokens_per_batch"], saved["gradient_accumulation_steps"]) == (200, 1)


@pytest.mark.parametrize(
    ("given_arguments", "expected"),
    [
        ({"tokens_per_update": 25_000}, 3_125),
        ({"tokens_per_update": 1_000}, 1_000),
        ({"tokens_per_update": 25_000, "max_tokens": 9_000}, 9_000),
        # Then it is the batch, as without an update.
        ({"tokens_per_update": 25_000, "tokens_per_batch": 500}, None),
        ({"tokens_per_batch": 500}, None),
        ({}, None),
    ],
    ids=str,
)
def test_max_tokens_does_not_depend_on_memory(given_arguments, expected):
    settings = Settings.from_arguments(output_dir="unused", use_cpu=True, **given_arguments)
    assert settings.data.max_tokens == expected


def test_train_rejects_tokens_per_update_of_0(tmp_path):
    with pytest.raises(ValueError, match="tokens_per_update is 0"):
        run.train(output_dir=tmp_path / "run", **RUN, tokens_per_update=0)
