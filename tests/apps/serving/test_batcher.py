"""Batches by token budget, answers for those who asked, failures that stay alone, and lanes that share no work."""

import asyncio
import threading
import time

import pytest

from hf_vanilla_transformer.apps.serving.batcher import Lane, Lanes


class Model:
    """Answers in capital letters, remembers its batches, fails for texts with "bad", and waits if told to."""

    def __init__(self):
        self.batches, self.options = [], []
        self.working, self.most_working = 0, 0
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def __call__(self, texts, options, is_abandoned):
        self.working += 1
        self.most_working = max(self.most_working, self.working)
        self.may_go_on.wait(30)
        self.working -= 1
        self.batches.append(texts)
        self.options.append(options)
        if any("bad" in text for text in texts):
            raise ValueError(f"bad text among {len(texts)}")
        return [text.upper() for text in texts]


def running(test, tokens_per_batch=12, max_wait=0.02, observe=None):
    """Run a test, a coroutine function, with a lane and its model."""

    async def run():
        model = Model()
        lane = Lane("test", model, tokens_per_batch, max_wait, observe)
        task = asyncio.create_task(lane.run())
        try:
            await asyncio.wait_for(test(lane, model), 30)
        finally:
            model.may_go_on.set()
            task.cancel()
            lane.close()

    asyncio.run(run())


def submit(lane, *texts, **options):
    """Each letter is a token."""
    return lane.submit(texts, [len(text) for text in texts], options)


def test_answers_go_to_those_who_asked():
    async def test(lane, model):
        requests = [[f"a{i}", f"b{i}"] for i in range(20)]
        answers = await asyncio.gather(*(submit(lane, *texts) for texts in requests))
        assert answers == [[text.upper() for text in texts] for texts in requests]
        assert len(model.batches) < len(requests)
        assert model.most_working == 1

    running(test)


def test_a_padded_batch_fits_the_budget_and_nobody_is_overtaken():
    async def test(lane, model):
        texts = ["aa", "bb", "cccccc", "d", "e", "ffffffffffffffff", "g"]
        await submit(lane, *texts)
        assert [text for batch in model.batches for text in batch] == texts
        assert model.batches == [["aa", "bb"], ["cccccc", "d"], ["e"], ["ffffffffffffffff"], ["g"]]

    running(test)


def test_an_idle_model_waits_only_for_max_wait():
    async def test(lane, model):
        loop = asyncio.get_running_loop()
        started = loop.time()
        assert await submit(lane, "a") == ["A"]
        assert loop.time() - started >= 0.2
        # A full batch does not wait.
        await asyncio.wait_for(submit(lane, "a" * 12, "b"), 30)
        assert model.batches[1:] == [["a" * 12], ["b"]]

    running(test, max_wait=0.2)


def test_texts_that_arrive_while_the_model_works_share_the_next_batch():
    async def test(lane, model):
        model.may_go_on.clear()
        first = asyncio.create_task(submit(lane, "first"))
        await asyncio.sleep(0.05)
        others = [asyncio.create_task(submit(lane, text)) for text in "abcdef"]
        await asyncio.sleep(0.05)
        model.may_go_on.set()
        await asyncio.gather(first, *others)
        assert model.batches == [["first"], list("abcdef")]

    running(test)


def test_options_are_not_mixed():
    async def test(lane, model):
        given = zip("abcd", [1, 4, 1, 4], strict=True)
        await asyncio.gather(*(submit(lane, text, num_beams=beams) for text, beams in given))
        assert model.batches == [["a", "c"], ["b", "d"]]
        assert model.options == [{"num_beams": 1}, {"num_beams": 4}]

    running(test)


def test_a_text_that_fails_alone_harms_no_other():
    async def test(lane, model):
        answers = await asyncio.gather(*(submit(lane, text) for text in ("a", "bad", "c")), return_exceptions=True)
        assert answers[0] == ["A"]
        assert answers[2] == ["C"]
        assert str(answers[1]) == "bad text among 1"
        assert model.batches == [["a", "bad", "c"], ["a"], ["bad"], ["c"]]
        assert await submit(lane, "d") == ["D"]

    running(test)


