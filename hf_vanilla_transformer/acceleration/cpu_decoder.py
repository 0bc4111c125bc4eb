"""The decoder of Figure 1 for one more token of every hypothesis, computed fast on CPUs.

It reads the weights of the model's modules, and equals calling them with a cache. The beams of a sentence share one KV
cache: each hypothesis has a slot per position, and a mask lets it attend to the slots of its own past. So reordering
beams changes the mask and moves no keys or values; unused slots are dropped from time to time. Shapes have named axes,
as in the model's file; rows are batch * beams, with the hypotheses of a sentence adjacent.
"""

from typing import Any

import torch
from torch import nn

from ..model import modeling_vanilla_transformer
from ..model.pretrained_model import ATTENTION
from .attention import additive
from .fast_path_checks import is_unmodified
from .int8_quantization import Int8Linear
from .prepacked_weights import matrix_of, pack


# The KV cache grows by this many slots per sentence, and by at least this many per hypothesis.
_GROWTH, _MIN_GROWTH = 32, 8
# With one query per sentence, sums are faster than torch's fused attention from this many sentences on and up to this
# many positions.
_MIN_SENTENCES_FOR_SUMS, _MAX_POSITIONS_FOR_SUMS = 16, 128
_DTYPES = {torch.float32, torch.bfloat16, torch.float16}
# With other attention implementations, the modules are called.
_ATTENTION = (ATTENTION, "sdpa")
_KINDS = (nn.Linear, Int8Linear, nn.LayerNorm, nn.Embedding, nn.ModuleList, nn.ReLU)
_MODEL_FILE = modeling_vanilla_transformer.__name__


def supports_cpu_decoder(model: Any) -> bool:
    """Whether [`CPUDecoder`] computes what the model's modules would.

    The model is on a CPU, in evaluation mode, without gradients and autocast, and none of its modules is hooked,
    monkeypatched, parametrized or replaced by another class.
    """
    if model.training or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
        return False
    if model.config._attn_implementation not in _ATTENTION or model.config.activation_function != "relu":
        return False
    decoder = model.get_decoder()
    modules = [model, model.base_model, model.lm_head, *decoder.modules()]
    dtypes = set()
    for module in modules:
        if not _is_unmodified_layer(module):
            return False
        for weight in module._parameters.values():
            if weight is None:
                continue
            if weight.device.type != "cpu":
                return False
            dtypes.add(weight.dtype)
    for layer in decoder.layers:
        if not (_matches_config(layer.self_attn) and _matches_config(layer.encoder_attn)):
            return False
    floating_point_dtypes = dtypes - {torch.int8}
    return len(floating_point_dtypes) == 1 and floating_point_dtypes <= _DTYPES


def _is_unmodified_layer(module: nn.Module) -> bool:
    kind = type(module)
    is_known = kind.__module__ == _MODEL_FILE or kind in _KINDS
    return is_known and is_unmodified(module) and not module.training


def _matches_config(attention: Any) -> bool:
    """Whether an attention layer has all heads of its configuration, and equal kinds of projections."""
    projections, heads = (attention.q_proj, attention.k_proj, attention.v_proj), attention.config.num_heads
    widths = [heads * dim for dim in (attention.key_dim, attention.key_dim, attention.value_dim)]
    kinds = {(type(each), each.bias is None) for each in projections}
    return [each.out_features for each in projections] == widths and len(kinds) == 1


