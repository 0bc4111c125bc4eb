"""Models that Marian itself trained (marian-nmt, C++): a folder with `.npz` weights and SentencePiece vocabularies."""

import json
import zipfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import transformers
import yaml
from transformers import MarianConfig, MarianMTModel, MarianTokenizer

from ..support.user_errors import InputError
from .config_requirements import refuse, unlike
from .converted_folder import Source, check_output, write_converted
from .hf_marian import convert_marian, restore_positions
from .parity_certificate import SENTENCES, compare, excess
from .source_folder import check_archive, hashes, license_of
from .weight_transforms import State


# Values that the fields of special:model.yml must have; a field that is missing has this value.
_NEEDED: dict[str, Any] = {
    "type": "transformer",
    "transformer-preprocess": "",
    "transformer-postprocess": "dan",
    "transformer-postprocess-top": "",
    "transformer-decoder-autoreg": "self-attention",
    "transformer-attention-mask": "default",
    "transformer-ffn-depth": 2,
    "transformer-decoder-ffn-depth": 0,
    "transformer-train-position-embeddings": False,
    "transformer-disable-position-embeddings": False,
    "transformer-no-projection": False,
    "transformer-no-bias": False,
    "transformer-no-affine": False,
    "transformer-tied-layers": [],
    "tied-embeddings-src": False,
    "output-omit-bias": False,
    "lemma-dim-emb": 0,
    "ulr": False,
}
_ACTIVATIONS = ("relu", "swish")
_ATTENTIONS = {"self": ("self_attn", "self_attn_layer_norm"), "context": ("encoder_attn", "encoder_attn_layer_norm")}
# Under a softmax with the others, a token that Marian does not have gets no probability.
_BELOW_ALL = 30.0
# Of all arrays, uncompressed, in multiples of the size of the file.
_LARGEST_INFLATION = 20
# Marian truncates a hypothesis at this many times the tokens of the source; it then has no EOS.
_LONGEST = 3


def from_marian(
    input: str,
    output: str,
    *,
    sentences: Sequence[str] = SENTENCES,
    license: str | None = None,
    force: bool = False,
) -> Path:
    """Convert a model that Marian trained, with the positions that it was trained with.

    The folder has the newest `.npz` that is not an optimizer's, and its SentencePiece vocabularies, whose names are in
    the `.npz.yml` next to it; without that, the only `.spm`. Where pymarian, which is Marian, is installed, its n-best
    lists are scored by the converted model, too.

    Args:
        input (`str`): the training folder, or a file of weights in it.
        output (`str`): folder to make.
        sentences (`list` of `str`): source sentences for the comparison on real input.
        license (`str`, *optional*): licence of the weights, for the card.
        force (`bool`): write a model that is not equal to its source.

    Returns:
        `Path`: the folder, with `parity.json`.

    Raises:
        ImportError: if sentencepiece is not installed.
        OSError: if the source cannot be read, or the folder already holds a model.
        ValueError: if this model cannot hold the source, or the result is not equal.
    """
    target = check_output(output, input)
    if find_spec("sentencepiece") is None:
        raise ImportError(
            "Marian's vocabulary needs sentencepiece; install it with: pip install '/path/to/the/repository[marian]'"
        )
    weights, vocabularies = find_files(Path(input))
    arrays, settings = read_arrays(weights)
    check_settings(settings, weights)
    with TemporaryDirectory() as folder:
        tokenizer, pad = write_tokenizer(Path(folder), vocabularies, arrays)
        marian = as_hf_marian(arrays, settings, pad, weights)
        model = convert_marian(marian, "marian", str(weights))
        oracle = f"MarianMTModel of transformers {transformers.__version__} with these weights and Marian's positions"
        parity = compare(model, marian, tokenizer(list(sentences)).input_ids, in_float64=True)
        if find_spec("pymarian") is None:
            oracle += "; pymarian, which is Marian itself, is not installed"
        else:
            oracle += ", and n-best lists of pymarian"
            parity = add_scores(parity, model, tokenizer, n_best_lists(weights, vocabularies, sentences))
        name, sha256 = Path(input).resolve().name, hashes([weights, *vocabularies])
        source = Source(name, "marian", oracle, sha256, license or license_of(weights.parent))
        files = [path for path in Path(folder).iterdir() if path.is_file()]
        return write_converted(model, target, source, parity, files, force)


