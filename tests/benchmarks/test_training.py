"""benchmarks/training.py compares equal models and computes its figures correctly. No test asserts a time."""

import json
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import wraps
from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import training
from benchmarks.support import (
    flops,
    timing,
    trainer_overhead,
    training_implementations,
    training_profile,
    training_report,
    training_steps,
)
from benchmarks.support.equivalence import check_same_model
from benchmarks.support.flops import batch_flops, model_flops
from benchmarks.support.random_batches import SHORTEST, equal_batch, padded_batch, target_tokens
from benchmarks.support.run_modes import run_modes
from benchmarks.support.timing import Clock
from benchmarks.support.trainer_overhead import Overhead, time_overhead
from benchmarks.support.training_corpus import corpus_batches, read_corpus
from benchmarks.support.training_implementations import Implementation
from benchmarks.support.training_profile import PARTS, part_of, profile_steps
from benchmarks.support.training_steps import StepTimes
from hf_vanilla_transformer import (
    TokenBudgetBatchSampler,
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
)
from hf_vanilla_transformer.training import trainer_callbacks
from tests.invariants.killed import forked


pytestmark = pytest.mark.slow

SMALLEST = training.SIZES["smallest"]
PEERS = [name for name in training_implementations.MODELS if name != "x-transformers"]


@pytest.fixture(scope="module")
def corpus():
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MULTI30K_DIR", raising=False)
        return read_corpus()


@pytest.fixture(scope="module")
def batch(corpus):
    """One whose targets have padding."""
    return next(batch for batch in corpus_batches(corpus, 300, 50) if (batch["labels"] == -100).any())


def record_logits(monkeypatch):
    """Record whether the outputs of each call of the model have logits."""
    had_logits = []
    forward = VanillaTransformerForConditionalGeneration.forward

    # The signature of the method tells the Trainer that the model can skip logits.
    @wraps(forward)
    def record(*args, **kwargs):
        outputs = forward(*args, **kwargs)
        had_logits.append(outputs.logits is not None)
        return outputs

    monkeypatch.setattr(VanillaTransformerForConditionalGeneration, "forward", record)
    return had_logits


@pytest.mark.parametrize(("name", "has_logits"), [("ours", False), ("ours-eager", False), ("ours-logits", True)])
def test_our_steps_compute_logits_on_request_only(batch, monkeypatch, name, has_logits):
    had_logits = record_logits(monkeypatch)
    implementation = Implementation(name, "fp32")
    implementation.step(implementation.build(SMALLEST.config(), torch.device("cpu")), batch)
    assert had_logits == [has_logits]


def test_neither_loop_of_the_trainer_s_overhead_computes_logits(corpus, monkeypatch):
    had_logits = record_logits(monkeypatch)
    overhead = Overhead(SMALLEST.config(), corpus, 300, 1, False, torch.device("cpu"))
    for way in overhead.ways.values():
        way(0)
    assert had_logits == [False] * len(overhead.ways) * (trainer_overhead.WARM_UP_STEPS + 1)


