"""benchmarks/generation.py compares equal work and computes its figures correctly. No test asserts a time."""

import io
import json
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, DynamicCache, GenerationMixin, StaticCache

from benchmarks import generation
from benchmarks.support import generation_implementations, generation_profile, report_parts, timing
from benchmarks.support.count_decoder_rows import counting_rows
from benchmarks.support.generation_profile import PARTS, parts
from hf_vanilla_transformer import load_engine, score_translations, translate
from hf_vanilla_transformer.acceleration import prepacked_weights
from hf_vanilla_transformer.acceleration.cpu_decoder import CPUDecoder
from hf_vanilla_transformer.apps.conversion.hf_marian import new_marian
from hf_vanilla_transformer.hub import user_cache


pytestmark = pytest.mark.slow

FIXTURE = Path(__file__).parents[1] / "fixtures" / "numbers_tiny"
IN_TRANSFORMERS = ["ours-fp32", "ours-bf16", "ours-int8", "marian-fp32"]
FOR_GPUS = ["ours-bf16-static", "marian-bf16", "marian-bf16-static"]
SCALED = ["ours-fp32", "marian-fp32"]
VOCABULARY = 2000


@pytest.fixture(scope="module", autouse=True)
def small_probes():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "PROBE_WIDTHS", {"cpu": 8})
        patch.setattr(generation, "PROBED", {"cpu": (4000, 8)})
        yield


@pytest.fixture(scope="module")
def measured(small_probes, tmp_path_factory):
    """File and output of measured cells and scaling, with plots if matplotlib is installed."""
    folder, printed = tmp_path_factory.mktemp("measured"), io.StringIO()
    output = folder / "figures" / "figures.json"
    options = ["--smallest", "--rounds", "2", "--repeats", "0", "--output", str(output)]
    plot = ["--plot", str(folder / "plots")] if find_spec("matplotlib") else []
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        patch.setattr(generation, "VOCABULARY", VOCABULARY)
        generation.main(["cells", *options, "--implementations", *IN_TRANSFORMERS, *FOR_GPUS])
        generation.main(["scaling", *options, *plot, "--implementations", *SCALED])
    return output, printed.getvalue()


def test_cells_and_scaling_are_reported(measured):
    output, printed = measured
    figures = json.loads(output.read_text())
    assert list(figures["cells"]["jobs"]) == ["1 x 1", "1 x 4"]
    for mode, names in (("cells", [*IN_TRANSFORMERS, *FOR_GPUS]), ("scaling", SCALED)):
        for title, job in figures[mode]["jobs"].items():
            assert f"| {title} " in printed
            assert list(job) == names
            assert job["ours-fp32"]["same"] == job["ours-fp32"]["sentences"]
            for entry in job.values():
                theirs = job["marian-fp32"]["seconds"]
                ratios = [peer / ours for ours, peer in zip(entry["seconds"], theirs, strict=True)]
                assert entry["times"] == pytest.approx(ratios)
            with_packing = [name for name in job if "seconds_with_packing" in job[name]]
            assert with_packing == [name for name in names if name.startswith("ours") and mode == "cells"]
            for name in with_packing:
                packing, without = job[name]["seconds_with_packing"], job[name]["seconds"]
                ratios = [peer / ours for peer, ours in zip(job["marian-fp32"]["seconds"], packing, strict=True)]
                cell = f" {median(packing) * 1e3:.0f} / {median(without) * 1e3:.0f}; {report_parts.spread(ratios)} "
                assert cell in printed
    # One layer with d_model 32 and d_ff 64: four projections of self-attention, two of cross-attention.
    assert figures["cells"]["limits"]["weights_of_a_step"] == 6 * 32 * 32 + 2 * 32 * 64 + VOCABULARY * 32
    assert {path.name for path in output.parent.iterdir()} == {"figures.json", "figures.md"}


@torch.no_grad()
def test_one_of_two_calls_packs(monkeypatch):
    model = generation.base_model(generation.BenchmarkArguments(smallest=True))
    implementation = generation.InTransformers(model, packs=True)
    run = implementation.run

    def run_and_count(job):
        packed = len(prepacked_weights._packed_weights)
        return packed, run(job)[1]

    monkeypatch.setattr(implementation, "run", run_and_count)
    job = generation.make_job(1, 1, source=5, new=2)
    implementation.run(job)
    without, packing = generation_implementations.seconds_of(implementation, job)
    assert packing == 0 < without
    implementation.packs = False
    assert generation_implementations.seconds_of(implementation, job) == (without,)


