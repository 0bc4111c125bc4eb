"""`plot`."""

from pathlib import Path

import pytest

from hf_vanilla_transformer.apps import pictures
from hf_vanilla_transformer.apps.cli import plot
from hf_vanilla_transformer.apps.cli.main import main
from hf_vanilla_transformer.apps.pictures import attention
from tests.support.missing_packages import without_matplotlib


RESULTS = Path(__file__).parents[3] / "docs" / "results"
FIXTURE = Path(__file__).parents[2] / "fixtures" / "numbers_tiny"
MODEL = ["--model_name_or_path", str(FIXTURE)]


def test_label_runs_of_equal_names(tmp_path):
    runs = [tmp_path / name for name in ("a/seed1", "b/seed1", "rate_0.1", "rate_0.3")]
    for run in runs:
        run.mkdir(parents=True)
    names = [*map(str, runs), str(tmp_path / "x" / "curve.json"), str(tmp_path / "results_seed2.json")]
    assert plot.label_runs(names) == [*names[:2], "rate_0.1", "rate_0.3", "x", "results_seed2"]
    with pytest.raises(ValueError, match="a run is given twice"):
        plot.label_runs([names[0], names[0]])
    with pytest.raises(SystemExit, match="no run is given"):
        plot.main(["curve", "--output", str(tmp_path / "plot.png")])


def test_plot_curve_of_a_results_file(tmp_path):
    pytest.importorskip("matplotlib")
    output = tmp_path / "plot.png"
    assert plot.main(["curve", str(RESULTS / "multi30k_en_de_seed1.json"), "--output", str(output)]) == output
    assert output.is_file()


@pytest.mark.parametrize(
    ("figure", "arguments"),
    [("attention", MODEL), ("masks", MODEL), ("probabilities", MODEL), ("positions", []), ("schedule", [])],
)
def test_plot_draws_each_figure_by_default(figure, arguments, tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    main(["plot", figure, *arguments])
    assert capsys.readouterr().out == f"the plot is in {figure}.png\n"
    assert (tmp_path / f"{figure}.png").read_bytes().startswith(b"\x89PNG")


def passed_on(monkeypatch, figure: str, module=pictures) -> list:
    """Arguments of a function of pictures, which draws as before."""
    calls, draw = [], getattr(module, figure)

    def record(model, tokenizer, *arguments, **options):
        calls.append((*arguments, options))
        return draw(model, tokenizer, *arguments, **options)

    monkeypatch.setattr(module, figure, record)
    return calls


def test_plot_attention_passes_its_arguments(monkeypatch, tmp_path):
    pytest.importorskip("matplotlib")
    drawn = passed_on(monkeypatch, "plot_attention")
    computed = passed_on(monkeypatch, "forward_pass", attention)
    output = tmp_path / "a.svg"
    chosen = ["--kind", "decoder", "--style", "lines", "--layer", "0", "--head", "2", "--theme", "dark"]
    plot.main(["attention", *MODEL, "seven", *chosen, "--num_beams", "3", "--output", str(output)])
    options = {"kind": "decoder", "style": "lines", "layer": 0, "head": 2, "theme": "dark"}
    assert drawn == [("seven", None, {**options, "num_beams": 3})]
    assert computed == [("seven", None, {"num_beams": 3})]
    assert "sieb" in output.read_text(encoding="utf-8")
    plot.main(["attention", *MODEL, "seven", "--target", "zwei", "--output", str(output)])
    assert computed[-1] == ("seven", "zwei", {})
    assert "sieb" not in output.read_text(encoding="utf-8")


def test_plot_passes_arguments_of_the_other_figures(monkeypatch, tmp_path):
    pytest.importorskip("matplotlib")
    masks, probabilities = (passed_on(monkeypatch, f"plot_{name}") for name in ("masks", "token_probabilities"))
    output = ["--output", str(tmp_path / "a.svg"), "--theme", "dark"]
    plot.main(["masks", *MODEL, "seven", "six", "--target", "sieben", "sechs", *output])
    assert masks == [(["seven", "six"], ["sieben", "sechs"], {"theme": "dark"})]
    plot.main(["probabilities", *MODEL, "six", "--max_new_tokens", "2", *output])
    assert probabilities == [("six", None, {"theme": "dark", "max_new_tokens": 2})]
    plot.main(["schedule", "--d_model", "16", "32", "--warmup_steps", "7", "--updates", "50", *output])
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert "d_model 32, warm-up 7" in text
    plot.main(["positions", "--length", "12", "--d_model", "8", *output])
    assert "dot product" in (tmp_path / "a.svg").read_text(encoding="utf-8")
    plot.main(["positions", *MODEL, "--length", "12", *output])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["attention", *MODEL, "--layer", "1"], "layer is 1; it must lie between 0 and 0"),
        (["attention", *MODEL, "--head", "4"], "head is 4; it must lie between 0 and 3"),
        (["attention", *MODEL, "--kind", "self"], "argument --kind: invalid choice: 'self'"),
        (["attention", *MODEL, "--style", "heads", "--head", "1"], 'head is 1, but the style "heads" draws all heads'),
        (["attention", *MODEL, "a", "b"], "2 sentences are given; the figure shows one, so put it in quotation"),
        (["attention", *MODEL, " "], "a sentence is empty"),
        (["attention", *MODEL, "a", "--target", "b", "--num_beams", "2"], "--num_beams has no effect with --target"),
        (["probabilities", *MODEL, "a", "b"], "2 sentences are given"),
        (["masks", *MODEL, "a", "--target", "b", "c"], "there are 1 sources and 2 targets"),
        (["positions", "--length", "1"], "length is 1; it must lie between 2 and 2000"),
        (["positions", "--length", "20000"], "length is 20000; it must lie between 2 and 2000"),
        (["positions", "--d_model", "1000000"], "d_model is 1000000; it must lie between 2 and 10000"),
        (["positions", "--revision", "main"], "--revision has no effect without --model_name_or_path; give both"),
        (["positions", "--device", "cpu"], "--device has no effect without --model_name_or_path; give both"),
        (["positions", *MODEL, "--d_model", "8"], "leave out one of the two"),
        (["schedule", "--updates", "0"], "updates is 0; it must be at least 1"),
        (["schedule", "--d_model", "0"], "d_model is 0; it must be at least 1"),
        (["schedule", "--theme", "blue"], "argument --theme: invalid choice: 'blue'"),
        (["schedule", "--output", "a.txt"], r"a\.txt ends in \.txt, which is no format of figures"),
        (["schedule", "--output", "a.pgf"], r"a\.pgf ends in \.pgf, which .* choose one of ((?!pgf).)*$"),
        (["schedule", "--output", "no/a.png"], "no does not exist; create the folder"),
        (["attention", *MODEL, "--output", str(FIXTURE / "config.json")], "config.json is also an input"),
        (["circle"], '"circle" is not a figure; use one of attention, positions, schedule, masks'),
    ],
)
def test_plot_reports_errors_in_one_line(arguments, message, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=f"^error: .*{message}"):
        plot.main(arguments)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("figure", plot.FIGURES)
def test_plot_loads_no_model_without_matplotlib(figure, monkeypatch, tmp_path):
    without_matplotlib(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plot, "load_tokenizer_and_model", None)
    with pytest.raises(SystemExit, match=r"^error: plots need matplotlib; install it with: .*\[plots\]"):
        plot.main([figure, *(MODEL if figure in ("attention", "masks", "probabilities") else [])])
