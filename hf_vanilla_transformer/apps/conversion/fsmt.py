"""Convert fairseq models that were ported to transformers (`FSMTForConditionalGeneration`), such as the WMT19 models.

These models differ from ours only in their positions:

- fairseq numbers token positions from 2, because the numbers up to the pad token's id are reserved
  (fairseq/modules/sinusoidal_positional_embedding.py: `padding_idx + 1`).
- The sinusoids are computed as in tensor2tensor, with all sines before all cosines. The channels are therefore
  permuted, as in the conversion of Marian models.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import FSMTConfig, FSMTForConditionalGeneration
from transformers.utils import CONFIG_NAME

from ...hub.native_folder import source_folder
from ...hub.user_cache import hashes
from ...model import tokenization_fairseq
from ...model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from ...support.safetensors_layout import read_json
from ...support.user_errors import InputError
from .converted_folder import TOKENIZER_CONFIG, Source, check_output, write_converted
from .parity_certificate import SENTENCES
from .source_folder import check_config, load_source, read_license, weight_files
from .weight_transforms import StateDict, converted_model


# Tokenizer files: the source and target vocabularies, and the byte-pair encoding merges.
VOCABULARY_FILES = ("vocab-src.json", "vocab-tgt.json")
MERGES_FILE = "merges.txt"
# LayerNorm's epsilon in fairseq and FSMT. Both use PyTorch's default.
_EPSILON = 1e-5
# Every fairseq dictionary begins with <s>, <pad>, </s> and <unk>.
TOKEN_IDS = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}


def from_fsmt(
    input: str,
    output: str,
    *,
    sentences: Sequence[str] = SENTENCES,
    license: str | None = None,
    force: bool = False,
    **hub: str | None,
) -> Path:
    """Convert an FSMT model of transformers, and check that the result produces the same outputs.

    The tokenizer of the result is a [`~model.tokenization_fairseq.FairseqTokenizer`], which needs sacremoses. The
    decoding settings are taken from the source. No code in the source is run, and pickled weights are read with
    `weights_only=True`.

    Args:
        input (`str`): the folder of an `FSMTForConditionalGeneration`, or its name on the Hub.
        output, sentences, license, force, hub: see [`~hf_vanilla_transformer.from_hf_marian`], which also describes the
            returned value and the errors.
    """
    output_folder = check_output(output, input)
    # `input` may be a name on the Hub, and `fsmt_folder` is the folder on this machine.
    fsmt_folder = source_folder(input, **hub)
    check_config(FSMTConfig, fsmt_folder, {"model_type": "fsmt", "scale_embedding": True, **TOKEN_IDS})
    fsmt = load_source(FSMTForConditionalGeneration, fsmt_folder, input)
    tokenizer_texts = _read_tokenizer_texts(fsmt_folder)
    tokenizer_settings = _read_tokenizer_settings(fsmt_folder, fsmt.config.langs)
    source = Source(
        name=input,
        system="fsmt",
        # The converted model must compute the same as this model.
        reference=fsmt,
        reference_description=f"FSMTForConditionalGeneration of transformers {transformers.__version__}",
        sha256=hashes(weight_files(fsmt_folder)),
        license=license or read_license(fsmt_folder),
        tokenizer_folder=_find_loadable_tokenizer(fsmt_folder),
    )
    return write_fsmt(source, tokenizer_texts, tokenizer_settings, output_folder, sentences, force)


def _read_tokenizer_texts(folder: Path) -> dict[str, str]:
    """Return the contents of the vocabularies and of the merges in a folder, by file name."""
    texts = {}
    for name in (*VOCABULARY_FILES, MERGES_FILE):
        texts[name] = (folder / name).read_text(encoding="utf-8")
    return texts


def _find_loadable_tokenizer(folder: Path) -> Path | None:
    """Return the folder if it has tokenizer settings, or None, because transformers then cannot load its tokenizer.

    Without this folder, the converted tokenizer is not compared with the source's.
    """
    if (folder / TOKENIZER_CONFIG).is_file():
        return folder
    return None


def _read_tokenizer_settings(folder: Path, model_langs: object) -> dict[str, Any]:
    """Read a tokenizer's settings from its folder, and check that the setting `langs` has two language codes.

    If the folder has no tokenizer settings, or if they do not contain `langs`, the codes are `model_langs`, which come
    from the model's configuration. Raises ValueError if there are not two codes.
    """
    settings_path = folder / TOKENIZER_CONFIG
    settings: dict[str, Any] = {"langs": model_langs}
    file_with_langs = folder / CONFIG_NAME
    if settings_path.is_file():
        stored_settings = read_json(settings_path)
        settings.update(stored_settings)
        if "langs" in stored_settings:
            file_with_langs = settings_path
    langs = settings["langs"]
    if not _is_pair_of_codes(langs):
        raise InputError(f"langs in {file_with_langs} is {langs!r}; it must be the codes of two languages.")
    return settings


def _is_pair_of_codes(langs: object) -> bool:
    """Return True if a value is a list of two language codes."""
    if not isinstance(langs, list) or len(langs) != 2:
        return False
    return all(isinstance(code, str) for code in langs)


def write_fsmt(
    source: Source,
    tokenizer_texts: Mapping[str, str],
    tokenizer_settings: Mapping[str, object],
    output: Path,
    sentences: Sequence[str],
    force: bool,
) -> Path:
    """Convert an FSMT model to this package's format, and write it together with a `FairseqTokenizer`.

    Args:
        source: the source, whose `reference` is an FSMT model.
        tokenizer_texts: the contents of the tokenizer files (`VOCABULARY_FILES` and `MERGES_FILE`), by file name.
        tokenizer_settings: the settings of the tokenizer, including `langs`.
        output, sentences, force: see [`~.converted_folder.write_converted`].
    """
    files = _make_tokenizer_files(tokenizer_texts, tokenizer_settings)
    source_vocabulary_file, target_vocabulary_file = VOCABULARY_FILES
    has_joint_vocabulary = tokenizer_texts[source_vocabulary_file] == tokenizer_texts[target_vocabulary_file]
    fsmt: Any = source.reference
    model = convert_fsmt(fsmt, source.name, has_joint_vocabulary)
    return write_converted(model, source, files, output, sentences, force)


def _make_tokenizer_files(texts: Mapping[str, str], settings: Mapping[str, object]) -> dict[str, bytes]:
    """Return the contents of all files of a `FairseqTokenizer`, by file name.

    They include its code, so that transformers can load the tokenizer without this package.
    """
    code_path = Path(str(tokenization_fairseq.__file__))
    tokenizer_config = {
        **settings,
        "tokenizer_class": "FairseqTokenizer",
        # The list names a slow and a fast tokenizer. There is no fast one.
        "auto_map": {"AutoTokenizer": [f"{code_path.stem}.FairseqTokenizer", None]},
        "eos_token": "</s>",
    }
    files = {name: text.encode() for name, text in texts.items()}
    files[TOKENIZER_CONFIG] = (json.dumps(tokenizer_config, indent=2) + "\n").encode()
    files[code_path.name] = code_path.read_bytes()
    return files


def convert_fsmt(
    fsmt: FSMTForConditionalGeneration, name: str, has_joint_vocabulary: bool
) -> VanillaTransformerForConditionalGeneration:
    """Build a model of this package with the weights and decoding settings of an FSMT model.

    Args:
        fsmt: the source.
        name: the name of the source, which is used in messages.
        has_joint_vocabulary: True if source and target have the same vocabulary.
    """
    state = _rename_weights(fsmt)
    source_embeddings = state["model.encoder.embed_tokens.weight"]
    target_embeddings = state["model.decoder.embed_tokens.weight"]
    is_output_tied = torch.equal(target_embeddings, state["lm_head.weight"])
    are_embeddings_tied = torch.equal(source_embeddings, target_embeddings)

    # With one vocabulary, our model shares either all three matrices or none. With two, it may share the target
    # embeddings with the output projection. A joint vocabulary with only these shared is therefore stored as two.
    shares_only_output = is_output_tied and not are_embeddings_tied
    stores_one_vocabulary = has_joint_vocabulary and not shares_only_output
    if stores_one_vocabulary and is_output_tied:
        # All three matrices are equal, so they are stored as one.
        state["model.shared.weight"] = source_embeddings
    # In our configuration, None means that source and target have one vocabulary.
    source_vocab_size: int | None = None
    if not stores_one_vocabulary:
        source_vocab_size = fsmt.config.src_vocab_size
    return converted_model(
        fsmt,
        state,
        name,
        vocab_size=fsmt.config.tgt_vocab_size,
        source_vocab_size=source_vocab_size,
        position_embedding_type="sinusoidal_tensor2tensor",
        # Positions follow the pad token's id.
        position_offset=TOKEN_IDS["pad_token_id"] + 1,
        layer_norm_eps=_EPSILON,
        tie_word_embeddings=is_output_tied,
    )


def _rename_weights(fsmt: FSMTForConditionalGeneration) -> StateDict:
    """Return the weights of an FSMT model under our model's names, without position tables."""
    state = {name: weight for name, weight in fsmt.state_dict().items() if "embed_positions" not in name}
    state["lm_head.weight"] = state.pop("model.decoder.output_projection.weight")
    return state