def test_limits_of_a_torch_without_onednn(monkeypatch):
    model = generation.base_model(generation.BenchmarkArguments(smallest=True))
    clock = timing.Clock(torch.device("cpu"), repeats=0)
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", None)
    monkeypatch.setattr(clock, "time", lambda work: work() is None or 2.0)
    limits = generation.limits(model, clock)
    assert (limits["bytes_read_a_second"], limits["fp32_operations_a_second"]) == (2000, 512)


def test_profiles_are_reported(tmp_path, capsys):
    output = tmp_path / "figures.json"
    options = ["--smallest", "--rounds", "1", "--repeats", "0", "--output", str(output)]
    generation.main(["profile", *options])
    jobs, printed = json.loads(output.read_text())["profile"]["jobs"], capsys.readouterr().out
    assert list(jobs) == [
        f"1 x {beams}, ours-{precision}" for beams in (1, 4) for precision in ("fp32", "bf16", "int8")
    ]
    for title, job in jobs.items():
        assert list(job) == ["call", *PARTS]
        assert min(job.values()) > 0
        line = next(line for line in printed.splitlines() if line.startswith(f"| {title} "))
        figures = [float(cell) for cell in line.strip("|").split("|")[1:]]
        assert figures == pytest.approx([*job.values(), job["call"] - sum(list(job.values())[1:4])], abs=0.06)


@torch.no_grad()
def test_static_caches_are_used_and_give_the_same_tokens(monkeypatch):
    model = generation.base_model(generation.BenchmarkArguments(smallest=True))
    names = ["ours-bf16", "ours-bf16-static", "marian-bf16-static"]
    job, tokens, caches = generation.make_job(2, 1, source=5, new=6), {}, []
    prepare = GenerationMixin._prepare_cache_for_generation

    def note_cache(self, generation_config, model_kwargs, *args, **kwargs):
        prepare(self, generation_config, model_kwargs, *args, **kwargs)
        caches.append(type(model_kwargs["cache"].self_attention_cache))

    monkeypatch.setattr(GenerationMixin, "_prepare_cache_for_generation", note_cache)
    with generation.with_weights_of(model, names, torch.device("cpu")) as models:
        for name, model in models.items():
            assert model.dtype == torch.bfloat16
            tokens[name] = generation.InTransformers(model, **generation.generate_kwargs_of(name)).run(job)[1]
    assert caches == [DynamicCache, StaticCache, StaticCache]
    assert tokens["ours-bf16-static"] == tokens["ours-bf16"]


def test_default_implementations_depend_on_the_device():
    assert generation.default_implementations(torch.device("cpu"), static_cache=True) == [
        *IN_TRANSFORMERS,
        "ctranslate2-fp32",
        "ctranslate2-int8",
    ]
    with_static = generation.default_implementations(torch.device("cuda"), static_cache=True)
    assert set(with_static) == {"ours-fp32", "ours-bf16", "marian-fp32", *FOR_GPUS}
    assert set(with_static) - set(generation.default_implementations(torch.device("cuda"))) == {
        FOR_GPUS[0],
        FOR_GPUS[2],
    }


@pytest.mark.parametrize("beams", [1, 4])
def test_parts_cover_one_call(beams, monkeypatch):
    """The decoding steps are those of beam search, and the matmuls are its linear layers, each once."""
    model = generation.base_model(generation.BenchmarkArguments(smallest=True))
    called = []
    step = CPUDecoder.__call__
    monkeypatch.setattr(CPUDecoder, "__call__", lambda self, tokens: called.append(tokens.shape) or step(self, tokens))
    with torch.no_grad():
        runs = parts(model, torch.full((2, 5), 7), beams, 3)
        assert all(run() > 0 for run in runs.values())
    assert called == [(2 * beams, 1)] * 3
    linear = {module for module in model.get_decoder().modules() if isinstance(module, torch.nn.Linear)}
    of_source = {
        projection
        for layer in model.get_decoder().layers
        for projection in (layer.encoder_attn.k_proj, layer.encoder_attn.v_proj)
    }
    listed = [layer for group in generation_profile._layers(model) for layer in group]
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