def find_files(path: Path) -> tuple[Path, list[Path]]:
    """The weights of a training folder, or a file of weights in it, and the vocabularies of source and target.

    Raises:
        FileNotFoundError: if weights are missing.
        ValueError: if the file is no .npz, or vocabularies are not SentencePiece models inside the folder.
    """
    if path.is_file():
        if path.suffix != ".npz":
            raise InputError(f"{path} is no .npz of weights; name the folder that Marian trained in.")
        weights, folder = path, path.parent
    else:
        found = [each for each in path.glob("*.npz") if not each.name.endswith((".optimizer.npz", ".orig.npz"))]
        if not found:
            fault = "holds no .npz of weights" if path.is_dir() else "is no folder"
            raise FileNotFoundError(f"{path} {fault}; name the folder that Marian trained in.")
        weights, folder = max(found, key=lambda each: each.stat().st_mtime), path
    settings = weights.with_name(f"{weights.name}.yml")
    if settings.is_file():
        names = read_yaml(settings.read_bytes(), settings).get("vocabs") or []
        if not isinstance(names, list):
            raise InputError(f"vocabs of {settings} is {names!r}; it must be a list of two names.")
        # Only names, because the paths were those of the machine that trained.
        vocabularies = [folder / Path(str(name)).name for name in names]
    else:
        vocabularies = 2 * list(folder.glob("*.spm"))
    if len(vocabularies) != 2 or any(each.suffix != ".spm" for each in vocabularies):
        names = ", ".join(each.name for each in vocabularies) or "none"
        raise InputError(f"the vocabularies of {folder} are {names}; two SentencePiece models (.spm) are needed.")
    return weights, vocabularies


def read_arrays(path: Path) -> tuple[State, dict[str, Any]]:
    """The arrays of an `.npz`, without pickles, and the settings inside it.

    Raises:
        ValueError: if the file is damaged, claims more than it holds, or has no settings.
    """
    check_archive(path, _LARGEST_INFLATION)
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = dict(stored)
        settings = read_yaml(bytes(arrays.pop("special:model.yml")).rstrip(b"\0"), path)
        state = {name: torch.from_numpy(array) for name, array in arrays.items()}
    except KeyError as error:
        raise InputError(f"{path} has no special:model.yml; it is not a model of Marian.") from error
    except (EOFError, MemoryError, OSError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    return state, settings


def read_yaml(content: bytes, path: Path) -> dict[str, Any]:
    """The settings in YAML, or ValueError if they are damaged."""
    try:
        settings = yaml.safe_load(content.decode())
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"the settings in {path} are damaged: {' '.join(str(error).split())}") from error
    if not isinstance(settings, dict):
        raise InputError(f"the settings in {path} are damaged: they have no fields.")
    return settings


def check_settings(settings: dict[str, Any], path: Path) -> None:
    """Raise ValueError naming the settings that cannot be carried."""
    unfit = unlike(settings, _NEEDED)
    activation = settings.get("transformer-ffn-activation", "swish")
    if activation not in _ACTIVATIONS:
        unfit.append(("transformer-ffn-activation", activation, " or ".join(_ACTIVATIONS)))
    refuse(path, unfit, "CTranslate2's ct2-marian-converter takes some others, such as pre-norm.")


