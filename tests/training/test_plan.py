"""The settings that a plan chooses, and its costs next to those of a run."""

import json
import random
import subprocess
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import datasets
import numpy as np
import pytest
import torch
import yaml
from datasets import Dataset, DatasetDict
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla_transformer import load_pairs, plan, train_tokenizer
from hf_vanilla_transformer.support.recipes import read_recipe
from hf_vanilla_transformer.support.user_errors import UserError
from hf_vanilla_transformer.training import cost_estimate, trial_run
from hf_vanilla_transformer.training.corpus import Corpus
from hf_vanilla_transformer.training.cost_estimate import Costs, estimate_costs
from hf_vanilla_transformer.training.plan import FEWEST_PAIRS, choose_recipe, count_updates_per_epoch, fit_recipe
from hf_vanilla_transformer.training.run import train
from hf_vanilla_transformer.training.run_arguments import Settings
from hf_vanilla_transformer.training.run_checks import check_start


# A model that a test trains in a second.
SMALL = {"d_model": 16, "d_ff": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 300, "bf16": False, "use_cpu": True}
SIZES = ("num_layers", "d_model", "d_ff", "vocab_size")


def corpus(pairs: int = 29_000, validation: int = 1_000, longest: int = 40) -> Corpus:
    """Lengths from 2 to the longest, on both sides, of at most 200 pairs."""
    lengths = np.arange(min(pairs, 200)) % (longest - 1) + 2
    return Corpus(pairs, validation, 0, lengths, lengths[::-1])


def planned(name: str, of: Corpus, processes: int = 1, **given) -> Settings:
    """The settings of a run by a recipe, which pass all checks."""
    arguments = fit_recipe(read_recipe(name, Settings), of, processes, given)
    assert not arguments.keys() & given.keys()
    found = Settings.from_arguments(**{"output_dir": "/nonexistent", **arguments, **given})
    check_start(found, None)
    return found


def numbers(count: int = 60) -> DatasetDict:
    pairs = load_pairs("numbers", max_digits=3, train_size=count)
    return DatasetDict({"train": pairs["train"], "validation": pairs["test"].select(range(8))})


