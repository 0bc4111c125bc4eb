"""Checks that a device computes what the CPU computes.

Each function takes the name of a device, and raises an error, or `unittest.SkipTest` where something is missing. They
need torch and transformers, not pytest. `CHECKS` run on any device, the others on GPUs; most of these run on CPUs too,
so that a machine without a GPU can rehearse them.
"""

import copy
import json
import unittest
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import torch
from torch import distributed
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    CompileConfig,
    PrinterCallback,
    Seq2SeqTrainer,
    default_data_collator,
    pipeline,
)
from transformers.utils import is_flash_attn_2_available

from hf_vanilla_transformer import Int8Config, PaperTrainingArguments, paper_optimizers, score, translate
from hf_vanilla_transformer.acceleration.loss_of_states import smoothed_cross_entropy_of_matrix
from hf_vanilla_transformer.model.modeling_vanilla_transformer import sinusoidal_positions
from hf_vanilla_transformer.training.r_drop import r_drop_loss
from tests.models import decisive_model, pad, sentences, small_model
from tests.rounding import RandomRounding, explained, rms


FIXTURE = Path(__file__).parents[1] / "fixtures" / "numbers_tiny"
TEXTS = ["one hundred and three", "seven", "forty-two"]
HALVES = (torch.bfloat16, torch.float16)
# GPUs have one kernel for attention with d_k = 6 and d_v = 10, and several for heads of 16 channels.
SHAPES: tuple[dict[str, Any], ...] = ({}, {"d_model": 64, "d_k": None, "d_v": None})
SHALLOW = {"encoder_layers": 1, "decoder_layers": 1}
# Section 5.3. TrainingArguments would need accelerate. With a shorter warm-up the first updates are so large that
# rounding alone changes the losses after them.
OPTIMIZATION = {"warmup_steps": 100, "adam_beta1": 0.9, "adam_beta2": 0.98, "adam_epsilon": 1e-9, "weight_decay": 0.0}
UPDATES = 5


def on(device: str, model: Any) -> Any:
    """A copy of a model there."""
    model = copy.deepcopy(model).to(device)
    # torch gives each use of a matrix its own on devices that it does not know.
    model.tie_weights()
    return model


def batch(device: str) -> dict[str, torch.Tensor]:
    source, mask = pad(sentences(9, 4, 6))
    labels, real = pad(sentences(5, 7, 2, seed=1))
    tensors = {"input_ids": source, "attention_mask": mask, "labels": labels.masked_fill(real == 0, -100)}
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def same(device: str, actual: torch.Tensor, expected: torch.Tensor, atol: float | None = None) -> None:
    """The same values up to rounding, the first on the device and the second on the CPU.

    On CPUs, float32 logits and gradients of the models here differ from those of float64 by 1.4e-6 at most. TF32 would
    differ by 1e-3.
    """
    assert actual.device.type == device, f"the result is on {actual.device}"
    if atol is None:
        atol = 5e-5 if device == "cuda" else 1e-5
    torch.testing.assert_close(actual.cpu(), expected, atol=atol, rtol=1e-4)


def on_both(device: str, compute: Callable[[str], tuple[torch.Tensor, ...]], atol: float | None = None) -> None:
    for actual, expected in zip(compute(device), compute("cpu"), strict=True):
        same(device, actual, expected, atol)


def require(package: str) -> None:
    if find_spec(package) is None:
        raise unittest.SkipTest(f"no {package}")


def require_gpu(device: str) -> None:
    if device != "cuda":
        raise unittest.SkipTest("no GPU")


def logits(device: str) -> None:
    @torch.no_grad()
    def compute(device: str, **settings: Any) -> tuple[torch.Tensor, ...]:
        output = on(device, small_model(**settings))(**batch(device))
        return output.logits, output.loss

    for name, shape in product((None, "eager", "sdpa"), SHAPES):
        on_both(device, partial(compute, attn_implementation=name, **shape))


