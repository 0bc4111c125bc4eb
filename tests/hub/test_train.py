"""`train --push_to_hub`: one commit at the end with everything to share; errors before the work."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import HfApi, ModelCardData, metadata_load
from huggingface_hub.repocard_data import model_index_to_eval_results

from hf_vanilla_transformer.hub.push_to_hub import push_run
from tests.ecosystem.documentation import FIXTURE
from tests.hub.server import WRITER, Fault, File
from tests.hub.test_model_card import make_card
from tests.hub.test_push_pull import ALWAYS_THERE, OF_A_MODEL, OF_A_TOKENIZER
from tests.model.test_remote_code import SHIPPED


pytestmark = pytest.mark.long

MINE = {"notes.txt", "my_vanilla_transformer.py", "examples/config.json"}
OF_A_RUN = ALWAYS_THERE | OF_A_MODEL | OF_A_TOKENIZER | SHIPPED | {"scores.json"}


@pytest.fixture(scope="module")
def folder(hub, run_child, tmp_path_factory) -> Path:
    """Where the runs were; before them there was a repository with another run's files."""
    folder = tmp_path_factory.mktemp("runs")
    there = hub.create("user/there").head().files
    whole = hub.create("user/whole")
    earlier = {"model.safetensors.index.json": File(b"{}"), "training_args.bin": File(b".")}
    earlier |= {name: File(b"mine") for name in MINE}
    whole.commit("An earlier run", {**there, **earlier})
    lines = "\n".join(["en,de", *(f"{word},{word}s" for word in "abcdefgh")]).encode()
    hub.create("user/pairs", "datasets").commit(
        "Pairs", {f"{split}.csv": File(lines) for split in ("train", "validation", "test")}
    )
    hub.faults.append(Fault("GET", "whoami"))
    hub.faults.append(Fault("POST", "user/cut/commit", cut_after=100))
    run_child("train_and_push.py", folder)
    return folder


@pytest.fixture(scope="module")
def printed(folder) -> dict[str, str]:
    return json.loads((folder / "results.json").read_text())


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ("unreachable", "error: the Hub cannot be reached to push to user/refused ("),
        ("no-token", "error: there is no token to push to user/refused; create one with write access at http"),
        ("wrong-token", "error: the Hub rejects the token to push to user/refused; create one"),
        ("reader", "error: the token has no write access to user/refused; create one at http"),
        ("reader-of-what-is-there", "error: the token has no write access to user/there; create one at http"),
        ("public", "error: user/there is public, although hub_private_repo is set; make it private at http"),
        ("someone-else", "error: the token has no write access to other/refused; create one at http"),
        ("no-data", "error: nope.en does not exist"),
        ("licence", 'error: the Hub rejects the model card\'s metadata: - Error: "license" must be one of'),
    ],
)
def test_what_cannot_be_pushed_is_not_trained(hub, folder, printed, run, message):
    assert printed[run].startswith(message)
    assert not (folder / run).exists()
    assert ("models", "user/refused") not in hub.repositories
    assert ("models", "user/licence") not in hub.repositories


def test_one_commit_with_everything(hub, folder, printed):
    commit = hub.repository("user/whole").head("small")
    assert set(commit.files) == OF_A_RUN | MINE
    assert commit.title.startswith("Train for 4 updates: BLEU ")
    assert [c.title for c in hub.repository("user/whole").commits.values()] == [
        "initial commit",
        "An earlier run",
        commit.title,
    ]
    for name in OF_A_RUN - {".gitattributes"}:
        assert commit.files[name].content == (folder / "whole" / name).read_bytes(), name
    assert f"/user/whole/commit/{commit.sha}" in printed["whole"].splitlines()[-1]


def test_the_card_is_ours_and_names_the_repository(hub, folder):
    text = (folder / "whole" / "README.md").read_text()
    assert '.from_pretrained("user/whole", revision="small", trust_remote_code=True)' in text
    assert '.from_pretrained("user/cut", trust_remote_code=True)' in (folder / "cut off" / "README.md").read_text()
    scores = json.loads((folder / "whole" / "scores.json").read_text())
    metadata = metadata_load(folder / "whole" / "README.md")
    name, results = model_index_to_eval_results(metadata["model-index"])
    assert name == "whole"
    assert [(r.metric_type, r.metric_value, r.metric_args["signature"], r.dataset_type) for r in results] == [
        ("sacrebleu", round(scores["bleu"], 2), scores["bleu_signature"], "numbers"),
        ("chrf", round(scores["chrf"], 2), scores["chrf_signature"], "numbers"),
        ("ter", round(scores["ter"], 2), scores["ter_signature"], "numbers"),
    ]
    assert metadata["license"] == "cc-by-4.0"
    assert "base_model" not in metadata
    assert ModelCardData(**metadata).to_dict() == metadata


