"""Models and data sets pushed to the Hub and pulled again by the unmodified client, in child processes."""

import json

import pytest
from safetensors.torch import load
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from tests.hub.children.pull import SENTENCES, digests
from tests.hub.children.push import PAIRS
from tests.hub.conftest import FIXTURE
from tests.hub.server import WRITER
from tests.model.test_remote_code import SHIPPED


pytestmark = pytest.mark.long

OF_A_MODEL = {"config.json", "generation_config.json", "model.safetensors"}
OF_A_TOKENIZER = {"tokenizer.json", "tokenizer_config.json"}
ALWAYS_THERE = {".gitattributes", "README.md"}


@pytest.fixture(scope="module")
def pushed(hub, run_child, tmp_path_factory) -> dict[str, str]:
    """Names of the revisions that a process has pushed."""
    folder = tmp_path_factory.mktemp("pushed")
    run_child("push.py", FIXTURE, folder, token=WRITER)
    return json.loads((folder / "pushed.json").read_text())


@pytest.fixture(scope="module", params=["with", "without"])
def pulled(request, hub, pushed, run_child, tmp_path_factory) -> dict:
    """Results and requests of a process with an empty cache, with the package or without it."""
    results, home = tmp_path_factory.mktemp("pulled") / "results.json", tmp_path_factory.mktemp("home")
    before = len(hub.requests)
    run_child("pull.py", results, request.param, "user/model", *pushed.values(), token=WRITER, home=home)
    descriptions = json.loads(results.read_text())
    return {"mode": request.param, "home": home, "requests": hub.requests[before:], **descriptions}


def test_pushed_files(hub, pushed):
    model = hub.repository("user/model")
    titles = [commit.title for commit in model.commits.values()]
    upload = "Upload VanillaTransformerForConditionalGeneration"
    assert titles == ["initial commit", "First", "Upload tokenizer", upload, upload]
    for revision in pushed.values():
        assert set(model.find(revision).files) == ALWAYS_THERE | OF_A_MODEL | OF_A_TOKENIZER | SHIPPED
    weights = [model.find(revision).files["model.safetensors"].sha256 for revision in ("v1", "try-out", "main")]
    assert len(set(weights)) == 3
    assert model.find("v1").files["model.safetensors"].large
    first = digests(load(model.find("v1").files["model.safetensors"].content))
    assert first == digests(load((FIXTURE / "model.safetensors").read_bytes()))


def test_files_that_the_trainer_pushes(hub, pushed):
    run = hub.repository("user/run").head()
    assert run.title == "End of training"
    expected = ALWAYS_THERE | OF_A_MODEL | OF_A_TOKENIZER | SHIPPED
    assert set(run.files) == expected | {"training_args.bin"}
    assert b"generated_from_trainer" in run.files["README.md"].content


def test_weights_come_back_bit_for_bit(hub, pushed, pulled):
    for revision in pushed.values():
        stored = digests(load(hub.repository("user/model").find(revision).files["model.safetensors"].content))
        weights = pulled[revision]["digests"]
        assert {name: weights[name] for name in stored} == stored
        # Weights that are not stored are tied to stored ones.
        assert set(weights.values()) == set(stored.values())


def test_the_same_translations_come_back(pushed, pulled):
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(FIXTURE), AutoTokenizer.from_pretrained(FIXTURE)
    expected = model.generate(**tokenizer(SENTENCES, padding=True, return_tensors="pt")).tolist()
    assert pulled["v1"]["tokens"] == expected
    assert pulled["v1"]["translations"] == ["zweiundvierzig", "sieben", "einhunderteins"]
    assert pulled["try-out"]["tokens"] != expected
    assert pulled["main"] == pulled[pushed["commit"]]
    assert pulled["main"]["tokens"] not in (expected, pulled["try-out"]["tokens"])


def test_where_the_code_comes_from(pulled):
    fetched = {request.path.rpartition("/")[2] for request in pulled["requests"] if request.status == 200}
    modules = {pulled[revision]["module"] for revision in ("v1", "main")}
    if pulled["mode"] == "with":
        assert modules == {"hf_vanilla_transformer"}
        assert not any(name.endswith(".py") for name in fetched)
    else:
        assert modules == {"transformers_modules"}
        assert fetched >= SHIPPED


def test_only_safetensors_are_fetched(hub, pulled):
    """The URL of large files receives no token."""
    weights = {
        commit.files["model.safetensors"].sha256 for commit in list(hub.repository("user/model").commits.values())[1:]
    }
    stored = [request for request in pulled["requests"] if request.path.startswith("/storage/")]
    assert weights <= {request.path.rpartition("/")[2] for request in stored}
    assert {request.token for request in stored} == {None}
    assert not [request for request in pulled["requests"] if request.path.endswith((".bin", ".pt", ".pth"))]


@pytest.mark.parametrize("pulled", ["with"], indirect=True)
def test_pairs_come_back(pulled):
    expected = {"source": PAIRS["en"], "target": PAIRS["de"]}
    first = {"source": PAIRS["en"][:1], "target": PAIRS["de"][:1]}
    assert pulled["data"]["parquet"] == {"train": expected, "test": first}
    assert pulled["data"]["csv"] == expected
    assert pulled["data"]["csv, v1"] == first


@pytest.mark.parametrize("pulled", ["without"], indirect=True)
def test_a_full_cache_is_enough_when_offline(hub, pulled, run_child, tmp_path):
    requests_before = len(hub.requests)
    arguments = (tmp_path / "results.json", pulled["mode"], "user/model", "main")
    run_child("pull.py", *arguments, home=pulled["home"], HF_HUB_OFFLINE="1")
    assert json.loads((tmp_path / "results.json").read_text())["main"] == pulled["main"]
    assert len(hub.requests) == requests_before


@pytest.mark.parametrize("pulled", ["with"], indirect=True)
def test_a_full_cache_is_enough_offline(hub, pulled, run_child, tmp_path):
    """Weights only, because the client retries the list of a tokenizer's files for 23 seconds."""
    hub.stop()
    try:
        run_child("pull.py", tmp_path / "results.json", "weights", "user/model", "main", home=pulled["home"])
    finally:
        hub.start()
    assert json.loads((tmp_path / "results.json").read_text())["main"] == pulled["main"]["digests"]