@settings(max_examples=60, deadline=None)
@given(
    pairs=st.integers(10, 10_000_000),
    validation=st.integers(0, 2_000),
    longest=st.integers(3, 5_000),
    processes=st.integers(1, 16),
    on_gpu=st.booleans(),
)
def test_every_plan_fits_its_corpus(pairs, validation, longest, processes, on_gpu):
    of, name = corpus(pairs, validation, longest), choose_recipe(pairs, on_gpu)
    row, found = read_recipe(name, Settings), planned(name, of, processes)
    args, steps = found.args, found.args.max_steps
    assert 1_000 <= steps <= 100_000
    assert args.warmup_steps <= steps / 10
    # The averaged checkpoints are of the last part of the run.
    assert 1 <= found.output.average_last * args.save_steps <= max(steps / 3, 20)
    assert (args.eval_strategy == "no") == (validation == 0)
    update = row.get("tokens_per_update") or row["tokens_per_batch"]
    batch = args.tokens_per_batch
    # On CPUs.
    assert batch == found.data.max_tokens <= row["max_tokens"]
    # No pair is removed because several processes share the update.
    assert batch >= min(longest, row["max_tokens"], len(of.source_lengths))
    assert batch * args.gradient_accumulation_steps * processes >= min(update, update // 2 + 1)
    assert args.per_device_eval_batch_size * min(longest, len(of.source_lengths)) <= max(4 * row["max_tokens"], longest)


def test_more_pairs_never_get_a_smaller_model():
    rows = [read_recipe(name, Settings) for name in FEWEST_PAIRS]
    for name in SIZES:
        assert sorted(row[name] for row in rows) == [row[name] for row in rows], name
    updates = [row.get("tokens_per_update") or row["tokens_per_batch"] for row in rows]
    assert sorted(updates) == updates
    counts = [10, 9_999, 10_000, 79_999, 80_000, 999_999, 1_000_000, 10**9]
    assert [choose_recipe(count, True) for count in counts] == [name for name in FEWEST_PAIRS for _ in range(2)]
    assert [choose_recipe(count, False) for count in counts[-2:]] == ["medium", "medium"]


@pytest.mark.parametrize("name", FEWEST_PAIRS)
@pytest.mark.parametrize(
    "changes",
    [
        {"num_train_epochs": 2},
        {"max_steps": 20},
        {"tokens_per_batch": 100, "gradient_accumulation_steps": 3},
        {"per_device_train_batch_size": 16},
        {"rate_factor": 0.5},
        {"eval_strategy": "no"},
        {"eval_strategy": "epoch", "save_strategy": "epoch"},
        {"save_strategy": "no"},
        {"save_total_limit": 3},
        {"save_only_model": True},
        {"early_stopping_patience": 3, "metric_for_best_model": "bleu"},
        {"load_best_model_at_end": True},
        {"load_best_model_at_end": True, "eval_steps": 50},
        {"load_best_model_at_end": True, "save_steps": 50},
        {"load_best_model_at_end": True, "logging_steps": 300},
        {"load_best_model_at_end": True, "eval_strategy": "epoch"},
        {"num_beams": 1},
        {"average_last": 20},
        {"tokenizer_name": "tests/fixtures/numbers_tiny"},
        {"dropout": 0.0, "vocab_size": 400, "learning_rate": 1e-4, "warmup_steps": 7, "max_tokens": 30},
    ],
    ids=lambda changes: ",".join(changes),
)
def test_given_arguments_win_and_the_others_follow(name, changes):
    found = planned(name, corpus(), **changes)
    for argument, value in changes.items():
        (actual,) = [getattr(part, argument) for part in found[:7] if hasattr(part, argument)]
        assert actual == value
    assert (found.args.max_steps == -1) == ("num_train_epochs" in changes)
    assert (found.args.tokens_per_batch is None) == ("per_device_train_batch_size" in changes)


def test_epochs_and_budget_set_the_number_of_updates():
    of = corpus(20_000)
    batches = len(of.make_batches(2048, 8)) * 100
    assert planned("small", of, num_train_epochs=2).args.num_train_epochs == 2
    assert planned("small", corpus(10_000)).args.max_steps == 36 * len(corpus(10_000).make_batches(2048, 8)) * 50
    assert planned("small", of).args.max_steps == 9_000 < 36 * batches
    assert planned("medium", of).args.max_steps == 30 * len(of.make_batches(4096, 8)) * 100
    assert planned("medium", of, tokens_per_batch=2048).args.max_steps > 1.7 * 30 * len(of.make_batches(4096, 8)) * 100
    assert planned("small", of, processes=2).args.tokens_per_batch == 1024
    # The update of the paper, in eight processes or in eight batches.
    assert planned("base", of).args.gradient_accumulation_steps == 8
    eight = planned("base", of, processes=8).args
    assert (eight.gradient_accumulation_steps, eight.tokens_per_batch) == (1, 3125)


@pytest.mark.parametrize(
    ("processes", "accumulation_steps", "updates"), [(1, 1, 25), (2, 1, 13), (4, 1, 7), (2, 2, 7), (4, 3, 3)]
)
def test_updates_of_epoch_are_shared_by_processes(processes, accumulation_steps, updates):
    """Of 200 pairs in batches of 8, each process has a share of the 25 batches, as in a distributed sampler."""
    arguments = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": accumulation_steps}
    assert count_updates_per_epoch(corpus(200), arguments, processes) == updates


def test_choose_prefers_a_given_number_of_updates_to_epochs():
    """As the Trainer does."""
    found = fit_recipe(read_recipe("small", Settings), corpus(20_000), 1, {"num_train_epochs": 2, "max_steps": 100})
    steps = {name: found[name] for name in ("warmup_steps", "logging_steps", "eval_steps", "save_steps")}
    assert steps == {"warmup_steps": 10, "logging_steps": 1, "eval_steps": 10, "save_steps": 2}
    assert "max_steps" not in found


def test_a_trial_that_was_killed(monkeypatch):
    """By the system, when memory is full; what it wrote before is no reason."""
    result = SimpleNamespace(returncode=-9, stderr=b"a warning\n")
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: result)
    with pytest.raises(UserError, match=r"killed.*memory.*--tokens_per_batch") as error:
        plan(few(20), max_steps=1, chooses=False, **SMALL)
    assert "a warning" not in str(error.value)


@pytest.mark.parametrize(("limit", "checkpoints"), [(3, 4), (9, 10), (20, 10), (0, 10), (None, 10)])
def test_estimate_costs_counts_the_checkpoints_on_the_disk(limit, checkpoints):
    """Ten are written. The oldest one is removed after a new one is written, so there is one more than the limit."""
    run = {**SMALL, "max_steps": 10, "save_steps": 1, "save_total_limit": limit}
    costs = plan(numbers(), tflops=1, chooses=False, **run).costs
    # Weights in float32, and in each checkpoint Adam's two moments, too.
    assert costs.disk == 4 * costs.parameters * (1 + 3 * checkpoints)


