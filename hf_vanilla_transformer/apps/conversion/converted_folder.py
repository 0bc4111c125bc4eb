"""The folder of a converted model: all files with a certificate, or nothing."""

import json
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers

from ...data.target_language import codes_of
from ...hub.model_card import LIBRARIES, About, fill_model_card, location_of
from ...hub.model_folder import CARD, CERTIFICATE, check_holds_no_model, staged
from ...support.argument_checks import reason_of
from ...support.atomic_files import are_same_file, locked
from ...support.user_errors import InputError
from ...support.version import __version__
from ...translation.model_loading import load, load_model
from ...translation.translate import translate
from .parity_certificate import add_scores, check_equal, compare
from .source_folder import load_tokenizer


TOKENIZER_CONFIG = "tokenizer_config.json"


@dataclass(frozen=True)
class Source:
    """A model of another system.

    Args:
        name, system (`str`): its name, and the system that it comes from.
        reference (`PreTrainedModel`): a model of transformers with its weights, which the result must equal.
        oracle (`str`): what that is, in words.
        sha256 (`dict`): hashes of the files that were read, by name.
        license (`str`, *optional*): licence of the weights.
        in_float64 (`bool`): whether `reference` can compute in float64.
        folder (`Path`, *optional*): a folder of transformers, whose tokenizer that of the result must equal.
        n_best (`list` of `tuple`): see [`~hf_vanilla_transformer.apps.conversion.parity_certificate.add_scores`].
    """

    name: str
    system: str
    reference: Any
    oracle: str
    sha256: dict[str, str]
    license: str | None = None
    in_float64: bool = False
    folder: Path | None = None
    n_best: Sequence[tuple[str, str, float]] = ()


def command() -> str | None:
    """The command line without a token of the Hub, if this is a conversion by the command."""
    if "convert" not in sys.argv[1:2] or not re.search("hf.vanilla.transformer", sys.argv[0]):
        return None
    return re.sub(r" --token[ =]\S+", "", shlex.join(["hf-vanilla-transformer", *sys.argv[1:]]))


def write_converted(
    model: Any, source: Source, files: Mapping[str, bytes], output: Path, sentences: Sequence[str], force: bool
) -> Path:
    """Write a converted model with its tokenizer, its card and `parity.json`, or nothing.

    What is compared with the source is the folder: its model and its tokenizer, loaded by the function with which the
    verbs load a folder.

    `files` are the contents of the tokenizer's files, by name.

    Raises:
        FileExistsError: if the folder already holds a model.
        ValueError: if what was written cannot be loaded, or is not equal to its source, without `force`.
    """
    with locked(output):
        check_holds_no_model(output, "the converted model")
        with staged(output) as folder:
            model.save_pretrained(folder)
            config, parameters = model.config, model.num_parameters()
            del model  # For the memory of the one that is loaded.
            for name, content in files.items():
                (folder / name).write_bytes(content)
            settings = json.loads(files[TOKENIZER_CONFIG])
            library = LIBRARIES.get(settings["tokenizer_class"])
            certificate = _certificate(folder, source, sentences, library)
            check_equal(certificate, source.name, force)
            (folder / CERTIFICATE).write_text(json.dumps(certificate, indent=2) + "\n", encoding="utf-8")
            languages = settings.get("langs") or [settings.get(f"{side}_lang") for side in ("source", "target")]
            languages = [code if isinstance(code, str) else None for code in languages]
            target_code = ""
            if library is None or find_spec(library) is not None:
                target_code = next(iter(codes_of(load_tokenizer(folder, source.name))), "")
            about = About(
                output.resolve().name,
                source_language=languages[0],
                target_language=languages[1],
                base_model=source.name,
                license=source.license,
                location=location_of(output),
                tokenizer_class=settings["tokenizer_class"],
                target_code=target_code,
            )
            card = fill_model_card(about, config, parameters, _facts(certificate), converted=True)
            (folder / CARD).write_text(card.content, encoding="utf-8")
    return output


def _certificate(folder: Path, source: Source, sentences: Sequence[str], library: str | None) -> dict[str, Any]:
    """The certificate of a folder, whose tokenizer needs a library."""
    oracle, tokenizer, rows = source.oracle, None, None
    try:
        if library is not None and find_spec(library) is None:
            oracle += f", on random tokens only, because {library} is not installed"
            model: Any = load_model(folder)
        else:
            expected = source.folder and load_tokenizer(source.folder, source.name)(list(sentences)).input_ids
            tokenizer, model = load(str(folder), "cpu")
            size = model.config.source_vocab_size or model.config.vocab_size
            for token, number in tokenizer.get_vocab().items():
                if type(number) is not int or not 0 <= number < size:
                    raise InputError(f"its vocabulary has the id {number!r} for {token!r}, but {size} embeddings")
            # Reads the settings of the search. Any target language will do, if the model has several.
            target_lang = next(iter(codes_of(tokenizer)), None)
            translate(model, tokenizer, list(sentences[:1]), target_lang=target_lang, max_length=2)
            rows = tokenizer(list(sentences)).input_ids
            if expected is not None and expected != rows:
                raise InputError("its tokenizer gives other tokens than that of the source")
    except (OSError, ValueError) as error:
        raise InputError(f"{source.name} cannot be converted: {reason_of(error)}") from error
    parity = compare(model, source.reference, rows, in_float64=source.in_float64)
    if source.n_best:
        parity = add_scores(parity, model, tokenizer, source.n_best)
    libraries = {"torch": torch, "transformers": transformers, "tokenizers": tokenizers}
    versions = {"hf_vanilla_transformer": __version__, **{name: each.__version__ for name, each in libraries.items()}}
    about = {"source": source.name, "system": source.system, "sha256": source.sha256, "oracle": oracle}
    return {**about, **parity, "command": command(), "versions": versions}


def _facts(certificate: dict[str, Any]) -> dict[str, Any]:
    """The rows of the card's table."""
    equal, float64 = certificate["translations"], certificate.get("float64", {}).get("log_probs", {})
    return {
        "converted from": f"{certificate['source']} ({certificate['system']})",
        "compared with": certificate["oracle"],
        "result": "equal" if certificate["equal"] else "not equal",
        **{f"largest difference, {name} input": f"{x:.2g} nats" for name, x in certificate["log_probs"].items()},
        **{f"in float64, {name} input": f"{x:.2g} nats" for name, x in float64.items()},
        "equal translations, greedy": f"{equal['greedy']} of {equal['sentences']}",
        "equal translations, 4 beams": f"{equal['beam']} of {equal['sentences']}",
        **{f"SHA-256 of `{name}`": value for name, value in certificate["sha256"].items()},
        "versions": ", ".join(f"{name} {version}" for name, version in certificate["versions"].items()),
        **({"command": f"`{certificate['command']}`"} if certificate["command"] else {}),
    }


def check_output(output: str, source: str) -> Path:
    """The folder for a converted model; OSError if it holds one or is a file, ValueError if empty or the source's."""
    if not output:
        raise InputError("output is empty; name a folder for the converted model.")
    folder = Path(source) if Path(source).is_dir() else Path(source).parent
    if Path(source).exists() and are_same_file(output, folder):
        raise InputError(f"{output} is the folder of the source; name another folder for the converted model.")
    check_holds_no_model(Path(output), "the converted model")
    return Path(output)