def test_steps_of_every_implementation_are_reported(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("MULTI30K_DIR", raising=False)
    # A process per implementation takes too long here; a test below starts one.
    monkeypatch.setattr(training, "peak_memory_of_steps", lambda *arguments: [1.0, 2.0])
    monkeypatch.setattr(timing, "PROBE_WIDTHS", {"cpu": 8})
    output = tmp_path / "figures.json"
    training.main(
        ["steps", "--sizes", "smallest", "--implementations", *PEERS, "--repeats", "0", "--output", str(output)]
    )
    size = json.loads(output.read_text())["steps"]["sizes"]["smallest"]
    names = [entry["name"] for entry in size["entries"]]
    assert names == [f"{peer}-{precision}" for peer in PEERS for precision in ("fp32", "fp32-medium", "bf16")]
    printed = capsys.readouterr().out
    for entry in size["entries"]:
        assert f"| {entry['name']} " in printed
        assert entry["peak_megabytes"] == 2
        assert entry["name"].endswith(f"-{entry['arithmetic']}")
        assert len(entry["seconds"]) == SMALLEST.rounds
        reference = next(entry for entry in size["entries"] if entry["name"] == "marian-eager-bf16")
        ratios = [theirs / own for theirs, own in zip(reference["seconds"], entry["seconds"], strict=True)]
        assert entry["times"]["marian-eager-bf16"]["rounds"] == pytest.approx(ratios)
    losses = size["same_weights"]["loss"]
    assert set(losses) == {"ours", "marian-sdpa", "marian-eager", "torch-nn"}
    assert max(losses.values()) == pytest.approx(min(losses.values()), rel=1e-5)
    assert {path.name for path in tmp_path.iterdir()} == {"figures.json", "figures.md"}
    tables = output.with_suffix(".md").read_text(encoding="utf-8")
    assert tables.startswith("# benchmarks.training\n\nGenerated from figures.json by ")
    assert tables.endswith(f"\n\n{printed}")


def test_the_same_weights_give_the_same_loss_and_gradient(batch):
    figures = check_same_model(SMALLEST.config(d_model=32, d_ff=48, encoder_layers=2, decoder_layers=3), batch)
    norms = list(figures["gradient_norm"].values())
    assert len(norms) == 4
    assert norms == pytest.approx([norms[0]] * 4, rel=1e-5)
    assert (batch["labels"] == -100).any()


@pytest.mark.parametrize("name", ["marian-sdpa", "torch-nn"])
def test_a_different_model_raises(batch, name, monkeypatch):
    build = training_implementations.MODELS[name]

    def with_another_epsilon(config):
        model = build(config)
        for module in model.modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.eps = 1e-2
        return model

    monkeypatch.setitem(training_implementations.MODELS, name, with_another_epsilon)
    with pytest.raises(ValueError, match=f"with the same weights the loss of {name} is"):
        check_same_model(SMALLEST.config(), batch, [name])


@pytest.mark.parametrize(("name", "last_module"), [("hyunwoongko", "lm_head"), ("tunz", "decoder_norm")])
def test_reimplemented_peers_learn_and_are_causal(name, last_module, batch):
    model = Implementation(name, "fp32").build(SMALLEST.config(dropout=0.0), torch.device("cpu")).model
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(20):
        losses.append(model(**batch))
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < losses[0] - 1
    outputs = []
    getattr(model, last_module).register_forward_hook(lambda module, inputs, output: outputs.append(output))
    changed = batch["labels"].clone()
    changed[:, 2] += 1
    for labels in (batch["labels"], changed):
        model(**{**batch, "labels": labels})
    # The decoder reads the token at position 2 at position 3, not before.
    torch.testing.assert_close(outputs[0][:, :3], outputs[1][:, :3])
    assert (outputs[0][:, 3] - outputs[1][:, 3]).abs().max() > 1e-3


@pytest.mark.parametrize(("precision", "exact"), [("fp32", True), ("bf16", False)])
def test_steps_update_the_weights_for_the_next_step(precision, exact, batch):
    implementation = Implementation("torch-nn", precision)
    state = implementation.build(SMALLEST.config(dropout=0.0), torch.device("cpu"))
    state.optimizer.param_groups[0]["lr"] = 1e-2
    losses = [float(implementation.step(state, batch)) for _ in range(10)]
    assert losses[-1] < losses[0] - 0.5
    untrained = Implementation("torch-nn", "fp32").build(SMALLEST.config(dropout=0.0), torch.device("cpu")).model
    expected = float(untrained(**batch).detach())
    assert (losses[0] == expected) == exact
    assert losses[0] == pytest.approx(expected, rel=1e-2)


def test_speedups_and_medians():
    work = {"tokens": [100, 100, 100], "flops": [6e12, 8e12, 8e12]}
    ours = StepTimes(Implementation("ours", "fp32"), 1.0, seconds=[1.0, 2.0, 4.0], **work)
    theirs = StepTimes(Implementation("tunz", "fp32"), 1.0, seconds=[2.0, 8.0, 4.0], **work)
    peaks = {"ours-fp32": [9.0, 10.0], "tunz-fp32": [11.0]}
    figures = training.compare([ours, theirs], peaks, ["tunz-fp32"], 8e12)
    assert figures[0]["times"]["tunz-fp32"] == {"median": 2.0, "rounds": [2.0, 4.0, 1.0]}
    assert figures[1]["times"]["tunz-fp32"]["rounds"] == [1.0, 1.0, 1.0]
    assert figures[0]["tokens_per_second"] == 50
    assert figures[0]["tflops_per_second"] == 4
    assert figures[0]["utilisation"] == 0.5
    assert [entry["peak_megabytes"] for entry in figures] == [10, 11]


def test_an_implementation_that_runs_out_of_memory_is_left_out(tmp_path, monkeypatch, capsys):
    """In its first step, in a later one, or in the process that measures its memory; the others continue."""
    monkeypatch.delenv("MULTI30K_DIR", raising=False)
    monkeypatch.setattr(timing, "PROBE_WIDTHS", {"cpu": 8})
    fails, step, steps = {"tunz-fp32": 1, "hyunwoongko-fp32": 3}, Implementation.step, []

    def step_or_fail(implementation, *args):
        steps.append(implementation.name)
        if steps.count(implementation.name) == fails.get(implementation.name):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.70 GiB.\nMore of it")
        return step(implementation, *args)

    def peak_or_fail(implementation, *args):
        if implementation.name == "torch-nn-fp32":
            raise ChildProcessError("its process did not finish; perhaps memory ran out.")
        return [1.0]

    monkeypatch.setattr(Implementation, "step", step_or_fail)
    monkeypatch.setattr(training, "peak_memory_of_steps", peak_or_fail)
    output = tmp_path / "figures.json"
    other_names = ["tunz-fp32", "hyunwoongko-fp32", "torch-nn-fp32"]
    entries = ["--implementations", "ours-fp32", "marian-eager-fp32", *other_names, "--baselines", "torch-nn-fp32"]
    training.main(["steps", "--sizes", "smallest", *entries, "--repeats", "0", "--output", str(output)])
    size = json.loads(output.read_text())["steps"]["sizes"]["smallest"]
    assert [entry["name"] for entry in size["entries"]] == ["ours-fp32", "marian-eager-fp32"]
    assert [len(entry["seconds"]) for entry in size["entries"]] == [SMALLEST.rounds] * 2
    assert set(size["left_out"]) == set(other_names)
    printed = capsys.readouterr().out
    for name in fails:
        assert f"{name} is left out: CUDA out of memory. Tried to allocate 3.70 GiB.\n" in printed
    assert "torch-nn-fp32 is left out: its process did not finish; perhaps memory ran out.\n" in printed
    assert "More of it" not in printed
    assert not any(f"| {name} " in printed for name in other_names)
    entries = ["--implementations", "ours-fp32", "torch-nn-fp32", "--memory_batches", "1"]
    training.main(["memory", "--sizes", "smallest", *entries, "--output", str(output)])
    size = json.loads(output.read_text())["memory"]["sizes"]["smallest"]
    assert (size["peaks"], list(size["left_out"])) == ({"ours-fp32": [1.0]}, ["torch-nn-fp32"])
    assert "by number of batches\n\ntorch-nn-fp32 is left out: its process" in capsys.readouterr().out


def test_an_implementation_that_is_left_out_at_some_points(tmp_path):
    points = [
        {"value": value, "entries": [{"name": name, "tokens_per_second": 7.0, "peak_megabytes": 9.0} for name in names]}
        for value, names in ((16, ["ours-fp32", "tunz-fp32"]), (1024, ["ours-fp32"]))
    ]
    points[1]["left_out"] = {"tunz-fp32": "too large."}
    noise = {"measurements": 3, "made_again": 0, "slow": 0}
    section = {"sizes": {"tiny": {"axes": {"length": points}, "noise": noise}}}
    _, heading, table = training_report._scaling(section)
    assert heading.endswith("\n\ntunz-fp32 is left out at 1,024: too large.")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    assert rows[2:] == [["16", "7", "9", "7", "9"], ["1,024", "7", "9", "", ""]]
    pytest.importorskip("matplotlib")
    (path,) = training_report.plot({"scaling": section}, tmp_path)
    assert path.read_text().startswith("<?xml")


def test_figures_are_written_after_each_size(tmp_path):
    output = tmp_path / "figures.json"

    def measure():
        yield {"sizes": ["tiny"]}
        assert json.loads(output.read_text()) == {"steps": {"sizes": ["tiny"]}}
        yield {"sizes": ["tiny", "base"]}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_modes("training", [], {"steps": measure}, str(output), None, training_report.tables, training_report.plot)
    assert json.loads(output.read_text()) == {"steps": {"sizes": ["tiny", "base"]}}


def test_each_epoch_has_a_new_order(corpus):
    count = len(TokenBudgetBatchSampler(corpus.data, 2048))
    batches = corpus_batches(corpus, 2048, 2 * count)
    epochs = [[batch["input_ids"].tolist() for batch in part] for part in (batches[:count], batches[count:])]
    assert epochs[0] != epochs[1]
    assert [sum(map(len, epoch)) for epoch in epochs] == [len(corpus.data)] * 2


def test_measurements_on_a_slow_machine_are_repeated(monkeypatch):
    clock = Clock(torch.device("cpu"), repeats=2)
    clock.best = 1.0
    probes = iter([1.0, 1.3, 1.0, 1.1])
    monkeypatch.setattr(clock, "probe", lambda: next(probes))
    seconds = iter([9.0, 5.0])
    assert clock.measure(lambda: next(seconds)) == 5
    assert clock.noise() == {"measurements": 1, "made_again": 1, "slow": 0}
    probes = iter([1.6, 1.6, 1.2, 1.2, 1.4, 1.4])
    seconds = iter([9.0, 5.0, 7.0])
    assert clock.measure(lambda: next(seconds)) == 5
    assert clock.noise() == {"measurements": 2, "made_again": 2, "slow": 1}
    probes = iter([1.0, 1.0])
    assert clock.measure(lambda: 8.0) == 8
    assert clock.noise() == {"measurements": 3, "made_again": 2, "slow": 1}


def test_model_flops_are_those_of_its_matmuls():
    config = VanillaTransformerConfig(
        vocab_size=70, d_model=16, d_ff=24, num_heads=2, encoder_layers=2, decoder_layers=3
    )
    batch = equal_batch(5, 20, config.vocab_size)
    batch["labels"] = batch["labels"][:, :4]
    training_state = Implementation("marian-eager", "fp32").build(config, torch.device("cpu"))
    with FlopCounterMode(display=False) as counter:
        training_state.model(**batch)
    # The backward pass has twice the FLOPs of the forward pass; the batch has 4 pairs.
    assert 4 * model_flops(config, 5, 4) == 3 * counter.get_total_flops()
    assert batch_flops(config, batch) == 4 * model_flops(config, 5, 4)


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 NVL", 835e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA T4", None),
    ],
)
def test_peak_flops_match_the_longest_name_of_a_gpu(name, peak, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: name)
    assert flops.peak_flops(torch.device("cuda"), None) == peak
    assert flops.peak_flops(torch.device("cuda"), 5) == 5e12
    assert flops.peak_flops(torch.device("cpu"), None) is None


