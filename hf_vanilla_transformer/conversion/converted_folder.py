"""What every import shares: the files of the source, and the folder of the converted model."""

import hashlib
import json
import shutil
import sys
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
import yaml
from huggingface_hub import ModelCard, snapshot_download
from transformers import AutoTokenizer, PretrainedConfig

from ..hub.model_card import About, fill_model_card
from ..hub.model_folder import TOKENIZER_FILES, files_of_a_run, read_json, staged
from ..support.argument_checks import reason_of
from ..support.atomic_files import are_same_file, locked
from ..support.version import __version__
from .parity_certificate import excess


CERTIFICATE, CARD = "parity.json", "README.md"
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "pytorch_model.bin.index.json")
SENTENCES = (
    "The house is small.",
    "A dog runs through the old town, and nobody looks at it.",
    "On 3 May 2021, 1,250 people signed the letter (see page 7).",
    "Why did you not tell me that you would be late?",
    "Two young men play guitar in front of a red wall while a child dances.",
    "Yes.",
    "The committee decided, after a long discussion that nobody had expected, to postpone the vote until autumn.",
    "“Come in!” she said.",
)


def source_folder(source: str, revision: str | None = None, token: str | None = None) -> Path:
    """The folder of a source: itself, or a copy of a repository of the Hub, without code.

    Raises:
        FileNotFoundError: if there is neither a folder nor a repository of this name, or it has no configuration.
        NotADirectoryError: if it is a file.
    """
    folder = Path(source)
    if folder.is_file():
        raise NotADirectoryError(f"{folder} is a file; name the folder that it is in.")
    if not folder.is_dir():
        try:
            patterns = [*_WEIGHTS, *TOKENIZER_FILES, "config.json", "generation_config.json", CARD]
            folder = Path(snapshot_download(source, revision=revision, token=token, allow_patterns=patterns))
        except (OSError, ValueError) as error:
            raise FileNotFoundError(f"there is no folder {source}, and the Hub answered: {error}") from error
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} holds no config.json; name the folder of a model of transformers.")
    return folder


def load_source(kind: Any, folder: Path, source: str) -> Any:
    """A model of transformers in float32 and evaluation mode, with all of its weights.

    Raises:
        ValueError: if files are damaged or outside of the folder, or weights are missing or of another shape.
    """
    for index in folder.glob("*.index.json"):
        for name in set(read_json(index).get("weight_map", {}).values()):
            if Path(name).name != name:
                raise ValueError(f'{index} names "{name}", which is not a file of its folder; use a complete model.')
    for path in folder.glob("*.bin"):
        check_archive(path)
    try:
        options = {"attn_implementation": "eager", "dtype": torch.float32, "output_loading_info": True}
        model, info = kind.from_pretrained(folder, **options)
    except ImportError:
        raise
    except Exception as error:  # Transformers, torch and safetensors raise many kinds.
        raise ValueError(f"{source} cannot be read: {reason_of(error)}") from error
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        raise ValueError(
            f"{len(missing)} weights are not in the files of {source} ({', '.join(missing[:2])}, ...); use a complete "
            "model."
        )
    return model.eval()


def check_archive(path: Path) -> None:
    """Raise ValueError if a file of torch claims more bytes than it has, before memory is taken for them."""
    if not zipfile.is_zipfile(path):
        return
    size = path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        # torch does not compress.
        claimed = sum(entry.file_size for entry in archive.infolist())
    if claimed > size:
        raise ValueError(
            f"{path} claims {claimed:,} bytes, but the file holds {size:,}; convert a complete checkpoint."
        )


def load_tokenizer(folder: Path, source: str) -> Any:
    """The tokenizer of a source.

    Raises:
        ImportError: if its library is not installed.
        ValueError: if its files are missing or damaged.
    """
    try:
        return AutoTokenizer.from_pretrained(folder)
    except ImportError:
        raise
    except Exception as error:  # Transformers and tokenizers raise many kinds.
        raise ValueError(f"the tokenizer of {source} cannot be read: {reason_of(error)}") from error


def hashes(paths: Iterable[Path]) -> dict[str, str]:
    """SHA-256 of files, by name."""
    found = {}
    for path in sorted(paths):
        with path.open("rb") as file:
            found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def weight_files(folder: Path) -> list[Path]:
    """The files of weights in a folder of transformers."""
    return [path for pattern in _WEIGHTS for path in folder.glob(pattern)]


def license_of(folder: Path) -> str | None:
    """The licence that the card of a source states, if there is one."""
    try:
        stated = ModelCard.load(folder / CARD).data.get("license")
    except (OSError, ValueError, yaml.YAMLError):
        return None
    return stated if isinstance(stated, str) else None


