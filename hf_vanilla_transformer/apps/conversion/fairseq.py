"""Convert models that were trained with fairseq, a sequence-to-sequence toolkit for PyTorch.

The source is a folder with a checkpoint (`.pt`), the dictionaries of both languages (`dict.*.txt`), and the byte-pair
encoding merges (`bpecodes`). The weights are first loaded into transformers' `FSMTForConditionalGeneration`. The
converted model is compared with this FSMT model, because fairseq itself is not installed.
"""

import json
import pickle
import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import FSMTConfig, FSMTForConditionalGeneration

from ...hub.user_cache import hashes
from ...support.argument_checks import reason_of
from ...support.user_errors import InputError
from .converted_folder import Source, check_output
from .fsmt import MERGES_FILE, TOKEN_IDS, VOCABULARY_FILES, write_fsmt
from .parity_certificate import SENTENCES
from .source_folder import UnfitField, check_archive, check_fits, find_unfit, read_license
from .weight_transforms import StateDict


# Checkpoint names in order of preference. If a folder holds several of these checkpoints, the first one is converted.
_PREFERRED_CHECKPOINTS = ("model.pt", "checkpoint_best.pt", "checkpoint_last.pt")
# Names of the file with the BPE merges, in fairseq's scripts and in published models.
_MERGES_FILES = ("bpecodes", "code", "codes")
# The first tokens of every dictionary. The dictionary's file does not list them (fairseq/data/dictionary.py).
_SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")
# Values that the training arguments must have. A missing argument counts as having this value.
_REQUIRED_ARGUMENTS: dict[str, object] = {
    "encoder_normalize_before": False,
    "decoder_normalize_before": False,
    "encoder_learned_pos": False,
    "decoder_learned_pos": False,
    "no_scale_embedding": False,
    "no_token_positional_embeddings": False,
    "layernorm_embedding": False,
    "adaptive_softmax_cutoff": None,
    "no_cross_attention": False,
    "cross_self_attention": False,
}
# Decoder widths that must equal the encoder's.
_DECODER_WIDTHS = ("decoder_embed_dim", "decoder_input_dim", "decoder_output_dim")
_ACTIVATIONS = ("relu", "gelu", "swish")

# Tensors that are not weights: version numbers, sinusoids, and the copies in encoder layers that fairseq 0.12 computes
# when it loads a checkpoint.
_COMPUTED_TENSORS = re.compile(r"version$|embed_positions|layers\.\d+\.(in_proj|out_proj|fc1|fc2)_(weight|bias)$")
# Before fairseq 0.7, the LayerNorms of a layer were a list, `layer_norms.0` and so on. These are their later names.
_LAYER_NORMS = {
    "encoder": ("self_attn_layer_norm", "final_layer_norm"),
    "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
}
# Before fairseq 0.9, one matrix computed queries, keys and values. It consists of these projections, in this order.
_JOINT_PROJECTIONS = ("q_proj", "k_proj", "v_proj")
_OUTPUT_PROJECTION = "decoder.output_projection.weight"


def from_fairseq(
    input: str,
    output: str,
    *,
    sentences: Sequence[str] = SENTENCES,
    license: str | None = None,
    force: bool = False,
) -> Path:
    """Convert a model that was trained with fairseq, and check that the result produces the same outputs.

    The tokenizer of the result is a [`~model.tokenization_fairseq.FairseqTokenizer`], which needs sacremoses. The
    training text must have been tokenized with Moses and split with the merges in `bpecodes`. The decoding settings are
    fairseq's defaults. No code in the checkpoint is run.

    Args:
        input (`str`): the training folder, or a checkpoint in it.
        output, sentences, license, force: see [`~hf_vanilla_transformer.from_hf_marian`], which also describes the
            returned value and the errors.
    """
    output_folder = check_output(output, input)
    checkpoint = find_checkpoint(Path(input))
    folder = checkpoint.parent
    state, training_args = read_checkpoint(checkpoint)
    check_arguments(training_args, checkpoint)

    langs = [str(training_args["source_lang"]), str(training_args["target_lang"])]
    dictionary_paths = [folder / f"dict.{lang}.txt" for lang in langs]
    source_token_ids, target_token_ids = [read_dictionary(path) for path in dictionary_paths]
    merges_path = _find_merges(folder)
    fsmt = build_fsmt(
        state,
        training_args,
        source_size=len(source_token_ids),
        target_size=len(target_token_ids),
        langs=langs,
        path=checkpoint,
    )
    tokenizer_texts = _make_tokenizer_texts(source_token_ids, target_token_ids, merges_path)

    # A set, because both dictionaries are the same file if both languages have the same code.
    source_files = {checkpoint, *dictionary_paths, merges_path}
    source = Source(
        name=Path(input).resolve().name,
        system="fairseq",
        # The converted model is compared with this model.
        reference=fsmt,
        reference_description=_describe_reference(),
        sha256=hashes(source_files),
        license=license or read_license(folder),
    )
    return write_fsmt(
        source,
        tokenizer_texts,
        tokenizer_settings={"langs": langs},
        output=output_folder,
        sentences=sentences,
        force=force,
    )


