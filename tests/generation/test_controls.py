"""What a caller steers a translation with: logits processors, stopping criteria, end tokens, streamers."""

import itertools
from collections import Counter

import pytest
import torch
import transformers
from packaging.version import Version
from transformers import LogitsProcessor, StoppingCriteria, TextIteratorStreamer

from hf_vanilla_transformer.model.generation_settings import warn_of_many_beams
from tests.generation.by_hand import BOS, EOS, beam_search, greedy_search
from tests.generation.conftest import (
    MODES,
    NEVER_BY_STEPS,
    ONE_BY_ONE_MODES,
    SENTENCES,
    STEPS,
    batches,
    ending_model,
    in_each_way,
    until_end,
)
from tests.models import decisive_model, pad


# Near to the best translation, so that samples repeat tokens as that does.
COOL = {"temperature": 0.5}


def all_targets(decode, model, mode, eos=(EOS,), **kwargs):
    """The translations of all sentences, as lists without padding."""
    outputs = [decode(model, mode, ids, attention_mask=mask, **COOL, **kwargs) for ids, mask in batches(mode)]
    return [until_end(row, eos) for output in outputs for row in output]


class Forbid(LogitsProcessor):
    def __init__(self, token):
        self.token = token

    def __call__(self, input_ids, scores):
        return scores.index_fill(-1, torch.tensor([self.token]), -torch.inf)


def common_token(targets):
    return Counter(token for target in targets for token in target[1:] if token != EOS).most_common(1)[0][0]


def has(*phrase):
    return lambda target: any(
        tuple(target[start : start + len(phrase)]) == phrase for start in range(1, len(target) - len(phrase) + 1)
    )


def repeats_a_pair(target):
    pairs = list(itertools.pairwise(target))
    return len(set(pairs)) < len(pairs)


# For each: from what is said without it, the arguments of `generate()`, and a test that no translation may then pass.
CONSTRAINTS = {
    "logits_processor": lambda free: ({"logits_processor": [Forbid(common_token(free))]}, has(common_token(free))),
    "suppress_tokens": lambda free: ({"suppress_tokens": [common_token(free)]}, has(common_token(free))),
    "bad_words_ids, a word": lambda free: ({"bad_words_ids": [[common_token(free)]]}, has(common_token(free))),
    "bad_words_ids, a phrase": lambda free: ({"bad_words_ids": [free[0][2:4]]}, has(*free[0][2:4])),
    "sequence_bias": lambda free: ({"sequence_bias": [[[common_token(free)], -1e4]]}, has(common_token(free))),
    "no_repeat_ngram_size": lambda free: ({"no_repeat_ngram_size": 2}, repeats_a_pair),
    "min_new_tokens": lambda free: ({"min_new_tokens": STEPS}, lambda target: len(target) < 1 + STEPS),
    "min_length": lambda free: ({"min_length": STEPS}, lambda target: len(target) < STEPS),
    "begin_suppress_tokens": lambda free: (
        {"begin_suppress_tokens": [free[0][1]]},
        lambda target: target[1] == free[0][1],
    ),
    "forced_bos_token_id": lambda free: ({"forced_bos_token_id": 7}, lambda target: target[1] != 7),
    "forced_eos_token_id": lambda free: ({"forced_eos_token_id": EOS}, lambda target: target[-1] != EOS),
    "prefix_allowed_tokens_fn": lambda free: (
        {"prefix_allowed_tokens_fn": lambda sentence, target: list(range(EOS, 60, 2))},
        lambda target: any(token % 2 for token in target[1:]),
    ),
}


@pytest.fixture(scope="module")
def free_targets(decode, model):
    return {mode: all_targets(decode, model, mode) for mode in MODES}


@in_each_way(*MODES)
@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_constraints(decode, model, free_targets, mode, constraint):
    free = free_targets[mode]
    options, violates = CONSTRAINTS[constraint](free)
    assert any(violates(target) for target in free)
    targets = all_targets(decode, model, mode, **options)
    assert not [target for target in targets if violates(target)]


