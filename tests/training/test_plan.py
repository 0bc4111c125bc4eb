"""The settings that a plan chooses, and its costs next to those of a run."""

import json
import random
import subprocess
import sys
import textwrap
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

from hf_vanilla_transformer import VanillaTransformerForConditionalGeneration, load_pairs, plan, train_tokenizer
from hf_vanilla_transformer.support.recipes import read_recipe
from hf_vanilla_transformer.support.user_errors import UserError
from hf_vanilla_transformer.training import cost_estimate, trial_run
from hf_vanilla_transformer.training.corpus import Corpus, MeasuredPairs
from hf_vanilla_transformer.training.cost_estimate import Costs, estimate_costs
from hf_vanilla_transformer.training.plan import (
    FEWEST_PAIRS,
    _describe_frequency,
    choose_recipe,
    count_updates_per_epoch,
    fit_recipe,
)
from hf_vanilla_transformer.training.run import train
from hf_vanilla_transformer.training.run_arguments import Settings
from hf_vanilla_transformer.training.run_checks import check_start


FIXTURE = Path(__file__).parents[1] / "fixtures" / "numbers_tiny"
# A model that a test trains in a second.
SMALL = {"d_model": 16, "d_ff": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 300, "bf16": False, "use_cpu": True}
SIZES = ("num_layers", "d_model", "d_ff", "vocab_size")


def make_corpus(pairs: int = 29_000, validation: int = 1_000, longest: int = 40) -> Corpus:
    """Lengths from 2 to the longest, on both sides, of at most 200 pairs."""
    lengths = np.arange(min(pairs, 200)) % (longest - 1) + 2
    return Corpus(pairs, validation, 0, lengths, lengths[::-1])


