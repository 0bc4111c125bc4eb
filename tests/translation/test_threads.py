"""Whatever runs in eight threads at once returns what it returns alone."""

import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla_transformer import (
    Glossary,
    TranslationPipeline,
    TwoVocabularyTokenizer,
    align,
    load_engine,
    score,
    train_tokenizer,
    translate,
    translate_documents,
)
from hf_vanilla_transformer.hub import user_cache
from hf_vanilla_transformer.model.input_checks import sides_of
from tests.ecosystem.documentation import FIXTURE
from tests.models import decisive_model


THREADS, ROUNDS = 8, 3
SOURCES = ["forty-two", "nine hundred and one", "six thousand and thirteen", "two"]
TARGETS = ["zweiundvierzig", "neunhunderteins", "sechstausenddreizehn", "zwei"]
XML = [f"<p>{text.replace(' ', ' <b>', 1)}{'</b>' * (' ' in text)}</p>" for text in SOURCES]


def details(translations):
    return [
        (translation.text, translation.tokens, translation.alignment, round(translation.score, 3))
        for translation in translations
    ]


WORK = {
    "translate": lambda model, tokenizer: translate(model, tokenizer, SOURCES),
    "details": lambda model, tokenizer: details(translate(model, tokenizer, SOURCES, return_details=True)),
    "terms": lambda model, tokenizer: translate(
        model, tokenizer, SOURCES, glossary=Glossary({"two": "zwei", "six": "sechs"}, tokenizer)
    ),
    "markup": lambda model, tokenizer: translate_documents(model, tokenizer, XML, format="xml"),
    "align": lambda model, tokenizer: align(model, tokenizer, SOURCES, TARGETS),
    "score": lambda model, tokenizer: [
        round(target_score.total, 3) for target_score in score(model, tokenizer, SOURCES, TARGETS)
    ],
    "pipeline": lambda model, tokenizer: TranslationPipeline(model, tokenizer, device="cpu")(SOURCES, truncation=True),
}


def two_vocabularies():
    tokenizers = [train_tokenizer(texts * 4, vocab_size=290, show_progress=False) for texts in (SOURCES, TARGETS)]
    tokenizer = TwoVocabularyTokenizer.of(*tokenizers)
    sizes = [len(side) for side in sides_of(tokenizer)]
    model = decisive_model(vocab_size=sizes[1], source_vocab_size=sizes[0])
    model.generation_config.max_length_offset = 5
    return model, tokenizer


MODELS = {
    "fixture": lambda: (AutoModelForSeq2SeqLM.from_pretrained(FIXTURE), AutoTokenizer.from_pretrained(FIXTURE)),
    "two vocabularies": two_vocabularies,
}


@pytest.fixture(autouse=True)
def switching_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def run_all(model, tokenizer, names):
    """What each of some tasks returns in threads of their own, some rounds of all of them."""
    names = [names[index % len(names)] for index in range(THREADS)] * ROUNDS
    with ThreadPoolExecutor(THREADS) as pool:
        return list(zip(names, pool.map(lambda name: WORK[name](model, tokenizer), names), strict=True))


@pytest.mark.parametrize("name", MODELS)
def test_concurrent_calls_of_a_model(name):
    """The model is new, and in training mode, which the last thread restores."""
    expected = {task: work(*MODELS[name]()) for task, work in WORK.items()}
    model, tokenizer = MODELS[name]()
    model.train()
    for task, result in run_all(model, tokenizer, list(WORK)):
        assert result == expected[task], task
    assert all(module.training for module in model.modules())


@pytest.mark.skipif(find_spec("ctranslate2") is None, reason="ctranslate2 is not installed")
def test_concurrent_calls_of_an_engine(tmp_path, monkeypatch):
    monkeypatch.setattr(user_cache, "CACHE", tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(FIXTURE)
    names = ["translate", "details", "align", "score", "markup"]
    engine = load_engine(str(FIXTURE), threads=1)
    results = run_all(engine, tokenizer, names)
    expected = {name: WORK[name](engine, tokenizer) for name in names}
    for name, result in results:
        assert result == expected[name], name
    engine.close()


def test_align_leaves_no_hooks():
    """A hook on a shared module would see the states of other threads."""
    model, tokenizer = MODELS["fixture"]()
    seen = []
    attention = model.get_decoder().layers[0].encoder_attn
    attention.register_forward_hook(lambda module, *_: seen.append(len(module._forward_pre_hooks)))
    align(model, tokenizer, SOURCES, TARGETS)
    assert seen
    assert not any(seen)
    assert not torch.is_inference_mode_enabled()
