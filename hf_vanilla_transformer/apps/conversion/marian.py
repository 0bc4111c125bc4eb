"""Models that Marian itself trained (marian-nmt, C++): a folder with `.npz` weights and SentencePiece vocabularies."""

import json
import re
import zipfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
import yaml
from transformers import MarianConfig, MarianMTModel

from ...hub.user_cache import hashes
from ...support.language_codes import language_of
from ...support.user_errors import InputError, needing
from .converted_folder import TOKENIZER_CONFIG, Source, check_output, write_converted
from .hf_marian import convert_marian, restore_positions
from .parity_certificate import LONGEST_OF_MARIAN, SENTENCES
from .source_folder import check_archive, license_of, refuse, unlike
from .weight_transforms import State


# Values that the fields of special:model.yml must have; a field that is missing has this value.
_NEEDED: dict[str, Any] = {
    "type": "transformer",
    "right-left": False,
    "word-penalty": 0,
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
_ATTENTIONS = {"self": "self_attn", "context": "encoder_attn"}
# Under a softmax with the others, a token that Marian does not have gets no probability.
_BELOW_ALL = 30.0
# Of all arrays, uncompressed, in multiples of the size of the file.
_LARGEST_INFLATION = 20


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
    the `.npz.yml` or `.decoder.yml` next to it, as are beams and length penalty; without these, the only `.spm`.
    Languages are the endings of the training files or of the vocabularies; `align` reads the head that guided alignment
    trained. Where pymarian, which is Marian, is installed, its n-best lists are scored by the converted model, too.

    Args:
        input (`str`): the training folder, or a file of weights in it.
        output, sentences, license, force: see
            [`~hf_vanilla_transformer.from_hf_marian`], as for what is returned and raised.

    Raises:
        ImportError: if sentencepiece is not installed.
    """
    target = check_output(output, input)
    with needing("marian", "Marian's vocabulary needs"):
        import sentencepiece  # noqa: F401
    weights, vocabularies = find_files(Path(input))
    arrays, settings = read_arrays(weights)
    settings = {**read_settings(weights), **settings}
    check_settings(settings, weights)
    files, pad = tokenizer_files(vocabularies, arrays, languages_of(settings, vocabularies))
    marian = as_hf_marian(arrays, settings, pad, weights)
    oracle = f"MarianMTModel of transformers {transformers.__version__} with these weights and Marian's positions"
    n_best = []
    if find_spec("pymarian") is None:
        oracle += "; pymarian, which is Marian itself, is not installed"
    else:
        oracle += ", and n-best lists of pymarian"
        n_best = n_best_lists(weights, vocabularies, sentences)
    source = Source(
        Path(input).resolve().name,
        "marian",
        marian,
        oracle,
        hashes([weights, *vocabularies]),
        license or license_of(weights.parent),
        in_float64=True,
        n_best=n_best,
    )
    heads = guided_heads(settings, weights)
    model = convert_marian(marian, "marian", str(weights), alignment_heads=heads)
    return write_converted(model, source, files, target, sentences, force)


def find_files(path: Path) -> tuple[Path, list[Path]]:
    """The weights of a training folder, or a file of weights in it, and the vocabularies of source and target.

    Raises ValueError if the file is no .npz, or vocabularies are not SentencePiece models inside the folder.
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
    names = read_settings(weights).get("vocabs", 2 * [each.name for each in folder.glob("*.spm")])
    if not isinstance(names, list):
        raise InputError(f"vocabs in the settings of {weights} is {names!r}; it must be a list of two names.")
    # Only names, because the paths were those of the machine that trained.
    vocabularies = [folder / Path(str(name)).name for name in names]
    if len(vocabularies) != 2 or any(each.suffix != ".spm" for each in vocabularies):
        given = ", ".join(each.name for each in vocabularies) or "none"
        raise InputError(
            f"the vocabularies of {folder} are {given}; two SentencePiece models (.spm) are needed. Of an archive of "
            "OPUS-MT, whose scripts split the text, convert the Hub's version: --from hf_marian --input "
            "Helsinki-NLP/opus-mt-..."
        )
    return weights, vocabularies


def read_settings(weights: Path) -> dict[str, Any]:
    """The settings of the training and of the decoder that are in files next to the weights."""
    # model.npz is the name of model.iter500.npz and model.npz.best-bleu.npz in the training.
    trained = re.sub(r"(\.iter\d+)?\.npz.*", ".npz", weights.name)
    names = [f"{trained}.yml", f"{weights.name}.yml", "decoder.yml", f"{trained}.decoder.yml"]
    paths = [weights.with_name(name) for name in dict.fromkeys([*names, f"{weights.name}.decoder.yml"])]
    found = [read_yaml(path.read_bytes(), path) for path in paths if path.is_file()]
    return {name: value for settings in found for name, value in settings.items()}


def languages_of(settings: dict[str, Any], vocabularies: Sequence[Path]) -> list[str | None]:
    """The languages of source and target, by the endings of the training files or of the vocabularies."""
    for files in (settings.get("train-sets"), vocabularies):
        names = [re.sub(r"\.(gz|spm)$", "", str(file)) for file in files] if isinstance(files, list) else []
        codes = [re.split(r"[./]", name)[-1] for name in names]
        if len(codes) == 2 and codes[0] != codes[1] and all(map(language_of, codes)):
            return list(codes)
    return [None, None]


def read_arrays(path: Path) -> tuple[State, dict[str, Any]]:
    """The arrays of an `.npz`, without pickles, and the settings inside it, or ValueError if the file is damaged."""
    check_archive(path, _LARGEST_INFLATION)
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = dict(stored)
        settings = read_yaml(bytes(arrays.pop("special:model.yml")).rstrip(b"\0"), path)
        state = {name: torch.from_numpy(array) for name, array in arrays.items()}
    except KeyError as error:
        raise InputError(f"{path} has no special:model.yml; it is not a model of Marian.") from error
    except (EOFError, MemoryError, OSError, RuntimeError, TypeError, ValueError, zipfile.BadZipFile) as error:
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
    beams, alpha = settings.get("beam-size", 1), settings.get("normalize", 0)
    if type(beams) is not int or beams < 1:
        unfit.append(("beam-size", beams, "a whole number from 1"))
    if type(alpha) not in (int, float):
        unfit.append(("normalize", alpha, "a number"))
    refuse(path, unfit, "CTranslate2's ct2-marian-converter takes some others, such as pre-norm.")


def guided_heads(settings: dict[str, Any], path: Path) -> list[list[int]] | None:
    """The decoder layer and head that guided alignment trained: Marian takes the first head of a layer."""
    if settings.get("guided-alignment", "none") == "none":
        return None
    layer, depth = settings.get("transformer-guided-alignment-layer", "last"), settings["dec-depth"]
    if layer != "last" and not (str(layer).isdecimal() and 1 <= int(layer) <= depth):
        refuse(path, [("transformer-guided-alignment-layer", layer, f'"last" or from 1 to {depth}')])
    return [[(depth if layer == "last" else int(layer)) - 1, 0]]


def tokenizer_files(
    vocabularies: Sequence[Path], arrays: State, languages: Sequence[str | None] = (None, None)
) -> tuple[dict[str, bytes], int]:
    """The files of a `MarianTokenizer`, by name, and the id of the pad token, which Marian does not have."""
    import sentencepiece

    tables = [arrays["Wemb"]] * 2 if "Wemb" in arrays else [arrays["encoder_Wemb"], arrays["decoder_Wemb"]]
    pad, files = max(len(table) for table in tables), {}
    names = (("source.spm", "vocab.json"), ("target.spm", "target_vocab.json"))
    for path, table, (model_name, vocabulary_name) in zip(vocabularies, tables, names, strict=True):
        try:
            processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
        except (OSError, RuntimeError) as error:
            raise InputError(f"{path} is no model of SentencePiece, or damaged: {error}") from error
        pieces = {processor.id_to_piece(token): token for token in range(processor.get_piece_size())}
        if len(pieces) != len(table):
            raise InputError(f"{path} has {len(pieces)} tokens, but the embeddings {len(table)} rows.")
        files[model_name] = path.read_bytes()
        files[vocabulary_name] = json.dumps({**pieces, "<pad>": pad}).encode()
    settings = {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": languages[0],
        "target_lang": languages[1],
        "separate_vocabs": "Wemb" not in arrays,
        # To Marian, "</s>" in a text is text.
        "split_special_tokens": True,
    }
    if not settings["separate_vocabs"]:
        del files["target_vocab.json"]
    return {**files, TOKENIZER_CONFIG: json.dumps(settings, indent=2).encode()}, pad


def as_hf_marian(arrays: State, settings: dict[str, Any], pad: int, path: Path) -> MarianMTModel:
    """A `MarianMTModel` with Marian's weights and positions.

    Decoding begins from a zero vector, which is the embedding of the pad token here. Raises ValueError if an array is
    missing or left over.
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
    generation.suppress_tokens, generation.max_length = [1, pad], 512
    generation.num_beams, generation.length_penalty = settings.get("beam-size", 4), float(settings.get("normalize", 0))
    return marian


def _layer_state(rest: State, theirs: str, ours: str) -> State:
    """The weights of a layer under transformers' names, taken out of `rest`; Marian's matrices are (in, out)."""
    parts = {"fc1": ("ffn_W1", "ffn_b1"), "fc2": ("ffn_W2", "ffn_b2")}
    parts["final_layer_norm"] = ("ffn_ffn_ln_scale", "ffn_ffn_ln_bias")
    for kind, module in _ATTENTIONS.items() if theirs.startswith("decoder") else [("self", "self_attn")]:
        for letter, name in zip("qkvo", ("q_proj", "k_proj", "v_proj", "out_proj"), strict=True):
            parts[f"{module}.{name}"] = (f"{kind}_W{letter}", f"{kind}_b{letter}")
        parts[f"{module}_layer_norm"] = (f"{kind}_Wo_ln_scale", f"{kind}_Wo_ln_bias")
    state = {}
    for name, arrays in parts.items():
        for kind, array in zip(("weight", "bias"), (rest.pop(f"{theirs}_{each}") for each in arrays), strict=True):
            state[f"{ours}.{name}.{kind}"] = array.T if len(array) > 1 else array.flatten()
    return state


def n_best_lists(weights: Path, vocabularies: Sequence[Path], sentences: Sequence[str]) -> list[tuple[str, str, float]]:
    """Marian's own translations of sentences, 4 for each, for `add_scores`."""
    import pymarian

    translator = pymarian.Translator(
        models=[str(weights)],
        vocabs=list(map(str, vocabularies)),
        beam_size=4,
        n_best=True,
        no_spm_decode=True,
        max_length_factor=LONGEST_OF_MARIAN,
        cpu_threads=1,
        quiet=True,
        quiet_translation=True,
    )
    rows = [line.split(" ||| ") for line in translator.translate(list(sentences))]
    return [(sentences[int(number)], text, float(score)) for number, text, _, score in rows]