def planned(recipe_name: str, corpus: Corpus, processes: int = 1, **given_arguments) -> Settings:
    """The settings of a run by a recipe, which pass all checks."""
    arguments = fit_recipe(read_recipe(recipe_name, Settings), corpus, processes, given_arguments)
    assert not arguments.keys() & given_arguments.keys()
    planned_settings = Settings.from_arguments(**{"output_dir": "/nonexistent", **arguments, **given_arguments})
    check_start(planned_settings, None)
    return planned_settings


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
def test_fit_recipe_suits_every_corpus(pairs, validation, longest, processes, on_gpu):
    corpus = make_corpus(pairs, validation, longest)
    recipe_name = choose_recipe(pairs, on_gpu)
    recipe = read_recipe(recipe_name, Settings)
    planned_settings = planned(recipe_name, corpus, processes)
    args = planned_settings.args
    assert 1_000 <= args.max_steps <= 100_000
    assert args.warmup_steps <= args.max_steps / 10
    # The averaged checkpoints are of the last part of the run.
    assert 1 <= planned_settings.output.average_last * args.save_steps <= max(args.max_steps / 3, 20)
    assert (args.eval_strategy == "no") == (validation == 0)
    # On CPUs.
    assert args.tokens_per_batch == planned_settings.data.max_tokens <= recipe["max_tokens"]
    # No pair is removed because several processes share the update.
    sampled_pairs = len(corpus.source_lengths)
    assert args.tokens_per_batch >= min(longest, recipe["max_tokens"], sampled_pairs)
    tokens_of_recipe = recipe.get("tokens_per_update") or recipe["tokens_per_batch"]
    tokens_per_update = args.tokens_per_batch * args.gradient_accumulation_steps * processes
    assert tokens_per_update >= min(tokens_of_recipe, tokens_of_recipe // 2 + 1)
    evaluated_tokens = args.per_device_eval_batch_size * min(longest, sampled_pairs)
    assert evaluated_tokens <= max(4 * recipe["max_tokens"], longest)


def test_choose_recipe_never_gives_more_pairs_a_smaller_model():
    recipes = [read_recipe(name, Settings) for name in FEWEST_PAIRS]
    for argument in SIZES:
        sizes = [recipe[argument] for recipe in recipes]
        assert sorted(sizes) == sizes, argument
    tokens_per_update = [recipe.get("tokens_per_update") or recipe["tokens_per_batch"] for recipe in recipes]
    assert sorted(tokens_per_update) == tokens_per_update
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
def test_fit_recipe_keeps_given_arguments(name, changes):
    planned_settings = planned(name, make_corpus(), **changes)
    for argument, value in changes.items():
        option_groups = [group for group in planned_settings[:7] if hasattr(group, argument)]
        assert [getattr(group, argument) for group in option_groups] == [value]
    assert (planned_settings.args.max_steps == -1) == ("num_train_epochs" in changes)
    assert (planned_settings.args.tokens_per_batch is None) == ("per_device_train_batch_size" in changes)


@pytest.mark.parametrize("given_arguments", [{}, {"max_tokens": 300}, {"tokens_per_batch": 300}])
def test_fit_recipe_is_not_changed_by_a_pair_that_is_too_long(given_arguments):
    corpus = make_corpus()
    longer_corpus = corpus._replace(
        source_lengths=np.append(corpus.source_lengths, 30_000), target_lengths=np.append(corpus.target_lengths, 2)
    )
    recipe = read_recipe("small", Settings)
    assert fit_recipe(recipe, longer_corpus, 1, given_arguments) == fit_recipe(recipe, corpus, 1, given_arguments)


def test_fit_recipe_splits_an_update_also_with_a_fixed_number_of_pairs():
    """A pair of 30,000 tokens stays in such a run, but the update is split as for the recipe's longest pairs."""
    recipe = read_recipe("base", Settings)
    chosen = fit_recipe(recipe, make_corpus(longest=30_000), 1, {"per_device_train_batch_size": 64})
    assert chosen["gradient_accumulation_steps"] == 8


def test_fit_recipe_evaluates_few_pairs_at_once_if_one_is_long():
    recipe = read_recipe("small", Settings)
    corpus = make_corpus()._replace(longest_validation_sentence=1_000)
    assert fit_recipe(recipe, corpus, 1, {})["per_device_eval_batch_size"] == 4 * recipe["max_tokens"] // 1_000


def test_fit_recipe_derives_updates_from_epochs_and_tokens():
    # The sample of a corpus has 200 pairs.
    corpus = make_corpus(20_000)
    updates_of_small_batches = len(corpus.make_batches(2048, 8)) * 100
    assert planned("small", corpus, num_train_epochs=2).args.num_train_epochs == 2
    assert planned("small", corpus).args.max_steps == 9_000 < 36 * updates_of_small_batches
    assert planned("medium", corpus).args.max_steps == 7 * updates_of_small_batches
    args_with_tiny_batches = planned("medium", corpus, tokens_per_batch=1024).args
    assert args_with_tiny_batches.max_steps > 1.7 * 7 * updates_of_small_batches
    small_corpus = make_corpus(10_000)
    assert planned("small", small_corpus).args.max_steps == 36 * len(small_corpus.make_batches(2048, 8)) * 50
    assert planned("small", corpus, processes=2).args.tokens_per_batch == 1024
    # The update of the paper, in eight batches or in eight processes.
    assert planned("base", corpus).args.gradient_accumulation_steps == 8
    args_of_eight_processes = planned("base", corpus, processes=8).args
    assert args_of_eight_processes.gradient_accumulation_steps == 1
    assert args_of_eight_processes.tokens_per_batch == 3125


@pytest.mark.parametrize(
    ("processes", "accumulation_steps", "updates"), [(1, 1, 25), (2, 1, 13), (4, 1, 7), (2, 2, 7), (4, 3, 3)]
)
def test_count_updates_per_epoch_divides_batches_among_processes(processes, accumulation_steps, updates):
    """Of 200 pairs in batches of 8, each process has a share of the 25 batches, as in a distributed sampler."""
    arguments = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": accumulation_steps}
    assert count_updates_per_epoch(make_corpus(200), arguments, processes) == updates


def test_fit_recipe_prefers_given_updates_to_epochs():
    """The Trainer does the same."""
    given_arguments = {"num_train_epochs": 2, "max_steps": 100}
    chosen_arguments = fit_recipe(read_recipe("small", Settings), make_corpus(20_000), 1, given_arguments)
    assert chosen_arguments["warmup_steps"] == 10
    assert chosen_arguments["logging_steps"] == 1
    assert chosen_arguments["eval_steps"] == 10
    assert chosen_arguments["save_steps"] == 2
    assert "max_steps" not in chosen_arguments


@pytest.mark.parametrize(
    ("strategy", "steps", "text"),
    [
        ("no", 500, "never"),
        ("epoch", 500, "every epoch"),
        ("best", 500, "whenever an evaluation is the best so far"),
        ("steps", 1, "every update"),
        ("steps", 1500, "every 1,500 updates"),
    ],
)
def test_describe_frequency(strategy, steps, text):
    assert _describe_frequency(strategy, steps) == text


def test_plan_explains_a_killed_trial(monkeypatch):
    """The system kills a trial if the memory is full. What the trial wrote before is not the reason."""
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


def test_run_trial_begins_with_the_largest_batches(tmp_path, monkeypatch):
    """The batch of the longest pairs and the batch of most tokens come first, because a trial may end early."""
    short_sentence, sentence, long_sentence = "one", "one hundred and one", "one " * 15
    texts = [short_sentence] * 8 * 70 + [sentence] * 8 * 2 + [long_sentence] * 2
    pairs = DatasetDict(train=Dataset.from_dict({"source": texts, "target": texts}))
    jobs = []

    def record_job(command, **options):
        folder = Path(command[-1])
        jobs.append(json.loads((folder / "job.json").read_text()))
        result = trial_run.TrialResult(1e-6, 0, 0, 1)
        (folder / "result.json").write_text(json.dumps(asdict(result)))
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", record_job)
    monkeypatch.setattr(trial_run, "_UPDATES", 2)
    plan(pairs, chooses=False, max_steps=1, per_device_train_batch_size=8, **{**SMALL, "d_model": 16})
    (job,) = jobs
    batches = [[len(row["input_ids"]) + len(row["labels"]) for row in batch] for batch in job["batches"]]
    tokenizer = train_tokenizer(texts + texts, vocab_size=300, show_progress=False)
    longest_length = 2 * len(tokenizer(long_sentence).input_ids)
    largest_length = 2 * len(tokenizer(sentence).input_ids)
    assert [max(lengths) for lengths in batches] == [longest_length, largest_length]
    assert len(batches[0]) == 2
    # The second batch has more tokens than the first one.
    assert 2 * longest_length < 8 * largest_length


def test_run_trial_translates_as_the_run_does(monkeypatch):
    """Greedily as during training, with the beams of the run, and the pairs that need most memory."""
    generate = VanillaTransformerForConditionalGeneration.generate
    searches = []

    def record_search(model, input_ids, **options):
        translations = generate(model, input_ids, **options)
        # The decoder's start token is not generated.
        searches.append((options.get("num_beams"), len(input_ids), translations.shape[1] - 1 - input_ids.shape[1]))
        return translations

    def run_in_this_process(command, **options):
        folder = Path(command[-1])
        job = json.loads((folder / "job.json").read_text())
        result = trial_run._run_job(job, str(folder))
        (folder / "result.json").write_text(json.dumps(asdict(result)))
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(VanillaTransformerForConditionalGeneration, "generate", record_search)
    monkeypatch.setattr(trial_run, "keep_freed_memory", lambda: False)
    monkeypatch.setattr(trial_run, "limit_onednn_cache", lambda: None)
    monkeypatch.setattr(subprocess, "run", run_in_this_process)
    arguments = {**SMALL, "chooses": False, "max_steps": 1, "per_device_eval_batch_size": 4, "num_beams": 3}
    plan(numbers(), predict_with_generate=True, generation_num_beams=1, **arguments)
    # All translations are as long as the longest source.
    assert searches == [(1, 4, 0), (3, 4, 0), (1, 4, 0)]

    # Without `predict_with_generate`, evaluations during training compute only the loss.
    searches.clear()
    plan(numbers(), predict_with_generate=False, **arguments)
    assert [search[:2] for search in searches] == [(3, 4), (None, 4)]


def test_fit_recipe_lowers_the_dropout_for_few_epochs():
    captions, software = make_corpus(longest=20), make_corpus(longest=60)
    assert planned("small", captions).model.dropout == 0.2
    assert planned("small", software).args.max_steps == planned("small", captions).args.max_steps
    assert planned("small", software).model.dropout == 0.1
    assert planned("small", software, dropout=0.3).model.dropout == 0.3
    assert planned("tiny", captions, num_train_epochs=5).model.dropout == 0.1
    assert planned("base", software).model.dropout == 0.1
    # The sources of a student occur twice in an epoch.
    assert planned("small", make_corpus()).model.dropout == 0.1
    student_arguments = fit_recipe(read_recipe("small", Settings), make_corpus(), 1, {}, targets_per_source=2)
    assert student_arguments["dropout"] == 0.2


def test_estimate_costs_counts_checkpoints_of_epochs():
    arguments = {**SMALL, "tflops": 1, "chooses": False, "num_train_epochs": 4}
    disk_without_checkpoints = plan(numbers(), save_strategy="no", **arguments).costs.disk
    disk = plan(numbers(), save_strategy="epoch", **arguments).costs.disk
    assert disk == disk_without_checkpoints * (1 + 3 * 4)


def test_estimate_costs_computes_the_time_of_an_h100(tokenizer):
    """Base made 265,618 target tokens/s in the Trainer on a GPU of 989 TFLOP/s (gpu_candidates.md)."""
    lengths = np.full(20_000, 25)
    corpus = Corpus(4_500_000, 0, 0, lengths, lengths)
    planned_settings = planned("base", corpus, config_overrides={"vocab_size": 37_000})
    measured_pairs = MeasuredPairs(corpus, tokenizer, DatasetDict())
    costs = estimate_costs(planned_settings, 100_000, measured_pairs, 989)
    assert costs.seconds == pytest.approx(100_000 * 25_000 / 265_618, rel=0.05)
    assert costs.tokens == 4_500_000 * 25
    assert costs.parameters == pytest.approx(63e6, rel=0.01)


def test_estimate_costs_counts_the_tokens_of_validation_pairs(tokenizer, monkeypatch):
    """Two of ten evaluations translate up to the limit of 50 tokens more than the source, eight up to the target.

    Both take as long as for the longest pair in a batch. Beam search after the training has hardly any padding.
    """
    lengths = np.full(1_000, 5)
    corpus = Corpus(1_000, 20, 0, lengths, lengths)
    sources = [[1] * 30] + [[1] * 7] * 19
    targets = [[1] * 40] + [[1] * 8] * 19
    validation_pairs = Dataset.from_dict({"input_ids": sources, "labels": targets})
    measured_pairs = MeasuredPairs(corpus, tokenizer, DatasetDict(validation=validation_pairs))
    # All 20 pairs are in one batch.
    arguments = {"output_dir": "x", "max_steps": 100, "eval_strategy": "steps", "eval_steps": 10}
    arguments["per_device_eval_batch_size"] = 32
    seconds = []
    for seconds_per_token in (0, 0.01):
        trial = trial_run.TrialResult(1e-6, seconds_per_token, seconds_per_token, 1)
        monkeypatch.setattr(cost_estimate, "run_trial", lambda *_, trial=trial: trial)
        run_settings = Settings.from_arguments(**arguments, average_last=2)
        seconds.append(estimate_costs(run_settings, 100, measured_pairs, None).seconds)
    # The average and the last checkpoint translate the pairs once more.
    tokens = 20 * (2 * (30 + 50) + 8 * 40) + 2 * (40 + 19 * 8)
    assert seconds[1] - seconds[0] == pytest.approx(0.01 * tokens)


def test_lines_of_a_plan_are_reasons_and_costs():
    lines = plan.__globals__["Plan"]({}, ["why"], Costs(1_234, 5_678, 9_000, 5_400, 2 * 10**9, 10**8)).lines()
    assert lines[0] == "why"
    assert lines[1:] == [
        *("parameters: 1,234", "target tokens: 5,678 in an epoch", "updates: 9,000", "time: 1.5 hours"),
        *("memory: 2.0 GB", "disk: 100 MB"),
    ]


def test_plan_estimates_costs_without_pairs_that_are_too_long(monkeypatch):
    """The pair that is too long comes first, so that wrong indices of the remaining pairs would be noticed."""
    long_pair = {"source": "four " * 400, "target": "4 " * 400}
    pairs = numbers()
    train_pairs = [long_pair, *pairs["train"].to_list()]
    estimated_pairs = []

    def record_estimate(settings, updates, measured_pairs, tflops):
        estimated_pairs.append(measured_pairs)
        return Costs(1, 1, 1, 1.0, 1, 1)

    monkeypatch.setitem(plan.__globals__, "estimate_costs", record_estimate)
    plan(DatasetDict({**pairs, "train": Dataset.from_list(train_pairs)}), max_tokens=300)
    (measured_pairs,) = estimated_pairs
    corpus = measured_pairs.corpus
    tokenized_pairs = measured_pairs.tokenized_sample["train"]
    assert len(corpus.source_lengths) == len(pairs["train"])
    assert [len(tokens) for tokens in tokenized_pairs["input_ids"]] == corpus.source_lengths.tolist()
    assert [len(tokens) for tokens in tokenized_pairs["labels"]] == corpus.target_lengths.tolist()


@pytest.fixture
def without_trial(monkeypatch):
    """Replace the trial, which measures the costs of a plan."""
    monkeypatch.setitem(plan.__globals__, "estimate_costs", lambda *_: Costs(1, 1, 1, 1.0, 1, 1))


@pytest.mark.usefixtures("without_trial")
def test_plan_is_not_changed_by_long_lines():
    """The run removes pages and an encoded file, so of the plan's lines only the one about that differs."""
    pairs = numbers(200)
    page = {"source": "nine thousand one " * 200, "target": "neuf mille un " * 200}
    encoded_file = {"source": "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo=" * 5000, "target": "Cg==" * 2000}
    pages = [{**page, "source": page["source"] + str(number)} for number in range(3)]
    dirty_pairs = DatasetDict({**pairs, "train": Dataset.from_list([*pairs["train"].to_list(), encoded_file])})
    plan_of_pairs = plan(pairs)
    assert plan(dirty_pairs).arguments == plan_of_pairs.arguments

    # Pages within 4,192 bytes take part in a tokenizer's training, so an existing tokenizer is used here.
    tokenizer_arguments = {"tokenizer_name": str(FIXTURE), "max_tokens": 200}
    dirty_pairs["train"] = Dataset.from_list([*pairs["train"].to_list(), *pages])
    clean_plan = plan(pairs, **tokenizer_arguments)
    dirty_plan = plan(dirty_pairs, **tokenizer_arguments)
    assert dirty_plan.arguments == clean_plan.arguments
    (removed,) = set(dirty_plan.reasons) - set(clean_plan.reasons)
    assert removed == "removed: about 3 pairs of more than 200 tokens on a side"


@pytest.mark.usefixtures("without_trial")
@pytest.mark.parametrize(
    ("letters", "expected"),
    [
        # SentencePiece needs a token for each character, each byte, the space, and three special tokens.
        pytest.param(range(0x4E00, 0x4E00 + 900), 900 + 256 + 4, id="Chinese"),
        pytest.param(range(0x61, 0x7B), 300, id="English"),
    ],
)
def test_plan_chooses_a_vocabulary_that_sentencepiece_can_learn(letters, expected):
    pytest.importorskip("sentencepiece")
    characters = [chr(letter) for letter in letters]
    rng = random.Random(0)
    rng.shuffle(characters)
    # All sentences together have every character.
    sentences = ["".join(rng.choices(characters, k=5) + characters[row::180]) for row in range(180)]
    pairs = Dataset.from_dict({"source": sentences, "target": sentences[::-1]})
    vocab_size = plan(DatasetDict(train=pairs), tokenizer_type="sentencepiece").arguments["vocab_size"]
    assert vocab_size == expected


def test_run_trial_does_not_count_the_memory_of_its_parent(tmp_path):
    """The trial's peak is of the child process, also if the process that plans has a much larger one."""
    peaks = []
    for megabytes in (1, 1500):
        script = textwrap.dedent(f"""
            import sys, numpy as np
            from hf_vanilla_transformer import load_pairs, plan
            ballast = np.ones({megabytes} * 2**20, np.uint8)
            pairs = load_pairs("numbers", max_digits=3, train_size=60)
            print(plan(pairs, **{SMALL}, max_steps=2, tokens_per_batch=64).costs.memory)
        """)
        run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        peaks.append(int(run.stdout.split()[-1]))
    assert peaks[1] < 1.2 * peaks[0]


def test_plan_agrees_with_its_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    pairs = numbers()
    arguments = {**SMALL, "num_train_epochs": 2, "tokens_per_batch": 64, "max_new_tokens": 12}
    torch_state, python_state, numpy_state = torch.random.get_rng_state(), random.getstate(), np.random.get_state()
    run_trial = cost_estimate.run_trial
    trials = []

    def record_trial(*args):
        trials.append(run_trial(*args))
        return trials[-1]

    monkeypatch.setattr(cost_estimate, "run_trial", record_trial)
    chosen = plan(pairs, **arguments)
    assert torch.equal(torch.random.get_rng_state(), torch_state)
    assert random.getstate() == python_state
    assert np.array_equal(np.random.get_state()[1], numpy_state[1])
    assert list(tmp_path.iterdir()) == []
    assert not chosen.arguments.keys() & arguments.keys()
    assert chosen.costs.seconds > 0
    (trial,) = trials
    assert trial.peak_memory > 50_000_000
    if not torch.cuda.is_available():
        assert chosen.costs.memory == pytest.approx(1.3 * trial.peak_memory)

    for split in ("train", "validation"):
        pairs[split].to_json(f"{split}.jsonl")
        arguments[f"{split}_file"] = f"{split}.jsonl"
    Path("plan.yaml").write_text(yaml.safe_dump({**chosen.arguments, **arguments, "max_tokens": 64}))
    folder = train(config="plan.yaml", output_dir="run", bleu_tokenize="char", disable_tqdm=True)
    state = json.loads(next(folder.glob("checkpoint-*/trainer_state.json")).read_text())
    assert chosen.costs.updates == state["max_steps"]
    assert chosen.costs.parameters == AutoModelForSeq2SeqLM.from_pretrained(folder).num_parameters()
    targets = AutoTokenizer.from_pretrained(folder)(pairs["train"]["target"][:]).input_ids
    assert chosen.costs.tokens == sum(map(len, targets))
    written_bytes = sum(path.stat().st_size for path in folder.rglob("*.safetensors"))
    assert written_bytes < chosen.costs.disk < 20 * written_bytes


def test_train_accepts_a_recipe_with_fractions_as_steps(tmp_path):
    arguments = {"dataset_name": "numbers", "train_size": 60, "max_digits": 3, "eval_strategy": "no", "max_steps": 20}
    arguments |= {"bleu_tokenize": "char", "max_new_tokens": 5, "keep_better": False, "choose_search": False, **SMALL}
    folder = train(config="tiny", output_dir=tmp_path / "run", **arguments)
    assert len(list(folder.glob("checkpoint-*"))) == 11


def few(count: int, text: str = "one") -> DatasetDict:
    return DatasetDict(train=Dataset.from_dict({"source": [text] * count, "target": [text] * count}))


def test_plan_of_a_student_counts_its_sources():
    """Each source occurs twice, with its own target and with the teacher's, unless `distilled_only` is set."""
    pairs = few(12_000)
    options = {"teacher": ["runs/teacher"], "tflops": 100, "output_dir": "runs/x"}
    lines = plan(pairs, **options).lines()
    assert any("recipe tiny" in line for line in lines)
    assert not any("needs a GPU" in line for line in lines)
    assert any("recipe small" in line for line in plan(pairs, distilled_only=True, **options).lines())


@pytest.mark.parametrize(
    ("pairs", "changes", "message"),
    [
        (few(9), {}, r"\b9 training pairs.*\b10\b"),
        (few(20), {"model_name_or_path": "runs/mine"}, "new model.*learning_rate"),
        (few(20), {"tflops": 0}, r"tflops is 0\b"),
        (few(20), {"max_tokens": 1}, r"\b1 tokens.*max_tokens"),
        (few(20), {"attn_implementation": "nope", **SMALL}, "trial.*nope.*tokens_per_batch"),
    ],
)
def test_plan_rejects_what_it_cannot_plan(pairs, changes, message):
    with pytest.raises(UserError, match=message):
        plan(pairs, **changes)


def test_plan_of_costs_leaves_out_pairs_longer_than_a_batch():
    arguments = {**SMALL, "tflops": 100, "chooses": False, "num_train_epochs": 1}
    plan_of_small_batches = plan(numbers(), tokens_per_batch=8, **arguments)
    plan_of_large_batches = plan(numbers(), tokens_per_batch=90, **arguments)
    assert plan_of_small_batches.arguments == {}
    assert 0 < plan_of_small_batches.costs.tokens < plan_of_large_batches.costs.tokens
