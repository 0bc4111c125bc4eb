"""What `return_dict_in_generate` gives, against forced decoding, and the distribution that samples come from.

Axes: batch (sentences), rows (batch x beams, or x sequences asked for), heads, source, target, d_model, vocabulary.
"""

import pytest
import torch
from transformers.generation import GenerateBeamEncoderDecoderOutput, GenerateEncoderDecoderOutput

from tests.generation.by_hand import (
    BOS,
    EOS,
    forced_log_probabilities,
    forced_logits,
    forced_pass,
    gnmt_penalty,
    hf_penalty,
)
from tests.generation.conftest import (
    ALL_MODES,
    BATCH_MODES,
    MODES,
    ONE_BY_ONE_MODES,
    SENTENCES,
    batches,
    ending_model,
    real_tokens,
    until_end,
)
from tests.models import pad


@pytest.fixture
def path():
    """Steps are for tokens alone, so nearly everything here is by modules."""


EVERYTHING = {
    "return_dict_in_generate": True,
    "output_scores": True,
    "output_logits": True,
    "output_attentions": True,
    "output_hidden_states": True,
}
PREFIX = [BOS, 5, 6, 7]


def all_outputs(decode, model, mode, **kwargs):
    """For each batch: its sentences, the width of the padded sources, and everything `generate()` returns."""
    for ids, mask in batches(mode, side="left", extra=1):
        output = decode(model, mode, ids, attention_mask=mask, **{**EVERYTHING, **kwargs})
        yield real_tokens(ids, mask), ids.shape[1], output


def hypotheses(output, prefix_length=1):
    """For each returned sequence its tokens until its end, and the row that it was in at each step."""
    beams = getattr(output, "beam_indices", None)
    for index, sequence in enumerate(output.sequences):
        target = torch.tensor(until_end(sequence))
        steps = range(len(target) - prefix_length)
        yield target, [index if beams is None else int(beams[index, step]) for step in steps]


@ALL_MODES
def test_generate_output_types(decode, model, mode):
    for ids, mask in batches(mode):
        output = decode(model, mode, ids, attention_mask=mask, return_dict_in_generate=True)
        output_class = GenerateBeamEncoderDecoderOutput if "beams" in mode else GenerateEncoderDecoderOutput
        assert type(output) is output_class
        assert torch.equal(output.sequences, decode(model, mode, ids, attention_mask=mask))
        names = ("scores", "logits", "encoder_attentions", "decoder_attentions", "cross_attentions")
        names += ("encoder_hidden_states", "decoder_hidden_states", "sequences_scores")
        assert not [name for name in names if getattr(output, name, None) is not None]
        assert output.cache.get_seq_length() >= output.sequences.shape[1] - 1


@ALL_MODES
@pytest.mark.parametrize("prefix_length", [1, len(PREFIX)])
def test_generate_output_shapes(decode, model, mode, prefix_length):
    config = model.config
    heads, d_model, vocabulary = config.num_heads, config.d_model, config.vocab_size
    encoder_layers, decoder_layers = config.encoder_layers, config.decoder_layers
    prefix = torch.tensor([PREFIX[:prefix_length]] * (1 if mode in ONE_BY_ONE_MODES else len(SENTENCES)))
    for sources, source, output in all_outputs(decode, model, mode, decoder_input_ids=prefix):
        batch, rows = len(sources), len(sources) * (3 if "beams" in mode else 1)
        new_tokens = len(output.logits)
        if "beams" not in mode:
            assert output.sequences.shape == (batch, prefix_length + new_tokens)
        assert {scores.shape for scores in (*output.scores, *output.logits)} == {(rows, vocabulary)}
        shapes = [states.shape for states in output.encoder_hidden_states]
        assert shapes == [(batch, source, d_model)] * (1 + encoder_layers)
        shapes = [weights.shape for weights in output.encoder_attentions]
        assert shapes == [(batch, heads, source, source)] * encoder_layers

        # The first step reads the prefix; each later one a token.
        for step in range(new_tokens):
            read, so_far = (prefix_length if step == 0 else 1), prefix_length + step
            shapes = [states.shape for states in output.decoder_hidden_states[step]]
            assert shapes == [(rows, read, d_model)] * (1 + decoder_layers)
            shapes = [weights.shape for weights in output.decoder_attentions[step]]
            assert shapes == [(rows, heads, read, so_far)] * decoder_layers
            shapes = [weights.shape for weights in output.cross_attentions[step]]
            assert shapes == [(rows, heads, read, source)] * decoder_layers
        for name in ("scores", "decoder_attentions", "cross_attentions", "decoder_hidden_states"):
            assert len(getattr(output, name)) == new_tokens


