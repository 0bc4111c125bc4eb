"""A folder file by file as Helsinki-NLP's repositories on the Hub have it, with small random weights."""

import io
import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import MarianConfig, MarianMTModel


TEXTS = {
    "en": ["The house is small.", "A dog runs through the old town.", "Why did you not tell me?", "Two men play."],
    "de": ["Das Haus ist klein.", "Ein Hund läuft durch die alte Stadt.", "Warum hast du nichts gesagt?", "Ja."],
    "fr": ["La maison est petite.", "Un chien court dans la vieille ville.", "Pourquoi n'as-tu rien dit ?", "Oui."],
}
# Of the target side of a model with several target languages, which a sentence names: `>>fr<< The house is small.`
SEVERAL = "ROMANCE"
_NO_LABELS = {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}


def write_opus_mt(
    folder: Path, source: str = "en", target: str = "de", weights: str = "pytorch_model.bin", positions: int = 512
) -> Path:
    """Write the files of `Helsinki-NLP/opus-mt-SOURCE-TARGET`.

    Args:
        folder: to make.
        source, target: codes of the languages, as in the name of the repository.
        weights: `"pytorch_model.bin"`, in the format of torch 1.5 as most repositories have it, or
            `"model.safetensors"`.
        positions: rows of the table of positions.
    """
    folder.mkdir(parents=True)
    (folder / "README.md").write_text(f"---\nlanguage:\n- {source}\n- {target}\nlicense: cc-by-4.0\n---\n\n# opus-mt\n")
    settings = {"target_lang": target, "source_lang": source}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    pad = _write_vocabulary(folder, source, target)
    ids = {"bos_token_id": 0, "eos_token_id": 0, "forced_eos_token_id": 0, "pad_token_id": pad}
    search = {"bad_words_ids": [[pad]], "decoder_start_token_id": pad, "max_length": 512, "num_beams": 6}
    sizes = {"d_model": 32, "vocab_size": pad + 1, "max_position_embeddings": positions, "num_hidden_layers": 2}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_attention_heads": 4, f"{side}_ffn_dim": 48, f"{side}_layers": 2}
    fields = {
        "_num_labels": 3,
        "activation_dropout": 0.0,
        "activation_function": "swish",
        "add_bias_logits": False,
        "add_final_layer_norm": False,
        "architectures": ["MarianMTModel"],
        "attention_dropout": 0.0,
        "classif_dropout": 0.0,
        "classifier_dropout": 0.0,
        "decoder_layerdrop": 0.0,
        "dropout": 0.1,
        "encoder_layerdrop": 0.0,
        "extra_pos_embeddings": pad + 1,
        "force_bos_token_to_be_generated": False,
        "gradient_checkpointing": False,
        "id2label": _NO_LABELS,
        "init_std": 0.02,
        "is_encoder_decoder": True,
        "label2id": {label: int(number) for number, label in _NO_LABELS.items()},
        "model_type": "marian",
        "normalize_before": False,
        "normalize_embedding": False,
        "scale_embedding": True,
        "static_position_embeddings": True,
        "transformers_version": "4.22.0.dev0",
        "use_cache": True,
        **ids,
        **search,
        **sizes,
    }
    (folder / "config.json").write_text(json.dumps(fields, indent=2) + "\n")
    generation = {"_from_model_config": True, **ids, **search, "transformers_version": "4.32.0.dev0"}
    (folder / "generation_config.json").write_text(json.dumps({**generation, "renormalize_logits": True}, indent=2))
    state = _random_state(MarianConfig.from_dict(fields), pad)
    if weights == "model.safetensors":
        save_file(state, folder / weights, metadata={"format": "pt"})
    else:
        torch.save(state, folder / weights, _use_new_zipfile_serialization=False)
    return folder


def convert_several(folder: Path) -> tuple[Path, Path]:
    """Write a model of the target languages German and French, and its conversion into a model of this package."""
    from hf_vanilla_transformer.apps.conversion import from_hf_marian

    opus = write_opus_mt(folder / f"opus-mt-en-{SEVERAL}", "en", SEVERAL)
    # Random weights may write up to the limit of length, so comparing more sentences would take long.
    return opus, from_hf_marian(str(opus), str(folder / "converted"), sentences=TEXTS["en"][:1])


def _write_vocabulary(folder: Path, source: str, target: str) -> int:
    """Write two models of SentencePiece and the ids of their pieces together; returns the id of `<pad>`."""
    import sentencepiece

    languages = {"source": [source], "target": [target] if target in TEXTS else ["de", "fr"]}
    pieces = ["</s>", "<unk>", *(f">>{code}<<" for code in languages["target"] if len(languages["target"]) > 1)]
    for side, codes in languages.items():
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([line for code in codes for line in TEXTS[code]]),
            model_writer=model,
            vocab_size=60,
            hard_vocab_limit=False,
            minloglevel=2,
        )
        (folder / f"{side}.spm").write_bytes(model.getvalue())
        processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        pieces += [processor.id_to_piece(token) for token in range(processor.get_piece_size())]
    # Both models may have the same pieces, which get one id.
    distinct_pieces = dict.fromkeys(piece for piece in pieces if piece != "<s>")
    vocabulary = {piece: token for token, piece in enumerate(distinct_pieces)}
    vocabulary["<pad>"] = len(vocabulary)
    (folder / "vocab.json").write_text(json.dumps(vocabulary, indent=2, ensure_ascii=False), encoding="utf-8")
    return vocabulary["<pad>"]


def _random_state(config: MarianConfig, pad: int) -> dict[str, torch.Tensor]:
    """Weights in which every one shows, with the tables of positions and copies of tied matrices."""
    torch.manual_seed(0)
    model = MarianMTModel(config)
    state = {name: weight.clone() for name, weight in model.state_dict().items()}
    for name, weight in state.items():
        if "embed_positions" not in name:
            weight.copy_(0.2 * torch.randn_like(weight) + (weight.ndim == 1 and "norm" in name))
    shared = state["model.shared.weight"]
    shared[pad] = 0  # Marian decodes from a zero vector.
    tied = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
    return {**state, **{name: shared.clone() for name in tied}}