def test_a_run_is_named_by_its_folder_and_private_if_told(hub):
    repository = hub.repository("user/named-by-its-folder")
    assert repository.private
    assert set(repository.head().files) == OF_A_RUN


def test_pushes_during_the_training_come_before_the_last(hub, folder):
    repository = hub.repository("user/every-save")
    titles = [commit.title for commit in repository.commits.values()]
    assert titles[1] == "Training in progress, step 2"
    assert titles[-1].startswith("Train for 4 updates")
    assert set(repository.head().files) == OF_A_RUN
    assert not (folder / "every-save" / "training_args.bin").exists()


def test_no_path_of_the_machine_is_in_what_is_pushed(hub, folder):
    commits = hub.repository("user/checkpoints").commits.values()
    contents = {name: file.content for commit in commits for name, file in commit.files.items()}
    state = json.loads(contents["last-checkpoint/trainer_state.json"])
    assert state["best_global_step"] in (2, 4)
    assert state["stateful_callbacks"]["RecordFacts"]["args"]["base_model"] == "./whole"
    with_paths = {Path(name).name for name, content in contents.items() if bytes(folder) in content}
    assert with_paths <= {"training_args.bin"}
    assert (folder / "checkpoints" / "arguments.yaml").is_file()
    assert "arguments.yaml" not in contents
    assert "\nfrom `whole` with hf-vanilla-transformer" in contents["README.md"].decode()


def test_no_pickle_holds_the_token(hub, folder):
    during = next(c for c in hub.repository("user/every-save").commits.values() if c.title.endswith("step 2"))
    pickles = [during.files["training_args.bin"].content]
    pickles += [path.read_bytes() for path in folder.glob("every-save/checkpoint-*/training_args.bin")]
    assert len(pickles) == 3
    assert not [content for content in pickles if WRITER.encode() in content]


def test_data_from_the_hub(hub, folder):
    metadata = metadata_load(folder / "from-the-hub" / "README.md")
    assert metadata["datasets"] == ["user/pairs"]
    assert metadata["model-index"][0]["results"][0]["dataset"]["type"] == "user/pairs"
    assert "| data | user/pairs (train) |" in (folder / "from-the-hub" / "README.md").read_text()


def test_what_was_fine_tuned(hub):
    """Also after the run was resumed, without a word about the model that it began from."""
    _, once, twice = hub.repository("user/fine-tuned").commits.values()
    assert once.title.startswith("Train for 1 updates")
    assert twice.title.startswith("Train for 2 updates")
    for commit in (once, twice):
        assert "\nbase_model: user/every-save\n" in commit.files["README.md"].content.decode()


def test_a_push_that_fails_says_how_to_push_later(hub, folder, printed, tmp_path):
    """And what it says works."""
    assert hub.repository("user/cut").head().title == "initial commit"
    message = printed["cut off"].splitlines()[-1]
    assert message.startswith("error: the model could not be pushed to user/cut (")
    assert "It is complete in cut off; push it later with: hf upload user/cut 'cut off' . " in message
    command = shlex.split(message.partition("push it later with: ")[2])
    command[0] = str(Path(sys.executable).with_name("hf"))
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    subprocess.run(command, env={**inherited, **hub.environment(tmp_path, WRITER)}, cwd=folder, check=True)
    assert set(hub.repository("user/cut").head().files) == OF_A_RUN


@pytest.mark.parametrize("files", [{}, {"config.json": "{}"}, {"model.safetensors": ""}])
def test_a_folder_without_a_model_is_not_pushed_over_one(tmp_path, files):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=r"has no config\.json or no weights; name the folder"):
        push_run(str(tmp_path), "user/whole", message="nothing")


def test_a_pushed_card_loads_the_model_from_its_repository(tmp_path, monkeypatch):
    """The name of a local folder may be a stranger's repository on the Hub, whose code readers would run."""
    folder = Path(shutil.copytree(FIXTURE, tmp_path / "numbers"))
    other = 'AutoModelForSeq2SeqLM.from_pretrained("other/model", trust_remote_code=True)\n'
    card = make_card(tmp_path, location="runs/numbers").content + other
    (folder / "README.md").write_text(card, encoding="utf-8")
    uploaded = []
    monkeypatch.setattr(HfApi, "create_branch", lambda self, *args, **kwargs: None)
    commit = SimpleNamespace(commit_url="an address")
    monkeypatch.setattr(HfApi, "upload_folder", lambda self, **kwargs: uploaded.append(kwargs) or commit)
    for revision, said in ((None, ""), ("small", ', revision="small"')):
        push_run(folder, "user/mine", message="numbers", revision=revision)
        card = (folder / "README.md").read_text(encoding="utf-8")
        assert card.count(f'.from_pretrained("user/mine"{said}, trust_remote_code=True)') == 2
        assert card.count("from_pretrained") == 3
        assert other in card
    assert [upload["repo_id"] for upload in uploaded] == ["user/mine"] * 2
