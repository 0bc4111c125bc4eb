"""This model for CTranslate2, a runtime for inference: its folder, and a proof that it computes the same."""

import copy
import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from ...hub.model_folder import CERTIFICATE, staged
from ...hub.native_folder import source_folder
from ...hub.user_cache import hashes
from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ...model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from ...support.argument_checks import check_number
from ...support.atomic_files import locked
from ...support.user_errors import InputError, needing
from ...support.version import __version__
from ...translation.words_of_tokens import TokenTexts
from .converted_folder import command
from .parity_certificate import SENTENCES, TOLERANCES, check_equal, log_probs, random_rows, translate_rows
from .source_folder import load_tokenizer, load_trained, weight_files
from .weight_transforms import require


QUANTIZATIONS = ("float32", "float16", "bfloat16", "int8", "int8_float32", "int8_float16", "int8_bfloat16")
# Names of activation functions in transformers, and in CTranslate2.
_ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "swish": "SWISH", "silu": "SWISH"}
# Rules that both searches have, for the comparison: log P divided by the length, and the end of a sentence when as many
# hypotheses have finished as there are beams.
_BEAMS, _LONGEST = 4, 60
# As of generate(): up to this position, sinusoids are exact to 1e-6.
_MOST_POSITIONS = 100_000
_RULES = {"length_penalty": 1.0, "length_penalty_type": "hf", "early_stopping": True}


def to_ctranslate2(
    folder: str,
    output: str,
    *,
    quantization: str = "float32",
    max_positions: int = 2048,
    sentences: Sequence[str] = SENTENCES,
    force: bool = False,
) -> Path:
    """Write a trained folder for CTranslate2, and compare both.

    The vocabulary of the result is that of the tokenizer, whose files are written next to it. Sources end in `</s>`, as
    the tokenizer encodes them.

    Args:
        folder (`str`): a trained folder, or a name on the Hub.
        output (`str`): folder to make.
        quantization (`str`): of the weights, one of `QUANTIZATIONS`.
        max_positions (`int`, defaults to 2048): rows of the table of positions, so the longest sequence in tokens:
            CTranslate2 does not compute sinusoids, and refuses a longer one. Between 64 and 100,000.
        sentences (`list` of `str`): source sentences for the comparison.
        force (`bool`): write a model that is not equal to its source.

    Returns:
        `Path`: the folder, with `parity.json`: the largest difference of log-probabilities of random targets and of our
        greedy translations, in nats per token, and how many translations are equal by greedy search and with 4 beams.
        Quantized weights are compared, too, but need not be equal.

    Raises:
        ImportError: if ctranslate2 is not installed.
        OSError: if the source cannot be read, or the folder exists.
        ValueError: if CTranslate2 cannot hold the model, or the result in float32 is not equal.
    """
    if quantization not in QUANTIZATIONS:
        raise InputError(f'quantization is "{quantization}"; choose one of {", ".join(QUANTIZATIONS)}.')
    check_number("max_positions", max_positions, _LONGEST + 4, _MOST_POSITIONS)
    target, library = Path(output), import_library()
    if target.exists():
        raise FileExistsError(f"{target} exists; name another folder for the converted model.")
    local = source_folder(folder)
    tokenizer, model = load_trained(local, folder)
    spec = specification(model, *vocabularies(tokenizer, model.config), max_positions)
    spec.optimize(quantization=None if quantization == "float32" else quantization)
    with locked(target), staged(target) as temporary:
        spec.save(str(temporary))
        tokenizer.save_pretrained(temporary)
        tokenizer = load_tokenizer(temporary, f"the result for {folder}")
        rows = table_length(model.config, max_positions)
        parity = compare(temporary, model, tokenizer, sentences, rows, is_exact=quantization == "float32")
        check_equal(parity, folder, force)
        certificate = {
            "source": folder,
            "system": "ctranslate2",
            "sha256": hashes(weight_files(local)),
            "quantization": quantization,
            "max_positions": rows,
            "alignment_heads": heads_in_one_layer(model.config),
            **parity,
            "versions": {"hf_vanilla_transformer": __version__, "ctranslate2": library.__version__},
            "command": command(),
        }
        (temporary / CERTIFICATE).write_text(json.dumps(certificate, indent=2) + "\n", encoding="utf-8")
    return target


