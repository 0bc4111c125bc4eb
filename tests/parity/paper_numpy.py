"""The paper's formulas in NumPy, float64, one function for each: a specification that shares no code with the package.

Weights are a mapping from the names of the model's state to arrays; a linear map's weight is (outputs, inputs).
"""

import numpy as np


def positional_encoding(length, d_model):
    """Section 3.5: PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos(the same)."""
    encoding = np.zeros((length, d_model))
    for pos in range(length):
        for i in range(d_model // 2):
            angle = pos / 10000 ** (2 * i / d_model)
            encoding[pos, 2 * i] = np.sin(angle)
            encoding[pos, 2 * i + 1] = np.cos(angle)
    return encoding


def tensor2tensor_encoding(length, d_model, first=0):
    """The authors' code: wavelengths in geometric progression, from 2 pi to exactly 10000 * 2 pi."""
    wavelengths = np.geomspace(2 * np.pi, 2 * np.pi * 10000, d_model // 2)
    angles = 2 * np.pi * np.arange(first, first + length)[:, None] / wavelengths
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(length, d_model)


def softmax(scores):
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def layer_norm(x, weights, name, eps):
    """Ba et al. 2016, which section 3.1 uses."""
    mean = x.mean(axis=-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + eps) * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def linear(x, weights, name):
    y = x @ weights[f"{name}.weight"].T
    return y + weights[f"{name}.bias"] if f"{name}.bias" in weights else y


def attention(q, k, v, allowed):
    """Eq. 1: softmax(Q K^T / sqrt(d_k)) V, with minus infinity where a query may not look (section 3.2.3)."""
    d_k = q.shape[-1]
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(d_k)
    return softmax(np.where(allowed, scores, -np.inf)) @ v


def multi_head_attention(x, memory, allowed, weights, name, num_heads):
    """Section 3.2.2: Concat(head_1, ..., head_h) W^O."""
    q, k, v = (
        linear(states, weights, f"{name}.{letter}_proj") for states, letter in ((x, "q"), (memory, "k"), (memory, "v"))
    )
    d_k, d_v = q.shape[-1] // num_heads, v.shape[-1] // num_heads
    heads = [
        attention(
            q[..., i * d_k : (i + 1) * d_k], k[..., i * d_k : (i + 1) * d_k], v[..., i * d_v : (i + 1) * d_v], allowed
        )
        for i in range(num_heads)
    ]
    return linear(np.concatenate(heads, axis=-1), weights, f"{name}.out_proj")


def feed_forward(x, weights, name):
    """Eq. 2: max(0, x W_1 + b_1) W_2 + b_2."""
    return linear(np.maximum(0, linear(x, weights, f"{name}.fc1")), weights, f"{name}.fc2")


def encoder_layer(x, weights, name, num_heads, eps):
    """Section 3.1: LayerNorm(x + Sublayer(x)) around self-attention and feed-forward network."""
    everywhere = np.ones((x.shape[1], x.shape[1]), dtype=bool)
    attended = multi_head_attention(x, x, everywhere, weights, f"{name}.self_attn", num_heads)
    x = layer_norm(x + attended, weights, f"{name}.self_attn_layer_norm", eps)
    return layer_norm(x + feed_forward(x, weights, name), weights, f"{name}.final_layer_norm", eps)


def decoder_layer(x, memory, weights, name, num_heads, eps):
    """Section 3.1: as the encoder's, with a mask over later positions and a sub-layer over the encoder's output."""
    earlier = np.tril(np.ones((x.shape[1], x.shape[1]), dtype=bool))
    attended = multi_head_attention(x, x, earlier, weights, f"{name}.self_attn", num_heads)
    x = layer_norm(x + attended, weights, f"{name}.self_attn_layer_norm", eps)
    everywhere = np.ones((x.shape[1], memory.shape[1]), dtype=bool)
    attended = multi_head_attention(x, memory, everywhere, weights, f"{name}.encoder_attn", num_heads)
    x = layer_norm(x + attended, weights, f"{name}.encoder_attn_layer_norm", eps)
    return layer_norm(x + feed_forward(x, weights, name), weights, f"{name}.final_layer_norm", eps)


def embed(ids, matrix, encoding):
    """Section 3.4: embeddings times sqrt(d_model), plus positions."""
    d_model = matrix.shape[1]
    return matrix[ids] * np.sqrt(d_model) + encoding(ids.shape[1], d_model)


def transformer(source, target, weights, num_heads, encoder_layers, decoder_layers, eps, encoding=positional_encoding):
    """Figure 1 up to the logits, for sentences without padding: source and target are (batch, length) of token ids.

    Weights of other systems may have a norm after each stack, and a bias of the output projection.
    """
    shared = weights["model.shared.weight"]
    memory = embed(source, shared, encoding)
    for i in range(encoder_layers):
        memory = encoder_layer(memory, weights, f"model.encoder.layers.{i}", num_heads, eps)
    if "model.encoder.layer_norm.weight" in weights:
        memory = layer_norm(memory, weights, "model.encoder.layer_norm", eps)
    x = embed(target, shared, encoding)
    for i in range(decoder_layers):
        x = decoder_layer(x, memory, weights, f"model.decoder.layers.{i}", num_heads, eps)
    if "model.decoder.layer_norm.weight" in weights:
        x = layer_norm(x, weights, "model.decoder.layer_norm", eps)
    return x @ shared.T + weights.get("lm_head.bias", 0)


def label_smoothed_loss(logits, labels, epsilon):
    """Section 5.4, in nats per token: 1 - epsilon + epsilon/V for the label, epsilon/V for the rest."""
    log_probabilities = np.log(softmax(logits))
    vocabulary = logits.shape[-1]
    total = 0.0
    for row, label in zip(log_probabilities.reshape(-1, vocabulary), labels.reshape(-1), strict=True):
        target = np.full(vocabulary, epsilon / vocabulary)
        target[label] += 1 - epsilon
        total -= (target * row).sum()
    return total / labels.size


def learning_rate(step_num, d_model, warmup_steps):
    """Eq. 3."""
    return d_model**-0.5 * min(step_num**-0.5, step_num * warmup_steps**-1.5)