def write_tokenizer(folder: Path, vocabularies: Sequence[Path], arrays: State) -> tuple[Any, int]:
    """Write the files of a `MarianTokenizer`; returns it and the id of the pad token, which Marian does not have.

    Raises:
        ValueError: if a vocabulary and the embeddings differ in size.
    """
    import sentencepiece

    tables = [arrays["Wemb"]] * 2 if "Wemb" in arrays else [arrays["encoder_Wemb"], arrays["decoder_Wemb"]]
    pad = max(len(table) for table in tables)
    names = (("source.spm", "vocab.json"), ("target.spm", "target_vocab.json"))
    for path, table, (model_name, vocabulary_name) in zip(vocabularies, tables, names, strict=True):
        try:
            processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
        except (OSError, RuntimeError) as error:
            raise InputError(f"{path} is no model of SentencePiece, or damaged: {error}") from error
        pieces = {processor.id_to_piece(token): token for token in range(processor.get_piece_size())}
        if len(pieces) != len(table):
            raise InputError(f"{path} has {len(pieces)} tokens, but the embeddings {len(table)} rows.")
        (folder / model_name).write_bytes(path.read_bytes())
        (folder / vocabulary_name).write_text(json.dumps({**pieces, "<pad>": pad}), encoding="utf-8")
    is_joint = "Wemb" in arrays
    settings = {
        "tokenizer_class": "MarianTokenizer",
        "separate_vocabs": not is_joint,
        # To Marian, "</s>" in a text is text.
        "split_special_tokens": True,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    if is_joint:
        (folder / "target_vocab.json").unlink()
    return MarianTokenizer.from_pretrained(folder), pad


def as_hf_marian(arrays: State, settings: dict[str, Any], pad: int, path: Path) -> MarianMTModel:
    """A `MarianMTModel` with Marian's weights and positions.

    Decoding begins from a zero vector, which is the embedding of the pad token here.

    Raises:
        ValueError: if an array is missing or left over.
    """
    is_joint, rest = "Wemb" in arrays, dict(arrays)
    d_ff = settings["transformer-dim-ffn"]
    config = MarianConfig(
        vocab_size=pad + 1,
        decoder_vocab_size=pad + 1,
        share_encoder_decoder_embeddings=is_joint,
        d_model=settings["dim-emb"],
        encoder_layers=settings["enc-depth"],
        decoder_layers=settings["dec-depth"],
        encoder_attention_heads=settings["transformer-heads"],
        decoder_attention_heads=settings["transformer-heads"],
        encoder_ffn_dim=d_ff,
        decoder_ffn_dim=settings.get("transformer-decoder-dim-ffn") or d_ff,
        activation_function=settings.get("transformer-ffn-activation", "swish"),
        scale_embedding=True,
        pad_token_id=pad,
        eos_token_id=0,
        decoder_start_token_id=pad,
        forced_eos_token_id=None,
        tie_word_embeddings=True,
    )
    marian = MarianMTModel._from_config(config, attn_implementation="eager").eval()
    state: State = {}
    try:
        for name in ("shared",) if is_joint else ("encoder.embed_tokens", "decoder.embed_tokens"):
            table = rest.pop("Wemb" if is_joint else f"{name.partition('.')[0]}_Wemb")
            state[f"model.{name}.weight"] = torch.cat([table, table.new_zeros(pad + 1 - len(table), table.shape[1])])
        bias = rest.pop("decoder_ff_logit_out_b").flatten()
        missing = bias.new_full((pad + 1 - len(bias),), float(bias.min()) - _BELOW_ALL)
        state["final_logits_bias"] = torch.cat([bias, missing])[None]
        for side, depth in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
            for layer in range(depth):
                state |= _layer_state(rest, f"{side}_l{layer + 1}", f"model.{side}.layers.{layer}")
    except KeyError as error:
        raise InputError(f"{path} lacks the array {error}; use a complete model.") from error
    if rest:
        raise InputError(f"{path} has {min(rest)}, which cannot be carried: this model has no such weights.")
    marian.load_state_dict(state, strict=False)
    marian.tie_weights()
    restore_positions(marian)
    # Marian generates neither padding nor, by default, <unk>, which is token 1.
    generation: Any = marian.generation_config
    generation.suppress_tokens, generation.num_beams, generation.length_penalty = [1, pad], 4, 0.0
    generation.max_length = 512
    return marian


def _layer_state(rest: State, theirs: str, ours: str) -> State:
    """The weights of a layer under transformers' names, taken out of `rest`; Marian's matrices are (in, out)."""
    state = {}
    for kind in ("self", "context") if theirs.startswith("decoder") else ("self",):
        module, norm = _ATTENTIONS[kind]
        for letter, name in (("q", "q_proj"), ("k", "k_proj"), ("v", "v_proj"), ("o", "out_proj")):
            state[f"{ours}.{module}.{name}.weight"] = rest.pop(f"{theirs}_{kind}_W{letter}").T
            state[f"{ours}.{module}.{name}.bias"] = rest.pop(f"{theirs}_{kind}_b{letter}").flatten()
        state |= _norm_state(rest, f"{theirs}_{kind}_Wo_ln", f"{ours}.{norm}")
    for number in ("1", "2"):
        state[f"{ours}.fc{number}.weight"] = rest.pop(f"{theirs}_ffn_W{number}").T
        state[f"{ours}.fc{number}.bias"] = rest.pop(f"{theirs}_ffn_b{number}").flatten()
    return state | _norm_state(rest, f"{theirs}_ffn_ffn_ln", f"{ours}.final_layer_norm")


def _norm_state(rest: State, theirs: str, ours: str) -> State:
    parts = {"weight": "scale", "bias": "bias"}
    return {f"{ours}.{name}": rest.pop(f"{theirs}_{part}").flatten() for name, part in parts.items()}


def n_best_lists(weights: Path, vocabularies: Sequence[Path], sentences: Sequence[str]) -> list[tuple[str, str, float]]:
    """Marian's own translations of sentences, 4 for each, for `add_scores`."""
    import pymarian

    translator = pymarian.Translator(
        models=[str(weights)],
        vocabs=list(map(str, vocabularies)),
        beam_size=4,
        n_best=True,
        no_spm_decode=True,
        max_length_factor=_LONGEST,
        cpu_threads=1,
        quiet=True,
        quiet_translation=True,
    )
    rows = [line.split(" ||| ") for line in translator.translate(list(sentences))]
    return [(sentences[int(number)], text, float(score)) for number, text, _, score in rows]


@torch.no_grad()
def add_scores(
    parity: dict[str, Any], model: Any, tokenizer: Any, hypotheses: Sequence[tuple[str, str, float]]
) -> dict[str, Any]:
    """The comparison with `marian`: the largest difference per token from scores that Marian gave to whole hypotheses.

    Args:
        parity (`dict`): see [`~hf_vanilla_transformer.conversion.parity_certificate.compare`].
        model, tokenizer: the converted model.
        hypotheses (`list` of `tuple`): a sentence, SentencePiece tokens of a translation, and its log-probability.
    """
    differences = []
    for sentence, pieces, expected in hypotheses:
        tokenizer._switch_to_target_mode()
        labels = torch.tensor([[*tokenizer.convert_tokens_to_ids(pieces.split()), model.config.eos_token_id]])
        tokenizer._switch_to_input_mode()
        inputs = tokenizer(sentence, return_tensors="pt")
        if labels.shape[1] > _LONGEST * inputs.input_ids.shape[1]:
            continue
        logits = model(**inputs, labels=labels, skip_logits=False).logits
        total = float(logits.log_softmax(dim=-1)[0].gather(-1, labels[0][:, None]).sum())
        differences.append(abs(total - expected) / labels.shape[1])
    parity = {**parity, "log_probs": {**parity["log_probs"], "marian": max(differences)}}
    return {**parity, "equal": not excess(parity)}
