"""The folder of a converted model: all files with a certificate, or nothing."""

import json
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers

from ..hub.model_card import About, fill_model_card
from ..hub.model_folder import files_of_a_run
from ..hub.staged_folder import staged
from ..support.atomic_files import are_same_file, locked
from ..support.user_errors import InputError
from ..support.version import __version__
from .parity_certificate import check_equal


CERTIFICATE, CARD = "parity.json", "README.md"


@dataclass(frozen=True)
class Source:
    """What a model is converted from.

    Args:
        name, system (`str`): its name, and the system that it comes from.
        oracle (`str`): what the model is compared with, in words.
        sha256 (`dict`): hashes of its weights, by file name.
        license (`str`, *optional*): licence of the weights.
    """

    name: str
    system: str
    oracle: str
    sha256: dict[str, str]
    license: str | None = None


def command() -> str | None:
    """The command line, if this is a conversion by the command."""
    return " ".join(["hf-vanilla-transformer", *sys.argv[1:]]) if "convert" in sys.argv[1:2] else None


def write_converted(
    model: Any, output: Path, source: Source, parity: dict[str, Any], files: Iterable[Path], force: bool
) -> Path:
    """Write a converted model with its tokenizer, its card and `parity.json`, or nothing.

    Args:
        model (`VanillaTransformerForConditionalGeneration`): the converted model.
        output (`Path`): folder to make.
        source (`Source`): what it was converted from.
        parity (`dict`): see [`~hf_vanilla_transformer.conversion.parity_certificate.compare`].
        files (`list` of `Path`): files to copy, such as those of the tokenizer.
        force (`bool`): write a model that is not equal to its source; card and certificate say so.

    Raises:
        FileExistsError: if the folder already holds a model.
        ValueError: if the model is not equal to its source, without `force`.
    """
    check_equal(parity, source.name, force)
    libraries = {"torch": torch, "transformers": transformers, "tokenizers": tokenizers}
    versions = {"hf_vanilla_transformer": __version__, **{name: each.__version__ for name, each in libraries.items()}}
    certificate = {
        "source": source.name,
        "system": source.system,
        "sha256": source.sha256,
        "oracle": source.oracle,
        **parity,
        "command": command(),
        "versions": versions,
    }
    equal, float64 = parity["translations"], parity.get("float64", {}).get("log_probs", {})
    facts = {
        "converted from": f"{source.name} ({source.system})",
        "compared with": source.oracle,
        "result": "equal" if parity["equal"] else "not equal",
        **{f"largest difference, {name} input": f"{value:.2g} nats" for name, value in parity["log_probs"].items()},
        **{f"in float64, {name} input": f"{value:.2g} nats" for name, value in float64.items()},
        "equal translations, greedy": f"{equal['greedy']} of {equal['sentences']}",
        "equal translations, 4 beams": f"{equal['beam']} of {equal['sentences']}",
        **{f"SHA-256 of `{name}`": value for name, value in source.sha256.items()},
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        **({"command": f"`{command()}`"} if command() else {}),
    }
    with locked(output):
        _check_holds_no_model(output)
        with staged(output) as folder:
            model.save_pretrained(folder)
            for path in files:
                shutil.copyfile(path, folder / path.name)
            (folder / CERTIFICATE).write_text(json.dumps(certificate, indent=2) + "\n", encoding="utf-8")
            about = About(output.resolve().name, base_model=source.name, license=source.license)
            card = fill_model_card(about, model.config, model.num_parameters(), facts, converted=True)
            (folder / CARD).write_text(card.content, encoding="utf-8")
    return output


def check_output(output: str, source: str) -> Path:
    """The folder for a converted model.

    Raises:
        OSError: if it already holds a model, or is a file.
        ValueError: if it is empty, or the folder of the source.
    """
    if not output:
        raise InputError("output is empty; name a folder for the converted model.")
    folder = Path(source) if Path(source).is_dir() else Path(source).parent
    if Path(source).exists() and are_same_file(output, folder):
        raise InputError(f"{output} is the folder of the source; name another folder for the converted model.")
    _check_holds_no_model(Path(output))
    return Path(output)


def _check_holds_no_model(output: Path) -> None:
    if output.exists() and not output.is_dir():
        raise NotADirectoryError(f"{output} is a file; name a folder for the converted model.")
    found = [path.name for path in files_of_a_run(output)]
    if found:
        raise FileExistsError(f"{output} already holds a model ({', '.join(found[:4])}); name another folder.")