def check_config(kind: type[PretrainedConfig], folder: Path, needed: Mapping[str, Any]) -> None:
    """Check that this model can hold one of transformers, whose class of configurations is given.

    Raises:
        ValueError: naming the fields that cannot be carried.
    """
    fields, _ = kind.get_config_dict(folder)
    config: Any = kind.from_dict(fields)
    heads = {"decoder_attention_heads": config.encoder_attention_heads}
    refuse(folder, unlike(fields, needed) + unlike(config.to_dict(), heads))


def refuse(source: object, unfit: Iterable[tuple[str, Any, str]], hint: str = "") -> None:
    """Raise ValueError naming all fields that cannot be carried, if there are any.

    Args:
        source: the source's name.
        unfit (`list` of `tuple`): a field, its value, and what it must be, in words.
        hint (`str`): a sentence on what to do.
    """
    fields = "; ".join(f"{name} is {given!r}, but must be {needed}" for name, given, needed in unfit)
    if fields:
        raise ValueError(f"{source} cannot be converted: {fields}.{hint and ' '}{hint}")


def unlike(fields: Mapping[str, Any], needed: Mapping[str, Any]) -> list[tuple[str, Any, str]]:
    """Fields that have other values than needed, for `refuse`; one that is missing has the value that is needed."""
    return [(name, fields[name], repr(value)) for name, value in needed.items() if fields.get(name, value) != value]


def command() -> str | None:
    """The command line, if this is a conversion by the command."""
    return " ".join(["hf-vanilla-transformer", *sys.argv[1:]]) if "convert" in sys.argv[1:2] else None


def write_converted(
    model: Any,
    output: Path,
    *,
    source: str,
    system: str,
    oracle: str,
    parity: dict[str, Any],
    files: Iterable[Path],
    sha256: dict[str, str],
    license: str | None = None,
    force: bool = False,
) -> Path:
    """Write a converted model with its tokenizer, its card and `parity.json`, or nothing.

    Args:
        model (`VanillaTransformerForConditionalGeneration`): the converted model.
        output (`Path`): folder to make.
        source, system (`str`): the name of the source, and of the system that it comes from.
        oracle (`str`): what the model was compared with, in words.
        parity (`dict`): see [`~hf_vanilla_transformer.conversion.parity_certificate.compare`].
        files (`list` of `Path`): files to copy, such as those of the tokenizer.
        sha256 (`dict`): hashes of the source's weights, by file name.
        license (`str`, *optional*): licence of the weights.
        force (`bool`): write a model that is not equal to its source; card and certificate say so.

    Raises:
        FileExistsError: if the folder already holds a model.
        ValueError: if the model is not equal to its source, without `force`.
    """
    if not (parity["equal"] or force):
        raise ValueError(f"the converted model is not equal to {source}: {excess(parity)}; --force writes it anyway.")
    versions = {"hf_vanilla_transformer": __version__, "torch": torch.__version__}
    versions |= {"transformers": transformers.__version__, "tokenizers": tokenizers.__version__}
    certificate = {
        "source": source,
        "system": system,
        "sha256": sha256,
        "oracle": oracle,
        **parity,
        "command": command(),
        "versions": versions,
    }
    equal, float64 = parity["translations"], parity.get("float64", {}).get("log_probs", {})
    facts = {
        "converted from": f"{source} ({system})",
        "compared with": oracle,
        "result": "equal" if parity["equal"] else "not equal",
        **{f"largest difference, {name} input": f"{value:.2g} nats" for name, value in parity["log_probs"].items()},
        **{f"in float64, {name} input": f"{value:.2g} nats" for name, value in float64.items()},
        "equal translations, greedy": f"{equal['greedy']} of {equal['sentences']}",
        "equal translations, 4 beams": f"{equal['beam']} of {equal['sentences']}",
        **{f"SHA-256 of `{name}`": value for name, value in sha256.items()},
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        **({"command": f"`{command()}`"} if command() else {}),
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    with locked(output):
        _check_holds_no_model(output)
        with staged(output) as folder:
            model.save_pretrained(folder)
            for path in files:
                shutil.copyfile(path, folder / path.name)
            (folder / CERTIFICATE).write_text(json.dumps(certificate, indent=2) + "\n", encoding="utf-8")
            about = About(output.resolve().name, base_model=source, license=license)
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
        raise ValueError("output is empty; name a folder for the converted model.")
    folder = Path(source) if Path(source).is_dir() else Path(source).parent
    if Path(source).exists() and are_same_file(output, folder):
        raise ValueError(f"{output} is the folder of the source; name another folder for the converted model.")
    _check_holds_no_model(Path(output))
    return Path(output)


def _check_holds_no_model(output: Path) -> None:
    if output.exists() and not output.is_dir():
        raise NotADirectoryError(f"{output} is a file; name a folder for the converted model.")
    found = [path.name for path in files_of_a_run(output)]
    if found:
        raise FileExistsError(f"{output} already holds a model ({', '.join(found[:4])}); name another folder.")
