"""The service over a model that waits, and over one that fails."""

import asyncio
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import product

import pytest
import torch

from hf_vanilla_transformer import translate
from hf_vanilla_transformer.acceleration.cpu_decoder import CPUDecoder
from hf_vanilla_transformer.apps.serving.limits import ServingSettings
from hf_vanilla_transformer.apps.serving.model_card_facts import read_card
from tests.constant_engine import ConstantEngine
from tests.ecosystem.documentation import FIXTURE


pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("fastapi", "uvicorn", "prometheus_client", "babel")),
    reason="the extra serve is not installed",
)


def test_service_shutdown_finishes_running_requests(service_of, model_that_waits):
    from tests.apps.serving.support import call, serving, wait_until

    may_go_on, begun = model_that_waits
    long = {"inputs": ["c", "d"], "parameters": {"generate_parameters": {"max_new_tokens": 2048}}}
    with ThreadPoolExecutor(2) as threads:
        with serving(service_of(tokens_per_batch=1)) as address:
            running = threads.submit(call, address, "POST", "/", {"inputs": ["a", "b"]})
            long_running = threads.submit(call, address, "POST", "/", long)
            wait_until(lambda: len(begun) == 2)
            threading.Timer(0.5, may_go_on.set).start()
        # Shut down: b and d, which waited for their batches, are translated, too.
        assert running.result()[2] == [{"translation_text": "A"}, {"translation_text": "B"}]
        assert long_running.result()[2] == [{"translation_text": "C"}, {"translation_text": "D"}]
        with pytest.raises(ConnectionRefusedError):
            call(address, "GET", "/health")


def test_service_with_a_failing_model(service_of, monkeypatch):
    from hf_vanilla_transformer.apps.serving import service
    from tests.apps.serving.support import call, serving, translation_of

    def fail(model, tokenizer, texts, tokens_per_batch, **options):
        if "bad" in texts:
            raise RuntimeError("secret path")
        return [translation_of(text) for text in texts]

    monkeypatch.setattr(service, "translate", fail)
    with serving(service_of(max_wait_ms=300)) as address, ThreadPoolExecutor(3) as threads:
        calls = [threads.submit(call, address, "POST", "/", {"inputs": text}) for text in ("a", "bad", "c")]
        assert [call.result()[0] for call in calls] == [200, 500, 200]
        assert calls[1].result()[2] == {"error": "the server failed to translate; its log has the reason."}
        call(address, "POST", "/", {"inputs": "bad"})
        assert call(address, "GET", "/health")[::2] == (
            503,
            {"status": "failing", "model": "numbers_tiny", "engine": "VanillaTransformerForConditionalGeneration"},
        )
        call(address, "POST", "/", {"inputs": "a"})
        assert call(address, "GET", "/health")[0] == 200


@pytest.mark.parametrize(("num_beams", "max_new_tokens"), [(4, 2048), (4, 400), (1, 2048), (1, 400)])
def test_service_ends_an_abandoned_search(service_of, monkeypatch, num_beams, max_new_tokens):
    """Its worker is free for the next request of its lane long before the search would have ended."""
    from hf_vanilla_transformer.acceleration import cpu_decoder
    from tests.apps.serving.support import call, serving

    step, steps = CPUDecoder.__call__, []

    def slow(self, input_ids):
        steps.append(len(input_ids))
        time.sleep(0.05)
        logits = step(self, input_ids)
        logits[:, service.model.config.eos_token_id] = -torch.inf  # Such a translation never ends by itself.
        return logits

    service = service_of(request_seconds=1)
    with serving(service) as address:
        monkeypatch.setattr(cpu_decoder.CPUDecoder, "__call__", slow)
        settings = {"num_beams": num_beams, "max_new_tokens": max_new_tokens}
        body = {"inputs": "nine", "parameters": {"generate_parameters": settings}}
        status, headers, answer = call(address, "POST", "/", body)
        assert (status, headers["Retry-After"]) == (503, "5")
        assert "took more than 1 seconds" in answer["error"]
        monkeypatch.undo()
        count = len(steps)
        assert call(address, "POST", "/", body)[2] == [{"translation_text": "neun"}]
        assert len(steps) <= count + 2 < 100
        assert service.health == "ok"


def test_service_health_of_a_hanging_worker(service_of, model_that_waits, monkeypatch):
    from hf_vanilla_transformer.apps.serving import service
    from tests.apps.serving.support import call, serving, wait_until

    monkeypatch.setattr(service, "_GRACE_SECONDS", 0)
    may_go_on, _ = model_that_waits
    with serving(service_of(request_seconds=1)) as address:
        assert call(address, "POST", "/", {"inputs": "a"})[0] == 503
        wait_until(lambda: call(address, "GET", "/health")[::2][1]["status"] == "hanging")
        assert call(address, "GET", "/health")[0] == 503
        may_go_on.set()
        wait_until(lambda: call(address, "GET", "/health")[0] == 200)