def test_sentences_are_reported(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(user_cache, "CACHE", tmp_path / "cache")
    output, file = tmp_path / "figures.json", tmp_path / "sentences"
    file.write_text("eleven\n\nseven\nnine\n")
    names = [*IN_TRANSFORMERS, *(["ctranslate2-fp32"] if find_spec("ctranslate2") else [])]
    options = ["--rounds", "1", "--repeats", "0", "--implementations", *names, "--output", str(output)]
    generation.main(["sentences", "--model_name_or_path", str(FIXTURE), "--file", str(file), *options])
    entries = json.loads(output.read_text())["sentences"]["entries"]
    rules = {"ours": ("never", "True"), "marian": ("False", "True"), "ctranslate2": ("True",)}
    expected = [f"{name}, {rule}" for name in names for rule in rules[name.split("-")[0]]]
    assert {name: entry["same"] for name, entry in entries.items()} == dict.fromkeys(expected, 3)
    assert all(entry["rows"] >= 3 * 4 for entry in entries.values())
    assert "3 sentences" in capsys.readouterr().out
    pytest.importorskip("matplotlib")
    generation.main(["report", "--output", str(output), "--plot", str(tmp_path)])
    assert all(name in (tmp_path / "generation_sentences.svg").read_text() for name in expected)


def test_rules_of_stopping_are_reported(tmp_path, capsys):
    output, sides = tmp_path / "figures.json", [tmp_path / "test.en", tmp_path / "test.de"]
    for path, lines in zip(sides, (["eleven", "seven", "nine"], ["elf", "sieben", "acht"]), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines))
    options = ["--rounds", "1", "--repeats", "0", "--output", str(output), "--file", str(sides[0])]
    loading = ["--model_name_or_path", str(FIXTURE), "--references", str(sides[1])]
    entries = generation.main(["stopping", *loading, *options])["stopping"]["entries"]
    assert list(entries) == [f"{alpha}, {rule}" for alpha in (0.6, 1.5) for rule in ("never", False, True)]
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(FIXTURE), AutoTokenizer.from_pretrained(FIXTURE)
    for alpha, rule in ((0.6, "never"), (0.6, False), (1.5, True)):
        with counting_rows(model) as rows:
            texts = translate(model, tokenizer, ["eleven", "seven", "nine"], length_penalty=alpha, early_stopping=rule)
        entry = entries[f"{alpha}, {rule}"]
        assert (entry["rows"], entry["same"]) == (sum(rows), 3)
        assert entry["bleu"] == score_translations(texts, ["elf", "sieben", "acht"], tokenize="13a")["bleu"]
    assert entries["1.5, never"]["times"] == [1]
    assert entries["1.5, True"]["rows"] != entries["1.5, never"]["rows"]
    assert f"| 1.5   | never          | {entries['1.5, never']['rows']:,} " in capsys.readouterr().out


def test_rows_are_hypotheses_times_steps(tmp_path, monkeypatch):
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(FIXTURE), AutoTokenizer.from_pretrained(FIXTURE)
    marian = new_marian(model.config, "sdpa")
    inputs = tokenizer(["forty-two", "one hundred and nine"], padding=True, return_tensors="pt")
    for counted in (model, marian):
        with counting_rows(counted) as rows:
            counted.generate(**inputs, num_beams=3, max_new_tokens=5, eos_token_id=None)
        assert rows == [2 * 3] * 5
    pytest.importorskip("ctranslate2")
    monkeypatch.setattr(user_cache, "CACHE", tmp_path)
    loaded = load_engine(str(FIXTURE))
    with counting_rows(loaded) as rows:
        loaded.generate(**inputs, num_beams=1)
    loaded.close()
    assert rows == [len(tokenizer(text).input_ids) for text in ("zweiundvierzig", "einhundertneun")]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["faster"], 'no mode "faster"'),
        (["--implementations", "theirs"], 'no implementation "theirs"'),
        (["--rounds", "0"], "at least 1"),
        (["sentences"], "needs --model_name_or_path and --file"),
        (["stopping", "--file", "test.en"], "needs --model_name_or_path, --file and --references"),
        (["report"], "no figures"),
    ],
)
def test_bad_arguments(arguments, error, tmp_path):
    with pytest.raises(SystemExit, match=error):
        generation.main([*arguments, "--output", str(tmp_path / "figures.json")])


def test_long_sentences_are_measured(small_probes, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(generation, "VOCABULARY", VOCABULARY)
    options = ["--smallest", "--rounds", "1", "--repeats", "0", "--output", str(tmp_path / "figures.json")]
    jobs = generation.main(["long", *options])["long"]["jobs"]
    assert {tokens: list(seconds) for tokens, seconds in jobs.items()} == {"20": ["1", "4"], "30": ["1", "4"]}
    seconds = jobs["20"]["4"]
    assert f"| {seconds:.1f} ({seconds / 20 * 1e3:.1f}) " in capsys.readouterr().out
