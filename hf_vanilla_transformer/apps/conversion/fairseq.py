"""Models that fairseq trained: a folder with a checkpoint (`.pt`), `dict.*.txt` of both languages, and `bpecodes`.

The weights go into transformers' `FSMTForConditionalGeneration` first, which is also what they are compared with.
"""

import json
import pickle
import re
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import FSMTConfig, FSMTForConditionalGeneration

from ...hub.user_cache import hashes
from ...support.argument_checks import reason_of
from ...support.user_errors import InputError
from .converted_folder import Source, check_output
from .fsmt import MERGES, TOKEN_IDS, VOCABULARIES, write_fsmt
from .parity_certificate import SENTENCES
from .source_folder import check_archive, license_of, refuse, unlike
from .weight_transforms import State


# Of several checkpoints in a folder, the first of these.
_CHECKPOINTS = ("model.pt", "checkpoint_best.pt", "checkpoint_last.pt")
_CODES = ("bpecodes", "code", "codes")
_SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
# Values that the training arguments must have; one that is missing has this value.
_NEEDED: dict[str, Any] = {
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
_ACTIVATIONS = ("relu", "gelu", "swish")
# Tensors that are not weights: versions, sinusoids, and copies in encoder layers that fairseq 0.12 computes when it
# loads a checkpoint.
_COMPUTED = re.compile(r"version$|embed_positions|layers\.\d+\.(in_proj|out_proj|fc1|fc2)_(weight|bias)$")
# Norms of checkpoints before fairseq 0.7, in order.
_OLD_NORMS = {
    "encoder": ("self_attn_layer_norm", "final_layer_norm"),
    "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
}


def from_fairseq(
    input: str,
    output: str,
    *,
    sentences: Sequence[str] = SENTENCES,
    license: str | None = None,
    force: bool = False,
) -> Path:
    """Convert a model that fairseq trained.

    The tokenizer is a [`~model.tokenization_fairseq.FairseqTokenizer`], which needs sacremoses: the text was tokenized
    by Moses and split by `bpecodes`. The decoding settings are fairseq's defaults. No code of the checkpoint is run.

    Args:
        input (`str`): the folder, or a checkpoint in it.
        output, sentences, license, force: see
            [`~hf_vanilla_transformer.from_hf_marian`], as for what is returned and raised.
    """
    target = check_output(output, input)
    checkpoint = find_checkpoint(Path(input))
    state, args = read_checkpoint(checkpoint)
    check_arguments(args, checkpoint)
    langs = [str(args[name]) for name in ("source_lang", "target_lang")]
    dictionaries = [checkpoint.parent / f"dict.{lang}.txt" for lang in langs]
    vocabularies = [read_dictionary(path) for path in dictionaries]
    codes = next((path for name in _CODES if (path := checkpoint.parent / name).is_file()), None)
    if codes is None:
        raise FileNotFoundError(f"{checkpoint.parent} holds none of {', '.join(_CODES)}; copy the BPE codes there.")
    fsmt = as_fsmt(state, args, [len(each) for each in vocabularies], langs, checkpoint)
    texts = {name: json.dumps(each, ensure_ascii=False) for name, each in zip(VOCABULARIES, vocabularies, strict=True)}
    texts[MERGES] = read_merges(codes)
    oracle = f"FSMTForConditionalGeneration of transformers {transformers.__version__} with these weights"
    oracle += "; fairseq itself is not installed"
    name, sha256 = Path(input).resolve().name, hashes([checkpoint, *dict.fromkeys(dictionaries), codes])
    source = Source(name, "fairseq", fsmt, oracle, sha256, license or license_of(checkpoint.parent))
    return write_fsmt(source, texts, {"langs": langs}, target, sentences, force)


def find_checkpoint(path: Path) -> Path:
    """The checkpoint: the file, or that of a folder; raises ValueError if it is not clear which one is meant."""
    if path.is_file():
        if path.suffix != ".pt":
            raise InputError(f"{path} is no .pt of weights; name the folder that fairseq trained in.")
        return path
    found = {each.name: each for each in path.glob("*.pt")}
    if not found:
        fault = "holds no .pt of weights" if path.is_dir() else "does not exist"
        raise FileNotFoundError(f"{path} {fault}; name the folder that fairseq trained in.")
    named = [found[name] for name in _CHECKPOINTS if name in found] or list(found.values())
    if len(named) > 1 and named[0].name not in _CHECKPOINTS:
        raise InputError(f"{path} holds {', '.join(sorted(found))}; name one of these files, or average them before.")
    return named[0]


def read_checkpoint(path: Path) -> tuple[State, dict[str, Any]]:
    """The weights in float32 and the training arguments, or ValueError if the file is damaged or would run code."""
    check_archive(path)
    try:
        with torch.serialization.safe_globals([Namespace]):
            checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, EOFError, KeyError) as error:
        # torch advises to load without this check.
        if found := re.search(r"GLOBAL (\S+)", str(error)):
            raise InputError(f"{path} holds {found[1]}, which could run code; save it without.") from error
        raise InputError(f"{path} is no checkpoint of PyTorch; give a complete .pt that fairseq wrote.") from error
    except Exception as error:  # torch raises many kinds.
        raise InputError(f"{path} cannot be read: {reason_of(error)}") from error
    try:
        args = checkpoint.get("args") or checkpoint["cfg"]["model"]
        state = {name: weight.float() for name, weight in checkpoint["model"].items()}
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError(f"{path} is no checkpoint of fairseq: it has no model, args or cfg.") from error
    return state, vars(args) if isinstance(args, Namespace) else dict(args)


