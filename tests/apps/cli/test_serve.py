"""The verb `serve`: a process that is asked, interrupted, killed and restarted."""

import os
import re
import signal
import socket
import subprocess
import sys
from importlib.util import find_spec

import pytest

from hf_vanilla_transformer.apps.cli.main import main
from tests.ecosystem.documentation import FIXTURE


needs_serve = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("fastapi", "uvicorn", "prometheus_client", "babel")),
    reason="the extra serve is not installed",
)
ARGUMENTS = ["--model_name_or_path", str(FIXTURE)]


class Process:
    """A server, and its address."""

    def __init__(self, *arguments):
        command = [sys.executable, "-m", "hf_vanilla_transformer", "serve", *ARGUMENTS, *map(str, arguments)]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        for line in self.process.stderr:
            if address := re.search(r"serving .* at http://(.*):(\d+)$", line):
                self.address = (address[1], int(address[2]))
                return
        pytest.fail("the server ended")

    def end(self, number):
        """Send a signal; returns the exit code and what it printed."""
        self.process.send_signal(number)
        printed = self.process.stderr.read()
        return self.process.wait(60), printed


@needs_serve
def test_serve_restarts_and_shuts_down(tmp_path):
    from tests.apps.serving.support import call

    request = {"inputs": "forty-two"}
    (tmp_path / "terms.tsv").write_text("six\tsieben\n")
    server = Process("--port", 0, "--threads", 1)
    # The connection stays open while the server is killed.
    with socket.create_connection(server.address):
        assert call(server.address, "POST", "/", request)[2] == [{"translation_text": "zweiundvierzig"}]
        assert server.end(signal.SIGKILL)[0] == -signal.SIGKILL
        again = Process("--port", server.address[1], "--glossary", tmp_path / "terms.tsv")
    assert again.address == server.address
    assert call(again.address, "POST", "/", request)[2] == [{"translation_text": "zweiundvierzig"}]
    # Sentences are split, and line breaks kept.
    lines = {"inputs": "nine\n\n seven"}
    assert call(again.address, "POST", "/", lines)[2] == [{"translation_text": "neun\n\n sieben"}]
    assert call(again.address, "POST", "/", {"inputs": "six"})[2] == [{"translation_text": "sieben"}]
    assert again.end(signal.SIGTERM) == (0, "")


@needs_serve
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "70000"], "port is 70000; it must lie between 0 and 65535"),
        (["--host", "192.0.2.1"], "cannot listen on 192.0.2.1, port 8000"),
        (["--glossary", "no.tsv"], "no.tsv"),
        (["--glossary", "no.tsv", "--engine", "ctranslate2"], "--glossary does not work with --engine ctranslate2"),
        (["--threads", "0"], "threads is 0"),
        (["--host", ""], "host is empty; give an address, such as 127.0.0.1"),
        (["--source_lang", "en"], "one of source_lang and target_lang is missing"),
        (["--max_texts", "1000"], "max_texts is 1000, but max_in_flight 512"),
        (["--compute_type", "int8"], "compute_type is int8, but has no effect without --engine ctranslate2"),
    ],
)
def test_serve_rejects_wrong_arguments(arguments, message):
    with pytest.raises(SystemExit, match=message):
        main(["serve", *ARGUMENTS, *arguments])


@needs_serve
def test_serve_rejects_a_glossary_without_beam_search(tmp_path):
    (tmp_path / "terms.tsv").write_text("nine\tsieben\n")
    arguments = ["--port", "0", "--glossary", str(tmp_path / "terms.tsv"), "--num_beams", "1"]
    with pytest.raises(SystemExit, match="forced phrases and glossaries need beam search, but num_beams is 1"):
        main(["serve", *ARGUMENTS, *arguments])


@needs_serve
def test_serve_rejects_a_port_in_use():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(SystemExit, match=rf"cannot listen on 127\.0\.0\.1, port {port} .*Address already in use"):
            main(["serve", *ARGUMENTS, "--port", str(port)])


@pytest.mark.parametrize(
    ("library", "extra"), [("fastapi", "serve"), ("sentencex", "serve"), ("gradio", "page"), ("matplotlib", "page")]
)
def test_serve_names_a_missing_library(library, extra, monkeypatch):
    if library in ("gradio", "matplotlib") and find_spec("fastapi") is None:
        pytest.skip("the extra serve is not installed")
    monkeypatch.setenv("GRADIO_ANALYTICS_ENABLED", "False")
    monkeypatch.setitem(sys.modules, library, None)
    # Other tests may have imported what imports the library.
    importing = {"fastapi": "http.routes", "gradio": "page.gradio_page"}.get(library)
    monkeypatch.delitem(sys.modules, f"hf_vanilla_transformer.apps.serving.{importing}", raising=False)
    message = rf"^error: serve needs {library}; install it with: pip install '/path/to/this/repository\[{extra}\]'"
    with pytest.raises(SystemExit, match=message):
        main(["serve", *ARGUMENTS, "--port", "0", *(["--page"] if extra == "page" else [])])
