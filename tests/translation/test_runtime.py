"""A model in torch and an engine answer the same questions, and only `runtime_of` tells them apart."""

import ast
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, MarianConfig, MarianMTModel

import hf_vanilla_transformer
from hf_vanilla_transformer import Ensemble
from hf_vanilla_transformer.translation.runtime import runtime_of
from tests.constant_engine import PROBABILITY, ConstantEngine
from tests.ecosystem.documentation import FIXTURE
from tests.generation.by_hand import forced_pass


PACKAGE = Path(hf_vanilla_transformer.__file__).parent


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FIXTURE)


@pytest.fixture(scope="module")
def model():
    return AutoModelForSeq2SeqLM.from_pretrained(FIXTURE).eval()


def asks_for_an_engine(path: Path) -> bool:
    """Return True if a module calls `isinstance(..., Engine)`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        is_question = isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance"
        if is_question and "Engine" in ast.unparse(node.args[1]):
            return True
    return False


def test_runtime_of_is_the_only_place_for_engine_checks():
    asking = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if asks_for_an_engine(path)}
    assert asking == {"translation/runtime.py"}


@torch.no_grad()
def test_decode_forced_equals_the_model_outputs(model, tokenizer):
    sources = tokenizer(["forty-two", "six"]).input_ids
    targets = tokenizer(text_target=["zweiundvierzig", "sechs"]).input_ids
    runtime = runtime_of(model, tokenizer)
    start = model.config.decoder_start_token_id
    for source, target, forced in zip(sources, targets, runtime.decode_forced(sources, targets, True), strict=True):
        decoder_input_ids = torch.tensor([start, *target[:-1]])
        output = forced_pass(model, torch.tensor(source), decoder_input_ids, output_attentions=True)
        log_probs = output.logits[0].log_softmax(dim=-1)[range(len(target)), target]
        torch.testing.assert_close(torch.tensor(forced.log_probs), log_probs, atol=1e-5, rtol=0)
        heads = [output.cross_attentions[layer][0, head] for layer, head in runtime.alignment_heads]
        torch.testing.assert_close(forced.attention, sum(heads) / len(heads), atol=1e-5, rtol=0)


def test_decode_forced_without_attention(model, tokenizer):
    for computes in (model, ConstantEngine(tokenizer)):
        (forced,) = runtime_of(computes, tokenizer).decode_forced([[5, 2]], [[6, 7, 2]], False)
        assert forced.attention is None
        assert len(forced.log_probs) == 3


def test_decode_forced_of_an_engine(tokenizer):
    engine = ConstantEngine(tokenizer)
    runtime = runtime_of(engine, tokenizer)
    (forced,) = runtime.decode_forced([[5, 2]], [[6, 7, 2]], True)
    assert torch.tensor(forced.log_probs).exp().tolist() == pytest.approx([PROBABILITY] * 3)
    torch.testing.assert_close(forced.attention, engine.attention([[5, 2]], [[6, 7, 2]])[0])
    assert runtime.alignment_heads == [(0, 0)]


def test_runtime_of_each_model_type(model, tokenizer):
    sizes = {"vocab_size": 12, "d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "pad_token_id": 11}
    sizes |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "decoder_start_token_id": 11}
    marian = MarianMTModel(MarianConfig(**sizes))
    answers = {
        "ours": (runtime_of(model, tokenizer), True, True, True, True),
        "ensemble": (runtime_of(Ensemble([model, model]), tokenizer), False, True, True, True),
        "marian": (runtime_of(marian, tokenizer), False, False, True, True),
        "engine": (runtime_of(ConstantEngine(tokenizer), tokenizer), True, False, False, False),
    }
    for name, (runtime, aligns, *expected) in answers.items():
        assert bool(runtime.alignment_heads) == aligns, name
        assert [runtime.takes_phrases, runtime.calls_processors, runtime.has_forward_pass] == expected, name
