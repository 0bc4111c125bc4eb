"""Batches by token budget, answers for those who asked, and failures that stay alone."""

import asyncio
import threading
import time

import pytest

from hf_vanilla_transformer.apps.serving.batcher import Batcher


class Model:
    """Answers in capital letters, remembers its batches, fails for texts with "bad", and waits if told to."""

    def __init__(self):
        self.batches, self.options, self.waiting = [], [], 0
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def __call__(self, texts, options, step):
        self.waiting += 1
        self.may_go_on.wait(30)
        self.waiting -= 1
        self.batches.append(texts)
        self.options.append(options)
        if any("bad" in text for text in texts):
            raise ValueError(f"bad text among {len(texts)}")
        return [text.upper() for text in texts]


def running(test, tokens_per_batch=12, max_wait=0.02, observe=None, workers=1):
    """Run a test, a coroutine function, with a batcher and its model."""

    async def run():
        model = Model()
        batcher = Batcher(model, tokens_per_batch, max_wait, observe, workers)
        task = asyncio.create_task(batcher.run())
        try:
            await asyncio.wait_for(test(batcher, model), 30)
        finally:
            model.may_go_on.set()
            task.cancel()
            batcher.close()

    asyncio.run(run())


def submit(batcher, *texts, **options):
    """Each letter is a token."""
    return batcher.submit(texts, [len(text) for text in texts], options)


def test_answers_go_to_those_who_asked():
    async def test(batcher, model):
        requests = [[f"a{i}", f"b{i}"] for i in range(20)]
        answers = await asyncio.gather(*(submit(batcher, *texts) for texts in requests))
        assert answers == [[text.upper() for text in texts] for texts in requests]
        assert len(model.batches) < len(requests)

    running(test)


def test_a_padded_batch_fits_the_budget_and_nobody_is_overtaken():
    async def test(batcher, model):
        texts = ["aa", "bb", "cccccc", "d", "e", "ffffffffffffffff", "g"]
        await submit(batcher, *texts)
        assert [text for batch in model.batches for text in batch] == texts
        assert model.batches == [["aa", "bb"], ["cccccc", "d"], ["e"], ["ffffffffffffffff"], ["g"]]

    running(test)


def test_an_idle_model_waits_only_for_max_wait():
    async def test(batcher, model):
        loop = asyncio.get_running_loop()
        started = loop.time()
        assert await submit(batcher, "a") == ["A"]
        assert loop.time() - started >= 0.2
        # A full batch does not wait.
        await asyncio.wait_for(submit(batcher, "a" * 12, "b"), 30)
        assert model.batches[1:] == [["a" * 12], ["b"]]

    running(test, max_wait=0.2)


def test_texts_that_arrive_while_the_model_works_share_the_next_batch():
    async def test(batcher, model):
        model.may_go_on.clear()
        first = asyncio.create_task(submit(batcher, "first"))
        await asyncio.sleep(0.05)
        others = [asyncio.create_task(submit(batcher, text)) for text in "abcdef"]
        await asyncio.sleep(0.05)
        model.may_go_on.set()
        await asyncio.gather(first, *others)
        assert model.batches == [["first"], list("abcdef")]

    running(test)


def test_options_are_not_mixed():
    async def test(batcher, model):
        given = zip("abcd", [1, 4, 1, 4], strict=True)
        await asyncio.gather(*(submit(batcher, text, num_beams=beams) for text, beams in given))
        assert model.batches == [["a", "c"], ["b", "d"]]
        assert model.options == [{"num_beams": 1}, {"num_beams": 4}]

    running(test)


def test_a_text_that_fails_alone_harms_no_other():
    async def test(batcher, model):
        answers = await asyncio.gather(*(submit(batcher, text) for text in ("a", "bad", "c")), return_exceptions=True)
        assert answers[0] == ["A"]
        assert answers[2] == ["C"]
        assert str(answers[1]) == "bad text among 1"
        assert model.batches == [["a", "bad", "c"], ["a"], ["bad"], ["c"]]
        assert await submit(batcher, "d") == ["D"]

    running(test)