def test_peak_memory_is_that_of_a_fresh_process(batch, monkeypatch):
    # A test worker has one forkserver, and tests/invariants/killed.py needs its own preload.
    monkeypatch.setattr(forked, "set_forkserver_preload", lambda names: None)
    ballast = torch.ones(300_000_000)
    peaks = training_steps.peak_memory_of_steps(
        Implementation("ours", "fp32"), SMALLEST.config(), [batch, batch], torch.device("cpu")
    )
    assert len(peaks) == 2
    assert 50 < peaks[0] <= peaks[1] < ballast.nbytes / 1e6


def test_the_fresh_process_keeps_freed_memory(batch, monkeypatch):
    calls, sent = [], []
    monkeypatch.setattr(training_steps, "keep_freed_memory", lambda: calls.append("kept"))
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: calls.append(threads))
    plain = {name: tensor.tolist() for name, tensor in batch.items()}
    sender = SimpleNamespace(send=sent.append)
    training_steps._send_peaks(sender, Implementation("ours", "fp32"), SMALLEST.config().to_dict(), [plain], "cpu", 7)
    assert calls == [7, "kept"]
    assert len(sent[0]) == 1


def test_a_process_that_ends_early_raises(batch):
    device = torch.device("cpu")
    with pytest.raises(ChildProcessError, match="did not finish"):
        training_steps.peak_memory_of_steps(Implementation("unknown", "fp32"), SMALLEST.config(), [batch], device)


