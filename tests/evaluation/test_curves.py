"""Curves of training runs: their files, and their plot."""

import json
from pathlib import Path

import pytest

from hf_vanilla_transformer.evaluation.curve_files import read_curve, write_curve
from hf_vanilla_transformer.evaluation.plot_curve import plot_curve
from hf_vanilla_transformer.support import figure_style
from hf_vanilla_transformer.support.figure_style import save_figure
from tests.support.missing_packages import without_matplotlib
from tests.support.svg import words_of_svg


RESULTS = Path(__file__).parents[2] / "docs" / "results"


def evaluation(step: int, bleu: float, training: float, evaluating: float) -> dict:
    scores = {"eval_loss": 2.0, "eval_bleu": bleu, "eval_chrf": 50.0, "eval_runtime": 1.0, "epoch": step / 10}
    scores |= {"eval_perplexity": 7.4, "eval_token_accuracy": 2 * bleu}
    return {**scores, "step": step, "training_seconds": training, "evaluation_seconds": evaluating}


LOG = [
    {
        "loss": 5.0,
        "perplexity": 99.0,
        "token_accuracy": 9.0,
        "step": 5,
        "training_seconds": 30.0,
        "evaluation_seconds": 0.0,
    },
    evaluation(10, 34.0, 60.0, 1.0),
    {"loss": 4.0, "step": 15, "training_seconds": 90.0, "evaluation_seconds": 1.0},
    evaluation(20, 38.5, 120.0, 2.0),
    evaluation(30, 38.2, 180.0, 3.0),
    {"train_runtime": 183.0, "step": 30, "training_seconds": 180.0, "evaluation_seconds": 3.0},
]


@pytest.fixture(scope="module")
def curve(tmp_path_factory):
    return write_curve(tmp_path_factory.mktemp("curve"), LOG)


def test_write_curve_has_evaluations_and_training(tmp_path):
    written = write_curve(tmp_path, LOG)
    curve = written["points"]
    assert [(point["updates"], point["bleu"]) for point in curve] == [(10, 34.0), (20, 38.5), (30, 38.2)]
    assert [(point["training_seconds"], point["evaluation_seconds"]) for point in curve] == [
        (60, 1),
        (120, 2),
        (180, 3),
    ]
    assert written["best"] == curve[1]
    scores = {"loss", "perplexity", "token_accuracy", "bleu", "chrf"}
    assert set(curve[0]) == scores | {"updates", "epoch", "training_seconds", "evaluation_seconds"}
    training = written["training"]
    times = {"training_seconds": 30.0, "evaluation_seconds": 0.0}
    assert training[0] == {"updates": 5, "loss": 5.0, "perplexity": 99.0, "token_accuracy": 9.0, **times}
    assert [(point["updates"], point["loss"]) for point in training] == [(5, 5.0), (15, 4.0)]


def test_write_curve_without_bleu_has_the_best_loss(tmp_path):
    log = [{"step": step, "eval_loss": loss} for step, loss in ((1, 3.0), (2, 2.0), (3, 2.5))]
    summary = write_curve(tmp_path, log)
    assert summary["best"] == {"updates": 2, "loss": 2.0}


def test_read_curve_returns_what_was_written(tmp_path):
    pytest.importorskip("matplotlib")
    summary = write_curve(tmp_path, LOG)
    assert json.loads((tmp_path / "curve.json").read_text()) == summary
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    (tmp_path / "results.json").write_text(json.dumps({"curve": summary}))
    for place in (tmp_path, tmp_path / "curve.json", tmp_path / "results.json"):
        assert read_curve(place) == {"points": summary["points"], "training": summary["training"]}
    (tmp_path / "results.json").write_text(json.dumps({"curve": {"points": summary["points"]}}))
    assert read_curve(tmp_path / "results.json") == {"points": summary["points"], "training": []}


def test_write_curve_without_evaluations(tmp_path):
    assert write_curve(tmp_path, LOG[:1]) is None
    assert not list(tmp_path.iterdir())


def test_write_curve_without_matplotlib(tmp_path, monkeypatch, caplog):
    without_matplotlib(monkeypatch)
    write_curve(tmp_path, LOG)
    assert [path.name for path in tmp_path.iterdir()] == ["curve.json"]
    assert "pip install '/path/to/this/repository[plots]'" in caplog.text