def test_service_base_exception_fails_its_texts_only(service_of, monkeypatch):
    """As pyo3's PanicException of the tokenizers library."""
    from hf_vanilla_transformer.apps.serving import service
    from tests.apps.serving.support import call, serving, translation_of

    class Panic(BaseException):
        pass

    def translate(model, tokenizer, texts, tokens_per_batch, **options):
        if "bad" in texts:
            raise Panic("at the disco")
        return [translation_of(text) for text in texts]

    monkeypatch.setattr(service, "translate", translate)
    with serving(service_of(max_wait_ms=300)) as address, ThreadPoolExecutor(3) as threads:
        calls = [threads.submit(call, address, "POST", "/", {"inputs": text}) for text in ("a", "bad", "c")]
        assert [call.result()[0] for call in calls] == [200, 500, 200]


def test_service_ends_the_process_without_its_worker(service_of, monkeypatch):
    from hf_vanilla_transformer.apps.serving import service

    signals = []
    monkeypatch.setattr(service.signal, "raise_signal", signals.append)

    async def failing(self):
        raise ZeroDivisionError

    async def ended():
        monkeypatch.setattr(service.Lanes, "run", failing)
        with pytest.raises(ZeroDivisionError):
            async with service_of().running():
                await asyncio.sleep(0.01)

    asyncio.run(ended())
    assert signals == [signal.SIGTERM]


@pytest.mark.parametrize(
    ("parameters", "status", "message"),
    [
        ({"num_beams": 16, "max_new_tokens": 2048}, 413, "with 16 beams each, more than 20,000 in all; send fewer"),
        ({"num_beams": 9, "max_new_tokens": 2048}, 200, None),
        ({"glossary": {"nine": ["x"] * 11}}, 422, "glossary.nine"),
        ({"glossary": {"nine": "x" * 201}}, 422, "at most 200 characters"),
        ({"glossary": {str(number): "x" for number in range(101)}}, 422, "at most 100 items"),
    ],
)
def test_service_limits_work_first(service_of, model_that_waits, parameters, status, message):
    from tests.apps.serving.support import call, serving

    may_go_on, begun = model_that_waits
    may_go_on.set()
    with serving(service_of(max_work=20_000)) as address:
        body = {"inputs": "nine", "parameters": {"generate_parameters": parameters}}
        answered_status, _, answer = call(address, "POST", "/", body)
        assert answered_status == status
        assert begun == ([["nine"]] if message is None else [])
        if message is not None:
            assert message in answer["error"]


def long_forms(count):
    """Forms of 190 letters that have nothing in common."""
    draws = random.Random(count)
    return ["".join(draws.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(190)) for _ in range(count)]


MANY_TERMS = ["".join(letters) for letters in product("bcdfghkl", "aeiou")]


@pytest.mark.parametrize("body", [{"format": "text"}, {"format": "html"}, {"split": True}])
def test_service_limits_terms_first(service_of, model_that_waits, body):
    from tests.apps.serving.support import call, serving

    may_go_on, begun = model_that_waits
    may_go_on.set()
    service = service_of()
    service._generate_kwargs = {"num_beams": 16}
    if body.pop("split", False):
        pytest.importorskip("sentencex")
        service._generate_kwargs["split_sentences"] = True
    costly = {term: long_forms(10) for term in MANY_TERMS}
    text = " ".join(MANY_TERMS)
    with serving(service) as address:
        body.update(q=text, source="en", target="de", glossary=costly)
        status, _, answer = call(address, "POST", "/translate", body)
        assert status == 413
        assert "with 16 beams" in answer["error"]
        assert "the server allows 200,000 in all; send fewer terms, fewer or shorter translations" in answer["error"]
        assert not begun
        # The same terms pass if the text has none of them, or if their translations are few and short.
        assert call(address, "POST", "/translate", {**body, "q": "nine"})[0] == 200
        body["glossary"] = {term: ["Maschine", "Maschinen"] for term in MANY_TERMS}
        assert call(address, "POST", "/translate", body)[0] == 200
        assert len(begun) == 2