def test_a_request_that_was_cancelled_is_not_translated():
    async def test(lane, model):
        model.may_go_on.clear()
        first = asyncio.create_task(submit(lane, "first"))
        await asyncio.sleep(0.05)
        others = [asyncio.create_task(submit(lane, text)) for text in "abc"]
        await asyncio.sleep(0)
        others[1].cancel()
        first.cancel()
        await asyncio.sleep(0.01)
        model.may_go_on.set()
        assert await asyncio.gather(others[0], others[2]) == [["A"], ["C"]]
        assert model.batches == [["first"], ["a", "c"]]

    running(test)


def test_batches_are_observed():
    seen = []

    async def test(lane, model):
        await submit(lane, "aaa", "b")

    running(test, observe=seen.append)
    (batch,) = seen
    assert (batch.texts, batch.padded_tokens, len(batch.waiting_seconds)) == (2, 6, 2)


@pytest.mark.parametrize("texts", [[], ["a"]])
def test_any_number_of_texts(texts):
    async def test(lane, model):
        assert await submit(lane, *texts) == [text.upper() for text in texts]

    running(test)


def test_calls_and_batches_take_turns():
    async def test(lane, model):
        model.may_go_on.clear()
        batch = asyncio.create_task(submit(lane, "a"))
        while not model.working:
            await asyncio.sleep(0.001)
        call = asyncio.create_task(lane.call(lambda text: (text, model.working), "a call"))
        failing = asyncio.create_task(lane.call([].pop))
        await asyncio.sleep(0.05)
        assert not call.done()
        model.may_go_on.set()
        assert await batch == ["A"]
        assert await call == ("a call", 0)
        with pytest.raises(IndexError):
            await failing

    running(test)


class Steps:
    """Searches without end, except for texts with "ends", and remembers how many of their steps were made."""

    def __init__(self):
        self.begun, self.ended, self.made = threading.Event(), threading.Event(), 0

    def __call__(self, texts, options, is_abandoned):
        if "ends" in texts[0]:
            return texts
        self.begun.set()
        while not is_abandoned():
            self.made += 1
            time.sleep(0.001)
        made = self.made
        self.ended.set()
        raise RuntimeError(f"stopped after {made} steps")


@pytest.mark.parametrize("name", ["short", "long"])
def test_abandoned_work_stops_at_its_next_step(name):
    """Without a request that waits for one of its texts, and no earlier."""

    async def test():
        steps = Steps()
        lanes = Lanes(steps, 12, 0.02)
        lane = getattr(lanes, name)
        task = asyncio.create_task(lanes.run())
        first, second = (asyncio.create_task(submit(lane, text)) for text in "ab")
        assert await asyncio.to_thread(steps.begun.wait, 30)
        first.cancel()
        await asyncio.sleep(0.02)
        assert not steps.ended.is_set()
        second.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        made = steps.made
        # The worker is free, and no abandoned text is tried alone.
        assert await submit(lane, "ends") == ["ends"]
        assert steps.ended.is_set()
        assert steps.made <= made + 1
        assert lanes.current_batch_seconds() == 0
        task.cancel()
        lanes.close()

    asyncio.run(asyncio.wait_for(test(), 30))


@pytest.mark.parametrize(("busy", "free"), [("short", "long"), ("long", "short")])
def test_a_lane_waits_for_nothing_of_the_other(busy, free):
    async def test():
        model = Model()
        may_end = model.may_go_on

        def translate(texts, options, is_abandoned):
            return model(texts, options, is_abandoned) if "busy" in texts[0] else texts

        lanes = Lanes(translate, 4, 0)
        task = asyncio.create_task(lanes.run())
        may_end.clear()
        requests = [asyncio.create_task(submit(getattr(lanes, busy), f"busy {number}")) for number in range(4)]
        while not model.working:
            await asyncio.sleep(0.001)
        for text in "abc":
            assert await submit(getattr(lanes, free), text) == [text]
            assert await getattr(lanes, free).call(str.upper, text) == text.upper()
        assert not any(request.done() for request in requests)
        assert lanes.current_batch_seconds() > 0
        may_end.set()
        assert await asyncio.gather(*requests) == [[f"BUSY {number}"] for number in range(4)]
        assert model.most_working == 1
        task.cancel()
        lanes.close()

    asyncio.run(asyncio.wait_for(test(), 30))


def test_a_lane_that_fails_ends_both():
    async def test():
        lanes = Lanes(Model(), 12, 0)

        async def fail():
            raise ZeroDivisionError

        lanes.long.run = fail
        with pytest.raises(ZeroDivisionError):
            await lanes.run()
        lanes.close()

    asyncio.run(asyncio.wait_for(test(), 30))
