"""Floating-point operations of the model, and the peak rates of GPUs."""

import torch

from benchmarks.support.training_implementations import Batch
from hf_vanilla_transformer import VanillaTransformerConfig


# Dense bfloat16 FLOP/s from the vendor's data sheets, by a part of the GPU's name; the first match counts.
GPU_PEAKS = {
    "A100": 312e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "H200 NVL": 835e12,
    "H200": 989e12,
}


def model_flops(config: VanillaTransformerConfig, source: int, target: int) -> int:
    """FLOPs of the matmuls in a training step on one sentence pair: once forward, twice backward.

    A matmul of shapes (m, n) and (n, k) is 2 m n k operations. Causal attention counts in full.

    Args:
        config: with d_k = d_v = d_model / num_heads.
        source, target: lengths in tokens, without padding.
    """
    d_model, d_ff = config.d_model, config.d_ff
    projection, feed_forward = 2 * d_model**2, 4 * d_model * d_ff
    encoder_layer = source * (4 * projection + feed_forward) + 4 * d_model * source**2
    self_attention = target * 4 * projection + 4 * d_model * target**2
    cross_attention = (target + source) * 2 * projection + 4 * d_model * source * target
    decoder_layer = self_attention + cross_attention + target * feed_forward
    lm_head = 2 * target * d_model * config.vocab_size
    return 3 * (config.encoder_layers * encoder_layer + config.decoder_layers * decoder_layer + lm_head)


def batch_flops(config: VanillaTransformerConfig, batch: Batch) -> int:
    """The sum of `model_flops` over the pairs of a batch."""
    sources, targets = batch["attention_mask"].sum(1).tolist(), (batch["labels"] != -100).sum(1).tolist()
    return sum(model_flops(config, source, target) for source, target in zip(sources, targets, strict=True))


def peak_flops(device: torch.device, tflops: float | None) -> float | None:
    """The device's peak bfloat16 FLOP/s: as given, or from `GPU_PEAKS`; None if unknown."""
    if tflops is not None:
        return tflops * 1e12
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name()
    return next((peak for known, peak in GPU_PEAKS.items() if known in name), None)
