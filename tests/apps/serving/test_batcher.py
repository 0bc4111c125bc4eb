"""Batches by token budget, translations for the requests that sent the texts, failures that stay alone, and lanes."""

import asyncio
import threading
from contextlib import asynccontextmanager

import pytest

from hf_vanilla_transformer.apps.serving.batcher import Lane, Lanes


class Model:
    """Translates into capital letters, remembers its batches, and fails for texts with "bad".

    `started` is set when a batch begins. A batch ends only while `may_end` is set, as it is by default.
    """

    def __init__(self):
        self.batches = []
        self.options = []
        self.working = 0
        self.most_working = 0
        self.started = threading.Event()
        self.may_end = threading.Event()
        self.may_end.set()

    def __call__(self, texts, options, is_abandoned):
        self.working += 1
        self.most_working = max(self.most_working, self.working)
        self.started.set()
        assert self.may_end.wait(30)
        self.working -= 1
        self.batches.append(texts)
        self.options.append(options)
        if any("bad" in text for text in texts):
            raise ValueError(f"bad text among {len(texts)}")
        return [text.upper() for text in texts]


def run_with_lane(test, tokens_per_batch=12, max_wait=0.02, observe=None):
    """Run a test, a coroutine function, with a lane and its model."""

    async def run():
        model = Model()
        lane = Lane("test", model, tokens_per_batch, max_wait, observe)
        task = asyncio.create_task(lane.run())
        try:
            await asyncio.wait_for(test(lane, model), 30)
        finally:
            model.may_end.set()
            task.cancel()
            lane.close()

    asyncio.run(run())


@asynccontextmanager
async def running_lanes(translate, tokens_per_batch, max_wait):
    """Two lanes that run while the context is open."""
    lanes = Lanes(translate, tokens_per_batch, max_wait)
    task = asyncio.create_task(lanes.run())
    try:
        yield lanes
    finally:
        task.cancel()
        lanes.close()


def submit(lane, *texts, **options):
    """Submit texts in which each letter is a token."""
    return lane.submit(texts, [len(text) for text in texts], options)


def start(lane, *texts, **options):
    """Return a task that submits texts."""
    return asyncio.create_task(submit(lane, *texts, **options))


async def wait_for_event(event):
    """Wait until a worker thread sets an event, without blocking the event loop."""
    assert await asyncio.to_thread(event.wait, 30)


async def wait_for_queue(lane, count):
    """Wait until some texts wait in a lane; tasks that are ready run meanwhile."""
    while len(lane._waiting) != count:
        await asyncio.sleep(0)


def test_submit_returns_the_translations_of_each_request():
    async def test(lane, model):
        requests = [[f"a{i}", f"b{i}"] for i in range(20)]
        answers = await asyncio.gather(*(submit(lane, *texts) for texts in requests))
        assert answers == [[text.upper() for text in texts] for texts in requests]
        assert len(model.batches) < len(requests)
        assert model.most_working == 1

    run_with_lane(test)


def test_run_fills_batches_in_order_of_arrival_up_to_the_budget():
    async def test(lane, model):
        texts = ["aa", "bb", "cccccc", "d", "e", "ffffffffffffffff", "g"]
        await submit(lane, *texts)
        assert [text for batch in model.batches for text in batch] == texts
        assert model.batches == [["aa", "bb"], ["cccccc", "d"], ["e"], ["ffffffffffffffff"], ["g"]]

    run_with_lane(test)


def test_run_waits_for_max_wait_unless_the_batch_is_full():
    async def test(lane, model):
        loop = asyncio.get_running_loop()
        started = loop.time()
        assert await submit(lane, "a") == ["A"]
        assert loop.time() - started >= 0.2
        # The first of these fills a batch.
        await asyncio.wait_for(submit(lane, "a" * 12, "b"), 30)
        assert model.batches[1:] == [["a" * 12], ["b"]]

    run_with_lane(test, max_wait=0.2)


def test_run_batches_the_texts_that_arrive_while_the_model_works():
    async def test(lane, model):
        model.may_end.clear()
        first = start(lane, "first")
        await wait_for_event(model.started)
        waiting = [start(lane, text) for text in "abcdef"]
        await wait_for_queue(lane, 6)
        model.may_end.set()
        await asyncio.gather(first, *waiting)
        assert model.batches == [["first"], list("abcdef")]

    run_with_lane(test)


def test_run_batches_texts_with_equal_options():
    async def test(lane, model):
        texts_and_beams = zip("abcd", [1, 4, 1, 4], strict=True)
        await asyncio.gather(*(submit(lane, text, num_beams=beams) for text, beams in texts_and_beams))
        assert model.batches == [["a", "c"], ["b", "d"]]
        assert model.options == [{"num_beams": 1}, {"num_beams": 4}]

    run_with_lane(test)


def test_run_translates_a_failed_batch_text_by_text():
    async def test(lane, model):
        answers = await asyncio.gather(*(submit(lane, text) for text in ("a", "bad", "c")), return_exceptions=True)
        assert answers[0] == ["A"]
        assert answers[2] == ["C"]
        assert str(answers[1]) == "bad text among 1"
        assert model.batches == [["a", "bad", "c"], ["a"], ["bad"], ["c"]]
        assert await submit(lane, "d") == ["D"]

    run_with_lane(test)