def _describe_reference() -> str:
    """Return the certificate's description of what the converted model is compared with."""
    return (
        f"FSMTForConditionalGeneration of transformers {transformers.__version__} with these weights; "
        "fairseq itself is not installed"
    )


def _make_tokenizer_texts(
    source_token_ids: Mapping[str, int], target_token_ids: Mapping[str, int], merges_path: Path
) -> dict[str, str]:
    """Return the contents of the tokenizer files of an FSMT model, by file name.

    Args:
        source_token_ids, target_token_ids: the vocabularies, as dicts from tokens to token ids.
        merges_path: the file with fairseq's BPE merges.

    Raises:
        ValueError: if the merges have the wrong format.
    """
    source_vocabulary_file, target_vocabulary_file = VOCABULARY_FILES
    return {
        source_vocabulary_file: json.dumps(source_token_ids, ensure_ascii=False),
        target_vocabulary_file: json.dumps(target_token_ids, ensure_ascii=False),
        MERGES_FILE: read_merges(merges_path),
    }


def find_checkpoint(path: Path) -> Path:
    """Return the checkpoint to convert: `path` itself if it is a file, or a checkpoint in the folder `path`.

    Raises:
        FileNotFoundError: if there is no checkpoint.
        ValueError: if the file is not a `.pt` file, or if the folder holds several checkpoints, all with unknown names.
    """
    if path.is_file():
        if path.suffix != ".pt":
            raise InputError(f"{path} is not a .pt file of weights; name the folder that fairseq trained in.")
        return path
    if not path.is_dir():
        raise FileNotFoundError(f"{path} does not exist; name the folder that fairseq trained in.")
    return _choose_checkpoint(path)


def _choose_checkpoint(folder: Path) -> Path:
    """Return the preferred checkpoint in a folder. Raises the same errors as `find_checkpoint`."""
    checkpoints = sorted(folder.glob("*.pt"))
    if not checkpoints:
        raise FileNotFoundError(f"{folder} holds no .pt of weights; name the folder that fairseq trained in.")
    for name in _PREFERRED_CHECKPOINTS:
        if folder / name in checkpoints:
            return folder / name
    if len(checkpoints) > 1:
        names = ", ".join(checkpoint.name for checkpoint in checkpoints)
        raise InputError(f"{folder} holds {names}; name one of these files, or average them before.")
    return checkpoints[0]


def _find_merges(folder: Path) -> Path:
    """Return the file with the BPE merges in a folder: the first name in `_MERGES_FILES` that exists.

    Raises FileNotFoundError if there is none.
    """
    for name in _MERGES_FILES:
        path = folder / name
        if path.is_file():
            return path
    raise FileNotFoundError(f"{folder} holds none of {', '.join(_MERGES_FILES)}; copy the BPE codes there.")


def read_checkpoint(path: Path) -> tuple[StateDict, dict[str, Any]]:
    """Read a checkpoint's weights, converted to float32, and its training arguments.

    Raises ValueError if the file is damaged, is not a fairseq checkpoint, or contains objects that could run code.
    """
    checkpoint = _load_safely(path)
    try:
        # Newer versions of fairseq save the arguments in `cfg`, and None as `args`.
        args = checkpoint.get("args") or checkpoint["cfg"]["model"]
        state = {name: weight.float() for name, weight in checkpoint["model"].items()}
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError(f"{path} is no checkpoint of fairseq: it has no model, args or cfg.") from error
    if isinstance(args, Namespace):
        args = vars(args)
    return state, dict(args)