def loss_of_a_large_vocabulary(device: str) -> None:
    """The loss and its gradients in several chunks, with logits that torch's GPU kernels do not keep in registers."""
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(1, 700, 32, generator=generator)
    weight = torch.randn(20_000, 32, generator=generator) / 4
    labels = torch.randint(-1, 20_000, (1, 700), generator=generator)
    labels[labels < 0] = -100

    def compute(at: str, dtype: torch.dtype, function: Callable) -> tuple[torch.Tensor, ...]:
        inputs = [tensor.to(device=at, dtype=dtype).requires_grad_() for tensor in (states, weight)]
        loss = function(*inputs, labels.to(at), 0.1)
        return loss.detach(), *torch.autograd.grad(loss, inputs)

    def by_formula(states: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, smoothing: float) -> torch.Tensor:
        logits = (states @ weight.T).flatten(0, 1)
        return torch.nn.functional.cross_entropy(
            logits, labels.flatten(), label_smoothing=smoothing, reduction="sum", ignore_index=-100
        )

    for dtype in (torch.float32, *HALVES):
        # The rounded inputs, so that only what is computed from them is compared.
        states, weight = states.to(dtype).float(), weight.to(dtype).float()
        expected = compute("cpu", torch.float64, by_formula)
        computed = compute(device, dtype, lambda *inputs: smoothed_cross_entropy_of_matrix(*inputs)[0])
        for actual, exact in zip(computed, expected, strict=True):
            assert actual.device.type == device
            assert rms(actual.cpu() - exact) <= 16 * torch.finfo(dtype).eps * rms(exact)


def attentions(device: str) -> None:
    def compute(device: str) -> tuple[torch.Tensor, ...]:
        return on(device, small_model())(**batch(device), output_attentions=True).cross_attentions

    on_both(device, compute)


def positions(device: str) -> None:
    """Float64 angles, under autocast too."""
    for context in (nullcontext(), torch.autocast(device, torch.bfloat16)):
        with context:
            on_both(device, lambda at: (sinusoidal_positions(torch.tensor([[0, 9, 100_000]], device=at), 512),), 1e-6)


