"""Small random FSMT models, and tokenizers for them in the files of transformers and of fairseq."""

import json
from pathlib import Path

import torch
from transformers import FSMTConfig, FSMTForConditionalGeneration


SENTENCES = [
    "The small house isn't old.",
    "A dog runs, and the man runs.",
    "Two men (and a child) play - here & there.",
]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
MERGES = ["t h", "th e</w>", "a n", "an d</w>", "r u", "ru n", "i n", "s e</w>", "e r</w>", "& a", "p o"]
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,&;@-'"


def vocabulary(letters: str) -> dict[str, int]:
    """Tokens of transformers' form: `</w>` ends a word."""
    tokens = [*letters, *(f"{letter}</w>" for letter in letters), *(merge.replace(" ", "") for merge in MERGES)]
    return {token: index for index, token in enumerate([*SPECIAL, *tokens])}


SOURCE, OTHER = vocabulary(LETTERS), vocabulary(LETTERS[::-1] + "äöüß")


def write_tokenizer(folder: Path, target: dict[str, int] = SOURCE) -> None:
    """Write the files of an `FSMTTokenizer`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, tokens in (("vocab-src.json", SOURCE), ("vocab-tgt.json", target)):
        (folder / name).write_text(json.dumps(tokens), encoding="utf-8")
    (folder / "merges.txt").write_text("".join(f"{merge} 1\n" for merge in MERGES), encoding="utf-8")
    settings = {"langs": ["en", "de"], "do_lower_case": False, "tokenizer_class": "FSMTTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def fsmt_model(target: dict[str, int] = SOURCE, shares: str = "all", **fields) -> FSMTForConditionalGeneration:
    """A random model in which every weight shows.

    Args:
        target: the target's vocabulary; the source's is `SOURCE`.
        shares: which embeddings are one matrix: `"all"`, `"decoder"` (target embedding and output) or `"none"`.
        **fields: of the configuration.
    """
    torch.manual_seed(0)
    config = FSMTConfig(
        **{
            "langs": ["en", "de"],
            "src_vocab_size": len(SOURCE),
            "tgt_vocab_size": len(target),
            "d_model": 32,
            "encoder_layers": 3,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
            "num_beams": 3,
            "max_length": 40,
            **fields,
        }
    )
    model = FSMTForConditionalGeneration(config).eval()
    encoder, decoder = model.model.encoder, model.model.decoder
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                parameter.copy_(0.25 * torch.randn_like(parameter) + (parameter.ndim == 1 and "norm" in name))
        for table in (encoder.embed_tokens.weight, decoder.embed_tokens.weight):
            table[1] = 0
        if shares == "all":
            encoder.embed_tokens.weight.copy_(decoder.embed_tokens.weight)
        if shares != "none":
            decoder.output_projection.weight.copy_(decoder.embed_tokens.weight)
    return model