def test_rounds_sum_the_tokens_and_flops_of_their_batches(corpus, batch, monkeypatch):
    monkeypatch.setattr(timing, "PROBE_WIDTHS", {"cpu": 8})
    rounds = [[batch], corpus_batches(corpus, 100, 2)]
    clock, names = Clock(torch.device("cpu"), repeats=0), []
    (times,) = training_steps.time_steps(
        [Implementation("ours", "fp32")], SMALLEST.config(), rounds, clock, names.append, {}
    )
    assert times.tokens == [sum(map(target_tokens, batches)) for batches in rounds]
    assert times.flops == [sum(batch_flops(SMALLEST.config(), batch) for batch in part) for part in rounds]
    assert names == ["ours-fp32, first step", "ours-fp32, round 1", "ours-fp32, round 2"]


@pytest.mark.parametrize(("device", "untimed"), [("cpu", "a"), ("cuda", "aabc")])
def test_gpus_take_a_step_of_each_shape_before_timing(device, untimed, monkeypatch):
    done = []
    monkeypatch.setattr(training_steps, "_on", lambda device, batch: batch)
    monkeypatch.setattr(training_steps, "target_tokens", lambda batch: 1)
    monkeypatch.setattr(training_steps, "batch_flops", lambda config, batch: 1)
    monkeypatch.setattr(Implementation, "build", lambda *args: "model")
    monkeypatch.setattr(Implementation, "step", lambda implementation, training, batch: done.append(batch) or 1.0)

    class Stopped:
        def __init__(self):
            self.device = torch.device(device)

        def measure(self, timed):
            done.append("|")
            return timed()

        def time(self, work):
            work()
            return 1.0

    rounds = [["a", "b"], ["c"]]
    training_steps.time_steps([Implementation("ours", "fp32")], None, rounds, Stopped(), lambda name: None, {})
    assert "".join(done) == f"{untimed}|ab|c"


