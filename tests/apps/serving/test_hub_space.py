"""A folder for a Space."""

import ast

import pytest
import yaml
from huggingface_hub import RepoCard

from hf_vanilla_transformer.apps.cli.main import main
from tests.ecosystem.documentation import FIXTURE


def test_space_of_a_local_model(tmp_path):
    space = tmp_path / "new" / "space"
    main(["serve", "--model_name_or_path", str(FIXTURE), "--write_space", str(space)])
    assert {path.name for path in space.iterdir()} == {"app.py", "requirements.txt", "README.md", "model"}
    metadata = RepoCard.load(space / "README.md").data.to_dict()
    assert metadata == {"title": "numbers_tiny", "sdk": "gradio", "app_file": "app.py", "python_version": "3.11"}
    for name in ("model.safetensors", "config.json", "tokenizer.json", "README.md"):
        assert (space / "model" / name).read_bytes() == (FIXTURE / name).read_bytes()
    assert "\"--model_name_or_path\", 'model'" in (space / "app.py").read_text()
    assert "hf-vanilla-transformer[page,marian]==" in (space / "requirements.txt").read_text()
    with pytest.raises(SystemExit, match="exists and is not an empty folder; choose another one"):
        main(["serve", "--model_name_or_path", str(FIXTURE), "--write_space", str(space)])


def test_space_of_a_hub_model(tmp_path):
    from hf_vanilla_transformer.apps.serving.model_card_facts import CardFacts
    from hf_vanilla_transformer.apps.serving.page.hub_space import write_space

    title = 'A "model" \\'
    write_space(str(tmp_path), "user/model", CardFacts(title))
    ast.parse((tmp_path / "app.py").read_text())
    assert "'user/model'" in (tmp_path / "app.py").read_text()
    _, metadata, _ = (tmp_path / "README.md").read_text().split("---\n")
    facts = {"title": title, "sdk": "gradio", "app_file": "app.py", "python_version": "3.11"}
    assert yaml.safe_load(metadata) == {**facts, "models": ["user/model"]}


def test_space_app_calls_the_command_line(tmp_path, monkeypatch):
    from hf_vanilla_transformer.apps.cli import main as command_line
    from hf_vanilla_transformer.apps.serving.model_card_facts import CardFacts
    from hf_vanilla_transformer.apps.serving.page.hub_space import write_space

    write_space(str(tmp_path), "user/model", CardFacts("A model"))
    called = []
    monkeypatch.setattr(command_line, "main", called.append)
    monkeypatch.setenv("GOMP_SPINCOUNT", "3000")  # Otherwise the launcher sets it for the whole process.
    exec(compile((tmp_path / "app.py").read_text(), "app.py", "exec"), {})
    assert called[0][:4] == ["serve", "--page", "--model_name_or_path", "user/model"]


def test_space_rejects_arguments(tmp_path):
    space = ["serve", "--write_space", str(tmp_path / "space"), "--model_name_or_path"]
    (tmp_path / "model").mkdir()
    for name in ("config.json", "pytorch_model.bin"):
        with pytest.raises(SystemExit, match=r"model lacks a config\.json or a \.safetensors"):
            main([*space, str(tmp_path / "model")])
        (tmp_path / "model" / name).write_text("{}")
    for option, value in {"revision": "v1", "num_beams": "2", "engine": "ctranslate2", "max_wait_ms": "4"}.items():
        with pytest.raises(SystemExit, match=f"{option} .*--write_space"):
            main([*space, str(FIXTURE), f"--{option}", value])
    assert not (tmp_path / "space").exists()


def test_space_copies_no_secrets(tmp_path):
    (tmp_path / "secret").write_text("open sesame")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").symlink_to(tmp_path / "secret")
    with pytest.raises(SystemExit, match=r"config\.json is a link to"):
        main(["serve", "--model_name_or_path", str(tmp_path / "model"), "--write_space", str(tmp_path / "space")])
