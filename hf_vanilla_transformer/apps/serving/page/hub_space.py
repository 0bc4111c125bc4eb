"""The page of `serve --page` as a folder for a Space of the Hub."""

import shutil
from pathlib import Path
from typing import Any

from huggingface_hub import SpaceCardData

from ....hub.model_folder import NOT_TO_SHARE, check_links, files_of_a_run
from ....support.atomic_files import write_text
from ....support.user_errors import InputError
from ....support.version import __version__
from ..model_card_facts import CardFacts


# A Space runs app.py and expects an answer at this port, unless the variable names another one.
_APP = '''"""A page that translates with {title}."""

import os

from hf_vanilla_transformer_launcher import main


port = os.environ.get("GRADIO_SERVER_PORT", "7860")
main(["serve", "--page", "--model_name_or_path", {model!r}, "--host", "0.0.0.0", "--port", port])
'''
_REQUIREMENTS = f"""--extra-index-url https://download.pytorch.org/whl/cpu
hf-vanilla-transformer[page,marian]=={__version__}
"""


def write_space(folder: str, model: str, card: CardFacts) -> None:
    """Write a folder that can be pushed to a Space: `app.py`, `requirements.txt`, `README.md`.

    The model is a name on the Hub, which the Space will load; or a folder, of which a copy lies in the Space's.

    Raises:
        FileExistsError: if the folder holds files.
        ValueError: if a file of the model is a link out of its folder, or a folder lacks weights or configuration.
    """
    target, source = Path(folder), Path(model)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(f"{target} exists and is not an empty folder; choose another one.")
    files = [file for file in files_of_a_run(source) if file.name not in NOT_TO_SHARE] if source.is_dir() else []
    check_links(files)
    has_weights, names = any(file.suffix == ".safetensors" for file in files), {file.name for file in files}
    if source.is_dir() and not (has_weights and "config.json" in names):
        raise InputError(f"{source} lacks a config.json or a .safetensors; give a trained or converted model.")
    target.mkdir(parents=True, exist_ok=True)
    if files:
        (target / "model").mkdir()
        for file in files:
            shutil.copy(file, target / "model")
    facts: dict[str, Any] = {"title": card.title, "sdk": "gradio", "app_file": "app.py", "python_version": "3.11"}
    metadata = SpaceCardData(**facts, models=None if source.is_dir() else [model])
    app = _APP.format(title=card.title.replace('"', "'").replace("\\", "/"), model="model" if files else model)
    write_text(target / "app.py", app)
    write_text(target / "requirements.txt", _REQUIREMENTS)
    write_text(target / "README.md", f"---\n{metadata.to_yaml()}\n---\n")