@pytest.mark.parametrize(
    ("mode", "use_cache"), [*((mode, True) for mode in MODES), ("greedy", False), ("sampled beams", False)]
)
def test_generate_outputs_equal_forced_decoding(decode, model, mode, use_cache):
    for sources, width, output in all_outputs(decode, model, mode, use_cache=use_cache):
        for index, (target, rows) in enumerate(hypotheses(output)):
            source = sources[index]
            forced = forced_pass(model, source, target[:-1], output_attentions=True, output_hidden_states=True)
            real = slice(width - len(source), width)
            for layer, weights in enumerate(forced.encoder_attentions):
                torch.testing.assert_close(output.encoder_attentions[layer][index][:, real, real], weights[0])
            for layer, states in enumerate(forced.encoder_hidden_states):
                torch.testing.assert_close(output.encoder_hidden_states[layer][index][real], states[0])
            for step, row in enumerate(rows):
                torch.testing.assert_close(output.logits[step][row], forced.logits[0, step], rtol=1e-4, atol=1e-4)
                for layer, states in enumerate(forced.decoder_hidden_states):
                    step_states = output.decoder_hidden_states[step][layer][row, -1]
                    torch.testing.assert_close(step_states, states[0, step], rtol=1e-4, atol=1e-4)
                for layer, weights in enumerate(forced.decoder_attentions):
                    step_weights = output.decoder_attentions[step][layer][row, :, -1]
                    torch.testing.assert_close(step_weights, weights[0, :, step, : step + 1], rtol=1e-4, atol=1e-5)
                for layer, weights in enumerate(forced.cross_attentions):
                    step_weights = output.cross_attentions[step][layer][row, :, -1]
                    torch.testing.assert_close(step_weights[:, real], weights[0, :, step], rtol=1e-4, atol=1e-5)
                    assert not step_weights[:, : real.start].any()


@ALL_MODES
def test_generate_scores_are_processed_logits(decode, model, mode):
    for _, _, output in all_outputs(decode, model, mode, top_k=5, temperature=0.7):
        for target, rows in hypotheses(output):
            for step, row in enumerate(rows):
                logits, scores = output.logits[step][row], output.scores[step][row]
                expected = logits.log_softmax(-1) if "beams" in mode else logits
                if mode.startswith("sampl"):
                    expected = expected / 0.7
                    expected = expected.masked_fill(expected < expected.topk(5).values[-1], -torch.inf)
                torch.testing.assert_close(scores, expected)
                if mode in ("greedy", "assisted", "prompt lookup"):
                    assert scores.argmax() == target[1 + step]
                assert scores[target[1 + step]] > -torch.inf


@ALL_MODES
def test_compute_transition_scores(decode, model, mode):
    for sources, _, output in all_outputs(decode, model, mode, max_new_tokens=None, max_length_offset=1):
        beams = getattr(output, "beam_indices", None)
        transition_scores = model.compute_transition_scores(
            output.sequences, output.scores, beams, normalize_logits="beams" not in mode
        )
        for index, (target, rows) in enumerate(hypotheses(output)):
            steps = min(len(rows), len(sources[index]) + 1)
            if mode in ("greedy", "beams", "assisted", "prompt lookup"):
                expected = forced_log_probabilities(model, sources[index], target[: 1 + steps])
                torch.testing.assert_close(transition_scores[index, :steps], expected, rtol=1e-4, atol=1e-4)
            if beams is not None:
                assert not transition_scores[index, steps:].any()
                score = transition_scores[index].sum().item() / gnmt_penalty(steps)
                assert score == pytest.approx(output.sequences_scores[index].item(), abs=1e-5)