def import_library() -> Any:
    """The module ctranslate2, or ImportError naming the extra to install."""
    with needing("ctranslate2", "CTranslate2 needs"):
        import ctranslate2
        import ctranslate2.specs
    return ctranslate2


def vocabularies(tokenizer: Any, config: VanillaTransformerConfig) -> tuple[list[str], list[str]]:
    """The texts of all source tokens and of all target tokens by their ids; rows without a token get a name."""
    source, target = (TokenTexts(tokenizer, is_target).names for is_target in (False, True))
    source_size, target_size = config.source_vocab_size or config.vocab_size, config.vocab_size
    return (
        [source.get(token, f"<unused{token}>") for token in range(source_size)],
        [target.get(token, f"<unused{token}>") for token in range(target_size)],
    )


def compare(
    folder: Path, model: Any, tokenizer: Any, sentences: Sequence[str], positions: int, is_exact: bool
) -> dict[str, Any]:
    """Compare a folder of CTranslate2, which has so many positions, with its source; see `to_ctranslate2`."""
    source_texts, target_texts = vocabularies(tokenizer, model.config)
    # Of a sentence that is too long, the end.
    rows = [row[-positions:] for row in tokenizer(list(sentences)).input_ids]
    longest = min(_LONGEST, positions - 1)
    sources = [[source_texts[token] for token in row] for row in rows]
    translator = import_library().Translator(str(folder), device="cpu")
    always = always_given(model.generation_config, target_texts)
    equal: dict[str, int] = {"sentences": len(rows)}
    for name, beams in (("beam", _BEAMS), ("greedy", 1)):
        ours = translate_rows(model, rows, beams, longest + 1, **(_RULES if beams > 1 else {}))
        options = {"beam_size": beams, "length_penalty": 1, "max_decoding_length": longest, "return_end_token": True}
        theirs = [result.hypotheses[0] for result in translator.translate_batch(sources, **always, **options)]
        equal[name] = sum(
            [target_texts[token] for token in row] == texts for row, texts in zip(ours, theirs, strict=True)
        )
    random = [[row[-longest:] for row in random_rows(model, seed)] for seed in (0, 1)]
    differences = {}
    for kind, (source_rows, target_rows) in {"random": random, "real": (rows, ours)}.items():
        texts = [[source_texts[token] for token in row] for row in source_rows]
        # CTranslate2 adds the end.
        targets = [[target_texts[token] for token in row if token != model.config.eos_token_id] for row in target_rows]
        own = log_probs(model, source_rows, target_rows).gather(-1, torch.tensor([*chain(*target_rows)])[:, None])[:, 0]
        found = translator.score_batch(texts, targets)
        scored = [each.log_probs[: len(row)] for each, row in zip(found, target_rows, strict=True)]
        differences[kind] = float((own - torch.tensor([*chain(*scored)])).abs().max())
    tolerance = TOLERANCES[torch.float32] if is_exact else None
    return {
        "log_probs": differences,
        "translations": equal,
        "tolerance": tolerance,
        "equal": None if tolerance is None else all(each <= tolerance for each in differences.values()),
        "translate_batch": always,
    }


def always_given(generation_config: Any, target_texts: Sequence[str]) -> dict[str, Any]:
    """Arguments of `translate_batch` that every call needs: its default cuts sources off, and generates any token."""
    never = [[token] for token in generation_config.suppress_tokens or []] + (generation_config.bad_words_ids or [])
    texts = [[target_texts[token] for token in sequence] for sequence in never]
    return {"max_input_length": 0, **({"suppress_sequences": texts} if texts else {})}


