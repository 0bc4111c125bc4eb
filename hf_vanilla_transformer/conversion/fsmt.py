"""Models of fairseq in transformers' form (`FSMTForConditionalGeneration`), such as those of WMT19.

fairseq's positions are tensor2tensor's sinusoids, and begin at 2, after those of `<s>` and padding; sines come first,
so channels are permuted as for Marian.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from transformers import AutoTokenizer, FSMTConfig, FSMTForConditionalGeneration

from ..model import tokenization_fairseq
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from ..support.safetensors_layout import read_json
from .config_requirements import check_config
from .converted_folder import check_output, write_converted
from .parity_certificate import SENTENCES, compare
from .source_folder import hashes, license_of, load_source, source_folder, weight_files
from .weight_transforms import check_finite, interleaved_channels, permute_channels, widen_feed_forward


VOCABULARIES, MERGES = ("vocab-src.json", "vocab-tgt.json"), "merges.txt"
_EMBEDDINGS = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
_OUTPUT = "model.decoder.output_projection.weight"
# Of LayerNorm in fairseq and FSMT: torch's default.
_EPSILON = 1e-5
# Token ids that fairseq's dictionaries always have.
TOKEN_IDS: dict[str, Any] = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}


def from_fsmt(
    input: str,
    output: str,
    *,
    sentences: Sequence[str] = SENTENCES,
    revision: str | None = None,
    token: str | None = None,
    license: str | None = None,
    force: bool = False,
) -> Path:
    """Convert an `FSMTForConditionalGeneration`, and prove that the result is equal.

    The tokenizer is a [`~model.tokenization_fairseq.FairseqTokenizer`], which needs sacremoses. The decoding settings
    are those of the source. No code of the source is run; pickled weights are read with `weights_only=True`.

    Args:
        input (`str`): a folder, or a name on the Hub.
        output (`str`): folder to make.
        sentences (`list` of `str`): source sentences for the comparison on real input.
        revision, token (`str`, *optional*): of the repository on the Hub.
        license (`str`, *optional*): licence of the weights, for the card.
        force (`bool`): write a model that is not equal to its source.

    Returns:
        `Path`: the folder, with `parity.json`.

    Raises:
        OSError: if the source cannot be read, or the folder already holds a model.
        ValueError: if this model cannot hold the source, or the result is not equal.
    """
    target = check_output(output, input)
    folder = source_folder(input, revision, token)
    check_config(FSMTConfig, folder, {"model_type": "fsmt", "scale_embedding": True, **TOKEN_IDS})
    fsmt = load_source(FSMTForConditionalGeneration, folder, input)
    for name in (*VOCABULARIES, MERGES):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder} holds no {name}; name a folder with the files of its tokenizer.")
    texts = {name: (folder / name).read_text(encoding="utf-8") for name in (*VOCABULARIES, MERGES)}
    settings = folder / "tokenizer_config.json"
    langs = (read_json(settings) if settings.is_file() else {}).get("langs") or fsmt.config.langs
    return write_fsmt(
        fsmt,
        target,
        texts,
        list(langs),
        sentences,
        source=input,
        system="fsmt",
        oracle=f"FSMTForConditionalGeneration of transformers {transformers.__version__}",
        sha256=hashes(weight_files(folder)),
        license=license or license_of(folder),
        force=force,
    )


def write_fsmt(
    fsmt: FSMTForConditionalGeneration,
    output: Path,
    texts: dict[str, str],
    langs: list[str],
    sentences: Sequence[str],
    *,
    source: str,
    oracle: str,
    **options: Any,
) -> Path:
    """Convert, compare and write a model with its tokenizer.

    Args:
        fsmt (`FSMTForConditionalGeneration`): the source.
        output (`Path`): folder to make.
        texts (`dict`): content of the tokenizer's files, by name.
        langs (`list` of `str`): codes of source and target language.
        sentences, source, oracle: see [`from_fsmt`] and [`~folder.write_converted`].
        **options: of [`~folder.write_converted`].
    """
    is_joint = texts[VOCABULARIES[0]] == texts[VOCABULARIES[1]]
    model = convert_fsmt(fsmt, source, is_joint)
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        module = tokenization_fairseq.__name__.rpartition(".")[-1]
        settings = {
            "tokenizer_class": "FairseqTokenizer",
            "auto_map": {"AutoTokenizer": [f"{module}.FairseqTokenizer", None]},
            "langs": langs,
            "eos_token": "</s>",
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
        try:
            real = AutoTokenizer.from_pretrained(folder)(list(sentences)).input_ids
        except ImportError:
            real, oracle = None, f"{oracle}, on random tokens only, because sacremoses is not installed"
        return write_converted(
            model,
            output,
            source=source,
            oracle=oracle,
            parity=compare(model, fsmt, real),
            files=[*folder.iterdir(), Path(str(tokenization_fairseq.__file__))],
            **options,
        )


def convert_fsmt(
    fsmt: FSMTForConditionalGeneration, name: str, is_joint: bool
) -> VanillaTransformerForConditionalGeneration:
    """A model with the weights of an FSMT model, and its decoding settings.

    Args:
        fsmt (`FSMTForConditionalGeneration`): the source.
        name (`str`): of the source, for errors.
        is_joint (`bool`): whether source and target have the same vocabulary.
    """
    source, state = fsmt.config, fsmt.state_dict()
    check_finite(state, name)
    is_tied = torch.equal(state[_EMBEDDINGS[1]], state[_OUTPUT])
    # With one vocabulary, all embeddings are one matrix, or none is shared.
    is_joint = is_joint and (not is_tied or torch.equal(*(state[key] for key in _EMBEDDINGS)))
    d_ff = max(source.encoder_ffn_dim, source.decoder_ffn_dim)
    config = VanillaTransformerConfig(
        vocab_size=source.tgt_vocab_size,
        source_vocab_size=None if is_joint else source.src_vocab_size,
        encoder_layers=source.encoder_layers,
        decoder_layers=source.decoder_layers,
        d_model=source.d_model,
        d_ff=d_ff,
        num_heads=source.encoder_attention_heads,
        dropout=source.dropout,
        attention_dropout=source.attention_dropout,
        activation_dropout=source.activation_dropout,
        activation_function=source.activation_function,
        position_embedding_type="sinusoidal_tensor2tensor",
        position_offset=TOKEN_IDS["pad_token_id"] + 1,
        layer_norm_eps=_EPSILON,
        tie_word_embeddings=is_tied,
        **TOKEN_IDS,
    )
    model = VanillaTransformerForConditionalGeneration(config).eval()
    state = {key: weight for key, weight in state.items() if "embed_positions" not in key}
    state["lm_head.weight"] = state.pop(_OUTPUT)
    if is_joint and is_tied:
        state["model.shared.weight"] = state[_EMBEDDINGS[0]]
    state = permute_channels(widen_feed_forward(state, d_ff), interleaved_channels(source.d_model).argsort())
    model.load_state_dict(state)
    model.tie_weights()
    settings: Any = fsmt.generation_config
    # The settings of the source, which the mixin would replace if they seemed to come from a configuration.
    settings._from_model_config = False
    settings.length_penalty_type, settings.max_length_offset = "hf", None
    model.generation_config = settings
    return model