class CPUDecoder:
    """The decoder and the output projection, with the KV cache of the tokens so far.

    It stands in the place of [`~.generation_vanilla_transformer.NextTokenSteps`].

    Args:
        model (`VanillaTransformerForConditionalGeneration`): a model that [`supports_cpu_decoder`].
        states (`torch.Tensor` of shape `(batch, source, d_model)`): the encoder's output.
        mask (`torch.Tensor` of shape `(batch, source)`, *optional*): the source's, 1 for real tokens, 0 for padding.
        num_beams (`int`): hypotheses per sentence.
    """

    can_prune = True

    def __init__(self, model: Any, states: torch.Tensor, mask: torch.Tensor | None, num_beams: int):
        decoder = model.get_decoder()
        if len(states) == 1 and mask is not None and mask.any():
            states, mask = states[:, mask[0].bool()], None
        self._decoder, self._num_beams = decoder, num_beams
        growth = max(_GROWTH // num_beams, _MIN_GROWTH)
        # The mask of new slots, (1, 1, beams, slots): a hypothesis attends to its own.
        self._new = additive(
            torch.eye(num_beams, dtype=torch.bool, device="cpu").repeat(1, growth)[None, None], torch.float32
        )
        # The mask of each hypothesis' past, (batch, 1, beams, slots).
        self._past = self._new.repeat(len(states), 1, 1, 1)
        self._layers = [_Layer(layer, states, mask, num_beams, growth) for layer in decoder.layers]
        self._lm_head = pack(model.lm_head)
        self._source_mask = None if mask is None or mask.all() else additive(mask.bool()[:, None, None], torch.float32)
        self._positions = _positions(decoder, 0, _GROWTH)
        self._length = self._slots = 0
        self.outputs: dict[str, Any] = {}

    def __call__(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Logits of the next token, `(rows, vocabulary)`, for hypotheses `(rows, length)` with one new column."""
        if self._slots == self._past.shape[3]:
            self.select(torch.arange(len(self._past), device="cpu"))
        if self._length == len(self._positions):
            self._positions = torch.cat([self._positions, _positions(self._decoder, self._length, _GROWTH)])
        self._length += 1
        self._slots += self._num_beams
        past = self._past[..., : self._slots] if self._num_beams > 1 else None
        x = self._embed(input_ids[:, -1])
        for layer in self._layers:
            x = layer(x, past, self._source_mask)
        return self._lm_head(self._decoder.normalize_output(x))

    def _embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Sections 3.4 and 3.5: sqrt(d_model) E + PE, `(rows, d_model)`."""
        embeds, position = self._decoder.look_up(tokens, None), self._positions[self._length - 1]
        return torch.add(position, embeds.float(), alpha=embeds.shape[1] ** 0.5).to(embeds.dtype)

    def reorder(self, rows: torch.Tensor) -> None:
        """Make hypothesis i continue the hypothesis of row `rows[i]`, of the same sentence; `rows` is `(rows,)`."""
        if self._num_beams == 1:
            return
        beams = rows.view(-1, 1, self._num_beams, 1) % self._num_beams
        past = self._past[..., : self._slots]
        past.copy_(past.gather(2, beams.expand_as(past)))

    def select(self, sentences: torch.Tensor) -> None:
        """Keep the given sentences of the batch, `(kept,)`, and drop unused slots."""
        past = self._past[sentences][..., : self._slots]
        is_used = (past == 0).any(dim=2)[:, 0]
        # The same number of slots for each sentence: used slots first, then masked ones.
        positions = -(-int(is_used.sum(dim=1).max()) // self._num_beams)
        self._slots = positions * self._num_beams
        slots = is_used.int().argsort(dim=1, descending=True, stable=True)[:, : self._slots]
        past = past.gather(3, slots[:, None, None].expand(-1, -1, self._num_beams, -1))
        self._past = torch.cat([past, self._new.expand(len(past), -1, -1, -1)], dim=3)
        self._source_mask = None if self._source_mask is None else self._source_mask[sentences]
        # Free slots at the end, with any content.
        slots = nn.functional.pad(slots, (0, self._new.shape[3]))
        for layer in self._layers:
            layer.select(sentences, slots, positions)


class _Layer:
    """Section 3.1 and Figure 1, right: one layer for one more position, with its keys and values."""

    def __init__(self, layer: Any, states: torch.Tensor, mask: torch.Tensor | None, num_beams: int, growth: int):
        own = layer.self_attn
        self._heads, self._num_beams, self._scaling = own.config.num_heads, num_beams, own.scaling
        self._widths = (own.q_proj.out_features, own.k_proj.out_features, own.v_proj.out_features)
        self._own_in, self._own_out = pack(own.q_proj, own.k_proj, own.v_proj), pack(own.out_proj)
        # The short form makes generate() of 32 tokens by the base model 9 to 14 % faster for a source of 5 tokens,
        # up to 10 % for 15, and no faster for 30 (one thread, float32 and bfloat16).
        is_short = len(states) == 1 and mask is None and self._heads * states.shape[1] <= states.shape[2]
        cross: Any = _SingleSentenceCross if is_short else _Cross
        self._cross = cross(layer.encoder_attn, states, num_beams)
        self._fc1, self._fc2 = pack(layer.fc1), pack(layer.fc2)
        self._own_norm, self._cross_norm = layer.self_attn_layer_norm, layer.encoder_attn_layer_norm
        self._final_norm = layer.final_layer_norm
        self._keys, self._values = (
            _SlotCache(len(states), growth, num_beams, self._heads, dim) for dim in (own.key_dim, own.value_dim)
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

    def select(self, sentences: torch.Tensor, slots: torch.Tensor, positions: int) -> None:
        """As [`CPUDecoder.select`]; see [`_SlotCache.select`]."""
        self._keys.select(sentences, slots, positions)
        self._values.select(sentences, slots, positions)
        self._cross.select(sentences)


class _SlotCache:
    """Keys or values of all hypotheses at the positions so far, `(batch, slots, heads, d)`.

    In float32, because attention in bfloat16 is slower on CPUs, and takes a small share of a step.
    """

    def __init__(self, sentences: int, growth: int, beams: int, heads: int, dim: int):
        self._beams = beams
        self._store(torch.empty(sentences, growth * beams, heads, dim, dtype=torch.float32, device="cpu"), 0)

    def _store(self, cache: torch.Tensor, positions: int) -> None:
        self._cache, self._positions = cache, positions
        self._by_position = cache.unflatten(1, (-1, self._beams)).unbind(1)

    def add(self, new: torch.Tensor) -> torch.Tensor:
        """Append one position, `(batch, beams, heads, d)`; returns all used slots, `(batch, slots, heads, d)`."""
        self._by_position[self._positions].copy_(new)
        self._positions += 1
        return self._cache[:, : self._positions * self._beams]

    def select(self, sentences: torch.Tensor, slots: torch.Tensor, positions: int) -> None:
        """Keep the given slots, `(kept, slots)`, of the given sentences, `(kept,)`.

        The first `positions * beams` slots are used, the others free.
        """
        rows = sentences[:, None] * self._cache.shape[1] + slots
        kept = self._cache.flatten(0, 1).index_select(0, rows.flatten())
        self._store(kept.unflatten(0, rows.shape), positions)


class _Cross:
    """Attention to the encoder's output, `(batch, source, d_model)`, with keys and values computed once."""

    def __init__(self, attention: Any, states: torch.Tensor, num_beams: int):
        self._heads, self._num_beams, self._scaling = attention.config.num_heads, num_beams, attention.scaling
        self._in, self._out = pack(attention.q_proj), pack(attention.out_proj)
        self._keys, self._values = _keys_values(attention, states)
        if states.shape[1] > _MAX_POSITIONS_FOR_SUMS:
            # Each head contiguous, for torch's fused attention.
            keys_values = (each.transpose(1, 2).contiguous() for each in (self._keys, self._values))
            self._keys, self._values = (each.transpose(1, 2) for each in keys_values)

    def plus(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """x + Sublayer(x), `(rows, d_model)`."""
        query = _split_heads(self._in(x), self._heads, self._num_beams)
        return self._out.plus(_attend(query, self._keys, self._values, mask, self._scaling), x)

    def select(self, sentences: torch.Tensor) -> None:
        """As [`CPUDecoder.select`]."""
        self._keys, self._values = (each[sentences] for each in (self._keys, self._values))


class _SingleSentenceCross:
    """Attention to the encoder's output, `(1, source, d_model)`, of one short sentence without padding.

    Head i computes softmax(x A_i + a_i) B_i with A_i = W_i^Q K_i^T / sqrt(d_k), a_i = b_i^Q K_i^T / sqrt(d_k) and
    B_i = V_i W_i^O. These matrices are smaller than the projections and computed once. The attention weights of a head
    sum to 1, so each B_i includes its part of the output's bias.
    """

    def __init__(self, attention: Any, states: torch.Tensor, num_beams: int):
        heads, d_model = attention.config.num_heads, attention.config.d_model
        keys, values = (each[0].transpose(0, 1) for each in _keys_values(attention, states))
        w_q, w_o = (matrix_of(layer).float() for layer in (attention.q_proj, attention.out_proj))
        b_q, b_o = (layer.bias for layer in (attention.q_proj, attention.out_proj))
        keys = keys * attention.scaling
        self._to_scores = (keys @ w_q.unflatten(0, (heads, -1))).flatten(0, 1)
        self._bias = None if b_q is None else (keys @ b_q.float().view(heads, -1, 1)).flatten()
        outputs = values @ w_o.view(d_model, heads, -1).permute(1, 2, 0)
        self._to_output = (outputs if b_o is None else outputs + b_o.float() / heads).flatten(0, 1)
        self._sizes = (heads, states.shape[1])

    def plus(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """x + Sublayer(x), `(rows, d_model)`."""
        x_float32 = x.float()
        scores = nn.functional.linear(x_float32, self._to_scores, self._bias).unflatten(1, self._sizes)
        return torch.addmm(x_float32, scores.softmax(dim=-1).flatten(1), self._to_output).to(x.dtype)

    def select(self, sentences: torch.Tensor) -> None:
        """Nothing to do: the batch is one sentence."""


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
    """Eq. 1 for all heads, concatenated: `(rows, heads * d_v)`, in the dtype of the query.

    Args:
        query (`torch.Tensor` of shape `(batch, beams, heads, d_k)`).
        keys, values (`torch.Tensor` of shape `(batch, slots, heads, d)`).
        mask (`torch.Tensor` of shape `(batch, 1, beams or 1, slots)`, *optional*): added to the scores.
        scaling (`float`): 1 / sqrt(d_k).
    """
    sentences, beams = query.shape[:2]
    if beams == 1 and sentences >= _MIN_SENTENCES_FOR_SUMS and keys.shape[1] <= _MAX_POSITIONS_FOR_SUMS:
        scores = (keys * (query.float() * scaling)).sum(dim=-1)
        weights = (scores if mask is None else scores + mask[:, 0, 0, :, None]).softmax(dim=1)
        return (values * weights[..., None]).sum(dim=1).flatten(1).to(query.dtype)
    query_by_head, keys, values = (each.transpose(1, 2) for each in (query.float(), keys, values))
    heads = nn.functional.scaled_dot_product_attention(query_by_head, keys, values, attn_mask=mask, scale=scaling)
    return heads.transpose(1, 2).reshape(sentences * beams, -1).to(query.dtype)


def _positions(decoder: Any, begin: int, count: int) -> torch.Tensor:
    """Section 3.5: encodings of `count` positions from `begin` on, `(count, d_model)`; a learned table may give fewer.

    Raises:
        ValueError: if `begin` is beyond a learned table.
    """
    if decoder.config.position_embedding_type == "learned":
        count = max(1, min(count, decoder.config.max_position_embeddings - begin))
    position_ids = torch.arange(begin, begin + count, device="cpu")
    nothing = torch.zeros(count, decoder.config.d_model, dtype=torch.float32, device="cpu")
    return decoder.add_positions(nothing, position_ids, bound=begin + count)
