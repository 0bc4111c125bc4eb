"""The launcher of the command line: when it makes OpenMP's threads wait otherwise, and what `python -m` sets."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import hf_vanilla_transformer_launcher as launcher
from hf_vanilla_transformer.apps.cli import main as cli
from hf_vanilla_transformer.apps.conversion.ctranslate2_process import CTranslate2Process, Setting
from hf_vanilla_transformer_launcher import CUDNN_VARIABLE, VALUE, VARIABLE, is_about_waiting, reason_against


pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]
FIXTURE = ROOT / "tests" / "fixtures" / "numbers_tiny"
TRANSLATE = ["translate", "--model_name_or_path", str(FIXTURE)]
# At every start of Python; the launcher's own setting comes later, an inherited one does not.
SITECUSTOMIZE = f"""
import os, sys
with open(os.environ["STARTS"], "a") as file:
    others = [name for name in os.environ if name.startswith("KMP_")]
    print(os.getpid(), os.environ.get("{VARIABLE}", "KMP" if others else None), *sys.orig_argv, sep="\\t", file=file)
"""
with_two_cores = pytest.mark.skipif(
    sys.platform != "linux" or len(os.sched_getaffinity(0)) == 1, reason="the launcher sets nothing here"
)


@pytest.fixture
def environment(tmp_path) -> dict[str, str]:
    """An environment without settings of OpenMP; `starts` reads what Python records in it."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(SITECUSTOMIZE)
    variables = {name: value for name, value in os.environ.items() if not is_about_waiting(name)}
    variables.pop("OMP_NUM_THREADS", None)
    # A test that ran before may have imported scikit-learn, which sets some.
    variables = {name: value for name, value in variables.items() if not name.startswith("KMP_")}
    path = os.pathsep.join([str(tmp_path / "site"), str(ROOT)])
    return {**variables, "PYTHONPATH": path, "STARTS": str(tmp_path / "starts"), "HF_HUB_OFFLINE": "1"}


def starts(environment: dict[str, str], word: str = "translate") -> list[list[str]]:
    """Process ID, value of the variable and command line of each start whose arguments contain a word; no launchers."""
    lines = [line.split("\t") for line in Path(environment["STARTS"]).read_text().splitlines()]
    return [
        line
        for line in lines
        if word in line and "accelerate.commands.launch" not in line and "torch.distributed.run" not in line
    ]


class TestReasons:
    @pytest.mark.parametrize("verb", [verb for verb in cli.VERBS if verb != "info"])
    def test_verbs_that_compute(self, two_threads, verb):
        assert reason_against([verb]) == ""
        assert reason_against([verb, "--help"]) == "the command does not compute"

    def test_there_are_no_other_verbs(self):
        assert {*launcher.COMPUTING, "info"} == {*cli.VERBS}

    @pytest.mark.parametrize("arguments", [[], ["info"], ["--help"], ["--version"], ["trian"], ["-h"]])
    def test_other_commands(self, two_threads, arguments):
        assert reason_against(arguments) == "the command does not compute"

    @pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_AFFINITY"])
    def test_settings_of_the_user(self, two_threads, monkeypatch, name):
        monkeypatch.setenv(name, "1")
        assert reason_against(["train"]) == f"the user set {name}"

    @pytest.mark.parametrize(
        ("value", "reason"), [("1", "there is one thread"), ("1,4", "there is one thread"), ("2", ""), ("12", "")]
    )
    def test_number_of_threads(self, two_threads, monkeypatch, value, reason):
        monkeypatch.setenv("OMP_NUM_THREADS", value)
        assert reason_against(["train"]) == reason

    def test_one_core(self, two_threads, monkeypatch):
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3})
        assert reason_against(["train"]) == "there is one thread"

    @pytest.mark.parametrize("platform", ["win32", "darwin"])
    def test_systems_with_another_openmp(self, two_threads, monkeypatch, platform):
        monkeypatch.setattr(sys, "platform", platform)
        monkeypatch.delattr(os, "sched_getaffinity")
        assert "Linux only" in reason_against(["train"])

    def test_settings_of_scikit_learn(self, two_threads, monkeypatch):
        """transformers may import scikit-learn, which sets them."""
        monkeypatch.setenv("KMP_DUPLICATE_LIB_OK", "True")
        monkeypatch.setenv("KMP_INIT_AT_FORK", "FALSE")
        assert reason_against(["train"]) == ""


