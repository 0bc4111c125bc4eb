"""torch.export and ONNX: encoder, first token and further tokens, at other shapes than those of the example."""

import logging
from functools import partial

import pytest
import torch
from transformers import AutoTokenizer, DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from hf_vanilla_transformer.model.modeling_vanilla_transformer import sinusoidal_positions
from tests.ecosystem.documentation import FIXTURE, blocks, run
from tests.models import IMPORTED, pad, sentences, small_model


pytestmark = pytest.mark.long

exporters = pytest.importorskip("transformers.exporters", reason="this version of transformers has no exporters")
if not hasattr(exporters, "ExportedModel"):
    pytest.skip("this version of transformers cannot load what it exports", allow_module_level=True)

SHAPES = [(5, 9, 3), (40, 7, 1, 2), (2,), (150, 3)]
FAR = torch.tensor([[0, 1, 1_000, 99_999, 100_000]])


def in_folder(tmp_path_factory, name, block, model=FIXTURE):
    folder = tmp_path_factory.mktemp(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return {**run(block, folder=model), "folder": folder}


def export(tmp_path_factory, folder=FIXTURE):
    """The model in a folder, and its parts as docs/export.md exports them."""
    from transformers.exporters import ExportedModel

    names = in_folder(tmp_path_factory, "export", blocks("Export with torch.export", page="export.md")[0], folder)
    folder = names["folder"] / "runs" / "exported"
    with pytest.MonkeyPatch.context() as patch:
        # torch 2.13 logs a message with too few arguments there, which pytest takes for a failure.
        patch.setattr(logging.getLogger("torch._export.serde.serialize"), "disabled", True)
        with pytest.raises(ValueError, match="which run code when loaded: they are pickled"):
            ExportedModel.from_pretrained(folder / "encoder")
        load = partial(ExportedModel.from_pretrained, trust_remote_code=True)
        return names["model"], load(folder / "encoder"), load(folder / "decoder")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return export(tmp_path_factory)


@pytest.fixture(scope="module")
def onnx(tmp_path_factory):
    for library in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(library)
    names = in_folder(tmp_path_factory, "onnx", blocks("Export to ONNX", page="export.md")[0])
    return names["model"], names["encoder"], names["decoder"], names["generate"]


def source(lengths, seed=0):
    ids, mask = pad(sentences(*lengths, seed=seed))
    return {"input_ids": ids, "attention_mask": mask}


def empty_cache(config):
    return EncoderDecoderCache(DynamicCache(config=config), DynamicCache(config=config))


@torch.no_grad()
def assert_equal_parts(model, encoder, decoder, lengths):
    """Encoder states, and logits and cache of the first token and of seven further ones."""
    inputs = source(lengths)
    state = model.get_encoder()(**inputs).last_hidden_state
    close = {"atol": 1e-4, "rtol": 0}
    torch.testing.assert_close(encoder(**inputs).last_hidden_state, state, **close)

    shared = {"attention_mask": inputs["attention_mask"], "encoder_outputs": BaseModelOutput(last_hidden_state=state)}
    ours, theirs = empty_cache(model.config), empty_cache(model.config)
    tokens = torch.randint(3, 60, (len(lengths), 8), generator=torch.Generator().manual_seed(1))
    tokens[:, 0] = model.config.decoder_start_token_id
    for index in range(tokens.shape[1]):
        new, part = tokens[:, index : index + 1], "decode" if index else "prefill"
        expected = model(decoder_input_ids=new, cache=theirs, **shared)
        output = decoder.runners[part](decoder_input_ids=new, cache=ours, **shared)
        ours, theirs = output.cache, expected.cache
        torch.testing.assert_close(output.logits, expected.logits, **close)
        assert ours.get_seq_length() == index + 1
        for cache in ("self_attention_cache", "cross_attention_cache"):
            for layer, original in zip(getattr(ours, cache).layers, getattr(theirs, cache).layers, strict=True):
                torch.testing.assert_close(layer.keys, original.keys, **close)
                torch.testing.assert_close(layer.values, original.values, **close)


@pytest.mark.parametrize("lengths", SHAPES, ids=str)
def test_exported_parts_equal_the_model(exported, lengths):
    assert_equal_parts(*exported, lengths)


def test_exported_fields_of_other_systems_equal_the_model(tmp_path_factory):
    folder, tokenizer = tmp_path_factory.mktemp("imported"), AutoTokenizer.from_pretrained(FIXTURE)
    small_model(vocab_size=len(tokenizer), encoder_layers=1, decoder_layers=1, **IMPORTED).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    assert_equal_parts(*export(tmp_path_factory, folder), (40, 7, 1, 2))


@pytest.mark.parametrize("lengths", SHAPES, ids=str)
def test_onnx_parts_equal_the_model(onnx, lengths):
    model, encoder, decoder, _ = onnx
    assert_equal_parts(model, encoder, decoder, lengths)


@pytest.mark.parametrize("lengths", SHAPES, ids=str)
def test_a_plain_loop_around_onnx_says_what_generate_says(onnx, lengths):
    model, *_, generate = onnx
    inputs = source(lengths, seed=3)
    expected = model.generate(**inputs, num_beams=1, max_new_tokens=30)
    output = generate(**inputs, max_new_tokens=30)
    assert torch.equal(output, expected)


class Positions(torch.nn.Module):
    """The sinusoids alone: a sentence of 100,000 tokens is too much for a test."""

    def forward(self, position_ids):
        return sinusoidal_positions(position_ids, 64)


def test_exported_positions_are_exact_far_out():
    length = torch.export.Dim("length", min=2)
    program = torch.export.export(Positions(), (torch.arange(7)[None],), dynamic_shapes=({1: length},))
    assert torch.equal(program.module()(FAR), sinusoidal_positions(FAR, 64))


def test_onnx_positions_are_exact_far_out(onnx, tmp_path):
    import onnxruntime

    length = torch.export.Dim("length", min=2)
    program = torch.onnx.export(Positions(), (torch.arange(7)[None],), dynamo=True, dynamic_shapes=({1: length},))
    program.save(str(tmp_path / "positions.onnx"))
    session = onnxruntime.InferenceSession(str(tmp_path / "positions.onnx"))
    (output,) = session.run(None, {session.get_inputs()[0].name: FAR.numpy()})
    torch.testing.assert_close(torch.from_numpy(output), sinusoidal_positions(FAR, 64), atol=1e-6, rtol=0)


class Logits(torch.nn.Module):
    """Tensors in and out, as the exporter of TorchScript needs them."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, decoder_input_ids):
        names = {"attention_mask": attention_mask, "decoder_input_ids": decoder_input_ids, "use_cache": False}
        return self.model(input_ids, **names).logits


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning", "ignore::UserWarning")
def test_the_legacy_exporter_keeps_shapes_free(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    model = Logits(small_model()).eval()
    axes = {name: {0: "batch", 1: name} for name in ("input_ids", "decoder_input_ids", "logits")}
    axes["attention_mask"] = axes["input_ids"]

    def inputs(lengths):
        return (*pad(sentences(*lengths)), pad(sentences(*[length + 2 for length in lengths], seed=1))[0])

    names = ["input_ids", "attention_mask", "decoder_input_ids"]
    path = str(tmp_path / "model.onnx")
    torch.onnx.export(
        model, inputs((5, 3)), path, input_names=names, output_names=["logits"], dynamic_axes=axes, dynamo=False
    )
    session = onnxruntime.InferenceSession(path)
    for lengths in SHAPES:
        tensors = inputs(lengths)
        (logits,) = session.run(None, {name: tensor.numpy() for name, tensor in zip(names, tensors, strict=True)})
        torch.testing.assert_close(torch.from_numpy(logits), model(*tensors), atol=1e-5, rtol=0)


@pytest.mark.parametrize("fixture_name", ["exported", "onnx"])
def test_padding_and_long_sources_are_exact(fixture_name, request):
    """1,500 tokens, far beyond the example, next to two tokens, so that a row is mostly padding."""
    model, encoder = request.getfixturevalue(fixture_name)[:2]
    inputs = source((1500, 2))
    with torch.no_grad():
        state = model.get_encoder()(**inputs).last_hidden_state
    real = inputs["attention_mask"].bool()
    torch.testing.assert_close(encoder(**inputs).last_hidden_state[real], state[real], atol=1e-4, rtol=0)