@pytest.mark.parametrize(
    ("part", "names"),
    [
        ("matmuls", ["aten::addmm", "aten::bmm", "AddmmBackward0", "mkldnn::_linear_pointwise", "_LinearBackward"]),
        ("loss", ["_SmoothedCrossEntropy", "aten::cross_entropy_loss", "aten::_log_softmax", "NllLossBackward0"]),
        ("attention", ["aten::_softmax", "SoftmaxBackward0", "aten::_scaled_dot_product_flash_attention_for_cpu"]),
        ("dropout", ["_Dropout", "_DropoutBackward", "aten::native_dropout", "aten::random_", "aten::ge"]),
        ("layer norm", ["aten::native_layer_norm", "NativeLayerNormBackward0"]),
        ("Adam", ["Optimizer.step#Adam.step", "aten::_fused_adam_"]),
        ("rest", ["aten::copy_", "aten::sum", "aten::gelu", "aten::embedding", "torch::autograd::AccumulateGrad"]),
    ],
)
def test_names_of_operations_tell_their_part(part, names):
    for name in names:
        assert part_of([name]) == part
        assert part_of([name, f"autograd::engine::evaluate_function: {name}", "step"]) == part


@pytest.mark.parametrize(
    ("part", "inside_out"),
    [
        ("loss", ["aten::_softmax", "aten::softmax", "_SmoothedCrossEntropy", "step"]),
        ("matmuls", ["aten::mm", "aten::linear", "_SmoothedCrossEntropy", "step"]),
        ("matmuls", ["aten::copy_", "aten::addmm", "step"]),
        ("dropout", ["aten::mul", "_Dropout", "step"]),
        ("Adam", ["aten::copy_", "aten::_fused_adam_", "Optimizer.step#Adam.step", "step"]),
        ("rest", ["aten::mul", "step"]),
    ],
)
def test_callers_of_operations_tell_their_part(part, inside_out):
    assert part_of(inside_out) == part