class TestMain:
    @pytest.mark.parametrize(("verb", "value"), [("train", VALUE), ("info", None)])
    def test_sets_the_variable_before_the_import(self, tmp_path, environment, verb, value):
        """The package is a stub that records the variable and the modules when it is imported."""
        package = tmp_path / "stub" / "hf_vanilla_transformer"
        (package / "apps" / "cli").mkdir(parents=True)
        shutil.copy(launcher.__file__, package.parent)
        (package / "__init__.py").write_text(
            f"import os, sys; print(os.environ.get({VARIABLE!r}), 'torch' in sys.modules, flush=True)"
        )
        (package / "apps" / "cli" / "main.py").write_text("def main(arguments): print(arguments)")
        if with_two_cores.args[0]:
            value = None
        command = [sys.executable, "-m", "hf_vanilla_transformer_launcher", verb, "--seed", "1"]
        result = subprocess.run(
            command,
            env={**environment, "PYTHONPATH": str(package.parent)},
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
        assert result.stdout == f"{value} False\n{[verb, '--seed', '1']}\n", result.stderr

    def test_a_child_process_inherits_it(self, two_threads, monkeypatch, tmp_path):
        children = []
        # Restores the variable after the test.
        for name in (VARIABLE, CUDNN_VARIABLE):
            monkeypatch.setenv(name, "")
            monkeypatch.delenv(name)
        monkeypatch.setattr(
            cli, "main", lambda arguments: children.append(CTranslate2Process(tmp_path, "float32", Setting(1, 2)))
        )
        launcher.main(["translate"])
        # The folder holds no model; after the answer the child is known to have started.
        with pytest.raises(RuntimeError, match="CTranslate2 says"):
            children[0].translate([["seven"]])
        environment = Path(f"/proc/{children[0]._process.pid}/environ").read_bytes().split(b"\0")
        children[0].close()
        assert f"{VARIABLE}={VALUE}".encode() in environment

    def test_python_code_sets_nothing(self, two_threads, monkeypatch):
        monkeypatch.delenv(CUDNN_VARIABLE, raising=False)
        monkeypatch.setattr("hf_vanilla_transformer.apps.cli.train.main", lambda arguments: None)
        monkeypatch.setattr(sys, "argv", ["program.py", "train"])
        cli.main(["train"])
        assert VARIABLE not in os.environ
        assert CUDNN_VARIABLE not in os.environ


class TestCuDNN:
    @pytest.mark.parametrize(
        ("arguments", "users", "value"),
        [
            (["train"], None, "1"),
            (["translate"], None, "1"),
            (["train"], "0", "0"),
            (["train", "--help"], None, None),
            (["info"], None, None),
            ([], None, None),
        ],
    )
    def test_verbs_that_compute_set_the_variable(self, monkeypatch, arguments, users, value):
        # Restores the variables after the test.
        for name in (VARIABLE, CUDNN_VARIABLE):
            monkeypatch.setenv(name, "")
            monkeypatch.delenv(name)
        if users is not None:
            monkeypatch.setenv(CUDNN_VARIABLE, users)
        values = []
        monkeypatch.setattr(cli, "main", lambda arguments: values.append(os.environ.get(CUDNN_VARIABLE)))
        launcher.main(arguments)
        assert values == [value]

    @pytest.mark.parametrize("module", ["hf_vanilla_transformer", "hf_vanilla_transformer_launcher"])
    def test_both_starts_of_a_verb_set_it(self, environment, module):
        environment.pop(CUDNN_VARIABLE, None)
        report = f"import atexit, os; atexit.register(lambda: print('variable', os.environ.get({CUDNN_VARIABLE!r})))"
        Path(environment["STARTS"]).with_name("site").joinpath("sitecustomize.py").write_text(report)
        result = subprocess.run(
            [sys.executable, "-m", module, *TRANSLATE, "seven"],
            env={**environment, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        assert result.stdout == "sieben\nvariable 1\n", result.stderr

    def test_an_import_sets_nothing(self, environment):
        environment.pop(CUDNN_VARIABLE, None)
        code = f"import os, hf_vanilla_transformer; print(os.environ.get({CUDNN_VARIABLE!r}))"
        result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert result.stdout == "None\n", result.stderr


def spin_counts(errors: str) -> list[str]:
    """Values that OpenMP printed when it was loaded; some libraries bring another copy of it."""
    return re.findall("GOMP_SPINCOUNT = '([^']*)'", errors)


@with_two_cores
class TestProcesses:
    @pytest.mark.parametrize(
        ("module", "limits_spinning"), [("hf_vanilla_transformer", False), ("hf_vanilla_transformer_launcher", True)]
    )
    def test_a_module_starts_python_once(self, environment, module, limits_spinning):
        """Only the launcher runs before torch is imported, so only it can limit the spinning without a second start."""
        command = [sys.executable, "-W", "ignore", "-m", module, *TRANSLATE]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        # OpenMP prints its settings when torch is imported.
        with subprocess.Popen(
            command, env={**environment, "OMP_DISPLAY_ENV": "VERBOSE"}, text=True, **pipes
        ) as process:
            process.stdin.write("seven\n")
            process.stdin.flush()
            assert process.stdout.readline() == "sieben\n"
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate()
        assert process.returncode == 130
        assert errors.endswith("interrupted\n")
        assert starts(environment) == [[str(process.pid), "None", *command]]
        counts = spin_counts(errors)
        assert counts
        if limits_spinning:
            assert {*counts} == {VALUE}
        else:
            assert VALUE not in counts

    def test_a_usage_error(self, environment):
        command = [sys.executable, "-m", "hf_vanilla_transformer_launcher", "translate", "--model_name_or_path"]
        result = subprocess.run(
            command, env={**environment, "OMP_DISPLAY_ENV": "VERBOSE"}, capture_output=True, text=True
        )
        assert result.returncode == 1
        assert {*spin_counts(result.stderr)} == {VALUE}
        assert len(starts(environment, "--model_name_or_path")) == 1

    def test_accelerate_launch(self, environment):
        command = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "1"]
        # By default it limits each process to one thread, and with --cpu it sets KMP_BLOCKTIME.
        command += ["--num_cpu_threads_per_process", "2"]
        result = subprocess.run(
            [*command, "-m", "hf_vanilla_transformer", *TRANSLATE, "seven"],
            env=environment,
            capture_output=True,
            text=True,
        )
        assert (result.returncode, result.stdout) == (0, "sieben\n"), result.stderr
        # accelerate 1.12 sets KMP variables.
        assert [value for _, value, *_ in starts(environment)] in (["None"], ["KMP"])

    def test_torchrun_with_two_processes(self, environment, tmp_path):
        """Python starts once in each of them."""
        (tmp_path / "in.txt").write_text("seven\nforty-two\n")
        files = ["--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / "out.txt")]
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        result = subprocess.run(
            [*command, "-m", "hf_vanilla_transformer", *TRANSLATE, *files],
            env=environment,
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0, result.stderr
        assert (tmp_path / "out.txt").read_text() == "sieben\nzweiundvierzig\n"
        assert [value for _, value, *_ in starts(environment)] == ["None", "None"]
