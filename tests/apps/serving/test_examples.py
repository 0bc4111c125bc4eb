"""The unit of systemd, the compose file and the Dockerfile are valid; nginx keeps to the limits of the server."""

import json
import re
import shlex
import shutil
import subprocess
import tomllib

import pytest
import yaml

from hf_vanilla_transformer import __version__
from tests.ecosystem.documentation import ROOT
from tests.test_docs import blocks, understand


UNIT = ROOT / "docs" / "examples" / "hf-vanilla-transformer.service"
COMPOSE = yaml.safe_load((ROOT / "docs" / "examples" / "compose.yaml").read_text(encoding="utf-8"))


def arguments_in(command):
    return shlex.split(re.search(r"hf-vanilla-transformer serve (.*?)\"?$", command, flags=re.DOTALL)[1])


def test_the_commands_are_understood(monkeypatch):
    (command,) = re.findall(r"^ExecStart=(.*)$", UNIT.read_text(), flags=re.MULTILINE)
    for command_line in (command, COMPOSE["services"]["translation"]["command"].strip()):
        understand("hf_vanilla_transformer.apps.cli.serve", arguments_in(command_line), monkeypatch)


def test_dockerfile_agrees_with_the_package(monkeypatch):
    page = ROOT / "docs" / "operations.md"
    (dockerfile,) = blocks(page, "dockerfile")
    instructions = dockerfile.replace("\\\n", "").splitlines()
    arguments = {line.partition(" ")[0]: line.partition(" ")[2] for line in instructions}
    command = json.loads(arguments["CMD"])
    assert command[:2] == ["hf-vanilla-transformer", "serve"]
    understand("hf_vanilla_transformer.apps.cli.serve", command[2:], monkeypatch)
    health_check = json.loads(arguments["HEALTHCHECK"].partition("CMD ")[2])
    compile(health_check[2], "healthcheck", "exec")

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert arguments["FROM"].startswith(f"python:{project['requires-python'].removeprefix('>=')}-")
    wheels = set(re.findall(r"hf_vanilla_transformer-(\S+?)-py3-none-any\.whl", dockerfile))
    assert wheels == {__version__}
    assert "serve" in project["optional-dependencies"]
    stop_seconds = [int(seconds) for seconds in re.findall(r"--stop-timeout (\d+)", page.read_text(encoding="utf-8"))]
    from hf_vanilla_transformer.apps.serving.limits import ServingSettings

    assert stop_seconds
    assert min(stop_seconds) > ServingSettings().shutdown_seconds


def test_both_wait_longer_than_the_server():
    from hf_vanilla_transformer.apps.serving.limits import ServingSettings

    seconds = [int(re.search(r"^TimeoutStopSec=(\d+)$", UNIT.read_text(), flags=re.MULTILINE)[1])]
    seconds.append(int(COMPOSE["services"]["translation"]["stop_grace_period"].removesuffix("s")))
    assert min(seconds) > ServingSettings().shutdown_seconds


def test_nginx_keeps_to_the_limits_of_the_server():
    from hf_vanilla_transformer.apps.serving.limits import ServingSettings

    text, limits = (UNIT.parent / "nginx.conf").read_text(), ServingSettings()
    assert int(re.search(r"client_max_body_size (\d+);", text)[1]) == limits.max_body_bytes
    assert int(re.search(r"proxy_read_timeout (\d+)s;", text)[1]) > limits.request_seconds


def test_compose_restarts_and_watches():
    service = COMPOSE["services"]["translation"]
    assert service["restart"] == "unless-stopped"
    assert service["ports"] == ["127.0.0.1:8000:8000"]
    assert service["healthcheck"]["test"][:3] == ["CMD", "python", "-c"]
    compile(service["healthcheck"]["test"][3], "healthcheck", "exec")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_understands_the_unit(tmp_path):
    unit = tmp_path / UNIT.name
    # The command must exist.
    unit.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", UNIT.read_text(), flags=re.MULTILINE))
    result = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert not [line for line in result.stderr.splitlines() if unit.name in line]
