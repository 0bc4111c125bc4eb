"""Write a folder that runs the page of `serve --page` as a Hugging Face Space."""

import shutil
from pathlib import Path

from huggingface_hub import SpaceCardData

from ....hub.model_folder import NOT_TO_SHARE, check_links, files_of_a_run
from ....support.atomic_files import write_text
from ....support.user_errors import InputError
from ....support.version import __version__
from ..model_card_facts import CardFacts


# A Space runs app.py. It expects the page at port 7860 unless the environment variable names a different port.
_APP = '''"""A page that translates with {title}."""

import os

from hf_vanilla_transformer_launcher import main


port = os.environ.get("GRADIO_SERVER_PORT", "7860")
main(["serve", "--page", "--model_name_or_path", {model!r}, "--host", "0.0.0.0", "--port", port])
'''
# The subfolder of the Space with the model. app.py runs in the folder of the Space.
_MODEL_FOLDER = "model"
_REQUIREMENTS = f"""--extra-index-url https://download.pytorch.org/whl/cpu
hf-vanilla-transformer[page,marian]=={__version__}
"""


def write_space(folder: str, model: str, card: CardFacts) -> None:
    """Write a folder that can be pushed to a Hugging Face Space: `app.py`, `requirements.txt`, and `README.md`.

    Args:
        folder (`str`): the folder to write; it must be empty or not exist yet.
        model (`str`): a local model folder, whose files are copied into the new folder, or a model name on the Hub,
            from which the Space loads the model.
        card (`CardFacts`): facts from the model's card, which contain the title of the Space.

    Raises:
        FileExistsError: if `folder` exists and is not an empty folder.
        ValueError: if a model file is a link to a place outside of its folder, or if the model folder lacks weights or
            a configuration.
    """
    space = Path(folder)
    # Everything is checked before the first folder is created.
    _check_is_free(space)
    if Path(model).is_dir():
        _copy_model(Path(model), space / _MODEL_FOLDER)
        app = _write_app(card, model=_MODEL_FOLDER)
        metadata = _write_metadata(card, models_on_hub=None)
    else:
        space.mkdir(parents=True, exist_ok=True)
        app = _write_app(card, model=model)
        metadata = _write_metadata(card, models_on_hub=[model])
    write_text(space / "app.py", app)
    write_text(space / "requirements.txt", _REQUIREMENTS)
    write_text(space / "README.md", metadata)


def _write_app(card: CardFacts, model: str) -> str:
    """Return the code of `app.py`, which loads `model`: a folder in the Space, or a name on the Hub."""
    # The title is part of a docstring in app.py. Quotation marks could end this docstring, and a backslash would start
    # an escape sequence.
    title = card.title.replace('"', "'").replace("\\", "/")
    return _APP.format(title=title, model=model)


def _write_metadata(card: CardFacts, models_on_hub: list[str] | None) -> str:
    """Return the text of `README.md`, whose metadata links to the models on the Hub that the Space loads."""
    metadata = SpaceCardData(
        title=card.title,
        sdk="gradio",
        app_file="app.py",
        python_version="3.11",
        models=models_on_hub,
    )
    return f"---\n{metadata.to_yaml()}\n---\n"


def _copy_model(model_folder: Path, new_folder: Path) -> None:
    """Copy the files of a model, without files that should not be shared, into a new folder.

    Raises:
        ValueError: if the files are not a complete model. No folder is created in this case.
    """
    model_files = [file for file in files_of_a_run(model_folder) if file.name not in NOT_TO_SHARE]
    _check_model_files(model_folder, model_files)
    new_folder.parent.mkdir(parents=True, exist_ok=True)
    new_folder.mkdir()
    for file in model_files:
        shutil.copy(file, new_folder)


def _check_is_free(folder: Path) -> None:
    """Raise FileExistsError unless a folder is empty or does not exist yet, so that no existing file is changed."""
    if not folder.exists():
        return
    is_empty_folder = folder.is_dir() and not any(folder.iterdir())
    if not is_empty_folder:
        raise FileExistsError(f"{folder} exists and is not an empty folder; choose another one.")


def _check_model_files(folder: Path, files: list[Path]) -> None:
    """Raise InputError if a model file is a link to a place outside of the folder, or if the model is incomplete."""
    check_links(files)
    has_weights = any(file.suffix == ".safetensors" for file in files)
    has_configuration = any(file.name == "config.json" for file in files)
    if not has_weights or not has_configuration:
        raise InputError(f"{folder} lacks a config.json or a .safetensors; give a trained or converted model.")
