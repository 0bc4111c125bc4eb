"""A server over a real model, on loopback, and a model that waits."""

import threading

import pytest
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla_transformer.apps.serving.limits import ServingSettings
from hf_vanilla_transformer.apps.serving.model_card_facts import read_card
from tests.ecosystem.documentation import FIXTURE


@pytest.fixture(scope="module")
def model():
    return AutoModelForSeq2SeqLM.from_pretrained(FIXTURE)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FIXTURE)


@pytest.fixture(scope="module")
def service_of(model, tokenizer):
    from hf_vanilla_transformer.apps.serving.service import Service

    def service(**settings):
        return Service(model, tokenizer, ServingSettings(**settings), read_card(str(FIXTURE)))

    return service


@pytest.fixture(scope="module")
def address(service_of):
    from tests.apps.serving.support import serving

    with serving(service_of(max_source_tokens=40, max_texts=8, arrival_seconds=1, max_body_bytes=10_000)) as address:
        yield address


@pytest.fixture
def call(address):
    from tests.apps.serving.support import call

    return lambda *arguments, **headers: call(address, *arguments, **headers)


@pytest.fixture
def exchange(address):
    from tests.apps.serving.support import exchange

    return lambda *parts, **options: exchange(address, *parts, **options)


@pytest.fixture
def model_that_waits(monkeypatch):
    """In the place of `translate()`: each batch begins at once, and ends when the event is set."""
    from hf_vanilla_transformer.apps.serving import service
    from tests.apps.serving.support import translation_of

    may_go_on, begun = threading.Event(), []

    def answer(model, tokenizer, texts, tokens_per_batch, **options):
        begun.append(texts)
        assert may_go_on.wait(30)
        return [translation_of(text.upper()) for text in texts]

    monkeypatch.setattr(service, "translate", answer)
    monkeypatch.setattr(service, "translate_documents", answer)
    yield may_go_on, begun
    may_go_on.set()
