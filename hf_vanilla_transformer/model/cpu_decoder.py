"""The decoder of Figure 1 for one more token of every hypothesis, computed fast on CPUs.

It reads the weights of the model's own modules, and equals calling them with a cache. A sentence's hypotheses share its
keys and values: each hypothesis at each position has a place there, and attends to the places of its own past. So none
is moved when another continues it; from time to time, the places that none continues are forgotten. Shapes have named
axes, as in the model's file; rows are batch * beams, a sentence's hypotheses adjacent.
"""

from functools import partial
from typing import Any

import torch
from torch import nn

from .attention import ATTENTION, additive
from .fast_path import is_unmodified
from .packed_linear import Int8Linear, matrix_of, pack


# Positions that there is room for at first, and more of them whenever they are full: so many of all hypotheses of a
# sentence together, and of each at least so many.
_ROOM, _LEAST_ROOM = 32, 8
# For one query a sentence, sums are faster than torch's fused attention with so many sentences and so few positions.
_FEWEST_FOR_SUMS, _LONGEST_FOR_SUMS = 16, 128
_DTYPES = {torch.float32, torch.bfloat16, torch.float16}
# What a user asks for beyond these is obeyed by the model's own modules.
_ATTENTION = (ATTENTION, "sdpa")
_KINDS = (nn.Linear, Int8Linear, nn.LayerNorm, nn.Embedding, nn.ModuleList, nn.ReLU)
_MODEL_FILE = f"{__name__.rpartition('.')[0]}.modeling_vanilla_transformer"


