"""benchmarks/training.py: what is compared is the same model, and the figures are right. No time is asserted."""

import ctypes
import json
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import training
from benchmarks.support import entries as compared
from benchmarks.support import measuring, report, same_model, trainer_overhead, training_parts
from benchmarks.support.batches import corpus_batches, equal_batch, read_corpus, target_tokens
from benchmarks.support.entries import Entry
from benchmarks.support.measuring import Clock, Timing, model_flops
from benchmarks.support.modes import run_modes
from benchmarks.support.trainer_overhead import Overhead, time_overhead
from benchmarks.support.training_parts import PARTS, part_of, parts
from hf_vanilla_transformer import TokenBudgetBatchSampler, VanillaTransformerConfig
from hf_vanilla_transformer.training import callbacks
from tests.invariants.killed import forked


SMALLEST = training.SIZES["smallest"]
PEERS = [name for name in compared.IMPLEMENTATIONS if name != "x-transformers"]


@pytest.fixture(scope="module")
def corpus():
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MULTI30K_DIR", raising=False)
        return read_corpus()


@pytest.fixture(scope="module")
def batch(corpus):
    return corpus_batches(corpus, 300, 1)[0]


def test_steps_of_every_entry_are_reported(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("MULTI30K_DIR", raising=False)
    # A process of its own for each entry takes too long here; see the test of one below.
    monkeypatch.setattr(training, "peak_memory", lambda *arguments: [1.0, 2.0])
    monkeypatch.setattr(measuring, "PROBE_WIDTHS", {"cpu": 8})
    output = tmp_path / "figures.json"
    training.main(["steps", "--sizes", "smallest", "--entries", *PEERS, "--repeats", "0", "--output", str(output)])
    size = json.loads(output.read_text())["steps"]["sizes"]["smallest"]
    names = [entry["name"] for entry in size["entries"]]
    assert names == [f"{peer}-{kind}" for peer in PEERS for kind in ("fp32", "fp32-medium", "bf16")]
    printed = capsys.readouterr().out
    for entry in size["entries"]:
        assert f"| {entry['name']} " in printed
        assert entry["peak_megabytes"] == 2
        assert entry["name"].endswith(f"-{entry['arithmetic']}")
        assert len(entry["seconds"]) == SMALLEST.rounds
        reference = next(one for one in size["entries"] if one["name"] == "marian-eager-bf16")
        ratios = [theirs / own for theirs, own in zip(reference["seconds"], entry["seconds"], strict=True)]
        assert entry["times"]["marian-eager-bf16"]["rounds"] == pytest.approx(ratios)
    losses = size["same_weights"]["loss"]
    assert set(losses) == {"ours", "marian-sdpa", "marian-eager", "torch-nn"}
    assert max(losses.values()) == pytest.approx(min(losses.values()), rel=1e-5)
    assert list(tmp_path.iterdir()) == [output]


def test_the_same_weights_give_the_same_loss_and_gradient(batch):
    figures = same_model.compare(SMALLEST.config(d_model=32, d_ff=48, encoder_layers=2, decoder_layers=3), batch)
    norms = list(figures["gradient_norm"].values())
    assert len(norms) == 4
    assert norms == pytest.approx([norms[0]] * 4, rel=1e-4)
    assert (batch["labels"] == -100).any()


@pytest.mark.parametrize("name", ["marian-sdpa", "torch-nn"])
def test_another_model_is_found_out(batch, name, monkeypatch):
    build = compared.IMPLEMENTATIONS[name]

    def with_another_norm(config):
        model = build(config)
        for module in model.modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.eps = 1e-2
        return model

    monkeypatch.setitem(compared.IMPLEMENTATIONS, name, with_another_norm)
    with pytest.raises(ValueError, match=f"with the same weights the loss of {name} is"):
        same_model.compare(SMALLEST.config(), batch, [name])


@pytest.mark.parametrize(("name", "last_module"), [("hyunwoongko", "words"), ("tunz", "decoder_norm")])
def test_structures_of_other_projects_learn_and_do_not_look_ahead(name, last_module, batch):
    model = Entry(name, "fp32").build(SMALLEST.config(dropout=0.0), torch.device("cpu")).model
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
    # The word at position 2 is read at position 3, and not before.
    torch.testing.assert_close(outputs[0][:, :3], outputs[1][:, :3])
    assert (outputs[0][:, 3] - outputs[1][:, 3]).abs().max() > 1e-3


@pytest.mark.parametrize(("kind", "exact"), [("fp32", True), ("bf16", False)])
def test_steps_update_the_weights_that_the_next_one_uses(kind, exact, batch):
    entry = Entry("torch-nn", kind)
    state = entry.build(SMALLEST.config(dropout=0.0), torch.device("cpu"))
    state.optimizer.param_groups[0]["lr"] = 1e-2
    losses = [float(entry.step(state, batch)) for _ in range(10)]
    assert losses[-1] < losses[0] - 0.5
    untrained = Entry("torch-nn", "fp32").build(SMALLEST.config(dropout=0.0), torch.device("cpu")).model
    expected = float(untrained(**batch).detach())
    assert (losses[0] == expected) == exact
    assert losses[0] == pytest.approx(expected, rel=1e-2)


def test_ratios_and_medians():
    work = {"tokens": [100, 100, 100], "flops": [6e12, 8e12, 8e12]}
    ours = Timing(Entry("ours", "fp32"), 1.0, seconds=[1.0, 2.0, 4.0], **work)
    theirs = Timing(Entry("tunz", "fp32"), 1.0, seconds=[2.0, 8.0, 4.0], **work)
    peaks = {"ours-fp32": [9.0, 10.0], "tunz-fp32": [11.0]}
    figures = training.compare_with([ours, theirs], peaks, ["tunz-fp32"], 8e12)
    assert figures[0]["times"]["tunz-fp32"] == {"median": 2.0, "rounds": [2.0, 4.0, 1.0]}
    assert figures[1]["times"]["tunz-fp32"]["rounds"] == [1.0, 1.0, 1.0]
    assert figures[0]["tokens_per_second"] == 50
    assert figures[0]["tflops_per_second"] == 4
    assert figures[0]["utilisation"] == 0.5
    assert [entry["peak_megabytes"] for entry in figures] == [10, 11]


def test_an_entry_that_runs_out_of_memory_is_left_out(tmp_path, monkeypatch, capsys):
    """In its first step, in a later one, or in the process that measures its memory; the others go on."""
    monkeypatch.delenv("MULTI30K_DIR", raising=False)
    monkeypatch.setattr(measuring, "PROBE_WIDTHS", {"cpu": 8})
    fails, step, steps = {"tunz-fp32": 1, "hyunwoongko-fp32": 3}, Entry.step, []

    def step_or_fail(entry, *args):
        steps.append(entry.name)
        if steps.count(entry.name) == fails.get(entry.name):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.70 GiB.\nMore of it")
        return step(entry, *args)

    def peak_or_fail(entry, *args):
        if entry.name == "torch-nn-fp32":
            raise ChildProcessError("its process did not finish; perhaps memory ran out.")
        return [1.0]

    monkeypatch.setattr(Entry, "step", step_or_fail)
    monkeypatch.setattr(training, "peak_memory", peak_or_fail)
    output = tmp_path / "figures.json"
    others = ["tunz-fp32", "hyunwoongko-fp32", "torch-nn-fp32"]
    entries = ["--entries", "ours-fp32", "marian-eager-fp32", *others, "--references", "torch-nn-fp32"]
    training.main(["steps", "--sizes", "smallest", *entries, "--repeats", "0", "--output", str(output)])
    size = json.loads(output.read_text())["steps"]["sizes"]["smallest"]
    assert [entry["name"] for entry in size["entries"]] == ["ours-fp32", "marian-eager-fp32"]
    assert [len(entry["seconds"]) for entry in size["entries"]] == [SMALLEST.rounds] * 2
    assert set(size["left_out"]) == set(others)
    printed = capsys.readouterr().out
    for name in fails:
        assert f"{name} is left out: CUDA out of memory. Tried to allocate 3.70 GiB.\n" in printed
    assert "torch-nn-fp32 is left out: its process did not finish; perhaps memory ran out.\n" in printed
    assert "More of it" not in printed
    assert not any(f"| {name} " in printed for name in others)
    entries = ["--entries", "ours-fp32", "torch-nn-fp32", "--memory_batches", "1"]
    training.main(["memory", "--sizes", "smallest", *entries, "--output", str(output)])
    size = json.loads(output.read_text())["memory"]["sizes"]["smallest"]
    assert (size["peaks"], list(size["left_out"])) == ({"ours-fp32": [1.0]}, ["torch-nn-fp32"])
    assert "after so many batches\n\ntorch-nn-fp32 is left out: its process" in capsys.readouterr().out


def test_an_entry_that_is_left_out_of_some_points(tmp_path):
    points = [
        {"value": value, "entries": [{"name": name, "tokens_per_second": 7.0, "peak_megabytes": 9.0} for name in names]}
        for value, names in ((16, ["ours-fp32", "tunz-fp32"]), (1024, ["ours-fp32"]))
    ]
    points[1]["left_out"] = {"tunz-fp32": "too large."}
    section = {"sizes": {"tiny": {"axes": {"length": points}}}}
    heading, table = report._scaling(section)
    assert heading.endswith("\n\ntunz-fp32 is left out at 1,024: too large.")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    assert rows[2:] == [["16", "7", "9", "7", "9"], ["1,024", "7", "9", "", ""]]
    pytest.importorskip("matplotlib")
    (path,) = report.plot({"scaling": section}, tmp_path)
    assert path.read_text().startswith("<?xml")


def test_figures_are_written_after_each_size(tmp_path):
    output = tmp_path / "figures.json"

    def measure():
        yield {"sizes": ["tiny"]}
        assert json.loads(output.read_text()) == {"steps": {"sizes": ["tiny"]}}
        yield {"sizes": ["tiny", "base"]}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_modes([], {"steps": measure}, str(output), None, report.tables, report.plot)
    assert json.loads(output.read_text()) == {"steps": {"sizes": ["tiny", "base"]}}


def test_each_epoch_has_its_own_order(corpus):
    count = len(TokenBudgetBatchSampler(corpus.data, 2048))
    batches = corpus_batches(corpus, 2048, 2 * count)
    epochs = [[batch["input_ids"].tolist() for batch in part] for part in (batches[:count], batches[count:])]
    assert epochs[0] != epochs[1]
    assert [sum(map(len, epoch)) for epoch in epochs] == [len(corpus.data)] * 2


def test_what_was_measured_on_a_slow_machine_is_measured_again(monkeypatch):
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


def test_a_number_of_threads_that_was_set_before_changes_no_measurement():
    library = ctypes.CDLL(torch._C.__file__)
    if not hasattr(library, "mkl_serv_get_dynamic"):
        pytest.skip("this torch does not show what MKL does")
    clock, found = Clock(torch.device("cpu"), repeats=1), []
    clock.best = 0.0

    def timed():
        found.append(library.mkl_serv_get_dynamic())
        torch.set_num_threads(torch.get_num_threads())
        found.append(library.mkl_serv_get_dynamic())
        return 1.0

    torch.set_num_threads(torch.get_num_threads())
    clock.measure(timed)
    assert found == [1, 0, 1, 0]


def test_model_flops_are_those_of_its_products():
    config = VanillaTransformerConfig(
        vocab_size=70, d_model=16, d_ff=24, num_heads=2, encoder_layers=2, decoder_layers=3
    )
    batch = equal_batch(5, 20, config.vocab_size)
    batch["labels"] = batch["labels"][:, :4]
    training_state = Entry("marian-eager", "fp32").build(config, torch.device("cpu"))
    with FlopCounterMode(display=False) as counter:
        training_state.model(**batch)
    # A step is a forward pass and a backward one of twice as many, of each of the 4 pairs.
    assert 4 * model_flops(config, 5, 4) == 3 * counter.get_total_flops()
    assert measuring.batch_flops(config, batch) == 4 * model_flops(config, 5, 4)


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
def test_what_a_gpu_computes_at_most_goes_by_its_whole_name(name, peak, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: name)
    assert measuring.peak_flops(torch.device("cuda"), None) == peak
    assert measuring.peak_flops(torch.device("cuda"), 5) == 5e12
    assert measuring.peak_flops(torch.device("cpu"), None) is None


def test_peak_memory_is_of_a_process_of_its_own(batch, monkeypatch):
    # A worker has one server for all its tests, and those of killed.py need theirs, whichever are first.
    monkeypatch.setattr(forked, "set_forkserver_preload", lambda names: None)
    ballast = torch.ones(300_000_000)
    peaks = measuring.peak_memory(Entry("ours", "fp32"), SMALLEST.config(), [batch, batch], torch.device("cpu"))
    assert len(peaks) == 2
    assert 50 < peaks[0] <= peaks[1] < ballast.nbytes / 1e6


def test_a_process_that_ends_before_it_has_measured_says_so(batch):
    device = torch.device("cpu")
    with pytest.raises(ChildProcessError, match="did not finish"):
        measuring.peak_memory(Entry("no such entry", "fp32"), SMALLEST.config(), [batch], device)


def test_rounds_have_the_tokens_and_operations_of_their_batches(corpus, batch, monkeypatch):
    monkeypatch.setattr(measuring, "PROBE_WIDTHS", {"cpu": 8})
    rounds = [[batch], corpus_batches(corpus, 100, 2)]
    clock, names = Clock(torch.device("cpu"), repeats=0), []
    (timing,) = measuring.time_steps([Entry("ours", "fp32")], SMALLEST.config(), rounds, clock, names.append, {})
    assert timing.tokens == [sum(map(target_tokens, batches)) for batches in rounds]
    assert timing.flops == [sum(measuring.batch_flops(SMALLEST.config(), each) for each in part) for part in rounds]
    assert names == ["ours-fp32, first step", "ours-fp32, round 1", "ours-fp32, round 2"]


@pytest.mark.parametrize(("device", "untimed"), [("cpu", "a"), ("cuda", "aabc")])
def test_on_gpus_every_shape_comes_once_before_it_is_timed(device, untimed, monkeypatch):
    done = []
    monkeypatch.setattr(measuring, "_on", lambda device, batch: batch)
    monkeypatch.setattr(measuring, "target_tokens", lambda batch: 1)
    monkeypatch.setattr(measuring, "batch_flops", lambda config, batch: 1)
    monkeypatch.setattr(Entry, "build", lambda *args: "model")
    monkeypatch.setattr(Entry, "step", lambda entry, training, batch: done.append(batch) or 1.0)

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
    measuring.time_steps([Entry("ours", "fp32")], None, rounds, Stopped(), lambda name: None, {})
    assert "".join(done) == f"{untimed}|ab|c"


@pytest.mark.parametrize(
    ("part", "names"),
    [
        ("products", ["aten::addmm", "aten::bmm", "AddmmBackward0", "mkldnn::_linear_pointwise", "_LinearBackward"]),
        ("loss", ["_SmoothedCrossEntropy", "aten::cross_entropy_loss", "aten::_log_softmax", "NllLossBackward0"]),
        ("attention", ["aten::_softmax", "SoftmaxBackward0", "aten::_scaled_dot_product_flash_attention_for_cpu"]),
        ("dropout", ["_Dropout", "_DropoutBackward", "aten::native_dropout", "aten::random_", "aten::ge"]),
        ("layer norm", ["aten::native_layer_norm", "NativeLayerNormBackward0"]),
        ("Adam", ["Optimizer.step#Adam.step", "aten::_fused_adam_"]),
        ("rest", ["aten::copy_", "aten::sum", "aten::gelu", "aten::embedding", "torch::autograd::AccumulateGrad"]),
    ],
)
def test_operations_are_of_parts_by_their_names(part, names):
    for name in names:
        assert part_of([name]) == part
        assert part_of([name, f"autograd::engine::evaluate_function: {name}", "step"]) == part


@pytest.mark.parametrize(
    ("part", "inside_out"),
    [
        ("loss", ["aten::_softmax", "aten::softmax", "_SmoothedCrossEntropy", "step"]),
        ("products", ["aten::mm", "aten::linear", "_SmoothedCrossEntropy", "step"]),
        ("products", ["aten::copy_", "aten::addmm", "step"]),
        ("dropout", ["aten::mul", "_Dropout", "step"]),
        ("Adam", ["aten::copy_", "aten::_fused_adam_", "Optimizer.step#Adam.step", "step"]),
        ("rest", ["aten::mul", "step"]),
    ],
)
def test_operations_within_others_are_of_their_parts(part, inside_out):
    assert part_of(inside_out) == part


def test_parts_of_a_step_are_reported(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("MULTI30K_DIR", raising=False)
    output = tmp_path / "figures.json"
    names = ["ours-fp32", "marian-eager-fp32", "ours-bf16", "marian-eager-bf16"]
    training.main(["parts", "--sizes", "smallest", "--entries", *names, "--rounds", "1", "--output", str(output)])
    size = json.loads(output.read_text())["parts"]["sizes"]["smallest"]
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


@pytest.mark.parametrize(("device", "rest"), [("cpu", 10), ("cuda", 0)])
def test_shares_are_of_the_time_of_operations_themselves(device, rest, monkeypatch):
    """On a GPU of its kernels', and nothing that only has a name there."""

    def event(name, parent, own, is_user_annotation=False):
        kernels = [SimpleNamespace(duration=own / 2)] * 2
        own_time = {"self_cpu_time_total": own, "kernels": kernels}
        return SimpleNamespace(name=name, cpu_parent=parent, is_user_annotation=is_user_annotation, **own_time)

    step = event("step", None, 10, is_user_annotation=True)
    product = event("aten::addmm", step, 60)
    events = [step, product, event("aten::copy_", product, 10), event("aten::_softmax", step, 20)]
    monkeypatch.setattr(Entry, "build", lambda *args: None)
    monkeypatch.setattr(Entry, "step", lambda *args: None)
    monkeypatch.setattr(training_parts, "synchronise", lambda device: None)
    profiler = SimpleNamespace(events=lambda: events)
    monkeypatch.setattr(training_parts, "profile", lambda activities: nullcontext(profiler))
    found = parts(Entry("ours", "fp32"), SMALLEST.config(), [{}, {}], torch.device(device))
    total = 90 + rest
    expected = {"products": 70 / total, "attention": 20 / total, "rest": rest / total}
    assert found["shares"] == pytest.approx({**dict.fromkeys(PARTS, 0), **expected})
    assert found["milliseconds_a_step"] == pytest.approx(total / 2 / 1000)


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


def test_giving_memory_back_is_timed_where_it_happens(corpus, monkeypatch):
    given_back, clock = [], SimpleNamespace(measure=lambda timed: timed())
    monkeypatch.setattr(callbacks, "release_freed_memory", lambda: given_back.append(True))
    monkeypatch.setattr(trainer_overhead, "ReleaseMemory", lambda: callbacks.ReleaseMemory(updates=3))
    for updates, times in ((2, 0), (4, 2)):
        overhead = Overhead(SMALLEST.config(), corpus, 64, updates, bf16=False, device=torch.device("cpu"))
        monkeypatch.setattr(overhead, "bare", lambda seed: (2.0, None))
        done = []
        found = time_overhead(overhead, 1, clock, done.append)
        assert len(given_back) == times
        assert len(done) == len(overhead.ways)
        assert found["overhead_share"] == found["trainer_seconds"][0] / 2 - 1
        assert ("giving_back_share" in found) == (times > 0)
    assert found["giving_back_share"] == found["giving_back_seconds"][0] / found["trainer_seconds"][0] - 1
    section = {"sizes": {"base": {"arithmetic": {"fp32": found}}}}
    first, second = report._trainer(section)
    assert "| base | fp32       | 500     |" in first
    assert f"{found['giving_back_share']:+.1%}" in second


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["stpes"], 'there is no mode "stpes"; choose among: steps'),
        (["steps", "--sizes", "huge"], 'there is no size "huge"; choose among: base'),
        (["steps", "--entries", "fairseq"], 'there is no entry "fairseq"; choose among: hyunwoongko'),
        (["trainer", "--entries", "tunz"], "the mode trainer measures ours"),
        (["steps", "--references", "fastest"], 'there is no entry "fastest"; choose among'),
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
        patch.setattr(compared, "find_spec", lambda name: None)
        yield


def test_a_missing_library_is_named():
    with without_x_transformers():
        sentence = compared.why_left_out(Entry("x-transformers", "fp32"))
    assert sentence == "x-transformers is not installed; pip install '.[benchmarks]' adds it."
    assert compared.why_left_out(Entry("tunz", "fp32")) is None


def test_ours_beside_the_fastest_other_entry():
    entries = [
        {"name": "ours-fp32", "tokens_per_second": 4.0, "seconds": [1.0, 2.0]},
        {"name": "one-fp32", "tokens_per_second": 2.0, "seconds": [2.0, 3.0]},
        {"name": "other-fp32", "tokens_per_second": 1.0, "seconds": [8.0, 9.0]},
        {"name": "ours-bf16", "tokens_per_second": 9.0, "seconds": [0.5, 0.5]},
    ]
    *_, row = report._beside_the_fastest({"tiny": {"entries": entries}}).splitlines()
    assert [cell.strip() for cell in row.strip("|").split("|")] == ["tiny", "1.75", ""]


def test_ours_with_another_attention_stands_beside_all_others_of_its_arithmetic():
    seconds = {"ours-sdpa-bf16": 1.0, "marian-sdpa-bf16": 4.0, "x-transformers-bf16": 2.0, "tunz-fp32-medium": 1.5}
    entries = [
        {"name": name, "arithmetic": kind, "tokens_per_second": 1 / taken, "seconds": [taken]}
        for (name, taken), kind in zip(seconds.items(), ["bf16", "bf16", "bf16", "fp32-medium"], strict=True)
    ]
    for figures in (entries, [{**entry, "arithmetic": None} for entry in entries]):
        *_, row = report._beside_the_fastest({"base-25k": {"entries": figures}}).splitlines()
        assert [cell.strip() for cell in row.strip("|").split("|")] == ["base-25k", "2.00"]


def test_generated_pairs_are_as_long_as_those_of_multi30k(corpus):
    # Lists: a column would be read from its table anew for each row that is looked for in it.
    source, target = (corpus.data[side][:] for side in ("input_ids", "labels"))
    assert sum(map(len, source)) / len(source) == pytest.approx(15, abs=0.2)
    assert sum(map(len, target)) / len(target) == pytest.approx(15.4, abs=0.2)
    batch = corpus_batches(corpus, 2048, 1)[0]
    assert batch["labels"].numel() <= 2048
    # Every target of the batch is one of the corpus, and none of its tokens is missing.
    rows = [[token for token in row if token != -100] for row in batch["labels"].tolist()]
    assert all(row in target for row in rows)
    assert target_tokens(batch) == sum(map(len, rows))
