"""Write a converted model to a folder, together with a certificate (`parity.json`) that compares it with its source.

The files appear in the folder only when all of them are complete.
"""

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
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...data.target_language import codes_of
from ...hub.model_card import LIBRARIES, About, fill_model_card, location_of
from ...hub.model_folder import CARD, CERTIFICATE, check_holds_no_model, staged
from ...model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from ...support.argument_checks import reason_of
from ...support.atomic_files import are_same_file, locked
from ...support.user_errors import InputError
from ...support.version import __version__
from ...translation.model_loading import load, load_model
from ...translation.translate import translate
from .parity_certificate import Certificate, ScoredHypothesis, add_scores, check_equal, compare
from .source_folder import load_tokenizer


TOKENIZER_CONFIG = "tokenizer_config.json"


@dataclass(frozen=True)
class Source:
    """A model that is being converted, with the facts that the certificate and the model card state about it.

    Args:
        name, system (`str`): the model's name, and the system that it comes from.
        reference (`PreTrainedModel`): a transformers model with the same weights. The converted model must compute the
            same as this model.
        reference_description (`str`): a description of `reference`, which the certificate has as its `oracle`.
        sha256 (`dict`): the SHA-256 hashes of the model's files, by file name.
        license (`str`, *optional*): the license of the weights.
        in_float64 (`bool`): True if `reference` can compute in float64.
        tokenizer_folder (`Path`, *optional*): a folder with a transformers tokenizer. The converted tokenizer must
            produce the same tokens as this tokenizer.
        n_best (`list` of `ScoredHypothesis`): translations that the original system generated and scored.
    """

    name: str
    system: str
    reference: PreTrainedModel
    reference_description: str
    sha256: dict[str, str]
    license: str | None = None
    in_float64: bool = False
    tokenizer_folder: Path | None = None
    n_best: Sequence[ScoredHypothesis] = ()


def command() -> str | None:
    """Return the command line with which `convert` was started, without the access token of the Hub.

    Returns None if the conversion was started from Python code instead of the command line.
    """
    program, *arguments = sys.argv
    # `program` is a path. It contains hf-vanilla-transformer, or, with `python -m`, hf_vanilla_transformer. The dots
    # match the hyphens and the underscores.
    is_our_program = re.search("hf.vanilla.transformer", program) is not None
    # The slice is empty if there are no arguments.
    runs_convert = is_our_program and arguments[:1] == ["convert"]
    if not runs_convert:
        return None
    command_line = shlex.join(["hf-vanilla-transformer", *arguments])
    # The token is secret, but this command line is published together with the model. The option has the form
    # "--token VALUE" or "--token=VALUE".
    return re.sub(r" --token[ =]\S+", "", command_line)


def check_output(output: str, source: str) -> Path:
    """Check that a converted model can be written to the folder `output`, and return the folder's path.

    Raises:
        OSError: if `output` already holds a model, or is a file.
        ValueError: if `output` is empty, or is the source's own folder.
    """
    if not output:
        raise InputError("output is empty; name a folder for the converted model.")
    source_path = Path(source)
    # A source that does not exist on this machine is a name on the Hub.
    if source_path.exists():
        source_folder = source_path if source_path.is_dir() else source_path.parent
        if are_same_file(output, source_folder):
            raise InputError(f"{output} is the folder of the source; name another folder for the converted model.")
    check_holds_no_model(Path(output), "the converted model")
    return Path(output)


def write_converted(
    model: VanillaTransformerForConditionalGeneration,
    source: Source,
    files: Mapping[str, bytes],
    output: Path,
    sentences: Sequence[str],
    force: bool,
) -> Path:
    """Write a converted model with its tokenizer, model card and certificate. If a check fails, nothing is written.

    The certificate describes the files on disk, so the written model and tokenizer are loaded for the comparison.

    Args:
        model: the converted model.
        source: the model that it was converted from.
        files: the contents of the tokenizer files, by file name.
        output: the folder to create.
        sentences: source sentences for the comparison on real input.
        force: write the folder even if the model is not equal to its source.

    Returns:
        The folder `output`.

    Raises:
        FileExistsError: if the folder already holds a model.
        ValueError: if the written folder cannot be loaded, or is not equal to its source without `force`.
    """
    tokenizer_settings = json.loads(files[TOKENIZER_CONFIG])
    # The optional library that the tokenizer needs, such as "sentencepiece", or None.
    library = LIBRARIES.get(tokenizer_settings["tokenizer_class"])
    with locked(output):
        # A different process may have written a model before this one got the lock.
        check_holds_no_model(output, "the converted model")
        # If the block fails, `staged` deletes the temporary folder. Otherwise, its files get to `output`.
        with staged(output) as folder:
            _save_model_and_tokenizer(folder, model, files)
            certificate = _certify(folder, source, sentences, library)
            check_equal(certificate, source.name, force)
            (folder / CERTIFICATE).write_text(json.dumps(certificate, indent=2) + "\n", encoding="utf-8")

            introduction = _describe_converted(folder, source, tokenizer_settings, output)
            card_text = _make_card(model, introduction, certificate)
            (folder / CARD).write_text(card_text, encoding="utf-8")
    return output