def test_service_batches_requests_with_equal_terms(service_of, model_that_waits):
    from tests.apps.serving.support import call, serving, wait_until

    may_go_on, begun = model_that_waits
    service = service_of()
    with serving(service) as address, ThreadPoolExecutor(4) as threads:
        threads.submit(call, address, "POST", "/", {"inputs": "first"})
        wait_until(lambda: begun)
        for text, forms in [("a", ["x", "y"]), ("b", ["x", "z"]), ("c", ["x", "y"])]:
            body = {"q": text, "source": "en", "target": "de", "glossary": {"nine": forms}}
            threads.submit(call, address, "POST", "/translate", body)
        wait_until(lambda: len(service.lanes.short._waiting) == 3)
        may_go_on.set()
    assert sorted(map(sorted, begun[1:])) == [["a", "c"], ["b"]]


def test_service_rejects_other_languages(service_of):
    from hf_vanilla_transformer.apps.serving.errors import OtherLanguageError

    service = service_of()
    service.card = service.card._replace(source_language="en", target_language="de")
    for source, target in (("en", "de"), ("auto", "de"), ("eng_Latn", "deu"), ("en-US", None), ("tlh", "de")):
        service.check_languages(source, target)
    for source, target in (("fr", "de"), ("en", "fr"), ("de", "en")):
        with pytest.raises(OtherLanguageError, match=r'but the model translates from "en" to "de"; send these'):
            service.check_languages(source, target)


@pytest.mark.parametrize(
    ("work", "glossary", "lane"), [(2000, None, "short"), (2001, None, "long"), (2000, {"nine": "neun"}, "long")]
)
def test_service_lane_of_a_request(service_of, tokenizer, monkeypatch, work, glossary, lane):
    from hf_vanilla_transformer.apps.serving import service
    from tests.apps.serving.support import call, serving, translation_of

    names = []

    def remember_thread(model, tokenizer, texts, tokens_per_batch, **options):
        names.append(threading.current_thread().name)
        return [translation_of(text) for text in texts]

    monkeypatch.setattr(service, "translate", remember_thread)
    max_new_tokens = work - len(tokenizer("nine").input_ids)
    settings = {"num_beams": 1, "max_new_tokens": max_new_tokens, "glossary": glossary}
    with serving(service_of()) as address:
        body = {"inputs": "nine", "parameters": {"generate_parameters": settings}}
        assert call(address, "POST", "/", body)[0] == 200
    assert names == [f"{lane}-translations_0"]


def test_service_short_request_overtakes_a_long_one(service_of, monkeypatch):
    """One large request and three medium ones are in work or wait when it arrives."""
    from hf_vanilla_transformer.apps.serving import service
    from tests.apps.serving.support import call, serving, translation_of, wait_until

    begun, ended, may_end = [], [], threading.Event()

    def search(model, tokenizer, texts, tokens_per_batch, stopping_criteria, **options):
        begun.append(texts[0])
        while texts[0] != "nine" and not may_end.is_set():
            time.sleep(0.001)
            for criterion in stopping_criteria:
                criterion(torch.zeros(1, 1), None)
        ended.append(texts[0])
        return [translation_of(text.upper()) for text in texts]

    def request(text, num_beams, max_new_tokens):
        settings = {"num_beams": num_beams, "max_new_tokens": max_new_tokens}
        return {"inputs": text, "parameters": {"generate_parameters": settings}}

    monkeypatch.setattr(service, "translate", search)
    served = service_of(request_seconds=20)
    with serving(served) as address, ThreadPoolExecutor(4) as threads:
        longer = [threads.submit(call, address, "POST", "/", request("large", 16, 2048))]
        wait_until(lambda: begun)
        for text in ("medium 1", "medium 2", "medium 3"):
            longer.append(threads.submit(call, address, "POST", "/", request(text, 4, 600)))
        wait_until(lambda: served._limits.in_flight == 4)
        answer = call(address, "POST", "/", {"inputs": "nine"})
        may_end.set()
        assert answer[::2] == (200, [{"translation_text": "NINE"}])
        assert all(task.result()[0] == 200 for task in longer)
    # The others follow each other.
    assert begun[0] == "large"
    assert ended[:2] == ["nine", "large"]


def test_service_short_requests_overtake_the_costliest(service_of, model, tokenizer, monkeypatch):
    """They are answered while the search of another client goes on, whose answer stays the same."""
    from hf_vanilla_transformer.acceleration import cpu_decoder
    from tests.apps.serving.support import call, serving, wait_until

    texts, small = ["nine hundred and ninety-nine", "forty-two"] * 20, ["nine", "seven", "forty-two"]
    expected, answers = (translate(model, tokenizer, sentences) for sentences in (texts, small))
    step, sizes, may_end = CPUDecoder.__call__, [], threading.Event()

    def slow(self, input_ids):
        sizes.append(len(input_ids))
        if len(input_ids) > 100:  # Of the costly request, whose search cannot end before the short ones.
            time.sleep(0.1)
            if len([size for size in sizes if size > 100]) == 6:
                may_end.wait(30)
        return step(self, input_ids)

    monkeypatch.setattr(cpu_decoder.CPUDecoder, "__call__", slow)
    with serving(service_of()) as address, ThreadPoolExecutor(1) as threads:
        costly = threads.submit(call, address, "POST", "/", {"inputs": texts})
        wait_until(lambda: sizes)
        for text, answer in zip(small, answers, strict=True):
            assert call(address, "POST", "/", {"inputs": text})[2] == [{"translation_text": answer}]
        assert not costly.done()
        may_end.set()
        assert [answer["translation_text"] for answer in costly.result()[2]] == expected