def test_run_does_not_translate_cancelled_requests():
    async def test(lane, model):
        model.may_end.clear()
        first = start(lane, "first")
        await wait_for_event(model.started)
        waiting = [start(lane, text) for text in "abc"]
        await wait_for_queue(lane, 3)
        waiting[1].cancel()
        first.cancel()
        await wait_for_queue(lane, 2)
        model.may_end.set()
        assert await asyncio.gather(waiting[0], waiting[2]) == [["A"], ["C"]]
        assert model.batches == [["first"], ["a", "c"]]

    run_with_lane(test)


def test_run_observes_batches():
    observed = []

    async def test(lane, model):
        await submit(lane, "aaa", "b")

    run_with_lane(test, observe=observed.append)
    (figures,) = observed
    assert (figures.texts, figures.padded_tokens, len(figures.waiting_seconds)) == (2, 6, 2)


@pytest.mark.parametrize("texts", [[], ["a"]])
def test_submit_any_number_of_texts(texts):
    async def test(lane, model):
        assert await submit(lane, *texts) == [text.upper() for text in texts]

    run_with_lane(test)


def test_call_waits_for_the_current_batch():
    async def test(lane, model):
        model.may_end.clear()
        batch = start(lane, "a")
        await wait_for_event(model.started)
        called = threading.Event()

        def note_call(text):
            called.set()
            return text, model.working

        call = asyncio.create_task(lane.call(note_call, "a call"))
        failing_call = asyncio.create_task(lane.call([].pop))
        # A call that did not wait for the batch would come within this time.
        assert not await asyncio.to_thread(called.wait, 0.05)
        model.may_end.set()
        assert await batch == ["A"]
        assert await call == ("a call", 0)
        with pytest.raises(IndexError):
            await failing_call

    run_with_lane(test)


class EndlessModel:
    """Searches without end, except for texts with "ends", and counts the steps of its search.

    The search makes one step for each call of `allow_step`.
    """

    def __init__(self):
        self.started = threading.Event()
        self.ended = threading.Event()
        self.steps = 0
        self._allowed_steps = threading.Semaphore(0)
        self._made_step = threading.Semaphore(0)

    def __call__(self, texts, options, is_abandoned):
        if "ends" in texts[0]:
            return texts
        self.started.set()
        while True:
            assert self._allowed_steps.acquire(timeout=30)
            if is_abandoned():
                self.ended.set()
                raise RuntimeError(f"stopped after {self.steps} steps")
            self.steps += 1
            self._made_step.release()

    def allow_step(self):
        """Let the search make a step, or end if it is abandoned."""
        self._allowed_steps.release()

    async def make_step(self):
        """Let the search make a step, and wait until it has."""
        self.allow_step()
        assert await asyncio.to_thread(self._made_step.acquire, timeout=30)


@pytest.mark.parametrize("name", ["short", "long"])
def test_abandoned_search_ends_at_its_next_step(name):
    """A search goes on as long as a request waits for one of its texts."""

    async def test():
        model = EndlessModel()
        async with running_lanes(model, 12, 0.02) as lanes:
            lane = getattr(lanes, name)
            first = start(lane, "a")
            second = start(lane, "b")
            await wait_for_event(model.started)
            await model.make_step()
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            # The second request still waits.
            await model.make_step()
            assert not model.ended.is_set()
            second.cancel()
            await asyncio.gather(second, return_exceptions=True)
            model.allow_step()
            # The worker thread is free, and the abandoned texts are not translated one by one.
            assert await submit(lane, "ends") == ["ends"]
            assert model.ended.is_set()
            assert model.steps == 2
            assert lanes.current_batch_seconds() == 0

    asyncio.run(asyncio.wait_for(test(), 30))


@pytest.mark.parametrize(("busy", "free"), [("short", "long"), ("long", "short")])
def test_lanes_do_not_wait_for_each_other(busy, free):
    async def test():
        model = Model()

        def translate(texts, options, is_abandoned):
            return model(texts, options, is_abandoned) if "busy" in texts[0] else texts

        model.may_end.clear()
        async with running_lanes(translate, 4, 0) as lanes:
            busy_lane = getattr(lanes, busy)
            free_lane = getattr(lanes, free)
            requests = [start(busy_lane, f"busy {number}") for number in range(4)]
            await wait_for_event(model.started)
            for text in "abc":
                assert await submit(free_lane, text) == [text]
                assert await free_lane.call(str.upper, text) == text.upper()
            assert not any(request.done() for request in requests)
            assert lanes.current_batch_seconds() > 0
            model.may_end.set()
            assert await asyncio.gather(*requests) == [[f"BUSY {number}"] for number in range(4)]
            assert model.most_working == 1

    asyncio.run(asyncio.wait_for(test(), 30))


def test_lanes_end_if_one_of_them_fails():
    async def test():
        lanes = Lanes(Model(), 12, 0)

        async def fail():
            raise ZeroDivisionError

        lanes.long.run = fail
        with pytest.raises(ZeroDivisionError):
            await lanes.run()
        lanes.close()

    asyncio.run(asyncio.wait_for(test(), 30))