def test_plot_curve_of_several_runs(tmp_path, monkeypatch):
    figures = pytest.importorskip("matplotlib.figure")
    drawn = []
    save = figures.Figure.savefig
    monkeypatch.setattr(figures.Figure, "savefig", lambda self, *a, **k: (drawn.append(self), save(self, *a, **k)))
    curves = {"first": write_curve(tmp_path, LOG), "second": write_curve(tmp_path, LOG[:4])}
    drawn.clear()
    assert save_figure(plot_curve(curves), tmp_path / "plot.svg") == tmp_path / "plot.svg"
    assert {path.name for path in tmp_path.iterdir()} == {"plot.svg", "curve.json", "curve.png"}
    labels = ["loss (nats per token)", "perplexity", "token accuracy (percent)", "BLEU"]
    assert [axes.get_ylabel() for axes in drawn[0].axes] == labels
    assert {axes.get_xlabel() for axes in drawn[0].axes} == {"training time (minutes, without evaluations)"}
    loss, _, _, bleu = drawn[0].axes
    lines = [[line.get_xydata().tolist() for line in axes.lines] for axes in (loss, bleu)]
    assert lines[0][:2] == [[[0.5, 5.0], [1.5, 4.0]], [[1.0, 2.0], [2.0, 2.0], [3.0, 2.0]]]
    # BLEU of training batches is not measured.
    assert lines[1] == [[], [[1.0, 34.0], [2.0, 38.5], [3.0, 38.2]], [], [[1.0, 34.0], [2.0, 38.5]]]
    names = [text.get_text() for text in drawn[0].legends[0].get_texts()]
    assert names[:3] == ["first", "second", "validation"]
    assert names[3].startswith("training")


@pytest.mark.parametrize("content", ["no json", "[]", '{"curve": null}', '{"seed": 1}'])
def test_read_curve_of_a_file_without_a_curve(tmp_path, content):
    path = tmp_path / "file.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"file\.json holds no curve; name"):
        read_curve(path)


@pytest.mark.parametrize(
    "points", ["[1, 2]", '["a"]', '"ab"', '[{"loss": "1"}]', '[{"loss": null}]', '[[["loss", 1]]]']
)
@pytest.mark.parametrize("part", ['"points": [], "training"', '"points"'])
def test_read_curve_rejects_points(tmp_path, part, points):
    path = tmp_path / "file.json"
    path.write_text(f"{{{part}: {points}}}")
    with pytest.raises(ValueError, match=r"file\.json has the point .*, not an object of numbers; name a curve\.json"):
        read_curve(path)


def test_read_curve_of_the_docs_results():
    paths = [path for path in RESULTS.glob("*.json") if '"points"' in path.read_text(encoding="utf-8")]
    assert paths
    for path in paths:
        assert read_curve(path)["points"]


def test_read_curve_of_a_run_without_a_curve(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="name a run with evaluations"):
        read_curve(tmp_path)


def test_plot_curve_without_a_common_metric(tmp_path):
    pytest.importorskip("matplotlib")
    with pytest.raises(ValueError, match="some points have no BLEU, and some no loss"):
        plot_curve({"a": {"points": [{"training_seconds": 1.0, "a_loss": 2.0}]}})
    with pytest.raises(ValueError, match=r"ends in \.doc, which is no format of figures"):
        save_figure(plot_curve({"a": {"points": [{"training_seconds": 1.0, "loss": 2.0}]}}), tmp_path / "a.doc")
    assert not list(tmp_path.iterdir())


def test_save_figure_without_a_suffix_is_a_png(tmp_path):
    pytest.importorskip("matplotlib")
    save_figure(plot_curve({"a": {"points": [{"training_seconds": 1.0, "loss": 2.0}]}}), tmp_path / "plot")
    assert (tmp_path / "plot").read_bytes().startswith(b"\x89PNG")


def test_plot_curve_without_times():
    with pytest.raises(ValueError, match="the curve of run has no points with training_seconds"):
        plot_curve({"run": {"points": [{"updates": 1, "bleu": 3.0}]}})


def test_plot_curve_with_a_theme(curve):
    matplotlib = pytest.importorskip("matplotlib")
    figure = plot_curve({"first": curve, "second": curve}, theme="dark")
    panels = {axes.get_ylabel(): axes for axes in figure.axes}
    bleu = panels["BLEU"].lines
    assert [line.get_xydata().tolist() for line in bleu if len(line.get_xdata())] == [
        [[1, 34], [2, 38.5], [3, 38.2]]
    ] * 2
    drawn = {line.get_color() for axes in figure.axes for line in axes.lines}
    assert drawn == set(figure_style.THEMES["dark"].lines[:2])
    assert figure.get_facecolor() == matplotlib.colors.to_rgba(figure_style.THEMES["dark"].background)


def test_plot_curve_of_many_runs(curve):
    pytest.importorskip("matplotlib")
    figure = plot_curve({f"run {number}": curve for number in range(20)})
    styles = {(line.get_color(), line.get_linestyle(), line.get_marker()) for line in figure.axes[0].lines}
    assert len(styles) == 20 * 2
    handles = figure.legends[0].legend_handles[:20]
    assert len({(line.get_color(), line.get_marker()) for line in handles}) == 20


def test_plot_curve_with_control_characters_is_xml(curve, tmp_path):
    pytest.importorskip("matplotlib")
    path = save_figure(plot_curve({"a\x01": curve, "b": curve}), tmp_path / "a.svg")
    assert {"a\ufffd", "b"} <= words_of_svg(path)
