"""The unit of systemd and the compose file in docs/examples are valid; nginx keeps to the server's limits."""

import re
import shlex
import shutil
import subprocess

import pytest
import yaml

from tests.ecosystem.documentation import ROOT
from tests.test_docs import understand


UNIT = ROOT / "docs" / "examples" / "hf-vanilla-transformer.service"
COMPOSE = yaml.safe_load((ROOT / "docs" / "examples" / "compose.yaml").read_text(encoding="utf-8"))


def arguments_in(command):
    return shlex.split(re.search(r"hf-vanilla-transformer serve (.*?)\"?$", command, flags=re.DOTALL)[1])


def test_the_commands_are_understood(monkeypatch):
    (command,) = re.findall(r"^ExecStart=(.*)$", UNIT.read_text(), flags=re.MULTILINE)
    for command_line in (command, COMPOSE["services"]["translation"]["command"].strip()):
        understand("hf_vanilla_transformer.apps.cli.serve", arguments_in(command_line), monkeypatch)


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