def _save_model_and_tokenizer(
    folder: Path, model: VanillaTransformerForConditionalGeneration, files: Mapping[str, bytes]
) -> None:
    """Write a model and the files of its tokenizer to a folder. `files` has their contents by file name."""
    model.save_pretrained(folder)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def _make_card(model: VanillaTransformerForConditionalGeneration, introduction: About, certificate: Certificate) -> str:
    """Return the text of a converted model's card."""
    conversion_facts = _describe_conversion(certificate)
    num_parameters = model.num_parameters()
    card = fill_model_card(introduction, model.config, num_parameters, conversion_facts, converted=True)
    return card.content


def _is_missing(library: str | None) -> bool:
    """Return True if the library that a tokenizer needs is not installed.

    `library` is None if the tokenizer needs no library.
    """
    return library is not None and find_spec(library) is None


def _certify(folder: Path, source: Source, sentences: Sequence[str], library: str | None) -> Certificate:
    """Compare a written model and its tokenizer with their source, and return the certificate.

    `library` is the optional library that the tokenizer needs, or None. If it is not installed, only the model is
    compared, on random tokens.

    Raises InputError if the written folder cannot be loaded, or if its tokenizer is wrong.
    """
    reference_description = source.reference_description
    if _is_missing(library):
        reference_description += f", on random tokens only, because {library} is not installed"
        parity = _compare_model(folder, source)
    else:
        parity = _compare_model_and_tokenizer(folder, source, list(sentences))
    return {
        "source": source.name,
        "system": source.system,
        "sha256": source.sha256,
        "oracle": reference_description,
        # The fields that `compare` returns, such as "log_probs", "translations" and "equal".
        **parity,
        "command": command(),
        "versions": {
            "hf_vanilla_transformer": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "tokenizers": tokenizers.__version__,
        },
    }


def _compare_model(folder: Path, source: Source) -> Certificate:
    """Compare a written model with its source on random tokens.

    Raises InputError if the model cannot be loaded.
    """
    try:
        model = load_model(folder)
    except (OSError, ValueError) as error:
        raise InputError(f"{source.name} cannot be converted: {reason_of(error)}") from error
    return compare(model, source.reference, in_float64=source.in_float64)


def _compare_model_and_tokenizer(folder: Path, source: Source, sentences: list[str]) -> Certificate:
    """Compare a written model and its tokenizer with their source, on random tokens and on sentences.

    If transformers can load a tokenizer of the source, the written tokenizer must produce the same token ids. If the
    models differ too much, the result says so in its field `equal`, and no error is raised here. `write_converted`
    raises it later.

    Raises InputError if the written folder cannot be loaded, or if its tokenizer is wrong.
    """
    try:
        # The source's token ids, one list for each sentence. None means that transformers cannot load a tokenizer of
        # the source, so the tokenizers are not compared.
        expected_rows = _tokenize_by_source(source, sentences)
        tokenizer, model = load(str(folder), "cpu")
        # One sentence is enough for this check, because a wrong setting makes every translation fail.
        _check_tokenizer(model, tokenizer, trial_sentences=sentences[:1])
        # The token ids by the written tokenizer, one list for each sentence.
        rows = tokenizer(sentences).input_ids
        if expected_rows is not None and rows != expected_rows:
            raise InputError("its tokenizer gives other tokens than the tokenizer of the source")
    except (OSError, ValueError) as error:
        # The messages of the errors need the name of the source.
        raise InputError(f"{source.name} cannot be converted: {reason_of(error)}") from error

    parity = compare(model, source.reference, rows, in_float64=source.in_float64)
    # Translations that the original system has scored. Only models of Marian can have them.
    if source.n_best:
        parity = add_scores(parity, model, tokenizer, source.n_best)
    return parity


def _tokenize_by_source(source: Source, sentences: list[str]) -> list[list[int]] | None:
    """Tokenize sentences with the source's own tokenizer, and return their token ids.

    Returns None if the source has no tokenizer that transformers can load.
    """
    if source.tokenizer_folder is None:
        return None
    tokenizer = load_tokenizer(source.tokenizer_folder, source.name)
    return tokenizer(sentences).input_ids


