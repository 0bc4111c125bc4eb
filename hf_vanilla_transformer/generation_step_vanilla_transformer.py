"""The decoder of Figure 1 for one more token of every hypothesis, computed fast on CPUs.

It reads the weights of the model's own modules, and equals calling them with a cache. Hypotheses are never moved in
memory: those of one sentence share its keys and values, and each attends to those of its own past. Shapes have named
axes, as in the model's file; rows are batch * beams, a sentence's hypotheses adjacent.
"""

from functools import partial
from typing import Any

import torch
from torch import nn

from .functional_vanilla_transformer import ATTENTION, PackedLinear, is_untouched


# Positions that there is room for at first, and more of them whenever they are full.
_ROOM = 32
_DTYPES = {torch.float32, torch.bfloat16}
# What a user asks for beyond these is obeyed by the model's own modules.
_ATTENTION = (ATTENTION, "sdpa")
_MODEL_FILE = __name__.replace("generation_step_", "modeling_")


def can_step(model: Any) -> bool:
    """Whether [`StepDecoder`] computes what a model's own modules would: on a CPU, where nobody changes what they do.

    Nobody listens with a hook, parametrizes a weight, or puts a module of another kind in the place of one.
    """
    decoder = model.get_decoder()
    weights = [*decoder.parameters(), *model.lm_head.parameters()]
    dtypes = {weight.dtype for weight in weights}
    return (
        not (model.training or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"))
        and model.config._attn_implementation in _ATTENTION
        and model.config.activation_function == "relu"
        and len(dtypes) == 1
        and dtypes <= _DTYPES
        and all(weight.device.type == "cpu" for weight in weights)
        and all(map(_is_our_own, (model, model.base_model, model.lm_head, *decoder.modules())))
        and all(_has_its_shape(each) for layer in decoder.layers for each in (layer.self_attn, layer.encoder_attn))
    )


def _is_our_own(module: nn.Module) -> bool:
    kind = type(module)
    is_known = kind.__module__ == _MODEL_FILE or kind in (nn.Linear, nn.LayerNorm, nn.Embedding, nn.ModuleList, nn.ReLU)
    return is_known and is_untouched(module) and not module.training


def _has_its_shape(attention: Any) -> bool:
    """Whether an attention layer is as the configuration says: nobody pruned heads, took a bias away or scales anew."""
    projections, heads = (attention.q_proj, attention.k_proj, attention.v_proj), attention.config.num_heads
    return (
        [each.out_features for each in projections]
        == [heads * dim for dim in (attention.key_dim, attention.key_dim, attention.value_dim)]
        and len({each.bias is None for each in projections}) == 1
        and attention.scaling == attention.key_dim**-0.5
    )


class StepDecoder:
    """The decoder and the linear transformation before the softmax, with what they remember of the tokens so far.

    Args:
        model (`VanillaTransformerForConditionalGeneration`): one that [`can_step`].
        states (`torch.Tensor` of shape `(batch, source, d_model)`): the encoder's output.
        mask (`torch.Tensor` of shape `(batch, source)`, *optional*): the source's, 1 for real tokens, 0 for padding.
        num_beams (`int`): hypotheses of a sentence.
    """

    def __init__(self, model: Any, states: torch.Tensor, mask: torch.Tensor | None, num_beams: int):
        decoder = model.get_decoder()
        self._decoder, self._num_beams = decoder, num_beams
        self._layers = [_Layer(layer, states, num_beams) for layer in decoder.layers]
        self._lm_head = PackedLinear(model.lm_head)
        self._source_mask = None if mask is None or mask.all() else _additive(mask.bool()[:, None, None])
        # Of the keys of a sentence, those of each hypothesis' own past; (batch, 1, beams, positions, beams).
        self._own = _additive(torch.eye(num_beams, dtype=torch.bool, device="cpu")[None, None, :, None])
        self._past = self._own.repeat(len(states), 1, 1, _ROOM, 1)
        self._positions = _positions(decoder, 0, _ROOM)
        self._length = 0
        self.outputs: dict[str, Any] = {}

    def __call__(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Logits, `(rows, vocabulary)`, of the tokens behind `(rows, length)`, of which the last column is new."""
        if self._length == len(self._positions):
            self._make_room()
        self._length += 1
        past = self._past[..., : self._length, :].flatten(3) if self._num_beams > 1 else None
        x = self._embed(input_ids[:, -1])
        for layer in self._layers:
            x = layer(x, self._length, past, self._source_mask)
        return self._lm_head(x)

    def _embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Sections 3.4 and 3.5: sqrt(d_model) E + PE, `(rows, d_model)`."""
        embeds, position = self._decoder.look_up(tokens, None), self._positions[self._length - 1]
        return torch.add(position, embeds.float(), alpha=embeds.shape[1] ** 0.5).to(embeds.dtype)

    def _make_room(self) -> None:
        self._past = torch.cat([self._past, self._own.expand(len(self._past), -1, -1, _ROOM, -1)], dim=3)
        self._positions = torch.cat([self._positions, _positions(self._decoder, self._length, _ROOM)])
        for layer in self._layers:
            layer.make_room()

    def go_on_with(self, rows: torch.Tensor) -> None:
        """Have the hypotheses continue others of the same sentences: those of the rows given, `(rows,)`."""
        if self._num_beams == 1:
            return
        beams = rows.view(-1, 1, self._num_beams) % self._num_beams
        past = self._past[..., : self._length, :]
        past.copy_(past.gather(2, beams[..., None, None].expand_as(past)))

    def keep(self, sentences: torch.Tensor) -> None:
        """Forget all sentences of the batch but those given, `(kept,)`."""
        self._past = self._past[sentences]
        self._source_mask = None if self._source_mask is None else self._source_mask[sentences]
        for layer in self._layers:
            layer.keep(sentences)


class _Layer:
    """Section 3.1 and Figure 1, right: one layer for one more position, and the keys and values that it looks at."""

    def __init__(self, layer: Any, states: torch.Tensor, num_beams: int):
        own, cross = layer.self_attn, layer.encoder_attn
        self._heads, self._num_beams = layer.self_attn.config.num_heads, num_beams
        self._widths = (own.q_proj.out_features, own.k_proj.out_features, own.v_proj.out_features)
        self._scaling = own.scaling
        self._own_in, self._own_out = PackedLinear(own.q_proj, own.k_proj, own.v_proj), PackedLinear(own.out_proj)
        self._cross_in, self._cross_out = PackedLinear(cross.q_proj), PackedLinear(cross.out_proj)
        self._fc1, self._fc2 = PackedLinear(layer.fc1), PackedLinear(layer.fc2)
        norms = layer.self_attn_layer_norm, layer.encoder_attn_layer_norm, layer.final_layer_norm
        self._own_norm, self._cross_norm, self._final_norm = map(_norm, norms)
        of_source = PackedLinear(cross.k_proj, cross.v_proj)(states.flatten(0, 1)).unflatten(0, states.shape[:2])
        # In float32, because attention in bfloat16 takes longer on CPUs, and there is little of it.
        self._source_keys, self._source_values = (
            each.unflatten(-1, (self._heads, -1)).transpose(1, 2).float().contiguous()
            for each in of_source.split((cross.k_proj.out_features, cross.v_proj.out_features), dim=-1)
        )
        sizes = (len(states), self._heads, _ROOM, num_beams)
        self._keys, self._values = (
            states.new_empty(*sizes, dim, dtype=torch.float32) for dim in (own.key_dim, own.value_dim)
        )

    def __call__(
        self, x: torch.Tensor, length: int, past: torch.Tensor | None, source_mask: torch.Tensor | None
    ) -> torch.Tensor:
        """`(rows, d_model)` in and out; `length` counts the positions, this one included."""
        query, key, value = map(self._split_heads, self._own_in(x).split(self._widths, dim=-1))
        self._keys[:, :, length - 1] = key
        self._values[:, :, length - 1] = value
        keys, values = (each[:, :, :length].flatten(2, 3) for each in (self._keys, self._values))
        x = self._own_norm(self._own_out.plus(self._attend(query, keys, values, past, x.dtype), x))
        query = self._split_heads(self._cross_in(x))
        attended = self._attend(query, self._source_keys, self._source_values, source_mask, x.dtype)
        x = self._cross_norm(self._cross_out.plus(attended, x))
        return self._final_norm(self._fc2.plus(self._fc1.relu(x), x))

    def _split_heads(self, projected: torch.Tensor) -> torch.Tensor:
        """`(rows, heads * d)` to `(batch, heads, beams, d)`."""
        return projected.view(-1, self._num_beams, self._heads, projected.shape[-1] // self._heads).transpose(1, 2)

    def _attend(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mask: torch.Tensor | None,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        """Eq. 1 of all heads, side by side: `(rows, heads * d_v)`."""
        heads = nn.functional.scaled_dot_product_attention(
            query.float(), keys, values, attn_mask=mask, scale=self._scaling
        )
        return heads.transpose(1, 2).reshape(-1, self._heads * values.shape[-1]).to(dtype)

    def make_room(self) -> None:
        """For more positions."""
        self._keys, self._values = (
            torch.cat([each, torch.empty_like(each[:, :, :_ROOM])], dim=2) for each in (self._keys, self._values)
        )

    def keep(self, sentences: torch.Tensor) -> None:
        """As [`StepDecoder.keep`]."""
        self._keys, self._values = self._keys[sentences], self._values[sentences]
        self._source_keys, self._source_values = self._source_keys[sentences], self._source_values[sentences]


def _additive(mask: torch.Tensor) -> torch.Tensor:
    """0 where a mask is True, and the model's own number for minus infinity where it is not."""
    zeros = torch.zeros(mask.shape, dtype=torch.float32, device=mask.device)
    return zeros.masked_fill_(~mask, torch.finfo(torch.float32).min / 2)


def _positions(decoder: Any, begin: int, count: int) -> torch.Tensor:
    """Section 3.5: `count` encodings from position `begin` on, `(count, d_model)`, or as many as a learned table has.

    Raises:
        ValueError: if it has none.
    """
    if decoder.config.position_embedding_type == "learned":
        count = max(1, min(count, decoder.config.max_position_embeddings - begin))
    position_ids = torch.arange(begin, begin + count, device="cpu")
    nothing = torch.zeros(count, decoder.config.d_model, dtype=torch.float32, device="cpu")
    return decoder.add_positions(nothing, position_ids)


def _norm(layer_norm: nn.LayerNorm) -> partial:
    shape = list(layer_norm.normalized_shape)
    return partial(
        torch.layer_norm, normalized_shape=shape, weight=layer_norm.weight, bias=layer_norm.bias, eps=layer_norm.eps
    )
