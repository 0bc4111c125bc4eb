"""Network failures end in a clear error or in success; a partial file is never used."""

import json

import pytest
from safetensors.torch import load, save

from tests.hub.children.pull import digests
from tests.hub.conftest import FIXTURE
from tests.hub.server import Fault, File


pytestmark = pytest.mark.long

WEIGHTS = (FIXTURE / "model.safetensors").read_bytes()
NAMES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


def other_weights(factor: float) -> bytes:
    return save({name: tensor * factor for name, tensor in load(WEIGHTS).items()}, {"format": "pt"})


def add_model(hub, name: str, weights: bytes, private: bool = False) -> File:
    repository = hub.create(name, private=private)
    file = File(weights, large=True)
    hub.large_files[file.sha256] = weights
    files = {path: File((FIXTURE / path).read_bytes()) for path in NAMES}
    repository.commit("A model", {**files, "model.safetensors": file})
    return file


@pytest.fixture(scope="module")
def outcomes(hub, run_child, tmp_path_factory) -> dict:
    first, second = add_model(hub, "user/first", WEIGHTS), add_model(hub, "user/second", other_weights(2))
    add_model(hub, "user/third", other_weights(3))
    add_model(hub, "user/private", other_weights(4), private=True)
    hub.faults += [
        Fault("GET", f"storage/{first.sha256}", cut_after=1000),
        Fault("GET", f"storage/{second.sha256}", cut_after=1000),
        Fault("GET", f"storage/{second.sha256}", status=503),
        Fault("PUT", "large/", cut_after=1000),
        Fault("POST", "user/cut-commit/commit", cut_after=100),
    ]
    results = tmp_path_factory.mktemp("broken") / "results.json"
    result = run_child("broken.py", results, FIXTURE)
    return {"printed": result.stdout + result.stderr, **json.loads(results.read_text())}


def test_an_interrupted_download_resumes(hub, outcomes):
    stored = digests(load(hub.repository("user/first").head().files["model.safetensors"].content))
    weights = outcomes["pull that is cut once"]["result"]
    assert {name: weights[name] for name in stored} == stored
    assert "Trying to resume download" in outcomes["printed"]


def test_a_failed_download_leaves_no_file_that_looks_complete(hub, outcomes):
    file = hub.repository("user/second").head().files["model.safetensors"]
    assert outcomes["pull that is cut and refused"]["error"] == "OSError"
    assert "connection error when trying to load user/second" in outcomes["pull that is cut and refused"]["message"]
    assert file.sha256 not in outcomes["cache after that"]
    assert not [name for name in outcomes["cache after that"] if name.endswith(".incomplete")]
    stored, weights = digests(load(file.content)), outcomes["next pull"]["result"]
    assert {name: weights[name] for name in stored} == stored


def test_every_cut_happened(hub, outcomes):
    assert [fault for fault in hub.faults if fault.times] == []


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        ("no such model", "user/no-such-model is not a local folder and is not a valid model identifier"),
        ("no such model, logged in", "user/no-such-model is not a local folder and is not a valid model identifier"),
        ("no such tokenizer", "user/no-such-model is not a local folder and is not a valid model identifier"),
        ("private model", "If this is a private repository, make sure to pass a token"),
        ("no such revision", "no-such-revision is not a valid git identifier"),
        ("wrong token", "Invalid credentials in Authorization header"),
        ("no such data set", "Dataset 'user/no-such-pairs' doesn't exist on the Hub"),
        ("push without a token", "Invalid username or password"),
        ("push with a wrong token", "Invalid credentials in Authorization header"),
    ],
)
def test_errors_name_the_cause(outcomes, attempt, message):
    assert message in outcomes[attempt]["message"]


def test_a_token_opens_a_private_model(hub, outcomes):
    stored = digests(load(hub.repository("user/private").head().files["model.safetensors"].content))
    weights = outcomes["private model, logged in"]["result"]
    assert {name: weights[name] for name in stored} == stored


def test_an_upload_that_is_cut_is_sent_again(hub, outcomes):
    oid = outcomes["push that is cut once"]["result"]
    assert hub.repository("user/cut-once").head().sha == oid
    assert "Retrying in" in outcomes["printed"]


def test_a_commit_that_is_cut_changes_nothing_and_the_next_one_does_not_send_the_weights_again(hub, outcomes):
    assert outcomes["push whose commit is cut"]["error"] == "RemoteProtocolError"
    repository = hub.repository("user/cut-commit")
    assert [commit.title for commit in repository.commits.values()][1:] == [repository.head().title]
    assert repository.head().sha == outcomes["next push"]["result"]
    file = repository.head().files["model.safetensors"]
    stored, pushed = digests(load(file.content)), outcomes["what was pushed last"]
    assert {name: pushed[name] for name in stored} == stored
    assert len(hub.requests_to("PUT", f"large/{file.sha256}/1")) == 1
