"""benchmarks/generation.py: the same tokens are compared, and the figures are right. No time is asserted."""

import io
import json
import os
import sys
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import pytest
import torch
from transformers import DynamicCache, GenerationMixin, StaticCache

from benchmarks import generation
from benchmarks.peers.ctranslate2_model import CTranslate2Processes, convert, word
from benchmarks.support import generation_entries, generation_parts, measuring, report
from benchmarks.support.generation_parts import PARTS, parts
from hf_vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.model import packed_linear
from hf_vanilla_transformer.model.cpu_decoder import CPUDecoder


FIXTURE = Path(__file__).parents[1] / "fixtures" / "numbers_tiny"
IN_TRANSFORMERS = ["ours-fp32", "ours-bf16", "ours-int8", "marian-fp32"]
FOR_GPUS = ["ours-bf16-static", "marian-bf16", "marian-bf16-static"]
SCALED = ["ours-fp32", "marian-fp32"]
VOCABULARY = 2000


@pytest.fixture(scope="module", autouse=True)
def small_probes():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "PROBE_WIDTHS", {"cpu": 8})
        patch.setattr(generation, "PROBED", {"cpu": (4000, 8)})
        yield


@pytest.fixture(scope="module")
def measured(small_probes, tmp_path_factory):
    """File and output of measured cells and of measured scaling, which are drawn where matplotlib is there."""
    folder, printed = tmp_path_factory.mktemp("measured"), io.StringIO()
    output = folder / "figures" / "figures.json"
    options = ["--smallest", "--rounds", "2", "--repeats", "0", "--output", str(output)]
    plot = ["--plot", str(folder / "plots")] if find_spec("matplotlib") else []
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        patch.setattr(generation, "VOCABULARY", VOCABULARY)
        generation.main(["cells", *options, "--entries", *IN_TRANSFORMERS, *FOR_GPUS])
        generation.main(["scaling", *options, *plot, "--entries", *SCALED])
    return output, printed.getvalue()


def test_cells_and_scaling_are_reported(measured):
    output, printed = measured
    figures = json.loads(output.read_text())
    assert list(figures["cells"]["jobs"]) == ["1 x 1", "1 x 4"]
    for mode, entries in (("cells", [*IN_TRANSFORMERS, *FOR_GPUS]), ("scaling", SCALED)):
        for title, job in figures[mode]["jobs"].items():
            assert f"| {title} " in printed
            assert list(job) == entries
            assert job["ours-fp32"]["same"] == job["ours-fp32"]["sentences"]
            for entry in job.values():
                theirs = job["marian-fp32"]["seconds"]
                ratios = [one / own for own, one in zip(entry["seconds"], theirs, strict=True)]
                assert entry["times"] == pytest.approx(ratios)
            with_packing = [name for name in job if "seconds_with_packing" in job[name]]
            assert with_packing == [name for name in entries if name.startswith("ours") and mode == "cells"]
            for name in with_packing:
                packing, without = job[name]["seconds_with_packing"], job[name]["seconds"]
                ratios = [one / own for one, own in zip(job["marian-fp32"]["seconds"], packing, strict=True)]
                cell = f" {median(packing) * 1e3:.0f} / {median(without) * 1e3:.0f}; {report.spread(ratios)} "
                assert cell in printed
    # Of one layer of d_model 32 and d_ff 64: four matrices of attention to itself, two of attention to the source.
    assert figures["cells"]["limits"]["weights_of_a_step"] == 6 * 32 * 32 + 2 * 32 * 64 + VOCABULARY * 32
    assert list(output.parent.iterdir()) == [output]


@torch.no_grad()
def test_packing_is_in_one_of_two_calls(monkeypatch):
    entry = generation.InTransformers(generation.base_model(generation.BenchmarkArguments(smallest=True)), packs=True)
    run = entry.run

    def run_and_count(job):
        packed = len(packed_linear._packed)
        return packed, run(job)[1]

    monkeypatch.setattr(entry, "run", run_and_count)
    job = generation.make_job(1, 1, source=5, new=2)
    entry.run(job)
    without, packing = generation_entries.seconds_of(entry, job)
    assert packing == 0 < without
    entry.packs = False
    assert generation_entries.seconds_of(entry, job) == (without,)


