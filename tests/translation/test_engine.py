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


def test_an_object_with_all_members_is_an_engine(engine):
    assert {"config", "device", "generate", "log_probs"} <= {*MEMBERS}
    assert isinstance(engine, Engine)


@pytest.mark.parametrize("name", ["alignment_heads", "attention", "config", "generate", "log_probs"])
def test_an_object_that_lacks_a_member_is_no_engine(tokenizer, name):
    class Incomplete:
        def __init__(self, engine):
            for member in MEMBERS:
                if member != name:
                    setattr(self, member, getattr(engine, member))

    assert not isinstance(Incomplete(ConstantEngine(tokenizer)), Engine)


def test_a_model_of_torch_is_no_engine():
    model = AutoModelForSeq2SeqLM.from_pretrained(FIXTURE)
    assert not isinstance(model, Engine)
    assert not isinstance(torch.nn.Linear(1, 1), Engine)


def test_translate_score_and_align_use_it(engine, tokenizer):
    assert translate(engine, tokenizer, ["one", "", "two"]) == ["neun", "", "neun"]
    (scored,) = score(engine, tokenizer, ["one"], ["neun"])
    assert scored.total == pytest.approx(len(scored.tokens) * math.log(PROBABILITY))
    (details,) = translate(engine, tokenizer, ["one"], return_details=True)
    assert (details.text, details.log_probs, details.alignment) == ("neun", scored.log_probs, [(0, 0)])
    assert align(engine, tokenizer, ["one"], ["neun"]) == [[(0, 0)]]


def test_what_needs_a_model_of_torch_says_so(engine, tokenizer):
    with pytest.raises(ValueError, match=r"terms do not work with .*engine"):
        translate(engine, tokenizer, ["one"], glossary=Glossary({"one": "eins"}, tokenizer))
    with pytest.raises(ValueError, match="ConstantEngine returns no attention weights; give the model in torch"):
        forward_pass(engine, tokenizer, "one")