@pytest.mark.parametrize("mode", ["beams", "sampled beams"])
@pytest.mark.parametrize(
    ("penalty_type", "penalty", "alpha"), [("gnmt", gnmt_penalty, 0.6), ("hf", hf_penalty, 0.6), ("gnmt", None, 0.0)]
)
def test_generate_several_hypotheses_of_a_sentence(decode, model, mode, penalty_type, penalty, alpha):
    ids, mask = pad(SENTENCES)
    options = {"length_penalty_type": penalty_type, "length_penalty": alpha, "top_k": 0, **EVERYTHING}
    three, two = (
        decode(model, mode, ids, attention_mask=mask, num_return_sequences=count, **options) for count in (3, 2)
    )
    assert torch.equal(
        three.sequences.unflatten(0, (-1, 3))[:, :2].flatten(0, 1)[:, : two.sequences.shape[1]], two.sequences
    )
    has_ended = (three.sequences == EOS).any(dim=-1).tolist()
    ranks = list(zip(has_ended, three.sequences_scores.tolist(), strict=True))
    for begin in range(0, len(ranks), 3):
        assert ranks[begin : begin + 3] == sorted(ranks[begin : begin + 3], reverse=True)
    for index, (target, _) in enumerate(hypotheses(three)):
        total = forced_log_probabilities(model, SENTENCES[index // 3], target).sum().item()
        divisor = 1 if penalty is None else penalty(len(target) - 1)
        assert three.sequences_scores[index].item() == pytest.approx(total / divisor, abs=1e-4)
    for sentence in three.sequences.view(len(SENTENCES), 3, -1):
        assert len(sentence.unique(dim=0)) == 3


def test_generate_several_samples_of_a_sentence(decode, model):
    ids, mask = pad(SENTENCES, "left")
    output = decode(model, "sampling", ids, attention_mask=mask, num_return_sequences=4, **EVERYTHING)
    assert len(output.sequences) == 4 * len(SENTENCES)
    for index, (target, rows) in enumerate(hypotheses(output)):
        expected = forced_logits(model, SENTENCES[index // 4], target)
        sampled_logits = torch.stack([output.logits[step][row] for step, row in enumerate(rows)])
        torch.testing.assert_close(sampled_logits, expected, rtol=1e-4, atol=1e-4)
    for sentence in output.sequences.view(len(SENTENCES), 4, -1):
        assert len(sentence.unique(dim=0)) > 1


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("greedy", "num_return_sequences"),
        ("assisted", "num_return_sequences"),
        ("prompt lookup", "num_return_sequences"),
        ("beams", "num_return_sequences"),
    ],
)
def test_generate_rejects_more_sequences_than_a_mode_finds(decode, model, mode, message):
    with pytest.raises(ValueError, match=message):
        decode(model, mode, SENTENCES[0][None], num_return_sequences=4)


@BATCH_MODES
def test_generate_renormalized_scores_are_log_probs(decode, model, mode):
    options = {"suppress_tokens": list(range(30, 60)), "top_k": 4, "renormalize_logits": True}
    for _, _, output in all_outputs(decode, model, mode, **options):
        for scores in output.scores:
            torch.testing.assert_close(scores.logsumexp(-1), torch.zeros(len(scores)))
            assert (scores[:, 30:] == -torch.inf).all()


@pytest.fixture(scope="module")
def toy():
    """A model of a vocabulary small enough to count in, and a source."""
    return ending_model(vocab_size=7), torch.tensor([3, 6, 4])


def kept_by_top_k(probabilities, k):
    return probabilities >= probabilities.sort(descending=True).values[k - 1]


def kept_by_top_p(probabilities, p):
    """The fewest tokens, most probable first, that have a share of p together."""
    ordered, order = probabilities.sort(descending=True)
    before = ordered.cumsum(-1) - ordered
    return torch.zeros_like(probabilities, dtype=torch.bool).scatter(0, order, before < p)


SAMPLERS = {
    "plain": ({"top_k": 0}, lambda logits: logits.softmax(-1)),
    "temperature": ({"top_k": 0, "temperature": 2.5}, lambda logits: (logits / 2.5).softmax(-1)),
    "top_k": ({"top_k": 3}, lambda logits: logits.softmax(-1) * kept_by_top_k(logits.softmax(-1), 3)),
    "top_p": ({"top_k": 0, "top_p": 0.8}, lambda logits: logits.softmax(-1) * kept_by_top_p(logits.softmax(-1), 0.8)),
    "min_p": (
        {"top_k": 0, "min_p": 0.2},
        lambda logits: logits.softmax(-1) * (logits.softmax(-1) >= 0.2 * logits.softmax(-1).max()),
    ),
}


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_generate_samples_from_the_processed_softmax(toy, sampler):
    model, source = toy
    options, distribution = SAMPLERS[sampler]
    samples = 4000
    torch.manual_seed(0)
    output = model.generate(
        source[None],
        num_beams=1,
        do_sample=True,
        num_return_sequences=samples,
        max_new_tokens=2,
        min_new_tokens=2,
        **options,
    )
    vocabulary = model.config.vocab_size
    counts = torch.zeros(vocabulary, vocabulary).index_put_(
        (output[:, 1], output[:, 2]), torch.ones(samples), accumulate=True
    )
    expected = torch.zeros(vocabulary, vocabulary)
    for first in range(vocabulary):
        logits = forced_logits(model, source, torch.tensor([BOS, first, first]))
        logits[:, 2] = -torch.inf  # `min_new_tokens` keeps `</s>` away
        now, next_ = (distribution(row) / distribution(row).sum() for row in logits)
        expected[first] = now[first] * next_
    assert expected.sum().item() == pytest.approx(1, abs=1e-5)
    assert (expected > 0.01).sum() > 3
    # Five standard deviations of a count among so many.
    allowed = 5 * (samples * expected * (1 - expected)).sqrt()
    assert ((counts - samples * expected).abs() <= allowed).all()