def _check_tokenizer(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, trial_sentences: list[str]) -> None:
    """Raise ValueError if a token has no row in the embedding matrix, or if a trial sentence cannot be translated."""
    # `source_vocab_size` is None if source and target have one vocabulary.
    num_embeddings = model.config.source_vocab_size or model.config.vocab_size
    for token, token_id in tokenizer.get_vocab().items():
        # A damaged vocabulary may have an id that is no integer.
        has_embedding = type(token_id) is int and 0 <= token_id < num_embeddings
        if not has_embedding:
            raise InputError(f"its vocabulary has the id {token_id!r} for {token!r}, but {num_embeddings} embeddings")
    # If the model has several target languages, the first one is used. Otherwise, no language needs to be named.
    target_lang = next(iter(codes_of(tokenizer)), None)
    # If the decoding settings are invalid, this short translation raises ValueError.
    translate(model, tokenizer, trial_sentences, target_lang=target_lang, max_length=2)


def _find_languages(tokenizer_settings: Mapping[str, Any]) -> list[str | None]:
    """Return the source and target language codes in a tokenizer's settings. An unknown language has the code None."""
    # FairseqTokenizer has one setting for both languages, such as ["en", "de"].
    codes = tokenizer_settings.get("langs")
    if not codes:
        # MarianTokenizer has one setting for each language.
        codes = [tokenizer_settings.get("source_lang"), tokenizer_settings.get("target_lang")]
    languages: list[str | None] = []
    for code in codes:
        # Settings that were copied from a source may have values that are no codes.
        if isinstance(code, str):
            languages.append(code)
        else:
            languages.append(None)
    return languages


def _describe_converted(folder: Path, source: Source, tokenizer_settings: Mapping[str, Any], output: Path) -> About:
    """Collect the facts that introduce a converted model on its model card, such as its languages and its license.

    `folder` holds the written tokenizer, and becomes the folder `output` later.
    """
    languages = _find_languages(tokenizer_settings)
    tokenizer_class = tokenizer_settings["tokenizer_class"]
    return About(
        output.resolve().name,
        source_language=languages[0],
        target_language=languages[1],
        base_model=source.name,
        license=source.license,
        location=location_of(output),
        tokenizer_class=tokenizer_class,
        target_code=_find_first_target_code(folder, tokenizer_class, source.name),
    )


def _find_first_target_code(folder: Path, tokenizer_class: str, name: str) -> str:
    """Return the target-language code, such as `">>fr<<"`, for the example on a converted model's card.

    It is the first code in the tokenizer's vocabulary. Returns an empty string if the model has only one target
    language, or if the tokenizer cannot be loaded because an optional library is not installed. Error messages name the
    model `name`.
    """
    if _is_missing(LIBRARIES.get(tokenizer_class)):
        return ""
    tokenizer = load_tokenizer(folder, name)
    return next(iter(codes_of(tokenizer)), "")


def _describe_conversion(certificate: Certificate) -> dict[str, str]:
    """Return the rows of the model card's table about the conversion, as a dict from labels to values."""
    facts = {
        "converted from": f"{certificate['source']} ({certificate['system']})",
        "compared with": certificate["oracle"],
        "result": _describe_result(certificate),
        **_describe_differences(certificate),
    }
    # The number of sentences, and how many of their translations are equal.
    translations = certificate["translations"]
    facts["equal translations, greedy"] = f"{translations['greedy']} of {translations['sentences']}"
    facts["equal translations, 4 beams"] = f"{translations['beam']} of {translations['sentences']}"
    for file_name, sha256 in certificate["sha256"].items():
        facts[f"SHA-256 of `{file_name}`"] = sha256
    versions = [f"{library} {version}" for library, version in certificate["versions"].items()]
    facts["versions"] = ", ".join(versions)
    if certificate["command"]:
        facts["command"] = f"`{certificate['command']}`"
    return facts


def _describe_result(certificate: Certificate) -> str:
    """Say whether a converted model is equal to its source."""
    if certificate["equal"]:
        return "equal"
    return "not equal"


def _describe_differences(certificate: Certificate) -> dict[str, str]:
    """Return the model card's rows about differences between log-probabilities, as a dict from labels to values."""
    rows = {}
    # The type of input is "random", "real" or "marian".
    for input_type, difference in certificate["log_probs"].items():
        rows[f"largest difference, {input_type} input"] = f"{difference:.2g} nats"
    if "float64" in certificate:
        for input_type, difference in certificate["float64"]["log_probs"].items():
            rows[f"in float64, {input_type} input"] = f"{difference:.2g} nats"
    return rows