def check_arguments(args: dict[str, Any], path: Path) -> None:
    """Raise ValueError naming the training arguments that cannot be carried, or one that is missing."""
    for name in ("source_lang", "target_lang", *(f"{side}_embed_dim" for side in _OLD_NORMS)):
        if name not in args:
            raise InputError(f"{path} does not say its {name}, so it is no translation model of fairseq.")
    for lang in (str(args[f"{side}_lang"]) for side in ("source", "target")):
        if Path(lang).name != lang:
            raise InputError(f'{path} says that a language is "{lang}"; it must be a code, which names a dictionary.')
    # False, 0 and None are the same there.
    unfit = unlike({name: args.get(name) or needed for name, needed in _NEEDED.items()}, _NEEDED)
    widths = ("decoder_embed_dim", "decoder_input_dim", "decoder_output_dim")
    unfit += unlike(args, dict.fromkeys(widths, args["encoder_embed_dim"]))
    unfit += unlike(args, {"decoder_attention_heads": args.get("encoder_attention_heads")})
    if (activation := args.get("activation_fn", "relu")) not in _ACTIVATIONS:
        unfit.append(("activation_fn", activation, f"one of {', '.join(_ACTIVATIONS)}"))
    refuse(path, unfit, "CTranslate2's ct2-fairseq-converter takes some others, such as pre-norm.")


def read_dictionary(path: Path) -> dict[str, int]:
    """Token ids by token, whose end of a word is `</w>` as in transformers; fairseq marks what goes on, by `@@`.

    Raises ValueError if a line has no count, or a token that an earlier line has.
    """
    tokens = {token: index for index, token in enumerate(_SPECIAL)}
    for number, line in enumerate(path.read_text(encoding="utf-8").removesuffix("\n").split("\n"), start=1):
        word, separator, count = line.rstrip().removesuffix(" #fairseq:overwrite").rpartition(" ")
        if not separator or not count.isdecimal():
            raise InputError(f'line {number} of {path} is "{line}"; it must be a token, a space and its count.')
        token = word.removesuffix("@@") if word.endswith("@@") else f"{word}</w>"
        if token in tokens:
            # With #fairseq:overwrite, fairseq has two ids for it; the tokenizer of transformers has one.
            raise InputError(
                f'line {number} of {path} is "{line}", which is token {tokens[token]} already; a dictionary with the '
                "same token twice cannot be converted."
            )
        tokens[token] = len(tokens)
    return tokens


def read_merges(path: Path) -> str:
    """The merges of byte-pair encoding of fastBPE or version 0.2 of subword-nmt, one a line.

    Raises ValueError if they are of version 0.1, in which the end of a word is a symbol of its own.
    """
    lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    merges = [line for line in lines if not line.startswith("#version")]
    if lines[0].split() == ["#version:", "0.1"] or any("</w>" in line.split() for line in merges):
        raise InputError(
            f"{path} holds BPE codes of version 0.1, which split words in another way; only models with those of "
            "version 0.2, or of fastBPE, can be converted."
        )
    return "".join(f"{line}\n" for line in merges)


def as_fsmt(
    state: State, args: dict[str, Any], sizes: Sequence[int], langs: list[str], path: Path
) -> FSMTForConditionalGeneration:
    """An FSMT model with weights of fairseq; raises ValueError if these do not fit arguments and dictionaries."""
    stacks = {
        f"{side}_{ours}": args[f"{side}_{theirs}"]
        for side in _OLD_NORMS
        for ours, theirs in (("layers", "layers"), ("attention_heads", "attention_heads"), ("ffn_dim", "ffn_embed_dim"))
    }
    config = FSMTConfig(
        langs=langs,
        src_vocab_size=sizes[0],
        tgt_vocab_size=sizes[1],
        d_model=args["encoder_embed_dim"],
        activation_function=args.get("activation_fn", "relu"),
        dropout=args.get("dropout", 0.1),
        attention_dropout=args.get("attention_dropout", 0.0),
        activation_dropout=args.get("activation_dropout", args.get("relu_dropout", 0.0)),
        **stacks,
        **TOKEN_IDS,
    )
    fsmt = FSMTForConditionalGeneration._from_config(config, attn_implementation="eager").eval()
    state = {f"model.{name}": weight for name, weight in modern_names(state).items()}
    expected = {name: tuple(each.shape) for name, each in fsmt.state_dict().items() if "embed_positions" not in name}
    given = {name: tuple(weight.shape) for name, weight in state.items()}
    for name in sorted(expected.keys() | given.keys()):
        if expected.get(name) != given.get(name):
            raise InputError(
                f"{name.removeprefix('model.')} of {path} is {given.get(name, 'missing')}; its arguments and "
                f"dictionaries need {expected.get(name, 'none')}."
            )
    fsmt.load_state_dict(state, strict=False)
    return fsmt


def modern_names(state: State) -> State:
    """Weights under the names of fairseq 0.9 and later; those before 0.9 had queries, keys and values in one matrix."""
    renamed: State = {}
    for name, weight in state.items():
        if _COMPUTED.search(name):
            continue
        side = name.partition(".")[0]
        for index, norm in enumerate(_OLD_NORMS.get(side, ())):
            name = name.replace(f".layer_norms.{index}.", f".{norm}.")
        prefix, separator, kind = name.rpartition("in_proj_")
        if separator:
            for letter, part in zip("qkv", weight.chunk(3), strict=True):
                renamed[f"{prefix}{letter}_proj.{kind}"] = part
        else:
            renamed[name.replace("decoder.embed_out", "decoder.output_projection.weight")] = weight
    renamed.setdefault("decoder.output_projection.weight", renamed["decoder.embed_tokens.weight"])
    return renamed