def test_a_request_that_was_cancelled_is_not_translated():
    async def test(batcher, model):
        model.may_go_on.clear()
        first = asyncio.create_task(submit(batcher, "first"))
        await asyncio.sleep(0.05)
        others = [asyncio.create_task(submit(batcher, text)) for text in "abc"]
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

    async def test(batcher, model):
        await submit(batcher, "aaa", "b")

    running(test, observe=seen.append)
    (batch,) = seen
    assert (batch.texts, batch.tokens, len(batch.waited)) == (2, 6, 2)


@pytest.mark.parametrize("texts", [[], ["a"]])
def test_any_number_of_texts(texts):
    async def test(batcher, model):
        assert await submit(batcher, *texts) == [text.upper() for text in texts]

    running(test)


def test_small_work_goes_between_the_steps_of_costly_work():
    """Two small batches and a call while a costly batch is translated; a batch of as much work waits."""
    began, events = threading.Event(), []

    def translate(texts, options, step):
        events.append(texts[0])
        if texts == ["costly"]:
            began.set()
            while events[-1] != "a call":
                assert not step()
        events.append(f"end of {texts[0]}")
        return texts

    async def test():
        batcher = Batcher(translate, 1, 0)
        task = asyncio.create_task(batcher.run())
        costly = [asyncio.create_task(batcher.submit([text], [1], {}, work=5_000)) for text in ("costly", "as costly")]
        await asyncio.to_thread(began.wait, 30)
        assert await batcher.submit(["small"], [1], {}, work=300) == ["small"]
        assert await batcher.submit(["other"], [1], {"num_beams": 1}, work=300) == ["other"]
        await batcher.call(events.append, "a call")
        assert await asyncio.gather(*costly) == [["costly"], ["as costly"]]
        task.cancel()
        batcher.close()

    asyncio.run(asyncio.wait_for(test(), 30))
    small = ["small", "end of small", "other", "end of other", "a call"]
    assert events == ["costly", *small, "end of costly", "as costly", "end of as costly"]


def test_a_second_worker_translates_small_work_meanwhile():
    async def test(batcher, model):
        model.may_go_on.clear()
        costly = [asyncio.create_task(batcher.submit([text], [1], {}, work=5_000)) for text in ("costly", "as costly")]
        await asyncio.sleep(0.05)
        small = asyncio.create_task(batcher.submit(["small"], [1], {}, work=300))
        await asyncio.sleep(0.05)
        assert model.waiting == 2  # Not the second costly one.
        model.may_go_on.set()
        assert await asyncio.gather(*costly, small) == [["COSTLY"], ["AS COSTLY"], ["SMALL"]]
        assert model.batches[2] == ["as costly"]

    running(test, tokens_per_batch=1, workers=2)


def test_what_nobody_waits_for_is_interrupted_by_its_thread():
    threads, interrupted = {}, []

    async def test(batcher, model):
        def translate(texts, options, step):
            threads[texts[0]] = threading.get_ident()
            return model(texts, options, step)

        batcher._translate, batcher.interrupt = translate, interrupted.append
        model.may_go_on.clear()
        costly = asyncio.create_task(batcher.submit(["costly"], [6], {}, work=5_000))
        await asyncio.sleep(0.05)
        small = [asyncio.create_task(batcher.submit([text], [1], {}, work=10)) for text in ("left", "later")]
        await asyncio.sleep(0.05)
        for task in small:
            task.cancel()
        await asyncio.gather(*small, return_exceptions=True)
        assert set(interrupted) == {threads["left"]}
        costly.cancel()
        await asyncio.gather(costly, return_exceptions=True)
        assert set(interrupted) == {threads["left"], threads["costly"]}
        assert threads["left"] != threads["costly"]

    running(test, tokens_per_batch=1, workers=2)