def test_limits_of_a_torch_without_onednn(monkeypatch):
    model = generation.base_model(generation.BenchmarkArguments(smallest=True))
    clock = measuring.Clock(torch.device("cpu"), repeats=0)
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", None)
    monkeypatch.setattr(clock, "time", lambda work: work() is None or 2.0)
    limits = generation.limits(model, clock)
    assert (limits["bytes_read_a_second"], limits["fp32_operations_a_second"]) == (2000, 512)


def test_parts_are_reported(tmp_path, capsys):
    output = tmp_path / "figures.json"
    options = ["--smallest", "--rounds", "1", "--repeats", "0", "--output", str(output)]
    generation.main(["parts", *options])
    jobs, printed = json.loads(output.read_text())["parts"]["jobs"], capsys.readouterr().out
    assert list(jobs) == [f"1 x {beams}, ours-{kind}" for beams in (1, 4) for kind in ("fp32", "bf16", "int8")]
    for title, job in jobs.items():
        assert list(job) == ["call", *PARTS]
        assert min(job.values()) > 0
        line = next(line for line in printed.splitlines() if line.startswith(f"| {title} "))
        figures = [float(cell) for cell in line.strip("|").split("|")[1:]]
        assert figures == pytest.approx([*job.values(), job["call"] - sum(list(job.values())[1:4])], abs=0.06)


@torch.no_grad()
def test_an_entry_with_a_static_cache_has_one(monkeypatch):
    """And it finds the same tokens as with a cache that grows."""
    model = generation.base_model(generation.BenchmarkArguments(smallest=True))
    names = ["ours-bf16", "ours-bf16-static", "marian-bf16-static"]
    job, found, caches = generation.make_job(2, 1, source=5, new=6), {}, []
    prepare = GenerationMixin._prepare_cache_for_generation

    def note_cache(self, generation_config, model_kwargs, *args, **kwargs):
        prepare(self, generation_config, model_kwargs, *args, **kwargs)
        caches.append(type(model_kwargs["past_key_values"].self_attention_cache))

    monkeypatch.setattr(GenerationMixin, "_prepare_cache_for_generation", note_cache)
    with generation.peers(model, names, torch.device("cpu")) as entries:
        for name, entry in entries.items():
            assert entry.dtype == torch.bfloat16
            found[name] = generation.InTransformers(entry, **generation.options_of(name)).run(job)[1]
    assert caches == [DynamicCache, StaticCache, StaticCache]
    assert found["ours-bf16-static"] == found["ours-bf16"]


def test_usual_entries_suit_the_device():
    assert generation.usual_entries(torch.device("cpu"), of_cells=True) == [
        *IN_TRANSFORMERS,
        "ctranslate2-fp32",
        "ctranslate2-int8",
    ]
    of_cells = generation.usual_entries(torch.device("cuda"), of_cells=True)
    assert set(of_cells) == {"ours-fp32", "ours-bf16", "marian-fp32", *FOR_GPUS}
    assert set(of_cells) - set(generation.usual_entries(torch.device("cuda"))) == {FOR_GPUS[0], FOR_GPUS[2]}


@pytest.mark.parametrize("beams", [1, 4])
def test_parts_are_of_one_call(beams, monkeypatch):
    """The steps are those of the search, and every linear layer of them is there once."""
    model = generation.base_model(generation.BenchmarkArguments(smallest=True))
    called = []
    step = CPUDecoder.__call__
    monkeypatch.setattr(CPUDecoder, "__call__", lambda self, tokens: called.append(tokens.shape) or step(self, tokens))
    with torch.no_grad():
        found = parts(model, torch.full((2, 5), 7), beams, 3)
        assert all(run() > 0 for run in found.values())
    assert called == [(2 * beams, 1)] * 3
    linear = {module for module in model.get_decoder().modules() if isinstance(module, torch.nn.Linear)}
    of_source = {
        each for layer in model.get_decoder().layers for each in (layer.encoder_attn.k_proj, layer.encoder_attn.v_proj)
    }
    listed = [layer for group in generation_parts._layers(model) for layer in group]
    assert set(listed) == (linear - of_source) | {model.lm_head}
    assert len(listed) == len(set(listed))