@torch.no_grad()
def specification(
    model: VanillaTransformerForConditionalGeneration,
    source_texts: list[str],
    target_texts: list[str],
    max_positions: int = 2048,
) -> Any:
    """The model, in float32 on the CPU, as CTranslate2 describes it; the texts are those of all tokens, by their ids.

    Raises ImportError if ctranslate2 is not installed, and ValueError if it cannot hold such a model.
    """
    config = model.config
    require(config, "CTranslate2", stack_layer_norm=False)
    if config.activation_function not in _ACTIVATIONS:
        raise InputError(
            f"activation_function is {config.activation_function!r}, but CTranslate2 has {', '.join(_ACTIVATIONS)}."
        )
    specs = import_library().specs
    from ctranslate2.converters.transformers import BartLoader

    rows = table_length(config, max_positions)

    class Loader(BartLoader):
        """Modules have the names of BART's."""

        def set_common_layers(self, spec: Any, module: Any) -> None:
            embeddings = spec.embeddings[0] if isinstance(spec.embeddings, list) else spec.embeddings
            embeddings.weight, spec.scale_embeddings = module.embed_tokens.weight, True
            table = module.add_positions(torch.zeros(rows, config.d_model), torch.arange(rows))
            spec.position_encodings.encodings = table

    activation = getattr(specs.Activation, _ACTIVATIONS[config.activation_function])
    heads = heads_in_one_layer(config)
    alignment = {"alignment_layer": heads[0][0] if heads else -1, "alignment_heads": len(heads) or 1}
    others = {"pre_norm": False, "activation": activation, **alignment}
    spec = specs.TransformerSpec.from_config((config.encoder_layers, config.decoder_layers), config.num_heads, **others)
    # A copy, because CTranslate2 quantizes in place.
    loader, model = Loader(), copy.deepcopy(model)
    if heads:
        # CTranslate2 returns the average of the first heads of one layer.
        layer: Any = model.model.decoder.layers[heads[0][0]]
        layer.encoder_attn = with_heads_first(layer.encoder_attn, [head for _, head in heads])
    loader.set_encoder(spec.encoder, model.model.encoder)
    loader.set_decoder(spec.decoder, model.model.decoder)
    loader.set_linear(spec.decoder.projection, model.lm_head)
    spec.register_source_vocabulary(source_texts)
    spec.register_target_vocabulary(target_texts)
    for name in ("bos_token", "eos_token"):
        token = getattr(config, f"{name}_id")
        setattr(spec.config, name, target_texts[config.pad_token_id if token is None else token])
    spec.config.unk_token = target_texts[config.pad_token_id]
    spec.config.decoder_start_token = target_texts[config.decoder_start_token_id]
    spec.config.add_source_bos, spec.config.add_source_eos = False, False
    spec.config.layer_norm_epsilon = config.layer_norm_eps
    spec.validate()
    return spec


def heads_in_one_layer(config: VanillaTransformerConfig) -> list[tuple[int, int]]:
    """The heads of the configuration's alignment, decoder layer and head; none if they are in several layers."""
    heads = config.heads_for_alignment
    return heads if len({layer for layer, _ in heads}) == 1 else []


def with_heads_first(attention: Any, first: list[int]) -> Any:
    """An attention layer that computes the same, whose first heads are `first`; the given layer does not change."""
    order = [*first, *(head for head in range(attention.config.num_heads) if head not in first)]
    if order == sorted(order):
        return attention
    attention = copy.deepcopy(attention)
    for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
        for values in projection.parameters():
            values.copy_(values.unflatten(0, (len(order), -1))[order].flatten(0, 1))
    weight = attention.out_proj.weight
    weight.copy_(weight.unflatten(1, (len(order), -1))[:, order].flatten(1, 2))
    return attention


def table_length(config: VanillaTransformerConfig, max_positions: int) -> int:
    """Rows of the table of positions: as asked for, or fewer where positions are learned."""
    is_learned = config.position_embedding_type == "learned"
    return min(max_positions, config.max_position_embeddings) if is_learned else max_positions