def _load_safely(path: Path) -> Any:
    """Load a checkpoint with PyTorch, without running code in it. Raises ValueError if this is not possible."""
    check_archive(path)
    try:
        # Older versions of fairseq save the training arguments as a Namespace, which PyTorch must be told to accept.
        with torch.serialization.safe_globals([Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, EOFError, KeyError) as error:
        # PyTorch's own message advises the user to load the file without this check, so it is replaced.
        raise InputError(_describe_unpickling_error(error, path)) from error
    except Exception as error:  # torch raises many exception types.
        raise InputError(f"{path} cannot be read: {reason_of(error)}") from error


def _describe_unpickling_error(error: Exception, path: Path) -> str:
    """Return the error message for a file that PyTorch refuses to load, because it is unsafe or is not a checkpoint."""
    # For an object of an unknown type, PyTorch's message contains "Unsupported global: GLOBAL module.name".
    unsafe_object = re.search(r"GLOBAL (?P<name>\S+)", str(error))
    if unsafe_object:
        return f"{path} holds {unsafe_object['name']}, which could run code; save it without."
    return f"{path} is no checkpoint of PyTorch; give a complete .pt that fairseq wrote."


def check_arguments(args: Mapping[str, Any], path: Path) -> None:
    """Raise ValueError if training arguments are missing, or if this package's model cannot represent their values."""
    for name in ("source_lang", "target_lang", "encoder_embed_dim", "decoder_embed_dim"):
        if name not in args:
            raise InputError(f"{path} does not say its {name}, so it is no translation model of fairseq.")
    for lang in (str(args["source_lang"]), str(args["target_lang"])):
        # The language code becomes part of a path, which must not leave the folder.
        if Path(lang).name != lang:
            raise InputError(f'{path} says that a language is "{lang}"; it must be a code, which names a dictionary.')
    unfit_fields = _find_unfit_arguments(args)
    check_fits(path, unfit_fields, "CTranslate2's ct2-fairseq-converter accepts some of them, such as pre-norm.")


def _find_unfit_arguments(args: Mapping[str, Any]) -> list[UnfitField]:
    """List the training arguments whose values this package's model cannot represent."""
    return [*_find_unfit_options(args), *_find_unfit_sizes(args), *_find_unfit_activation(args)]


def _find_unfit_options(args: Mapping[str, Any]) -> list[UnfitField]:
    """List the training arguments that do not have their required values."""
    unfit_fields = []
    for name, required_value in _REQUIRED_ARGUMENTS.items():
        value = args.get(name)
        # fairseq treats False, 0 and None alike in these arguments, so a false value counts as the required value.
        if value and value != required_value:
            unfit_fields.append(UnfitField(name, value, repr(required_value)))
    return unfit_fields


def _find_unfit_sizes(args: Mapping[str, Any]) -> list[UnfitField]:
    """List the widths and the number of heads of the decoder that differ from the encoder's."""
    required_sizes: dict[str, object] = {}
    for name in _DECODER_WIDTHS:
        required_sizes[name] = args["encoder_embed_dim"]
    required_sizes["decoder_attention_heads"] = args.get("encoder_attention_heads")
    # `find_unfit` accepts missing arguments.
    return find_unfit(args, required_sizes)


def _find_unfit_activation(args: Mapping[str, Any]) -> list[UnfitField]:
    """Return the activation function as a list of one field, or an empty list if this package's model has it."""
    activation = args.get("activation_fn", "relu")
    if activation in _ACTIVATIONS:
        return []
    return [UnfitField("activation_fn", activation, f"one of {', '.join(_ACTIVATIONS)}")]


def read_dictionary(path: Path) -> dict[str, int]:
    """Read a fairseq dictionary, and return a dict from tokens, in transformers' notation, to token ids.

    Raises ValueError if a line has no count, or repeats the token of an earlier line.
    """
    token_ids = {token: token_id for token_id, token in enumerate(_SPECIAL_TOKENS)}
    # splitlines() would also split at other Unicode line separators, which tokens may contain.
    lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    for line_number, line in enumerate(lines, start=1):
        token = _parse_entry(line)
        if token is None:
            raise InputError(f'line {line_number} of {path} is "{line}"; it must be a token, a space and its count.')
        if token in token_ids:
            # With #fairseq:overwrite, fairseq has two ids for the token, but transformers' tokenizer has only one.
            raise InputError(
                f'line {line_number} of {path} is "{line}", which is token {token_ids[token]} already; a dictionary '
                "with the same token twice cannot be converted."
            )
        # The ids follow the order of the lines.
        token_ids[token] = len(token_ids)
    return token_ids


def _parse_entry(line: str) -> str | None:
    """Return the token of a dictionary's line, in transformers' notation, or None if the line has no count.

    fairseq appends `@@` to tokens that do not end a word. transformers appends `</w>` to tokens that end a word. For
    example, the lines `un@@ 9` and `able 7` become the tokens `un` and `able</w>`.
    """
    entry = line.rstrip().removesuffix(" #fairseq:overwrite")
    fairseq_token, separator, count = entry.rpartition(" ")
    if not separator or not count.isdecimal():
        return None
    if fairseq_token.endswith("@@"):
        return fairseq_token.removesuffix("@@")
    return f"{fairseq_token}</w>"


def read_merges(path: Path) -> str:
    """Read BPE merges in the format of fastBPE or subword-nmt 0.2, and return them as text with one merge per line.

    Raises ValueError if the merges are in format 0.1, in which the end of a word is a separate symbol.
    """
    lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    merges = [line for line in lines if not line.startswith("#version")]
    states_version_0_1 = lines[0].split() == ["#version:", "0.1"]
    # A file without a version line may be of version 0.1, too. In version 0.2, </w> only ends longer symbols.
    has_symbol_for_end = any("</w>" in merge.split() for merge in merges)
    if states_version_0_1 or has_symbol_for_end:
        raise InputError(
            f"{path} holds BPE codes of version 0.1, which split words in another way; only models with codes of "
            "version 0.2, or of fastBPE, can be converted."
        )
    return "".join(f"{merge}\n" for merge in merges)


def build_fsmt(
    state: StateDict,
    args: Mapping[str, Any],
    source_size: int,
    target_size: int,
    langs: Sequence[str],
    path: Path,
) -> FSMTForConditionalGeneration:
    """Build a transformers FSMT model with the weights of a fairseq checkpoint.

    Args:
        state, args: the weights and the training arguments of the checkpoint.
        source_size, target_size: the numbers of tokens in the dictionaries.
        langs: the source and target language codes.
        path: the checkpoint, which messages name.

    Raises:
        ValueError: if a weight is missing or unexpected, or if its shape does not fit the arguments and dictionaries.
    """
    config = _build_config(args, source_size, target_size, langs)
    fsmt = FSMTForConditionalGeneration._from_config(config, attn_implementation="eager").eval()

    # FSMT's names of weights are the names in fairseq with a prefix.
    weights = {f"model.{name}": weight for name, weight in rename_weights(state).items()}
    _check_shapes(weights, fsmt, path)
    # Loading is not strict because the checkpoint has no position tables.
    fsmt.load_state_dict(weights, strict=False)
    return fsmt


def _build_config(args: Mapping[str, Any], source_size: int, target_size: int, langs: Sequence[str]) -> FSMTConfig:
    """Convert the training arguments of a checkpoint into the configuration of an FSMT model.

    Args:
        args: the training arguments, which `check_arguments` has accepted. The defaults below are those of fairseq.
        source_size, target_size: the numbers of tokens in the dictionaries.
        langs: the source and target language codes.
    """
    # Older versions of fairseq have relu_dropout instead of activation_dropout.
    relu_dropout = args.get("relu_dropout", 0.0)
    activation_dropout = args.get("activation_dropout", relu_dropout)
    return FSMTConfig(
        langs=list(langs),
        src_vocab_size=source_size,
        tgt_vocab_size=target_size,
        d_model=args["encoder_embed_dim"],
        encoder_layers=args["encoder_layers"],
        encoder_attention_heads=args["encoder_attention_heads"],
        encoder_ffn_dim=args["encoder_ffn_embed_dim"],
        decoder_layers=args["decoder_layers"],
        decoder_attention_heads=args["decoder_attention_heads"],
        decoder_ffn_dim=args["decoder_ffn_embed_dim"],
        activation_function=args.get("activation_fn", "relu"),
        dropout=args.get("dropout", 0.1),
        attention_dropout=args.get("attention_dropout", 0.0),
        activation_dropout=activation_dropout,
        **TOKEN_IDS,  # type: ignore[arg-type]
    )


def _check_shapes(weights: StateDict, fsmt: FSMTForConditionalGeneration, path: Path) -> None:
    """Raise ValueError unless `weights` has exactly the weights of `fsmt`, with the same shapes.

    Position tables are not compared. The message names the checkpoint `path`.
    """
    shapes = _list_shapes(weights)
    # FSMT computes its position tables, so checkpoints do not have them.
    all_expected_shapes = _list_shapes(fsmt.state_dict())
    expected_shapes = {name: shape for name, shape in all_expected_shapes.items() if "embed_positions" not in name}
    all_names = {*expected_shapes, *shapes}
    for name in sorted(all_names):
        # In the message, a word takes the place of a shape that does not exist.
        shape = shapes.get(name, "missing")
        expected_shape = expected_shapes.get(name, "none")
        if shape != expected_shape:
            raise InputError(
                f"{name.removeprefix('model.')} of {path} is {shape}; its arguments and dictionaries need "
                f"{expected_shape}."
            )


def _list_shapes(state: StateDict) -> dict[str, tuple[int, ...]]:
    """Return the shape of each weight, by name."""
    return {name: tuple(weight.shape) for name, weight in state.items()}


def rename_weights(state: StateDict) -> StateDict:
    """Rename a checkpoint's weights to the names used by fairseq 0.9 and later, which are also FSMT's names.

    Older checkpoints have other names for the LayerNorms and the output projection. Their joint matrix for queries,
    keys and values is split. Tensors that are not weights, such as sinusoids, are left out.
    """
    renamed: StateDict = {}
    for old_name, weight in state.items():
        if _COMPUTED_TENSORS.search(old_name):
            continue
        name = _rename_weight(old_name)
        if "in_proj_" in name:
            renamed.update(_split_joint_projection(name, weight))
        else:
            renamed[name] = weight
    if _OUTPUT_PROJECTION not in renamed:
        # The output projection is tied to the target embeddings, and old checkpoints store their matrix only once.
        renamed[_OUTPUT_PROJECTION] = renamed["decoder.embed_tokens.weight"]
    return renamed


def _rename_weight(old_name: str) -> str:
    """Return a weight's name in fairseq 0.9. Joint matrices for queries, keys and values keep their old names.

    For example, `encoder.layers.0.layer_norms.1.weight` becomes `encoder.layers.0.final_layer_norm.weight`.
    """
    name = old_name.replace("decoder.embed_out", _OUTPUT_PROJECTION)
    # The names of LayerNorms begin with "encoder." or "decoder.". In an encoder layer, for example, the later names are
    # self_attn_layer_norm for index 0, and final_layer_norm for index 1.
    stack, _, _ = name.partition(".")
    later_names = _LAYER_NORMS.get(stack, ())
    for index, layer_norm in enumerate(later_names):
        name = name.replace(f".layer_norms.{index}.", f".{layer_norm}.")
    return name


def _split_joint_projection(name: str, weight: torch.Tensor) -> StateDict:
    """Split the joint weight or bias for queries, keys and values of an attention layer into three.

    For example, `self_attn.in_proj_weight` of shape `(3 * d_model, d_model)` is split into `self_attn.q_proj.weight`,
    `self_attn.k_proj.weight` and `self_attn.v_proj.weight`, each of shape `(d_model, d_model)`.
    """
    projections: StateDict = {}
    # The rows for the queries come first, then the rows for the keys, then the rows for the values.
    for projection, rows in zip(_JOINT_PROJECTIONS, weight.chunk(3), strict=True):
        new_name = name.replace("in_proj_", f"{projection}.")
        projections[new_name] = rows
    return projections