@NEVER_BY_STEPS
@pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.23"), reason="earlier versions of transformers count padding"
)
@pytest.mark.parametrize("mode", ["greedy", "beams"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_generate_repetition_penalty_ignores_padding(decode, model, mode, side):
    source, mask = pad(SENTENCES)
    prefixes = [torch.tensor([BOS, *words]) for words in ([5, 6, 7], [8], [9, 10])]
    prefix, prefix_mask = pad(prefixes, side, extra=1)
    output = decode(
        model,
        mode,
        source,
        attention_mask=mask,
        decoder_input_ids=prefix,
        decoder_attention_mask=prefix_mask,
        repetition_penalty=1.5,
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
    )
    rows_of_a_sentence = len(output.scores[0]) // len(SENTENCES)
    for row, (logits, scores) in enumerate(zip(output.logits[0], output.scores[0], strict=True)):
        expected = logits.log_softmax(-1) if mode == "beams" else logits.clone()
        seen = prefixes[row // rows_of_a_sentence]
        expected[seen] = torch.where(expected[seen] < 0, expected[seen] * 1.5, expected[seen] / 1.5)
        torch.testing.assert_close(scores, expected)


@in_each_way(*MODES)
def test_a_forced_end_comes_at_each_sentence_s_own_limit(decode, mode):
    model = ending_model()
    options = {"max_new_tokens": None, "max_length_offset": 1, "forced_eos_token_id": EOS, "min_new_tokens": 3}
    targets = all_targets(decode, model, mode, **options)
    for target, source in zip(targets, SENTENCES, strict=True):
        assert target[-1] == EOS
        assert len(target) <= 1 + len(source) + 1
        if mode in ("greedy", "beams"):
            (alone,) = decode(model, mode, source[None], **options)
            assert target == until_end(alone)
    assert any(len(target) == 1 + len(source) + 1 for target, source in zip(targets, SENTENCES, strict=True))


class StopAt(StoppingCriteria):
    def __init__(self, token):
        self.token = token

    def __call__(self, input_ids, scores, **kwargs):
        return input_ids[:, -1] == self.token


@in_each_way("greedy", "sampling", "beams", "sampled beams", "prompt lookup")
def test_generate_stopping_criterion(decode, model, free_targets, mode):
    token = free_targets[mode][0][3]
    targets = all_targets(decode, model, mode, stopping_criteria=[StopAt(token)])
    for target in targets:
        written = [written for written in target if written != 0]
        assert token not in written[:-1]
        assert written[-1] in (token, EOS) or len(written) == 1 + STEPS
    assert any(token in target for target in targets)
    if mode in ("greedy", "prompt lookup"):
        assert (
            targets[0][: targets[0].index(token) + 1] == free_targets[mode][0][: free_targets[mode][0].index(token) + 1]
        )


class Watcher(StoppingCriteria):
    """Remembers how many hypotheses each step had, and raises an error at its last step."""

    stops_hypotheses = False

    def __init__(self, last=None):
        self.rows, self.last = [], last

    def __call__(self, input_ids, scores, **kwargs):
        self.rows.append(len(input_ids))
        if len(self.rows) == self.last:
            raise InterruptedError("the last step")
        return torch.zeros(len(input_ids), dtype=torch.bool)


@in_each_way(*MODES)
def test_generate_watching_criterion(decode, model, free_targets, mode):
    watcher = Watcher()
    assert all_targets(decode, model, mode, stopping_criteria=[watcher]) == free_targets[mode]
    assert watcher.rows


@pytest.mark.parametrize("path", ["steps"], indirect=True)
def test_generate_watching_criterion_prunes_finished_sentences(decode, model):
    ids, mask = pad(SENTENCES)
    watcher = Watcher()
    decode(model, "beams", ids, attention_mask=mask, stopping_criteria=[watcher])
    assert watcher.rows[0] == 3 * len(SENTENCES)
    assert watcher.rows[-1] < watcher.rows[0]


@in_each_way(*MODES)
def test_generate_error_of_a_criterion(decode, model, mode):
    ids, mask = batches(mode)[0]
    watcher = Watcher(last=2)
    with pytest.raises(InterruptedError, match="the last step"):
        decode(model, mode, ids, attention_mask=mask, **COOL, stopping_criteria=[watcher])
    assert len(watcher.rows) == 2


@in_each_way(*MODES)
def test_generate_max_time(decode, model, mode):
    for ids, mask in batches(mode):
        output = decode(model, mode, ids, attention_mask=mask, max_time=0.0)
        # Drafts come three tokens at a time, and one of the model's own.
        assert output.shape[1] - 1 <= (4 if mode in ONE_BY_ONE_MODES else 1)


@in_each_way(*MODES)
def test_generate_several_eos_tokens(decode, model, free_targets, mode):
    ends = (EOS, free_targets[mode][0][3])
    targets = all_targets(decode, model, mode, eos=ends, eos_token_id=list(ends))
    for target in targets:
        assert target[-1] in ends or len(target) == 1 + STEPS
    assert len({target[-1] for target in targets if len(target) < 1 + STEPS}) > 1
    if mode in ("greedy", "assisted", "prompt lookup"):
        assert targets == [greedy_search(model, row, torch.tensor([BOS]), STEPS, ends).tolist() for row in SENTENCES]
    if mode == "beams":
        assert targets == [beam_search(model, row, 3, STEPS, eos=ends)[0][1] for row in SENTENCES]


@pytest.fixture(scope="module")
def speaker(tokenizer):
    """A model of the tokenizer's vocabulary that generates whole characters, not bytes of them."""
    model = decisive_model(seed=25, vocab_size=len(tokenizer))
    texts = [tokenizer.decode([token]) for token in range(len(tokenizer))]
    model.generation_config.suppress_tokens = [
        token for token, text in enumerate(texts) if not (text.isascii() and text.isprintable())
    ]
    return model


def something_new(text):
    """Three letters that are said first when others have been."""
    return next(text[at : at + 3] for at in range(4, len(text)) if text.find(text[at : at + 3]) == at)


@in_each_way("greedy", "sampling", "beams", "sampled beams", "prompt lookup")
def test_stop_strings(tokenizer, speaker, mode):
    options = {**MODES[mode], "max_new_tokens": 30, **tokenizer(["two small houses"], return_tensors="pt")}
    texts = []
    stop = None
    for controls in ({}, {"tokenizer": tokenizer}):
        torch.manual_seed(0)
        (target,) = speaker.generate(**options, **controls, stop_strings=stop)
        texts.append(tokenizer.decode(target, skip_special_tokens=True))
        stop = [something_new(texts[0])]
    free, said = texts
    assert len(said) < len(free)
    assert stop[0] in said
    if "beams" not in mode:
        assert free.startswith(said)
    if mode != "prompt lookup":  # whose drafts are taken whole
        assert stop[0] not in tokenizer.decode(target[:-1], skip_special_tokens=True)
    with pytest.raises(ValueError, match="tokenizer"):
        speaker.generate(**options, stop_strings=stop)


class Listener:
    def __init__(self):
        self.heard = []
        self.ended = 0

    def put(self, value):
        self.heard.append(value)

    def end(self):
        self.ended += 1


@in_each_way("greedy", "sampling", "assisted", "prompt lookup")
def test_generate_streamer_gets_each_token_once(decode, model, mode):
    for row in SENTENCES:
        listener = Listener()
        output = decode(model, mode, row[None], streamer=listener)
        assert torch.equal(torch.cat([value.flatten() for value in listener.heard]), output[0])
        assert listener.ended == 1
        assert len(listener.heard) > 1


@pytest.mark.parametrize("mode", ["greedy", "sampling"])
def test_generate_streamer_gets_batches(decode, model, mode):
    source, mask = pad(SENTENCES)
    listener = Listener()
    output = decode(model, mode, source, attention_mask=mask, streamer=listener)
    prompt, *steps = listener.heard
    assert torch.equal(torch.cat([prompt, torch.stack(steps, dim=-1)], dim=-1), output)


@NEVER_BY_STEPS
def test_generate_rejects_low_memory(decode, model):
    with pytest.raises(ValueError, match="low_memory is not supported; leave it out"):
        decode(model, "beams", SENTENCES[0][None], low_memory=True)


@NEVER_BY_STEPS
@pytest.mark.parametrize("mode", ["beams", "sampled beams"])
def test_beams_cannot_be_streamed(decode, model, mode):
    with pytest.raises(ValueError, match=r"stream.*num_beams"):
        decode(model, mode, SENTENCES[0][None], streamer=Listener())


def test_generate_streams_text(tokenizer, speaker):
    source = tokenizer(["two small houses"], return_tensors="pt")
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    output = speaker.generate(**source, num_beams=1, max_new_tokens=30, streamer=streamer)
    pieces = list(streamer)
    assert len(pieces) > 2
    assert "".join(pieces) == tokenizer.decode(output[0], skip_special_tokens=True)


@pytest.mark.parametrize("options", [{}, {"max_new_tokens": None, "max_length_offset": 0}], ids=["ended", "cut"])
@pytest.mark.parametrize("mode", ["beams", "sampled beams"])
def test_generate_calls_no_prefix_function_after_eos(decode, mode, options):
    """A finished sentence stays in its batch, and gets no tokens after its end."""
    calls = set()

    def allow(sentence, target):
        assert EOS not in target[1:].tolist()
        calls.add((sentence, len(target)))
        return list(range(60))

    targets = all_targets(decode, ending_model(), mode, prefix_allowed_tokens_fn=allow, **options)
    lengths = [len(target) for target in targets]
    assert len(set(lengths)) > 1
    assert {(sentence, length) for sentence in range(len(SENTENCES)) for length in range(1, max(lengths))} <= calls


def test_generate_warns_of_many_beams_once(model, caplog):
    warn_of_many_beams.cache_clear()
    for num_beams in (100, 101, 101):
        model.generate(torch.tensor([[3, 4]]), num_beams=num_beams, max_new_tokens=1)
    (message,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert message.startswith("num_beams is 101: ")


@pytest.mark.parametrize("num_beams", [1, 3])
def test_generate_processor_in_float64(model, num_beams):
    class Bias(LogitsProcessor):
        def __call__(self, input_ids, scores):
            return scores + torch.linspace(0, 3, scores.shape[-1], dtype=scores.dtype if self.narrow else torch.float64)

    source, mask = pad(SENTENCES)
    outputs = []
    for Bias.narrow in (True, False):
        options = {"num_beams": num_beams, "max_new_tokens": 6, "logits_processor": [Bias()]}
        outputs.append(model.generate(source, attention_mask=mask, **options))
    assert torch.equal(*outputs)