def supports_cpu_decoder(model: Any) -> bool:
    """Whether [`CPUDecoder`] computes what a model's own modules would: on a CPU, where nobody changes what they do.

    Nobody listens with a hook, parametrizes a weight, or puts a module of another kind in the place of one.
    """
    decoder = model.get_decoder()
    modules = [model, model.base_model, model.lm_head, *decoder.modules()]
    weights = [weight for module in modules for weight in module._parameters.values() if weight is not None]
    dtypes = {weight.dtype for weight in weights} - {torch.int8}
    return (
        not (model.training or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"))
        and model.config._attn_implementation in _ATTENTION
        and model.config.activation_function == "relu"
        and len(dtypes) == 1
        and dtypes <= _DTYPES
        and all(weight.device.type == "cpu" for weight in weights)
        and all(map(_is_our_own, modules))
        and all(_has_its_shape(each) for layer in decoder.layers for each in (layer.self_attn, layer.encoder_attn))
    )


def _is_our_own(module: nn.Module) -> bool:
    kind = type(module)
    is_known = kind.__module__ == _MODEL_FILE or kind in _KINDS
    return is_known and is_unmodified(module) and not module.training


def _has_its_shape(attention: Any) -> bool:
    """Whether an attention layer is as the configuration says: nobody pruned heads, took a bias away or scales anew."""
    projections, heads = (attention.q_proj, attention.k_proj, attention.v_proj), attention.config.num_heads
    return (
        [each.out_features for each in projections]
        == [heads * dim for dim in (attention.key_dim, attention.key_dim, attention.value_dim)]
        and len({(type(each), each.bias is None) for each in projections}) == 1
        and attention.scaling == attention.key_dim**-0.5
    )


class CPUDecoder:
    """The decoder and the linear transformation before the softmax, with what they remember of the tokens so far.

    Args:
        model (`VanillaTransformerForConditionalGeneration`): one that [`supports_cpu_decoder`].
        states (`torch.Tensor` of shape `(batch, source, d_model)`): the encoder's output.
        mask (`torch.Tensor` of shape `(batch, source)`, *optional*): the source's, 1 for real tokens, 0 for padding.
        num_beams (`int`): hypotheses of a sentence.
    """

    def __init__(self, model: Any, states: torch.Tensor, mask: torch.Tensor | None, num_beams: int):
        decoder = model.get_decoder()
        if len(states) == 1 and mask is not None and mask.any():
            states, mask = states[:, mask[0].bool()], None
        self._decoder, self._num_beams = decoder, num_beams
        room = max(_ROOM // num_beams, _LEAST_ROOM)
        # A hypothesis attends to what is new of itself: of the places that are added, (1, 1, beams, places).
        self._new = additive(
            torch.eye(num_beams, dtype=torch.bool, device="cpu").repeat(1, room)[None, None], torch.float32
        )
        # Of a sentence's places, those of each hypothesis' own past; (batch, 1, beams, places).
        self._past = self._new.repeat(len(states), 1, 1, 1)
        self._layers = [_Layer(layer, states, mask, num_beams, room) for layer in decoder.layers]
        self._lm_head = pack(model.lm_head)
        self._source_mask = None if mask is None or mask.all() else additive(mask.bool()[:, None, None], torch.float32)
        self._positions = _positions(decoder, 0, _ROOM)
        self._length = self._places = 0
        self.outputs: dict[str, Any] = {}

    def __call__(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Logits, `(rows, vocabulary)`, of the tokens behind `(rows, length)`, of which the last column is new."""
        if self._places == self._past.shape[3]:
            self.select(torch.arange(len(self._past), device="cpu"))
        if self._length == len(self._positions):
            self._positions = torch.cat([self._positions, _positions(self._decoder, self._length, _ROOM)])
        self._length += 1
        self._places += self._num_beams
        past = self._past[..., : self._places] if self._num_beams > 1 else None
        x = self._embed(input_ids[:, -1])
        for layer in self._layers:
            x = layer(x, past, self._source_mask)
        return self._lm_head(x)

    def _embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Sections 3.4 and 3.5: sqrt(d_model) E + PE, `(rows, d_model)`."""
        embeds, position = self._decoder.look_up(tokens, None), self._positions[self._length - 1]
        return torch.add(position, embeds.float(), alpha=embeds.shape[1] ** 0.5).to(embeds.dtype)

    def reorder(self, rows: torch.Tensor) -> None:
        """Have the hypotheses continue others of the same sentences: those of the rows given, `(rows,)`."""
        if self._num_beams == 1:
            return
        beams = rows.view(-1, 1, self._num_beams, 1) % self._num_beams
        past = self._past[..., : self._places]
        past.copy_(past.gather(2, beams.expand_as(past)))

    def select(self, sentences: torch.Tensor) -> None:
        """Forget all sentences of the batch but those given, `(kept,)`, and the places that no hypothesis continues."""
        past = self._past[sentences][..., : self._places]
        are_continued = (past == 0).any(dim=2)[:, 0]
        # As many of each sentence: all that are continued, and others, which nobody attends to.
        positions = -(-int(are_continued.sum(dim=1).max()) // self._num_beams)
        self._places = positions * self._num_beams
        places = are_continued.int().argsort(dim=1, descending=True, stable=True)[:, : self._places]
        past = past.gather(3, places[:, None, None].expand(-1, -1, self._num_beams, -1))
        self._past = torch.cat([past, self._new.expand(len(past), -1, -1, -1)], dim=3)
        self._source_mask = None if self._source_mask is None else self._source_mask[sentences]
        # Whatever lies where there is room now.
        places = nn.functional.pad(places, (0, self._new.shape[3]))
        for layer in self._layers:
            layer.select(sentences, places, positions)


class _Layer:
    """Section 3.1 and Figure 1, right: one layer for one more position, and the keys and values that it looks at."""

    def __init__(self, layer: Any, states: torch.Tensor, mask: torch.Tensor | None, num_beams: int, room: int):
        own = layer.self_attn
        self._heads, self._num_beams, self._scaling = own.config.num_heads, num_beams, own.scaling
        self._widths = (own.q_proj.out_features, own.k_proj.out_features, own.v_proj.out_features)
        self._own_in, self._own_out = pack(own.q_proj, own.k_proj, own.v_proj), pack(own.out_proj)
        self._cross = _look_at_source(layer.encoder_attn, states, mask, num_beams)
        self._fc1, self._fc2 = pack(layer.fc1), pack(layer.fc2)
        norms = layer.self_attn_layer_norm, layer.encoder_attn_layer_norm, layer.final_layer_norm
        self._own_norm, self._cross_norm, self._final_norm = map(_norm, norms)
        self._keys, self._values = (
            _Memory(len(states), room, num_beams, self._heads, dim) for dim in (own.key_dim, own.value_dim)
        )

    def __call__(self, x: torch.Tensor, past: torch.Tensor | None, source_mask: torch.Tensor | None) -> torch.Tensor:
        """`(rows, d_model)` in and out."""
        query, key, value = (
            _split_heads(each, self._heads, self._num_beams) for each in self._own_in(x).split(self._widths, dim=-1)
        )
        attended = _attend(query, self._keys.add(key), self._values.add(value), past, self._scaling)
        x = self._own_norm(self._own_out.plus(attended, x))
        x = self._cross_norm(self._cross.plus(x, source_mask))
        return self._final_norm(self._fc2.plus(self._fc1.relu(x), x))

    def select(self, sentences: torch.Tensor, places: torch.Tensor, positions: int) -> None:
        """As [`CPUDecoder.select`]; see [`_Memory.select`]."""
        self._keys.select(sentences, places, positions)
        self._values.select(sentences, places, positions)
        self._cross.select(sentences)


class _Memory:
    """Keys or values of the hypotheses at the positions so far.

    In float32, because attention in bfloat16 takes longer on CPUs, and there is little of it.
    """

    def __init__(self, sentences: int, room: int, beams: int, heads: int, dim: int):
        self._beams = beams
        self._put(torch.empty(sentences, room * beams, heads, dim, dtype=torch.float32, device="cpu"), 0)

    def _put(self, numbers: torch.Tensor, positions: int) -> None:
        self._numbers, self._positions = numbers, positions
        self._of_position = numbers.unflatten(1, (-1, self._beams)).unbind(1)

    def add(self, new: torch.Tensor) -> torch.Tensor:
        """Add `(batch, beams, heads, d)` of one more position; returns all, `(batch, places, heads, d)`."""
        self._of_position[self._positions].copy_(new)
        self._positions += 1
        return self._numbers[:, : self._positions * self._beams]

    def select(self, sentences: torch.Tensor, places: torch.Tensor, positions: int) -> None:
        """Keep those of sentences, `(kept,)`, at the places given, `(kept, places)`.

        Of these, `positions * beams` are taken, and there is room behind them.
        """
        rows = sentences[:, None] * self._numbers.shape[1] + places
        kept = self._numbers.flatten(0, 1).index_select(0, rows.flatten())
        self._put(kept.unflatten(0, rows.shape), positions)


def _look_at_source(
    attention: Any, states: torch.Tensor, mask: torch.Tensor | None, num_beams: int
) -> "_Cross | _CrossOfOne":
    """Section 3.2.3, attention to the encoder's output, in the way that takes less time a step."""
    heads, d_model = attention.config.num_heads, attention.config.d_model
    if len(states) == 1 and mask is None and heads * states.shape[1] <= d_model:
        return _CrossOfOne(attention, states)
    return _Cross(attention, states, num_beams)


class _Cross:
    """Attention to the encoder's output, `(batch, source, d_model)`, whose keys and values are made once."""

    def __init__(self, attention: Any, states: torch.Tensor, num_beams: int):
        self._heads, self._num_beams, self._scaling = attention.config.num_heads, num_beams, attention.scaling
        self._in, self._out = pack(attention.q_proj), pack(attention.out_proj)
        self._keys, self._values = _keys_values(attention, states)
        if states.shape[1] > _LONGEST_FOR_SUMS:
            # The numbers of a head together, for torch's fused attention.
            keys_values = (each.transpose(1, 2).contiguous() for each in (self._keys, self._values))
            self._keys, self._values = (each.transpose(1, 2) for each in keys_values)

    def plus(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """x + Sublayer(x), `(rows, d_model)`."""
        query = _split_heads(self._in(x), self._heads, self._num_beams)
        return self._out.plus(_attend(query, self._keys, self._values, mask, self._scaling), x)

    def select(self, sentences: torch.Tensor) -> None:
        """As [`CPUDecoder.select`]."""
        self._keys, self._values = (each[sentences] for each in (self._keys, self._values))


class _CrossOfOne:
    """Attention to the encoder's output, `(1, source, d_model)`, of one sentence that is short and not padded.

    Of head i it is softmax(x A_i + a_i) B_i with A_i = W_i^Q K_i^T / sqrt(d_k), a_i = b_i^Q K_i^T / sqrt(d_k) and
    B_i = V_i W_i^O, which are smaller than the projections, and made once. A head's weights add up to 1, so each B_i
    has its share of the output's bias.
    """

    def __init__(self, attention: Any, states: torch.Tensor):
        heads, d_model = attention.config.num_heads, attention.config.d_model
        keys, values = (each[0].transpose(0, 1) for each in _keys_values(attention, states))
        w_q, w_o = (matrix_of(layer).float() for layer in (attention.q_proj, attention.out_proj))
        b_q, b_o = (layer.bias for layer in (attention.q_proj, attention.out_proj))
        keys = keys * attention.scaling
        self._to_scores = (keys @ w_q.unflatten(0, (heads, -1))).flatten(0, 1)
        self._bias = None if b_q is None else (keys @ b_q.float().view(heads, -1, 1)).flatten()
        of_heads = values @ w_o.view(d_model, heads, -1).permute(1, 2, 0)
        self._to_output = (of_heads if b_o is None else of_heads + b_o.float() / heads).flatten(0, 1)
        self._sizes = (heads, states.shape[1])

    def plus(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """x + Sublayer(x), `(rows, d_model)`."""
        x_precise = x.float()
        scores = nn.functional.linear(x_precise, self._to_scores, self._bias).unflatten(1, self._sizes)
        return torch.addmm(x_precise, scores.softmax(dim=-1).flatten(1), self._to_output).to(x.dtype)

    def select(self, sentences: torch.Tensor) -> None:
        """There is one alone."""


def _keys_values(attention: Any, states: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Keys and values of an encoder's output, `(batch, source, heads, d)`, in float32."""
    of_source = pack(attention.k_proj, attention.v_proj)(states.flatten(0, 1)).unflatten(0, states.shape[:2]).float()
    sizes = attention.k_proj.out_features, attention.v_proj.out_features
    heads = attention.config.num_heads
    return tuple(each.contiguous().unflatten(-1, (heads, -1)) for each in of_source.split(sizes, dim=-1))


def _split_heads(projected: torch.Tensor, heads: int, beams: int) -> torch.Tensor:
    """`(rows, heads * d)` to `(batch, beams, heads, d)`."""
    return projected.view(-1, beams, heads, projected.shape[-1] // heads)


def _attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scaling: float
) -> torch.Tensor:
    """Eq. 1 of all heads, side by side: `(rows, heads * d_v)`, in the dtype of the query.

    The query is `(batch, beams, heads, d_k)`, keys and values `(batch, positions, heads, d)`, the mask to add to the
    scores `(batch, 1, beams or 1, positions)`.
    """
    sentences, beams = query.shape[:2]
    if beams == 1 and sentences >= _FEWEST_FOR_SUMS and keys.shape[1] <= _LONGEST_FOR_SUMS:
        scores = (keys * (query.float() * scaling)).sum(dim=-1)
        weights = (scores if mask is None else scores + mask[:, 0, 0, :, None]).softmax(dim=1)
        return (values * weights[..., None]).sum(dim=1).flatten(1).to(query.dtype)
    query_of_heads, keys, values = (each.transpose(1, 2) for each in (query.float(), keys, values))
    heads = nn.functional.scaled_dot_product_attention(query_of_heads, keys, values, attn_mask=mask, scale=scaling)
    return heads.transpose(1, 2).reshape(sentences * beams, -1).to(query.dtype)


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