@torch.no_grad()
def padding(device: str) -> None:
    """Padding on either side changes nothing, and a sentence of padding alone gives finite logits, in each dtype."""
    sides: dict[str, dict[str, torch.Tensor]] = {}
    for side in ("right", "left"):
        # Attention kernels compute in blocks of up to 128 keys.
        padded = *pad(sentences(300, 4, 0), side), *pad(sentences(7, 3, 5, seed=1), side)
        names = ("input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask")
        sides[side] = dict(zip(names, padded, strict=True))

    def real(logits: torch.Tensor, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """Of the first two sentences, `(tokens, vocabulary)`."""
        return logits[:2][inputs["decoder_attention_mask"][:2].bool()]

    for shape in SHAPES:
        model = small_model(**shape)
        expected = real(model(**sides["right"]).logits, sides["right"])
        for dtype, side in product((torch.float32, *HALVES), sides):
            inputs = {name: tensor.to(device) for name, tensor in sides[side].items()}
            logits = on(device, model).to(dtype)(**inputs).logits
            assert logits.isfinite().all(), f"logits are not finite: {dtype}, padding on the {side}"
            # On the way to a logit, numbers are rounded 78 times; see tests/ecosystem/test_precision.py.
            same(device, real(logits, inputs).float(), expected, atol=max(32 * torch.finfo(dtype).eps, 5e-5))


def gradients(device: str, **settings: Any) -> None:
    def compute(device: str, **shape: Any) -> tuple[torch.Tensor, ...]:
        model = on(device, small_model(dropout=0.0, **settings, **shape)).train()
        loss = model(**batch(device), skip_logits=True).loss
        return loss, *torch.autograd.grad(loss, tuple(model.parameters()))

    for shape in SHAPES:
        on_both(device, partial(compute, **shape))


def gradients_of_an_untied_model(device: str) -> None:
    gradients(device, tie_word_embeddings=False, position_embedding_type="learned", max_position_embeddings=20)


def gradient_checkpointing(device: str) -> None:
    def compute(at: str, checkpointing: bool) -> tuple[torch.Tensor, ...]:
        model = on(at, small_model(dropout=0.0)).train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        model(**batch(at), skip_logits=True).loss.backward()
        return tuple(parameter.grad for parameter in model.parameters())

    for actual, expected in zip(compute(device, True), compute("cpu", False), strict=True):
        same(device, actual, expected)


def loss_of_an_update_in_several_batches(device: str) -> None:
    def compute(device: str) -> tuple[torch.Tensor, ...]:
        model = on(device, small_model(dropout=0.0)).train()
        count = torch.tensor(20, device=device)
        return (model(**batch(device), num_items_in_batch=count, skip_logits=True).loss,)

    on_both(device, compute)


def dropout(device: str) -> None:
    model = on(device, small_model(dropout=0.4)).train()
    losses = {model(**batch(device), skip_logits=True).loss.item() for _ in range(3)}
    assert len(losses) == 3
    model.gradient_checkpointing_enable()
    model(**batch(device), skip_logits=True).loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def r_drop(device: str) -> None:
    def compute(device: str) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator().manual_seed(0)
        z = torch.randn(2, 6, 9, generator=generator).to(device).requires_grad_()
        labels = torch.tensor([1, 2, -100, 8, 0, 3], device=device)
        loss, _ = r_drop_loss(z, labels, weight=5.0, label_smoothing=0.1)
        return loss.detach(), *torch.autograd.grad(loss, z)

    on_both(device, compute)


def losses_of_updates(
    model: Any, device: str, dtype: torch.dtype | None = None, wrapped: Any = None
) -> tuple[torch.Tensor, ...]:
    """The losses of some updates by Adam and Eq. 3; with a dtype, under autocast and with a scaled loss."""
    optimizer, schedule = paper_optimizers(model, SimpleNamespace(**OPTIMIZATION))
    scaler = torch.amp.GradScaler(device, init_scale=2.0**8, enabled=dtype is not None)
    losses = []
    for _ in range(UPDATES):
        with torch.autocast(device, dtype, enabled=dtype is not None):
            losses.append((wrapped or model)(**batch(device)).loss)
        scaler.scale(losses[-1]).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        optimizer.zero_grad()
    return tuple(loss.detach() for loss in losses)


def updates(device: str, atol: float | None = None, dtype: torch.dtype | None = None) -> None:
    def compute(at: str) -> tuple[torch.Tensor, ...]:
        model = on(at, small_model(dropout=0.0)).train()
        return losses_of_updates(model, at, dtype if at == device else None)

    on_both(device, compute, atol)


def larger_batch(device: str) -> dict[str, torch.Tensor]:
    """With enough positions for `explained`."""
    source, mask = pad(sentences(*[9, 7] * 6))
    labels = torch.stack(sentences(*[7] * 12, seed=1))
    labels[::3, 5:] = -100
    tensors = {"input_ids": source, "attention_mask": mask, "labels": labels}
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def step(
    model: Any, device: str, around: AbstractContextManager, around_backward: AbstractContextManager | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits, `(batch, target, vocabulary)`, and all gradients in one vector, on the CPU."""
    with around:
        output = model(**larger_batch(device), skip_logits=False)
    assert output.logits.device.type == device
    with around_backward or nullcontext():
        gradients = torch.autograd.grad(output.loss, tuple(model.parameters()))
    return output.logits.detach().cpu(), torch.cat([gradient.double().flatten().cpu() for gradient in gradients])


def low_precision(device: str, dtype: torch.dtype, *, under_autocast: bool) -> None:
    """Logits and gradients, whose errors rounding explains."""
    for shape in SHAPES:
        # The dtype holds these weights, because the reference rounds results only.
        model = small_model(dropout=0.0, **shape).to(dtype).float().train()
        exact = copy.deepcopy(model).double()
        exact.set_attn_implementation("eager")
        expected, gradient = step(exact, "cpu", nullcontext())
        rounding = RandomRounding(dtype)
        rounded, _ = step(exact, "cpu", rounding)
        there = on(device, model if under_autocast else model.to(dtype))
        logits, its_gradient = step(there, device, torch.autocast(device, dtype, enabled=under_autocast))
        assert explained(logits, expected, rounded), (rms(logits - expected), rms(rounded - expected))
        # As many roundings as a gradient passes on its way, all of one sign. Where rounding turns a ReLU off, the
        # error of a gradient is larger than that of a logit.
        assert rms(its_gradient - gradient) <= 64 * torch.finfo(dtype).eps / 2 * rms(gradient)


def autocast(device: str) -> None:
    low_precision(device, torch.bfloat16, under_autocast=True)


def half_precision_weights(device: str) -> None:
    for dtype in HALVES:
        low_precision(device, dtype, under_autocast=False)


def generation(device: str) -> None:
    for settings in (
        {},
        {"num_beams": 1},
        {"num_return_sequences": 3},
        {"length_penalty_type": "hf", "length_penalty": 1.2},
        {"num_beams": 1, "cache_implementation": "static", "disable_compile": True},
        {"cache_implementation": "static", "disable_compile": True},
        {"use_cache": False},
        {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "min_new_tokens": 4},
        {"num_beams": 1, "prompt_lookup_num_tokens": 2},
        {"forced_eos_token_id": 2},
    ):
        generate(device, **settings)


def generate(device: str, attn_implementation: str | None = None, **settings: Any) -> None:
    def compute(at: str) -> tuple[torch.Tensor, ...]:
        inputs = batch(at)
        del inputs["labels"]
        if "prompt_lookup_num_tokens" in settings:
            inputs = {name: tensor[:1] for name, tensor in inputs.items()}
        name = attn_implementation if at == device else None
        model = on(at, decisive_model(d_model=64, d_k=None, d_v=None, attn_implementation=name))
        return (model.generate(**inputs, **{"max_new_tokens": 10, **settings}),)

    on_both(device, compute)


def sampling(device: str) -> None:
    model, ids = on(device, decisive_model()), batch(device)["input_ids"]
    greedy = model.generate(ids, num_beams=1, max_new_tokens=5)
    assert torch.equal(model.generate(ids, do_sample=True, top_k=1, num_beams=1, max_new_tokens=5), greedy)
    for num_beams in (1, 3):
        sampled = model.generate(ids, do_sample=True, num_beams=num_beams, max_new_tokens=5)
        assert sampled.device.type == device
        assert 0 <= sampled.min() <= sampled.max() < model.config.vocab_size


def scores_of_generation(device: str) -> None:
    def compute(device: str) -> tuple[torch.Tensor, ...]:
        model, inputs = on(device, decisive_model()), batch(device)
        asked_for = {"return_dict_in_generate": True, "output_scores": True, "output_attentions": True}
        output = model.generate(inputs["input_ids"], max_new_tokens=6, **asked_for)
        return output.sequences, output.sequences_scores, *output.scores

    on_both(device, compute)


def trained(device: str, **settings: Any) -> tuple[Any, Any]:
    model = AutoModelForSeq2SeqLM.from_pretrained(FIXTURE, **settings)
    return on(device, model), AutoTokenizer.from_pretrained(FIXTURE)


def text_to_text(device: str) -> None:
    expected = translate(*trained("cpu"), TEXTS)
    model, tokenizer = trained(device)
    assert translate(model, tokenizer, TEXTS) == expected
    translator = pipeline("translation", model=model, tokenizer=tokenizer, device=device)
    assert [output["translation_text"] for output in translator(TEXTS)] == expected
    here, there = (score(*trained(place), TEXTS, expected) for place in ("cpu", device))
    for expected_score, actual_score in zip(here, there, strict=True):
        torch.testing.assert_close(expected_score.log_probs, actual_score.log_probs, atol=1e-4, rtol=0)


def translations_in_each_dtype(device: str) -> None:
    recorded = json.loads((FIXTURE / "translations.json").read_text(encoding="utf-8"))
    for dtype, num_beams in product((torch.float32, *HALVES), (1, 4)):
        expected = recorded[f"{num_beams} beams"]
        model, tokenizer = trained(device, dtype=dtype)
        assert translate(model, tokenizer, list(expected), num_beams=num_beams) == list(expected.values()), dtype


def int8(device: str) -> None:
    """Off CPUs the weights are multiplied in floating point, as with gradients on CPUs."""
    quantized = {place: trained(place, quantization_config=Int8Config()) for place in ("cpu", device)}
    here, there = (translate(*quantized[place], TEXTS) for place in ("cpu", device))
    assert there == here
    on_both(device, lambda at: (quantized[at][0](**batch(at)).logits.detach(),))


def saving(device: str) -> None:
    model = on(device, small_model())
    with TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        weights = AutoModelForSeq2SeqLM.from_pretrained(folder).state_dict()
    assert all(torch.equal(weight.cpu(), weights[name]) for name, weight in model.state_dict().items())


def float32_without_tf32(device: str) -> None:
    x = torch.randn(512, 512, generator=torch.Generator().manual_seed(0))
    expected = x.double() @ x.double()
    product = (x.to(device) @ x.to(device)).cpu()
    assert rms(product - expected) < 2**-18 * rms(expected), "float32 matmuls are rounded as in TF32"


def autocast_in_float16(device: str) -> None:
    low_precision(device, torch.float16, under_autocast=True)


def updates_under_autocast(device: str) -> None:
    for dtype in HALVES:
        updates(device, atol=0.02, dtype=dtype)


def loading_with_device_map(device: str) -> None:
    require("accelerate")
    model = AutoModelForSeq2SeqLM.from_pretrained(FIXTURE, device_map=device)
    assert model.device.type == device
    tokenizer = AutoTokenizer.from_pretrained(FIXTURE)
    assert translate(model, tokenizer, TEXTS) == translate(*trained("cpu"), TEXTS)


def trainer(device: str) -> None:
    """Stock Seq2SeqTrainer makes the updates of a bare loop on the CPU."""
    require("accelerate")
    expected = losses_of_updates(small_model(dropout=0.0).train(), "cpu")
    rows = [dict(zip(batch("cpu"), row, strict=True)) for row in zip(*batch("cpu").values(), strict=True)]
    for precision, tolerance in (({}, 1e-4), ({"bf16": True}, 0.005)):
        with TemporaryDirectory() as folder:
            args = PaperTrainingArguments(
                folder,
                **OPTIMIZATION,
                **precision,
                max_steps=UPDATES,
                per_device_train_batch_size=len(rows),
                train_sampling_strategy="sequential",
                logging_steps=1,
                save_strategy="no",
                disable_tqdm=True,
                report_to="none",
                predict_with_generate=True,
                generation_max_length=8,
                use_cpu=device == "cpu",
            )
            model = small_model(dropout=0.0)
            its_optimizers = paper_optimizers(model, args)
            seq2seq_trainer = Seq2SeqTrainer(
                model, args, train_dataset=rows, data_collator=default_data_collator, optimizers=its_optimizers
            )
            seq2seq_trainer.remove_callback(PrinterCallback)
            seq2seq_trainer.train()
            assert model.device.type == device
            losses = [entry["loss"] for entry in seq2seq_trainer.state.log_history if "loss" in entry]
            torch.testing.assert_close(losses, [float(loss) for loss in expected], atol=0, rtol=tolerance)
            assert len(seq2seq_trainer.predict(rows).predictions) == len(rows)


@contextmanager
def process_group(device: str) -> Iterator[None]:
    """A group of this process alone."""
    distributed.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        store=distributed.HashStore(),
        rank=0,
        world_size=1,
        timeout=timedelta(seconds=60),
    )
    try:
        yield
    finally:
        distributed.destroy_process_group()


def ddp(device: str) -> None:
    expected = losses_of_updates(small_model(dropout=0.0).train(), "cpu")
    with process_group(device):
        model = on(device, small_model(dropout=0.0)).train()
        losses = losses_of_updates(model, device, wrapped=DistributedDataParallel(model))
    for actual, loss in zip(losses, expected, strict=True):
        same(device, actual, loss)


def sharded(device: str) -> Any:
    """A model whose layers FSDP2 shards."""
    model, mesh = on(device, small_model(dropout=0.0)).train(), init_device_mesh(device, (1,))
    for layer in (*model.model.encoder.layers, *model.model.decoder.layers, model):
        fully_shard(layer, mesh=mesh)
    return model


def fsdp2(device: str) -> None:
    """The updates of a bare loop, and a state that loads into sharded models and into a whole one."""
    alone, options = small_model(dropout=0.0).train(), StateDictOptions(full_state_dict=True)
    expected = losses_of_updates(alone, "cpu")
    with process_group(device):
        model, again = sharded(device), sharded(device)
        losses = losses_of_updates(model, device)
        weights = get_model_state_dict(model, options=options)
        set_model_state_dict(again, dict(weights), options=options)
        loaded, loss = get_model_state_dict(again, options=options), again(**batch(device)).loss
    for actual, of_alone in zip(losses, expected, strict=True):
        same(device, actual, of_alone)
    assert all(torch.equal(weight, loaded[name]) for name, weight in weights.items())
    alone.load_state_dict({name: weight.cpu() for name, weight in weights.items()})
    same(device, loss, alone(**batch("cpu")).loss)


def compiled_training_step(device: str) -> None:
    def compute(at: str) -> tuple[torch.Tensor, ...]:
        model = on(at, small_model(dropout=0.0, **SHALLOW, **SHAPES[1])).train()
        call = torch.compile(model, backend=backend_for(device), fullgraph=True) if at == device else model
        loss = call(**batch(at)).loss
        return loss, *torch.autograd.grad(loss, tuple(model.parameters()))

    on_both(device, compute)


def backend_for(device: str) -> str:
    """Off GPUs one that traces and differentiates only, because to generate code for CPUs takes minutes."""
    return "inductor" if device == "cuda" else "aot_eager"


def compiled_decoding(device: str) -> None:
    """Greedy search with a static cache, which transformers compiles into CUDA graphs on GPUs by default."""
    model = decisive_model(**SHAPES[1])
    there, compiling = on(device, model), {}
    if device != "cuda":
        compiling["compile_config"] = CompileConfig(backend=backend_for(device), mode=None)
        compiling["compile_config"]._compile_all_devices = True
    for seed in range(3):
        source, mask = pad(sentences(9, 4, 6, seed=seed))
        settings = {"num_beams": 1, "max_new_tokens": 10, "cache_implementation": "static"}
        expected = model.generate(source, attention_mask=mask, disable_compile=True, **settings)
        tokens = there.generate(source.to(device), attention_mask=mask.to(device), **settings, **compiling)
        same(device, tokens, expected)


@torch.no_grad()
def flash_attention(device: str) -> None:
    require_gpu(device)
    if not is_flash_attn_2_available():
        raise unittest.SkipTest("no flash_attn")
    expected = small_model(**SHAPES[1])(**batch("cpu")).logits
    model = on(device, small_model(**SHAPES[1], attn_implementation="flash_attention_2"))
    logits = model(**batch(device)).logits
    assert logits.dtype == torch.float32
    # It computes float32 in bfloat16.
    same(device, logits, expected, atol=32 * torch.finfo(torch.bfloat16).eps)
    generate(device, attn_implementation="flash_attention_2", num_beams=1, cache_implementation="static")


def flex_attention(device: str) -> None:
    # torch compiles it for CPUs in a minute, and cannot train with it there.
    require_gpu(device)

    def compute(at: str, lengths: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
        name = "flex_attention" if at == device else None
        model = on(at, small_model(dropout=0.0, **SHALLOW, **SHAPES[1], attn_implementation=name)).train()
        source, mask = (tensor.to(at) for tensor in pad(sentences(*lengths)))
        loss = model(input_ids=source, attention_mask=mask, labels=source.masked_fill(mask == 0, -100)).loss
        return loss, *torch.autograd.grad(loss, tuple(model.parameters()))

    # Within one of its blocks of 128 keys, and across blocks.
    for lengths in ((9, 4, 6), (300, 128)):
        on_both(device, partial(compute, lengths=lengths))
    generate(device, attn_implementation="flex_attention", num_beams=1, max_new_tokens=4)


CHECKS = [
    logits,
    loss_of_a_large_vocabulary,
    attentions,
    positions,
    padding,
    gradients,
    gradients_of_an_untied_model,
    gradient_checkpointing,
    loss_of_an_update_in_several_batches,
    dropout,
    r_drop,
    updates,
    autocast,
    half_precision_weights,
    generation,
    sampling,
    scores_of_generation,
    text_to_text,
    translations_in_each_dtype,
    int8,
    saving,
]
GPU_CHECKS = [
    float32_without_tf32,
    autocast_in_float16,
    updates_under_autocast,
    loading_with_device_map,
    trainer,
    flash_attention,
    ddp,
    fsdp2,
]
# The slow ones.
COMPILED_CHECKS = [compiled_training_step, compiled_decoding, flex_attention]