def test_service_short_requests_overtake_the_costliest_of_an_engine(tokenizer):
    from hf_vanilla_transformer.apps.serving.service import Service
    from tests.apps.serving.support import call, serving

    began, may_end, ended = threading.Event(), threading.Event(), []

    class Slow(ConstantEngine):
        def generate(self, input_ids, attention_mask=None, **kwargs):
            if len(input_ids) > 10:
                began.set()
                may_end.wait(10)
                ended.append(len(input_ids))
            return super().generate(input_ids, attention_mask)

    service = Service(Slow(tokenizer), tokenizer, ServingSettings(), read_card(str(FIXTURE)))
    with serving(service) as address, ThreadPoolExecutor(1) as threads:
        costly = threads.submit(call, address, "POST", "/", {"inputs": ["forty-two"] * 40})
        assert began.wait(30)
        assert call(address, "POST", "/", {"inputs": "nine"})[2] == [{"translation_text": "neun"}]
        assert not ended
        may_end.set()
        assert len(costly.result()[2]) == 40


def test_service_splits_texts_over_the_limit(service_of, model, tokenizer, monkeypatch):
    pytest.importorskip("sentencex")
    from hf_vanilla_transformer.apps.serving.service import Service
    from tests.apps.serving.support import call, serving

    monkeypatch.setitem(tokenizer.init_kwargs, "longest_training_source", 30)
    text = "nine. " * 30 + "\n\nforty-two, nine\n"
    service = service_of(max_source_tokens=40)
    with serving(service) as address:
        assert call(address, "POST", "/", {"inputs": text})[0] == 413
        service._generate_kwargs = {"split_sentences": "en"}
        expected = translate(model, tokenizer, [text], split_sentences="en")
        for options in ({}, {"format": "html"}):
            body = {"q": text, "source": "en", "target": "de", **options}
            assert call(address, "POST", "/translate", body)[2]["translatedText"].split() == expected[0].split()
        assert call(address, "POST", "/", {"inputs": ["", text]})[2][1] == {"translation_text": expected[0]}
        # No document escapes the limits by a sentence that cannot be split.
        body = {"q": "<p>nine</p><p>" + "1.2." * 30, "source": "en", "target": "de", "format": "html"}
        status, _, answer = call(address, "POST", "/translate", body)
        assert (status, "split it into texts of at most 40" in answer["error"]) == (413, True)
        # Splitting takes long, too, also of documents.
        monkeypatch.setattr("hf_vanilla_transformer.apps.serving.service.split_into_pieces", None)
        body["q"] = ["<p>" + "nine. " * 200] * 90
        status, _, answer = call(address, "POST", "/translate", body)
        assert (status, "with 4 beams each" in answer["error"]) == (413, True)
        monkeypatch.setattr(Service, "_split_texts", None)
        assert call(address, "POST", "/", {"inputs": "nine. " * 90_000})[0] == 413


@pytest.mark.parametrize(("longest_training_source", "max_source_tokens"), [(1000, 40), (40, 1000), (40, 40)])
def test_service_parts_of_sentences_fit_model_and_server(
    service_of, tokenizer, model_that_waits, monkeypatch, longest_training_source, max_source_tokens
):
    pytest.importorskip("sentencex")
    from tests.apps.serving.support import call, serving

    may_go_on, begun = model_that_waits
    may_go_on.set()
    monkeypatch.setitem(tokenizer.init_kwargs, "longest_training_source", longest_training_source)
    text = ", ".join(["forty-two and seven"] * 12)
    service = service_of(max_source_tokens=max_source_tokens)
    service._generate_kwargs = {"split_sentences": True}
    with serving(service) as address:
        status, _, (answer,) = call(address, "POST", "/", {"inputs": text})
    assert (status, answer) == (200, {"translation_text": text.upper(), "flags": ["split"]})
    parts = [part for batch in begun for part in batch]
    assert len(tokenizer(text).input_ids) > 100
    assert max(len(tokenizer(part).input_ids) for part in parts) <= 40