def test_the_trial_begins_with_the_largest_batches(tmp_path, monkeypatch):
    """With the batch of most tokens, and with that of the longest pairs; a trial may end before it has seen all."""
    short, long, wide = ["one"] * 8, ["one hundred and one"] * 8, ["one " * 15] * 2
    texts = short * 70 + long * 2 + wide
    pairs = DatasetDict(train=Dataset.from_dict({"source": texts, "target": texts}))
    jobs = []

    def note(command, **options):
        folder = Path(command[-1])
        jobs.append(json.loads((folder / "job.json").read_text()))
        result = trial_run.TrialResult(1e-6, 0, 0, 1)
        (folder / "result.json").write_text(json.dumps(asdict(result)))
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", note)
    monkeypatch.setattr(trial_run, "_UPDATES", 2)
    plan(pairs, chooses=False, max_steps=1, per_device_train_batch_size=8, **{**SMALL, "d_model": 16})
    (job,) = jobs
    batches = [[len(row["input_ids"]) + len(row["labels"]) for row in batch] for batch in job["batches"]]
    tokenizer = train_tokenizer(texts + texts, vocab_size=300, show_progress=False)
    longest, most = (2 * len(tokenizer(text).input_ids) for text in (wide[0], long[0]))
    assert [max(lengths) for lengths in batches] == [longest, most]
    assert len(batches[0]) == 2
    assert 2 * longest < 8 * most


def test_a_run_of_few_epochs_has_less_dropout():
    captions, software = corpus(longest=20), corpus(longest=60)
    assert planned("small", captions).model.dropout == 0.2
    assert planned("small", software).args.max_steps == planned("small", captions).args.max_steps
    assert planned("small", software).model.dropout == 0.1
    assert planned("small", software, dropout=0.3).model.dropout == 0.3
    assert planned("tiny", captions, num_train_epochs=5).model.dropout == 0.1
    assert planned("base", software).model.dropout == 0.1
    # The sources of a student occur twice in an epoch.
    assert planned("small", corpus()).model.dropout == 0.1
    assert fit_recipe(read_recipe("small", Settings), corpus(), 1, {}, targets_per_source=2)["dropout"] == 0.2


def test_checkpoints_of_epochs_take_disk():
    given = {**SMALL, "num_train_epochs": 4}
    steps, epochs = (plan(numbers(), tflops=1, chooses=False, save_strategy=each, **given) for each in ("no", "epoch"))
    assert epochs.costs.disk == steps.costs.disk * (1 + 3 * 4)


def test_the_hours_of_an_h100(tokenizer):
    """Base made 265,618 target tokens/s in the Trainer on a GPU of 989 TFLOP/s (gpu_candidates.md)."""
    of = Corpus(4_500_000, 0, 0, *[np.full(20_000, 25)] * 2)
    found = planned("base", of, config_overrides={"vocab_size": 37_000})
    costs = estimate_costs(found, 100_000, of, tokenizer, DatasetDict(), 989)
    assert costs.seconds == pytest.approx(100_000 * 25_000 / 265_618, rel=0.05)
    assert costs.tokens == 4_500_000 * 25
    assert costs.parameters == pytest.approx(63e6, rel=0.01)


def test_lines_have_the_reasons_and_the_costs():
    lines = plan.__globals__["Plan"]({}, ["why"], Costs(1_234, 5_678, 9_000, 5_400, 2 * 10**9, 10**8)).lines()
    assert lines[0] == "why"
    assert lines[1:] == [
        *("parameters: 1,234", "target tokens: 5,678 in an epoch", "updates: 9,000", "time: 1.5 hours"),
        *("memory: 2.0 GB", "disk: 100 MB"),
    ]


def test_the_trial_has_the_pairs_of_the_corpus(monkeypatch):
    """Pairs that are too long come first, so that numbers of the pairs that are left would mean others."""
    long_pair = {"source": "four " * 400, "target": "4 " * 400}
    pairs = numbers()
    train_pairs = [long_pair, *pairs["train"].to_list()]
    costs = []

    def record_estimate(settings, updates, corpus, tokenizer, data, tflops):
        costs.append((corpus, data["train"]))
        return Costs(1, 1, 1, 1.0, 1, 1)

    monkeypatch.setitem(plan.__globals__, "estimate_costs", record_estimate)
    plan(DatasetDict({**pairs, "train": Dataset.from_list(train_pairs)}), max_tokens=300)
    ((corpus, data),) = costs
    assert len(corpus.source_lengths) == len(pairs["train"])
    assert [len(tokens) for tokens in data["input_ids"]] == corpus.source_lengths.tolist()
    assert [len(tokens) for tokens in data["labels"]] == corpus.target_lengths.tolist()


