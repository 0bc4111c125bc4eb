"""An OPUS-MT model is fine-tuned by its name on the Hub."""

import os
import subprocess
import sys

import pytest

from tests.apps.conversion.opus_mt import TEXTS, write_opus_mt
from tests.hub.conftest import ROOT
from tests.hub.server import File


pytestmark = pytest.mark.long


def test_train_takes_its_name(hub, tmp_path):
    pytest.importorskip("sentencepiece")
    name, folder = "Helsinki-NLP/opus-mt-en-de", write_opus_mt(tmp_path / "opus")
    files = {path.name: File(path.read_bytes()) for path in folder.iterdir()}
    hub.create(name).commit("Upload", files)
    for code in ("en", "de"):
        (tmp_path / f"mine.{code}").write_text("\n".join(TEXTS[code]) + "\n", encoding="utf-8")
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    environment = {**inherited, **hub.environment(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    arguments = ["--output_dir", "tuned", "--max_steps", "2", "--learning_rate", "1e-3", "--use_cpu", "true"]
    command = [sys.executable, "-m", "hf_vanilla_transformer", "train", "--train_file", "mine.en", "mine.de"]
    done = subprocess.run(
        [*command, "--model_name_or_path", name, *arguments],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert f"fine-tuning {name}, converted into a model of this package" in done.stdout
    card = (tmp_path / "tuned" / "README.md").read_text(encoding="utf-8")
    assert f"\nbase_model: {name}\n" in card
    assert (tmp_path / "tuned" / "source.spm").read_bytes() == (folder / "source.spm").read_bytes()
