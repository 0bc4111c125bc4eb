"""`hf-vanilla-transformer VERB`: dispatch, `--help` and `--version`, and what these import."""

import gc
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tqdm import tqdm

from hf_vanilla_transformer import __version__
from hf_vanilla_transformer.apps.cli import main as cli
from hf_vanilla_transformer.apps.cli import plot
from hf_vanilla_transformer.support.user_errors import InputError
from tests.apps.cli import in_fresh_process


ROOT = Path(__file__).parents[3]
FIXTURE = ROOT / "tests" / "fixtures" / "numbers_tiny"
# Optional or slow libraries; importing the package imports none of them, beyond what transformers imports.
OF_DATA = {"datasets", "pandas", "pyarrow"}
LIBRARIES = {*OF_DATA, "evaluate", "matplotlib", "num2words", "peft", "sacrebleu", "scipy", "sklearn", "torchao"}
# transformers imports peft with the arguments and callbacks of its Trainer, where peft is installed.
OF_TRAINER = {"peft"}
COMMANDS = [[], *([verb] for verb in cli.VERBS), *(["plot", figure] for figure in plot.FIGURES)]


OF_MODEL = ["--model_name_or_path", "model"]
# Commands that work in a folder with a model, two text files and a curve, and which of the libraries they need.
WORK = {
    "info": (["info"], set()),
    "translate": (["translate", "seven", *OF_MODEL], set()),
    "score": (["score", *OF_MODEL, "--test_file", "a.en", "a.de"], OF_DATA),
    "align": (["align", "seven", "sieben", *OF_MODEL], set()),
    "evaluate": (["evaluate", *OF_MODEL, "--test_file", "a.en", "a.de"], {*OF_DATA, "evaluate", "sacrebleu"}),
    "plot curve": (["plot", "curve", "curve.json", "--output", "curve.svg"], {"matplotlib"}),
    "plot attention": (["plot", "attention", "seven", *OF_MODEL, "--output", "attention.svg"], {"matplotlib"}),
    "average": (["average", "model", "other", "--output", "average"], OF_TRAINER),
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory) -> dict[str, dict]:
    """What commands, `COMMAND --help` and `COMMAND --version` print, and the libraries that they import."""
    # Outside of the project's folder, where the installed package is found.
    folder = tmp_path_factory.mktemp("elsewhere")
    for name in ("model", "other"):
        shutil.copytree(FIXTURE, folder / name)
    for name in ("a.en", "a.de"):
        (folder / name).write_text("seven\n")
    (folder / "curve.json").write_text(json.dumps({"points": [{"loss": 1.0, "training_seconds": 60}]}))
    commands = [[*command, option] for command in COMMANDS for option in ("--help", "--version")]
    commands += [command for command, _ in WORK.values()]
    child = [sys.executable, in_fresh_process.__file__, json.dumps(commands), json.dumps(sorted(LIBRARIES))]
    result = subprocess.run(child, capture_output=True, text=True, cwd=folder)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.parametrize("command", [" ".join(command) for command in COMMANDS])
def test_help_and_version(answers, command):
    helped, versioned = answers[f"{command} --help".strip()], answers[f"{command} --version".strip()]
    assert helped["code"] == versioned["code"] == 0
    assert helped["output"].startswith(f"usage: hf-vanilla-transformer {command}".rstrip())
    assert versioned["output"] == f"hf-vanilla-transformer {__version__}\n"
    assert {*helped["imported"], *versioned["imported"]} <= OF_TRAINER


@pytest.mark.parametrize("verb", WORK)
def test_verbs_import_only_what_they_need(answers, verb):
    command, needed = WORK[verb]
    answer = answers[" ".join(command)]
    assert answer["code"] == 0, answer["output"]
    assert needed - OF_TRAINER <= set(answer["imported"]) <= needed


def test_main_freezes_imported_objects():
    """A collection at exit would take a second."""
    assert gc.get_freeze_count() > 100_000


def test_help_lists_the_verbs(answers):
    assert all(f"\n  {verb} " in answers["--help"]["output"] for verb in cli.VERBS)


@pytest.mark.parametrize("command", [command for command in COMMANDS if command and command != ["plot"]], ids=" ".join)
def test_help_shows_two_examples_of_the_verb_itself(answers, command):
    examples = answers[f"{' '.join(command)} --help"]["output"].partition("\nexamples:\n")[2].splitlines()
    assert len(examples) == 2
    assert all(example.startswith(f"  hf-vanilla-transformer {' '.join(command)}") for example in examples)


def test_main_runs_from_a_checkout():
    command = [sys.executable, "-m", "hf_vanilla_transformer", "info", "--json"]
    end = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(end.stdout)["machine"]


def test_main_without_a_verb_prints_help(capsys):
    cli.main([])
    assert capsys.readouterr().out.startswith("usage: hf-vanilla-transformer VERB")


def test_main_rejects_an_unknown_verb():
    verbs = "demo, train, distill, plan, translate, evaluate, score, align, average, convert, plot, serve, info"
    with pytest.raises(
        SystemExit, match=f'^error: "trian" is not a verb of hf-vanilla-transformer; use one of {verbs}'
    ):
        cli.main(["trian"])


@pytest.mark.parametrize("error", [KeyboardInterrupt("resume it"), InputError("no such file.")])
def test_main_closes_progress_bars_before_a_message(monkeypatch, capsys, error):
    bars = []

    def fail(arguments):
        bars.append(tqdm(range(9), file=sys.stderr))
        raise error

    monkeypatch.setattr("hf_vanilla_transformer.apps.cli.info.main", fail)
    with pytest.raises(SystemExit) as stop:
        cli.main(["info"])
    printed = capsys.readouterr().err
    if stop.value.code != 130:  # The interpreter prints the message of the error.
        printed += stop.value.code
    *_, bar, message = printed.splitlines()
    assert "0/9" in bar
    assert message in ("interrupted: resume it", "error: no such file.")


def test_main_returns_none(monkeypatch):
    """The installed program passes the result of `main` to `sys.exit`."""
    monkeypatch.setattr("hf_vanilla_transformer.apps.cli.info.main", lambda arguments: {"versions": {}})
    assert cli.main(["info"]) is None


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("command", [["--help"], ["info"]])
def test_main_reports_a_full_disk_in_one_line(command):
    with open("/dev/full", "w") as full:  # noqa: PTH123
        end = subprocess.run(
            [sys.executable, "-m", "hf_vanilla_transformer", *command], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert end.returncode == 1
    assert end.stderr == "error: [Errno 28] No space left on device\n"


def test_translate_reports_a_closed_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(SystemExit, match="standard input is closed"):
        cli.main(["translate", "--model_name_or_path", str(FIXTURE)])