def test_a_plan_next_to_its_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    pairs = numbers()
    changes = {**SMALL, "num_train_epochs": 2, "tokens_per_batch": 64, "max_new_tokens": 12}
    before = torch.random.get_rng_state(), random.getstate(), np.random.get_state()
    run_trial = cost_estimate.run_trial
    trials = []

    def record_trial(*args):
        trials.append(run_trial(*args))
        return trials[-1]

    monkeypatch.setattr(cost_estimate, "run_trial", record_trial)
    found = plan(pairs, **changes)
    after = torch.random.get_rng_state(), random.getstate(), np.random.get_state()
    assert torch.equal(before[0], after[0])
    assert before[1] == after[1]
    assert np.array_equal(before[2][1], after[2][1])
    assert list(tmp_path.iterdir()) == []
    assert not found.arguments.keys() & changes.keys()
    assert found.costs.seconds > 0
    (trial,) = trials
    assert trial.peak_memory > 50_000_000
    if not torch.cuda.is_available():
        assert found.costs.memory == pytest.approx(1.3 * trial.peak_memory)

    for split, name in (("train", "train_file"), ("validation", "validation_file")):
        pairs[split].to_json(f"{split}.jsonl")
        changes[name] = f"{split}.jsonl"
    Path("plan.yaml").write_text(yaml.safe_dump({**found.arguments, **changes, "max_tokens": 64}))
    folder = train(config="plan.yaml", output_dir="run", bleu_tokenize="char", disable_tqdm=True)
    state = json.loads(next(folder.glob("checkpoint-*/trainer_state.json")).read_text())
    assert found.costs.updates == state["max_steps"]
    assert found.costs.parameters == AutoModelForSeq2SeqLM.from_pretrained(folder).num_parameters()
    targets = AutoTokenizer.from_pretrained(folder)(pairs["train"]["target"][:]).input_ids
    assert found.costs.tokens == sum(map(len, targets))
    written = sum(path.stat().st_size for path in folder.rglob("*.safetensors"))
    assert written < found.costs.disk < 20 * written


def test_a_recipe_of_fractions_trains(tmp_path):
    changes = {"dataset_name": "numbers", "train_size": 60, "max_digits": 3, "eval_strategy": "no", "max_steps": 20}
    changes |= {"bleu_tokenize": "char", "max_new_tokens": 5, "keep_better": False, "choose_search": False, **SMALL}
    folder = train(config="tiny", output_dir=tmp_path / "run", **changes)
    assert len(list(folder.glob("checkpoint-*"))) == 11


def few(count: int, text: str = "one") -> DatasetDict:
    return DatasetDict(train=Dataset.from_dict({"source": [text] * count, "target": [text] * count}))


def test_the_recipe_of_a_student_is_for_its_sources():
    """Each occurs twice, with the given target and with the teacher's, unless the latter is the only one."""
    pairs, options = few(12_000), {"teacher": ["runs/teacher"], "tflops": 100, "output_dir": "runs/x"}
    assert any("recipe tiny" in line for line in plan(pairs, **options).lines())
    assert any("recipe small" in line for line in plan(pairs, distilled_only=True, **options).lines())


@pytest.mark.parametrize(
    ("pairs", "changes", "message"),
    [
        (few(9), {}, "there are 9 training pairs, too few for a plan, which needs 10"),
        (few(20), {"model_name_or_path": "runs/mine"}, "a plan is for a new model; give learning_rate"),
        (few(20), {"tflops": 0}, "tflops is 0; give the TFLOP/s of a GPU, such as 100"),
        (few(20), {"max_tokens": 1}, "all training pairs have more than 1 tokens on a side; raise max_tokens"),
        (
            few(20),
            {"attn_implementation": "nope", **SMALL},
            r"a trial of some updates failed \(.*nope.*\); give a smaller",
        ),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(pairs, changes, message):
    with pytest.raises(UserError, match=message):
        plan(pairs, **changes)


def test_costs_alone_leave_out_pairs_longer_than_a_batch():
    arguments = {**SMALL, "tokens_per_batch": 8, "num_train_epochs": 1}
    found = plan(numbers(), tflops=100, chooses=False, **arguments)
    assert found.arguments == {}
    assert (
        0
        < found.costs.tokens
        < plan(numbers(), tflops=100, chooses=False, **{**arguments, "tokens_per_batch": 90}).costs.tokens
    )
