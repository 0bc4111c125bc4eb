"""`evaluate.evaluator("translation")`, which calls the pipeline with `truncation=True`."""

import sys

import datasets
import evaluate
import pytest
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla_transformer import Bleu
from tests.ecosystem.documentation import FIXTURE


@pytest.mark.parametrize("is_loaded", [False, True])
def test_evaluator(is_loaded, monkeypatch):
    # Bootstrapping alone needs scipy.
    monkeypatch.setattr(sys.modules["evaluate.evaluator.base"], "SCIPY_AVAILABLE", True)
    pairs = {"text": ["forty-two", "seven", "nine"], "label": ["zweiundvierzig", "sieben", "zehn"]}
    model = AutoModelForSeq2SeqLM.from_pretrained(FIXTURE) if is_loaded else str(FIXTURE)
    scores = evaluate.evaluator("translation").compute(
        model_or_pipeline=model,
        tokenizer=AutoTokenizer.from_pretrained(FIXTURE) if is_loaded else None,
        data=datasets.Dataset.from_dict(pairs),
        metric=Bleu(),
        device=-1,
        generation_kwargs={"num_beams": 1},
    )
    expected = Bleu().compute(predictions=["zweiundvierzig", "sieben", "neun"], references=pairs["label"])
    assert scores.items() >= expected.items()
    assert scores["total_time_in_seconds"] > 0