def test_figures_are_drawn(measured, tmp_path):
    pytest.importorskip("matplotlib")
    output, _ = measured
    plots = output.parents[1] / "plots"
    assert {path.name for path in plots.iterdir()} == {"generation_cells.svg", "generation_scaling.svg"}
    generation.main(["report", "--output", str(output), "--plot", str(tmp_path)])
    for path in plots.iterdir():
        drawn = path.read_text()
        assert drawn.startswith("<?xml")
        assert drawn.count("<path") > 20
        assert (tmp_path / path.name).read_text() == drawn


def test_sentences_are_reported(tmp_path, capsys):
    output, file = tmp_path / "figures.json", tmp_path / "sentences"
    file.write_text("forty-two\n\nseven\none hundred and one\n")
    options = ["--rounds", "1", "--repeats", "0", "--entries", *IN_TRANSFORMERS, "--output", str(output)]
    generation.main(["sentences", "--model", str(FIXTURE), "--file", str(file), *options])
    entries = json.loads(output.read_text())["sentences"]["entries"]
    assert {name: entry["same_as_ours"] for name, entry in entries.items()} == dict.fromkeys(IN_TRANSFORMERS, 3)
    assert "3 sentences" in capsys.readouterr().out
    pytest.importorskip("matplotlib")
    generation.main(["report", "--output", str(output), "--plot", str(tmp_path)])
    assert all(name in (tmp_path / "generation_sentences.svg").read_text() for name in IN_TRANSFORMERS)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["faster"], 'no mode "faster"'),
        (["--entries", "theirs"], 'no entry "theirs"'),
        (["--rounds", "0"], "at least 1"),
        (["sentences"], "needs --model"),
        (["report"], "no figures"),
    ],
)
def test_bad_arguments(arguments, error, tmp_path):
    with pytest.raises(SystemExit, match=error):
        generation.main([*arguments, "--output", str(tmp_path / "figures.json")])


@pytest.mark.skipif(find_spec("ctranslate2") is None, reason="it takes ctranslate2")
@torch.no_grad()
def test_the_same_weights_in_ctranslate2_give_the_same_tokens(tmp_path):
    torch.manual_seed(0)
    config = VanillaTransformerConfig(
        vocab_size=50, d_model=32, d_ff=48, num_heads=4, encoder_layers=2, decoder_layers=3, tie_word_embeddings=False
    )
    model = VanillaTransformerForConditionalGeneration(config).eval()
    model.lm_head.weight.mul_(5)
    convert(model, tmp_path / "model")
    job = generation.make_job(3, 1, source=7, new=9)
    job.sources %= 40
    job.sources += 3
    processes = CTranslate2Processes(tmp_path / "model", "float32", 2)
    entry = generation.InCTranslate2(config, processes)
    with pytest.raises(ValueError, match="no setting is chosen"):
        entry.run(job)
    assert "Setting(workers=" in entry.begin(job)["setting"]
    _, found = entry.run(job)
    processes.close()
    assert found == generation.InTransformers(model).run(job)[1]


def test_a_command_starts_anew_with_the_allocator_s_setting(monkeypatch):
    """Once: then it is in force."""
    started = []
    monkeypatch.setattr(os, "execv", lambda *command: started.append((*command, os.environ["GLIBC_TUNABLES"])))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(sys, "argv", ["benchmarks/generation.py", "cells"])
    # Set and taken away, so that what the command sets is taken away behind the test.
    monkeypatch.setenv("GLIBC_TUNABLES", "")
    monkeypatch.delenv("GLIBC_TUNABLES")
    measuring.keep_freed_memory()
    measuring.keep_freed_memory()
    assert started == [(sys.executable, [sys.executable, "benchmarks/generation.py", "cells"], measuring.MALLOC)]


def test_words_of_tokens():
    config = VanillaTransformerConfig()
    assert [word(token, config) for token in range(5)] == ["<pad>", "<s>", "</s>", "3", "4"]
