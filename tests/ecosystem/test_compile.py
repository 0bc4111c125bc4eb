"""torch.compile: one graph, equal to the eager model, and no new graph for a new shape."""

import shutil

import pytest
import torch
import torch._inductor.config
from torch._dynamo.utils import counters
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, EncoderDecoderCache, StaticCache

from hf_vanilla_transformer.model.modeling_vanilla_transformer import sinusoidal_positions
from tests.ecosystem.documentation import FIXTURE, blocks, run
from tests.models import decisive_model, pad, sentences, small_model


pytestmark = pytest.mark.slow

STEP, DECODING = blocks("torch.compile")
# Traced and differentiated ahead of time, but run by PyTorch: to generate code, inductor takes minutes.
AHEAD_OF_TIME = ("dynamic=True", 'dynamic=True, backend="aot_eager"')
DEPTHS = {"encoder_layers": 1, "decoder_layers": 1}


@pytest.fixture(autouse=True)
def fresh_compiler(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    torch.compiler.reset()
    counters.clear()
    # Otherwise inductor compiles and loads a program for each kind of vector instructions that the processor has.
    with torch._inductor.config.patch({"cpp.vec_isa_ok": True}):
        yield
    torch.compiler.reset()


def batch(source_lengths, target_lengths, seed):
    ids, mask = pad(sentences(*source_lengths, seed=seed))
    labels, label_mask = pad(sentences(*target_lengths, seed=seed + 1))
    return {"input_ids": ids, "attention_mask": mask, "labels": labels.masked_fill(label_mask == 0, -100)}


def gradients(model, inputs):
    model.zero_grad()
    loss = model(**inputs).loss
    loss.backward()
    return loss.detach()


def assert_same_step(compiled, model, eager, inputs):
    torch.testing.assert_close(gradients(compiled, inputs), gradients(eager, inputs), atol=1e-6, rtol=1e-6)
    for (name, ours), theirs in zip(model.named_parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(
            ours.grad, theirs.grad, atol=1e-6, rtol=1e-5, msg=lambda text, name=name: name + text
        )


def test_the_documented_training_step_is_one_graph_for_all_shapes(tmp_path):
    sizes = {"dropout": 0.0, "vocab_size": 300, **DEPTHS}
    small_model(**sizes).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(FIXTURE).save_pretrained(tmp_path)
    # Targets are not as long as sources: torch takes sizes that are equal at first for one.
    shorter = ('["zweiundvierzig", "sieben"]', '["vierzig", "sieben"]')
    names = run(STEP, AHEAD_OF_TIME, shorter, folder=tmp_path)
    model, compiled, eager = names["model"], names["compiled"], small_model(**sizes).train()
    assert names["batch"]["input_ids"].shape[1] != names["batch"]["labels"].shape[1]
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert_same_step(compiled, model, eager, names["batch"])
    shapes = [((7, 6, 3), (4, 9, 2)), ((3, 3), (2, 5)), ((40, 2, 9, 9), (3, 30, 1, 1)), ((2, 2), (3, 1))]
    for seed, shape in enumerate(shapes):
        assert_same_step(compiled, model, eager, batch(*shape, seed=seed))
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]


@pytest.mark.parametrize("inputs", [{}, {"use_cache": True}, {"skip_logits": True}], ids=str)
def test_gradient_checkpointing_is_one_graph(inputs):
    model, eager = (small_model(dropout=0.0, **DEPTHS).train() for _ in range(2))
    model.gradient_checkpointing_enable()
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="eager")
    assert_same_step(compiled, model, eager, {**batch((5, 9, 3), (4, 2, 7), seed=0), **inputs})
    ids, mask = pad(sentences(5, 3))
    output = compiled(input_ids=ids, attention_mask=mask, decoder_input_ids=ids, **inputs)
    assert output.get("cache", output.get("past_key_values")) is None


def test_the_documented_decoding_is_one_graph_for_each_further_token(capsys):
    names = run(DECODING, AHEAD_OF_TIME)
    assert "['zweiundvierzig', 'sieben']" in capsys.readouterr().out
    model, eager = names["model"], AutoModelForSeq2SeqLM.from_pretrained(FIXTURE)
    for seed, lengths in enumerate([(5, 9, 3), (17, 16), (4, 4, 30, 2, 1), (2, 3)]):
        ids, mask = pad(sentences(*lengths, seed=seed))
        settings = {"attention_mask": mask, "num_beams": 1}
        output = model.generate(ids, cache_implementation="static", **settings)
        assert torch.equal(output, eager.generate(ids, **settings))
    assert counters["stats"]["unique_graphs"] == 2  # the first token, and the others
    assert not counters["graph_break"]


@pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++"))), reason="there is no C++ compiler")
@torch.no_grad()
def test_a_step_of_the_default_backend_has_the_eager_logits():
    model = decisive_model(**DEPTHS)
    step = torch.compile(model, fullgraph=True, dynamic=True)
    for seed, lengths in enumerate([(5, 9, 3), (12, 2)]):
        ids, mask = pad(sentences(*lengths, seed=seed))
        source = {"encoder_outputs": model.get_encoder()(ids, mask), "attention_mask": mask}
        target = torch.stack(sentences(*[6] * len(lengths), seed=9))
        expected = model(decoder_input_ids=target, **source).logits
        cache = EncoderDecoderCache(*(StaticCache(model.config, max_cache_len=length) for length in (20, 24)))
        outputs = [model(decoder_input_ids=target[:, :1], cache=cache, **source).logits]
        for token in target[:, 1:].split(1, dim=1):
            outputs.append(step(decoder_input_ids=token, cache=cache, **source).logits)
        torch.testing.assert_close(torch.cat(outputs, dim=1), expected, atol=1e-5, rtol=0)
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]


@pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++"))), reason="there is no C++ compiler")
def test_compiled_positions_are_exact_far_out():
    compiled = torch.compile(sinusoidal_positions, fullgraph=True)
    position_ids = torch.tensor([[0, 1, 1_000, 99_999, 100_000]])
    exact = sinusoidal_positions(position_ids, 64)
    torch.testing.assert_close(compiled(position_ids, 64), exact, atol=1e-6, rtol=0)
