"""An object with the members of `Engine` stands in the place of a model, without CTranslate2."""

import math

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla_transformer import Glossary, align, score, translate
from hf_vanilla_transformer.apps.pictures.forward_pass import forward_pass
from hf_vanilla_transformer.translation.engine import Engine
from tests.constant_engine import PROBABILITY, ConstantEngine
from tests.ecosystem.documentation import FIXTURE


MEMBERS = sorted({name for name in {*Engine.__annotations__, *vars(Engine)} if not name.startswith("_")})


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FIXTURE)


@pytest.fixture
def engine(tokenizer):
    return ConstantEngine(tokenizer)


def test_engine_protocol_accepts_all_members(engine):
    assert {"config", "device", "generate", "log_probs"} <= {*MEMBERS}
    assert isinstance(engine, Engine)


@pytest.mark.parametrize("name", ["alignment_heads", "attention", "config", "generate", "log_probs"])
def test_engine_protocol_rejects_a_missing_member(tokenizer, name):
    class Incomplete:
        def __init__(self, engine):
            for member in MEMBERS:
                if member != name:
                    setattr(self, member, getattr(engine, member))

    assert not isinstance(Incomplete(ConstantEngine(tokenizer)), Engine)


def test_engine_protocol_rejects_a_torch_model():
    model = AutoModelForSeq2SeqLM.from_pretrained(FIXTURE)
    assert not isinstance(model, Engine)
    assert not isinstance(torch.nn.Linear(1, 1), Engine)


def test_translate_score_and_align_call_the_engine(engine, tokenizer):
    assert translate(engine, tokenizer, ["one", "", "two"]) == ["neun", "", "neun"]
    (scored,) = score(engine, tokenizer, ["one"], ["neun"])
    assert scored.total == pytest.approx(len(scored.tokens) * math.log(PROBABILITY))
    (details,) = translate(engine, tokenizer, ["one"], return_details=True)
    assert (details.text, details.log_probs, details.alignment) == ("neun", scored.log_probs, [(0, 0)])
    assert align(engine, tokenizer, ["one"], ["neun"]) == [[(0, 0)]]


def test_glossary_and_pictures_reject_an_engine(engine, tokenizer):
    with pytest.raises(ValueError, match=r"terms do not work with .*engine"):
        translate(engine, tokenizer, ["one"], glossary=Glossary({"one": "eins"}, tokenizer))
    with pytest.raises(ValueError, match="ConstantEngine returns no attention"):
        forward_pass(engine, tokenizer, "one")