def test_profiles_of_steps_are_reported(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("MULTI30K_DIR", raising=False)
    output = tmp_path / "figures.json"
    names = ["ours-fp32", "marian-eager-fp32", "ours-bf16", "marian-eager-bf16"]
    training.main(
        ["profile", "--sizes", "smallest", "--implementations", *names, "--rounds", "1", "--output", str(output)]
    )
    size = json.loads(output.read_text())["profile"]["sizes"]["smallest"]
    assert [entry["name"] for entry in size["entries"]] == names
    assert (size["steps"], size["left_out"]) == (1, {})
    printed = capsys.readouterr().out
    for entry in size["entries"]:
        shares = entry["shares"]
        assert list(shares) == [*PARTS, "rest"]
        assert sum(shares.values()) == pytest.approx(1)
        assert min(shares.values()) > 0
        line = next(line for line in printed.splitlines() if line.startswith(f"| {entry['name']} "))
        figures = [cell.strip() for cell in line.strip("|").split("|")[2:]]
        assert figures == [f"{share:.1%}" for share in shares.values()]


@pytest.mark.parametrize(("device", "other_time"), [("cpu", 10), ("cuda", 0)])
def test_shares_are_of_self_time(device, other_time, monkeypatch):
    """On a GPU shares are of kernel time, without annotations."""

    def event(name, parent, own, is_user_annotation=False):
        kernels = [SimpleNamespace(duration=own / 2)] * 2
        own_time = {"self_cpu_time_total": own, "kernels": kernels}
        return SimpleNamespace(name=name, cpu_parent=parent, is_user_annotation=is_user_annotation, **own_time)

    step = event("step", None, 10, is_user_annotation=True)
    product = event("aten::addmm", step, 60)
    events = [step, product, event("aten::copy_", product, 10), event("aten::_softmax", step, 20)]
    monkeypatch.setattr(Implementation, "build", lambda *args: None)
    monkeypatch.setattr(Implementation, "step", lambda *args: None)
    monkeypatch.setattr(training_profile, "synchronize", lambda device: None)
    profiler = SimpleNamespace(events=lambda: events)
    monkeypatch.setattr(training_profile, "profile", lambda activities: nullcontext(profiler))
    profile = profile_steps(Implementation("ours", "fp32"), SMALLEST.config(), [{}, {}], torch.device(device))
    total = 90 + other_time
    expected = {"matmuls": 70 / total, "attention": 20 / total, "rest": other_time / total}
    assert profile["shares"] == pytest.approx({**dict.fromkeys(PARTS, 0), **expected})
    assert profile["milliseconds_a_step"] == pytest.approx(total / 2 / 1000)


@pytest.mark.parametrize(("pairs", "updates"), [(1000, 2), (16, 9)], ids=["within an epoch", "in several epochs"])
def test_bare_loop_and_trainer_make_the_same_updates(corpus, pairs, updates):
    some = replace(corpus, data=corpus.data.select(range(pairs)))
    overhead = Overhead(SMALLEST.config(dropout=0.0), some, 64, updates, bf16=False, device=torch.device("cpu"))
    seconds, bare = overhead.bare(seed=1)
    trainer_seconds, trained = overhead.trainer(seed=1)
    assert seconds > 0
    assert trainer_seconds > 0
    start = overhead._model()
    for before, expected, actual in zip(start.parameters(), bare.parameters(), trained.parameters(), strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-7, rtol=0)
        assert not torch.equal(before, expected)


def test_release_memory_is_timed_with_enough_updates(corpus, monkeypatch):
    released, clock = [], SimpleNamespace(measure=lambda timed: timed())
    monkeypatch.setattr(trainer_callbacks, "release_freed_memory", lambda: released.append(True))
    monkeypatch.setattr(trainer_overhead, "ReleaseMemory", lambda: trainer_callbacks.ReleaseMemory(updates=3))
    for updates, times in ((2, 0), (4, 2)):
        overhead = Overhead(SMALLEST.config(), corpus, 64, updates, bf16=False, device=torch.device("cpu"))
        monkeypatch.setattr(overhead, "bare", lambda seed: (2.0, None))
        done = []
        figures = time_overhead(overhead, 1, clock, done.append)
        assert len(released) == times
        assert len(done) == len(overhead.ways)
        assert figures["overhead_share"] == figures["trainer_seconds"][0] / 2 - 1
        assert ("giving_back_share" in figures) == (times > 0)
    assert figures["giving_back_share"] == figures["giving_back_seconds"][0] / figures["trainer_seconds"][0] - 1
    noise = {"measurements": 3, "made_again": 0, "slow": 0}
    section = {"sizes": {"base": {"arithmetic": {"fp32": figures}, "noise": noise}}}
    _, first, second = training_report._trainer(section)
    assert "| base | fp32      | 500 " in first
    assert f"{figures['giving_back_share']:+.1%}" in second


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["stpes"], 'there is no mode "stpes"; choose among: steps'),
        (["steps", "--sizes", "huge"], 'there is no size "huge"; choose among: base'),
        (["steps", "--implementations", "fairseq"], 'there is no implementation "fairseq"; choose among: hyunwoongko'),
        (["trainer", "--implementations", "tunz"], "the mode trainer measures ours"),
        (["steps", "--baselines", "fastest"], 'there is no implementation "fastest"; choose among'),
        (["report"], "there are no figures in"),
        (["steps", "--rounds", "0"], "rounds is 0; it must be at least 1"),
    ],
)
def test_wrong_arguments_are_one_sentence(arguments, message, tmp_path):
    with pytest.raises(SystemExit) as stop:
        training.main([*arguments, "--output", str(tmp_path / "figures.json")])
    assert str(stop.value).startswith(f"error: {message}")


