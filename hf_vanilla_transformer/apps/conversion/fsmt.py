"""Models of fairseq in transformers' form (`FSMTForConditionalGeneration`), such as those of WMT19.

fairseq's positions are tensor2tensor's sinusoids, and begin at 2, after those of `<s>` and padding; sines come first,
so channels are permuted as for Marian.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import FSMTConfig, FSMTForConditionalGeneration

from ...hub.native_folder import source_folder
from ...hub.user_cache import hashes
from ...model import tokenization_fairseq
from ...model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from ...support.safetensors_layout import read_json
from ...support.user_errors import InputError
from .converted_folder import TOKENIZER_CONFIG, Source, check_output, write_converted
from .parity_certificate import SENTENCES
from .source_folder import check_config, license_of, load_source, weight_files
from .weight_transforms import converted_model


VOCABULARIES, MERGES = ("vocab-src.json", "vocab-tgt.json"), "merges.txt"
# Of LayerNorm in fairseq and FSMT: torch's default.
_EPSILON = 1e-5
# Token ids that fairseq's dictionaries always have.
TOKEN_IDS: dict[str, Any] = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}


def from_fsmt(
    input: str,
    output: str,
    *,
    sentences: Sequence[str] = SENTENCES,
    license: str | None = None,
    force: bool = False,
    **hub: str | None,
) -> Path:
    """Convert an `FSMTForConditionalGeneration`, and prove that the result is equal.

    The tokenizer is a [`~model.tokenization_fairseq.FairseqTokenizer`], which needs sacremoses. The decoding settings
    are those of the source. No code of the source is run; pickled weights are read with `weights_only=True`.

    Args:
        input (`str`): a folder, or a name on the Hub.
        output, sentences, license, force, hub: see
            [`~hf_vanilla_transformer.from_hf_marian`], as for what is returned and raised.
    """
    target = check_output(output, input)
    folder = source_folder(input, **hub)
    check_config(FSMTConfig, folder, {"model_type": "fsmt", "scale_embedding": True, **TOKEN_IDS})
    fsmt = load_source(FSMTForConditionalGeneration, folder, input)
    texts = {name: (folder / name).read_text(encoding="utf-8") for name in (*VOCABULARIES, MERGES)}
    path = folder / TOKENIZER_CONFIG
    settings = {"langs": fsmt.config.langs, **(read_json(path) if path.is_file() else {})}
    langs = settings["langs"]
    if not (isinstance(langs, list) and len(langs) == 2 and all(isinstance(code, str) for code in langs)):
        raise InputError(f"langs in {path} is {langs!r}; it must be the codes of two languages.")
    source = Source(
        input,
        "fsmt",
        fsmt,
        f"FSMTForConditionalGeneration of transformers {transformers.__version__}",
        hashes(weight_files(folder)),
        license or license_of(folder),
        folder=folder if path.is_file() else None,
    )
    return write_fsmt(source, texts, settings, target, sentences, force)


def write_fsmt(
    source: Source, texts: dict[str, str], settings: dict[str, Any], output: Path, sentences: Sequence[str], force: bool
) -> Path:
    """Convert the `reference` of a source, with the texts of its tokenizer's files and the tokenizer's settings."""
    is_joint = texts[VOCABULARIES[0]] == texts[VOCABULARIES[1]]
    code = Path(str(tokenization_fairseq.__file__))
    auto_map = {"AutoTokenizer": [f"{code.stem}.FairseqTokenizer", None]}
    settings = {**settings, "tokenizer_class": "FairseqTokenizer", "auto_map": auto_map, "eos_token": "</s>"}
    texts = {**texts, TOKENIZER_CONFIG: json.dumps(settings, indent=2) + "\n"}
    files = {name: text.encode() for name, text in texts.items()}
    files[code.name] = code.read_bytes()
    model = convert_fsmt(source.reference, source.name, is_joint)
    return write_converted(model, source, files, output, sentences, force)


def convert_fsmt(
    fsmt: FSMTForConditionalGeneration, name: str, is_joint: bool
) -> VanillaTransformerForConditionalGeneration:
    """A model with the weights of an FSMT model, and its decoding settings; joint: of one vocabulary."""
    state = {key: weight for key, weight in fsmt.state_dict().items() if "embed_positions" not in key}
    state["lm_head.weight"] = state.pop("model.decoder.output_projection.weight")
    of_source, of_target = (state[f"model.{side}.embed_tokens.weight"] for side in ("encoder", "decoder"))
    is_tied = torch.equal(of_target, state["lm_head.weight"])
    # With one vocabulary, all embeddings are one matrix, or none is shared.
    is_joint = is_joint and (not is_tied or torch.equal(of_source, of_target))
    if is_joint and is_tied:
        state["model.shared.weight"] = of_source
    return converted_model(
        fsmt,
        state,
        name,
        vocab_size=fsmt.config.tgt_vocab_size,
        source_vocab_size=None if is_joint else fsmt.config.src_vocab_size,
        position_embedding_type="sinusoidal_tensor2tensor",
        position_offset=TOKEN_IDS["pad_token_id"] + 1,
        layer_norm_eps=_EPSILON,
        tie_word_embeddings=is_tied,
    )