def test_an_interruption_does_not_meet_the_next_batch_of_its_thread():
    """The thread of an abandoned batch may be free before the interruption, which would end the batch of others."""
    began, may_end, next_began = (threading.Event() for _ in range(3))
    next_began_during_interruption = []

    async def test(batcher, model):
        def translate(texts, options, step):
            if texts == ["next"]:
                next_began.set()
                return texts
            began.set()
            assert may_end.wait(30)
            return texts

        def interrupt(thread):
            may_end.set()
            next_began_during_interruption.append(next_began.wait(1))

        batcher._translate, batcher.interrupt = translate, interrupt
        costly = asyncio.create_task(batcher.submit(["costly"], [6], {}, work=5_000))
        await asyncio.to_thread(began.wait, 30)
        small = asyncio.create_task(batcher.submit(["next"], [1], {}, work=10))
        while not batcher._calls:
            await asyncio.sleep(0.001)
        costly.cancel()
        assert await small == ["next"]
        assert next_began_during_interruption == [False]

    running(test, tokens_per_batch=1)


def test_requests_of_different_sizes_share_no_batch():
    async def test(batcher, model):
        works = zip("abcd", (300, 5_000, 2_000, 400), strict=True)
        await asyncio.gather(*(batcher.submit([text], [1], {}, work) for text, work in works))
        # 300, 400 and 2,000 have three digits in base 16.
        assert model.batches == [["a", "c", "d"], ["b"]]

    running(test)


def test_costly_work_has_half_of_the_time():
    """Small requests come without end, each takes 20 ms, and a step of the search 2 ms."""
    calls = []

    def translate(texts, options, step):
        if texts == ["costly"]:
            started = time.monotonic()
            for _ in range(50):
                time.sleep(0.002)
                step()
            calls.append(time.monotonic() - started)
        else:
            time.sleep(0.02)
        return texts

    async def test():
        batcher = Batcher(translate, 1, 0)
        task = asyncio.create_task(batcher.run())
        costly = asyncio.create_task(batcher.submit(["costly"], [1], {}, work=5_000))
        small = [asyncio.create_task(batcher.submit([str(number)], [1], {}, work=300)) for number in range(100)]
        assert await costly == ["costly"]
        assert sum(each.done() for each in small) < 15
        for each in small:
            each.cancel()
        task.cancel()
        batcher.close()

    asyncio.run(asyncio.wait_for(test(), 30))
    assert calls[0] < 0.5  # Of 50 steps with a small request each it would be more than a second.


def test_nothing_of_the_same_size_goes_between_the_steps_of_small_work():
    """Neither the texts of a costly batch that failed, which are translated one by one."""
    nested, running = [], []

    def translate(texts, options, step):
        nested.extend((each, texts[0]) for each in running)
        running.append(texts[0])
        for _ in range(20):
            time.sleep(0.002)
            step()
        running.pop()
        if len(texts) > 1:
            raise ValueError("all")
        return texts

    async def test():
        batcher = Batcher(translate, 100, 0.01)
        task = asyncio.create_task(batcher.run())
        costly = [asyncio.create_task(batcher.submit([text], [1], {}, work=5_000)) for text in ("costly 1", "costly 2")]
        await asyncio.sleep(0.03)
        small = [asyncio.create_task(batcher.submit([text], [1], {}, work=300)) for text in ("small 1", "small 2")]
        assert await asyncio.gather(*costly, *small)
        task.cancel()
        batcher.close()

    asyncio.run(asyncio.wait_for(test(), 30))
    assert all(outer.startswith("costly") and inner.startswith("small") for outer, inner in nested)


def test_small_work_that_fails_between_steps_fails_alone():
    began, failed = threading.Event(), threading.Event()

    def translate(texts, options, step):
        if texts == ["bad"]:
            raise ValueError("bad")
        began.set()
        while not failed.is_set():
            step()
        return texts

    async def test():
        batcher = Batcher(translate, 100, 0)
        task = asyncio.create_task(batcher.run())
        costly = asyncio.create_task(batcher.submit(["costly"], [1], {}, work=5_000))
        await asyncio.to_thread(began.wait, 30)
        with pytest.raises(ValueError, match="bad"):
            await batcher.submit(["bad"], [1], {}, work=300)
        failed.set()
        assert await costly == ["costly"]
        task.cancel()
        batcher.close()

    asyncio.run(asyncio.wait_for(test(), 30))