@contextmanager
def without_x_transformers():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_implementations, "find_spec", lambda name: None)
        yield


def test_a_missing_library_is_named():
    with without_x_transformers():
        sentence = training_implementations.missing_dependency(Implementation("x-transformers", "fp32"))
    assert sentence == "x-transformers is not installed; pip install '.[benchmarks]' adds it."
    assert training_implementations.missing_dependency(Implementation("tunz", "fp32")) is None


def test_speedup_over_the_fastest_peer():
    entries = [
        {"name": "ours-fp32", "tokens_per_second": 4.0, "seconds": [1.0, 2.0]},
        {"name": "one-fp32", "tokens_per_second": 2.0, "seconds": [2.0, 3.0]},
        {"name": "other-fp32", "tokens_per_second": 1.0, "seconds": [8.0, 9.0]},
        {"name": "ours-bf16", "tokens_per_second": 9.0, "seconds": [0.5, 0.5]},
    ]
    *_, row = training_report._speedups_over_the_fastest({"tiny": {"entries": entries}}).splitlines()
    assert [cell.strip() for cell in row.strip("|").split("|")] == ["tiny", "1.75", ""]


def test_speedup_of_ours_with_another_attention():
    seconds = {"ours-sdpa-bf16": 1.0, "marian-sdpa-bf16": 4.0, "x-transformers-bf16": 2.0, "tunz-fp32-medium": 1.5}
    entries = [
        {"name": name, "arithmetic": precision, "tokens_per_second": 1 / duration, "seconds": [duration]}
        for (name, duration), precision in zip(seconds.items(), ["bf16", "bf16", "bf16", "fp32-medium"], strict=True)
    ]
    for figures in (entries, [{**entry, "arithmetic": None} for entry in entries]):
        *_, row = training_report._speedups_over_the_fastest({"base-25k": {"entries": figures}}).splitlines()
        assert [cell.strip() for cell in row.strip("|").split("|")] == ["base-25k", "2.00"]


def test_generated_pairs_have_the_lengths_of_multi30k(corpus):
    # Lists, because a column of a Dataset is read again for each lookup.
    source, target = (corpus.data[side][:] for side in ("input_ids", "labels"))
    assert sum(map(len, source)) / len(source) == pytest.approx(15, abs=0.2)
    assert sum(map(len, target)) / len(target) == pytest.approx(15.4, abs=0.2)
    batch = corpus_batches(corpus, 2048, 1)[0]
    assert batch["labels"].numel() <= 2048
    # Every target of the batch is a complete target of the corpus.
    rows = [[token for token in row if token != -100] for row in batch["labels"].tolist()]
    assert all(row in target for row in rows)
    assert target_tokens(batch) == sum(map(len, rows))


def test_padded_batches_have_sentences_of_similar_lengths():
    batch = padded_batch(10, 205, 50, seed=0)
    lengths = {"source": batch["attention_mask"].sum(1), "target": (batch["labels"] != -100).sum(1)}
    for of_side in lengths.values():
        assert of_side.tolist() != sorted(of_side.tolist())
        assert set(of_side.tolist()) == set(range(int(SHORTEST * 10), 11))
    assert batch["input_ids"].shape == batch["labels"].shape == (20, 10)
    real = batch["attention_mask"].bool()
    assert batch["input_ids"][real].min() >= 3
    assert not batch["input_ids"][~real].any()
    assert (batch["attention_mask"].diff(dim=1) <= 0).all()
    assert target_tokens(batch) == lengths["target"].sum()
    assert not torch.equal(batch["input_ids"], padded_batch(10, 205, 50, seed=1)["input_ids"])
