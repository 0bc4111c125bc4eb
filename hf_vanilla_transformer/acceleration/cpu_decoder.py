"""A fast implementation of the decoder for CPUs, which computes one token per hypothesis in each step.

In greedy search, sampling and beam search, `CPUDecoder` replaces the model's own modules if `generate()` returns only
token ids; `cpu_search` checks the conditions. It reads the weights of the modules. For one sentence of 15 tokens and
the base model in float32, a step takes 10.7 ms instead of 21.4 ms with 4 beams, and 12.3 ms instead of 14.8 ms with one
beam (docs/benchmarks.md, "Without the package"). It is faster for three reasons:

- Weights are packed (`prepacked_weights`), and projections with the same input are computed as one matmul.
- The beams of a sentence share one KV cache. Each hypothesis has a slot per position, and a mask lets it attend to the
  slots of its own past. Reordering beams therefore changes the mask and moves no keys or values. Slots that no
  hypothesis attends to are dropped from time to time.
- The encoder's output is projected once per sentence instead of once per beam.

tests/generation/test_step.py compares the logits with the model's modules. Axes of tensors are named as in
`modeling_vanilla_transformer.py`; there are batch * beams rows, and the hypotheses of a sentence are adjacent rows.
"""

import math

import torch
from torch import Tensor, nn

from ..model import modeling_vanilla_transformer
from ..model.modeling_vanilla_transformer import (
    VanillaTransformerAttention,
    VanillaTransformerDecoder,
    VanillaTransformerDecoderLayer,
    VanillaTransformerForConditionalGeneration,
)
from ..model.pretrained_model import ATTENTION
from .attention import make_additive_mask
from .fast_path_checks import is_unmodified
from .int8_quantization import Int8Linear
from .prepacked_weights import pack, read_float_weight


# The KV cache grows by at most _SLOTS_PER_GROWTH slots per sentence, in whole positions of one slot per beam, but by at
# least _MIN_POSITIONS_PER_GROWTH positions. Growing copies the cache, so it should be rare.
_SLOTS_PER_GROWTH = 32
_MIN_POSITIONS_PER_GROWTH = 8
# Positional encodings are computed for this many positions at a time.
_POSITIONS_PER_ENCODING = 32
# With one query per sentence, at least this many sentences and at most this many positions, elementwise products and
# sums over the cache are faster than torch's fused attention. Both numbers were chosen by timing decoding steps on one
# thread of an AMD EPYC with AVX-512; the measurements were not kept.
_MIN_SENTENCES_FOR_SUMS = 16
_MAX_POSITIONS_FOR_SUMS = 128
# For other dtypes, such as float64, the model's modules are called.
_SUPPORTED_DTYPES = {torch.float32, torch.bfloat16, torch.float16}
# Attention implementations that compute Eq. 1 and nothing else. With others, the modules are called.
_ATTENTION_IMPLEMENTATIONS = (ATTENTION, "sdpa")
# Classes of torch and of this package whose computation the decoder repeats, besides those in the model's file.
_KNOWN_CLASSES = (nn.Linear, Int8Linear, nn.LayerNorm, nn.Embedding, nn.ModuleList, nn.ReLU)
_MODEL_FILE = modeling_vanilla_transformer.__name__


def supports_cpu_decoder(model: VanillaTransformerForConditionalGeneration) -> bool:
    """Return True if [`CPUDecoder`] computes the same logits as the model's modules.

    The model must be on a CPU and in evaluation mode, and gradients and autocast must be off. None of its modules may
    be hooked, monkeypatched, parametrized or replaced by a different class.
    """
    # All of these conditions must hold. The cheap ones come first.
    if model.training or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
        return False
    if model.config._attn_implementation not in _ATTENTION_IMPLEMENTATIONS:
        return False
    if model.config.activation_function != "relu":
        return False

    decoder = model.get_decoder()
    # The modules whose `forward` the decoder replaces. The encoder is not among them, because its output is passed in.
    modules = [model, model.base_model, model.lm_head, *decoder.modules()]
    if not all(map(_is_unmodified_layer, modules)):
        return False
    for layer in decoder.layers:
        if not (_matches_config(layer.self_attn) and _matches_config(layer.encoder_attn)):
            return False
    return _have_supported_weights(modules)


def _have_supported_weights(modules: list[nn.Module]) -> bool:
    """Return True if all weights are on CPUs, and all floating-point weights have one dtype that is supported."""
    dtypes = set()
    for module in modules:
        # Each module is asked only for its own weights, without those of its submodules.
        for weight in module.parameters(recurse=False):
            if weight.device.type != "cpu":
                return False
            dtypes.add(weight.dtype)
    # The integers of an `Int8Linear` have scales and biases in a floating-point dtype.
    dtypes.discard(torch.int8)
    return len(dtypes) == 1 and dtypes <= _SUPPORTED_DTYPES


def _is_unmodified_layer(module: nn.Module) -> bool:
    """Return True if a module belongs to a known class, is unmodified, and is in evaluation mode."""
    module_class = type(module)
    is_known = module_class.__module__ == _MODEL_FILE or module_class in _KNOWN_CLASSES
    return is_known and is_unmodified(module) and not module.training


def _matches_config(attention: VanillaTransformerAttention) -> bool:
    """Return True if an attention layer has all of its heads, and its projections can be computed as one matmul.

    Tensor parallelism and pruning leave fewer heads than the configuration says. Projections can be computed as one
    matmul if they belong to one class, and if all or none of them have a bias.
    """
    key_width = attention.config.num_heads * attention.key_dim
    value_width = attention.config.num_heads * attention.value_dim
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    widths = [projection.out_features for projection in projections]
    has_all_heads = widths == [key_width, key_width, value_width]

    classes = {type(projection) for projection in projections}
    # Both values are in this set if some projections have a bias and others do not.
    have_bias = {projection.bias is not None for projection in projections}
    are_alike = len(classes) == 1 and len(have_bias) == 1
    return has_all_heads and are_alike


class CPUDecoder:
    """The decoder, the output projection and the KV cache of one `generate()` call, implemented for CPUs.

    This class has the methods and attributes of [`~.generation_vanilla_transformer.NextTokenSteps`], and replaces it.

    Args:
        model (`VanillaTransformerForConditionalGeneration`): a model for which [`supports_cpu_decoder`] returns True.
        states (`torch.Tensor` of shape `(batch, source, d_model)`): the encoder's output.
        mask (`torch.Tensor` of shape `(batch, source)`, *optional*): 1 for real source tokens, 0 for padding.
        num_beams (`int`): the number of hypotheses per sentence.
    """

    can_prune = True

    def __init__(
        self,
        model: VanillaTransformerForConditionalGeneration,
        states: Tensor,
        mask: Tensor | None,
        num_beams: int,
    ):
        self._decoder: VanillaTransformerDecoder = model.get_decoder()
        # Part of the interface of `NextTokenSteps`. It stays empty, because this decoder returns only logits.
        self.outputs: dict[str, object] = {}

        # The encoder's output, (batch, source, d_model), and its mask, (batch, source), which is 1 for real tokens. The
        # mask is None if the caller has passed none, or if the batch is a single sentence, whose padding is removed if
        # it has any real token.
        source_states, source_mask = _remove_padding_of_single_sentence(states, mask)
        # The same mask as values that are added to the scores of cross-attention, (batch, 1, 1, source): 0 for real
        # tokens, and very negative for padding. It is None if there is no padding.
        self._source_mask = None
        if source_mask is not None and not source_mask.all():
            may_attend = source_mask.bool()[:, None, None]  # (batch, 1, 1, source)
            self._source_mask = make_additive_mask(may_attend, torch.float32)

        # The KV caches begin with slots for this many positions, and grow by as many. A position has one slot per beam.
        # For example, 4 beams give 32 // 4 = 8 positions, i.e. 32 slots. With 8 beams, 32 // 8 = 4 positions would be
        # fewer than the minimum of 8, so there are 8 positions, i.e. 64 slots. The mask and the caches of all layers
        # must have the same number of slots, so they get the same numbers here.
        new_positions = max(_SLOTS_PER_GROWTH // num_beams, _MIN_POSITIONS_PER_GROWTH)
        # Says which slots of the KV caches each hypothesis attends to. All layers share it.
        self._slots = _SlotMask(len(source_states), new_positions, num_beams)
        # The constructor of a layer only checks whether `source_mask` is None. The values that are added to the scores,
        # `self._source_mask`, are passed in each call.
        self._layers = [
            _Layer(layer, source_states, source_mask, num_beams, new_positions) for layer in self._decoder.layers
        ]
        self._lm_head = pack(model.lm_head)

        # The number of positions that were decoded so far.
        self._length = 0
        # The positional encodings of these positions and of some later ones, (positions, d_model).
        self._position_encodings = _encode_positions(self._decoder, begin=0, count=_POSITIONS_PER_ENCODING)

    def __call__(self, input_ids: Tensor) -> Tensor:
        """Compute the logits of the next token, `(rows, vocabulary)`, and add the newest tokens to the KV caches.

        Args:
            input_ids (`torch.LongTensor` of shape `(rows, length)`): hypotheses, each with one more token than in the
                previous call.
        """
        # This comes before everything else, because it makes sure that the encoding and the slots of the newest token's
        # position exist. Without it, once they are used up, the lines below would read beyond the encodings, or write
        # beyond the caches. Then three counts advance by one position: `self._length`, the used slots in `self._slots`,
        # and the filled positions in the caches of each layer. The last two may count fewer positions, because unneeded
        # slots are dropped.
        self._make_room_for_position()
        newest_tokens = input_ids[:, -1]  # (rows,)
        # Positions count from 0, so the position of the newest token is the number of earlier ones.
        position = self._length
        x = self._embed(newest_tokens, self._position_encodings[position])  # (rows, d_model)
        self._length = position + 1
        # This counts the slots of the new position as used. It comes before the layers, because each of them adds the
        # position to its caches and also attends to it, so it needs a mask that includes it.
        past_mask = self._slots.add_position()  # (batch, 1, beams, used_slots) or None
        for layer in self._layers:
            x = layer(x, past_mask, self._source_mask)
        return self._lm_head(self._decoder.normalize_output(x))

    def _make_room_for_position(self) -> None:
        """Make sure that the next position has free slots in the KV caches, one per beam, and a positional encoding."""
        if self._slots.all_are_used():
            # `select` drops the slots that no hypothesis needs, and adds free ones. Here, it keeps every sentence.
            every_sentence = torch.arange(self._slots.batch_size(), device="cpu")
            self.select(every_sentence)
        if self._length == len(self._position_encodings):
            more_encodings = _encode_positions(self._decoder, begin=self._length, count=_POSITIONS_PER_ENCODING)
            self._position_encodings = torch.cat([self._position_encodings, more_encodings])

    def _embed(self, tokens: Tensor, position_encoding: Tensor) -> Tensor:
        """Embed each row's token, `(rows,)`, at one position: sqrt(d_model) E + PE (sections 3.4 and 3.5).

        `position_encoding`, `(d_model,)`, is in float32. Returns `(rows, d_model)` in the dtype of the embeddings.
        """
        embeds = self._decoder.look_up(tokens, None)  # (rows, d_model)
        d_model = embeds.shape[1]
        # torch.add(a, b, alpha=s) computes a + s b.
        return torch.add(position_encoding, embeds.float(), alpha=d_model**0.5).to(embeds.dtype)

    def reorder(self, rows: Tensor) -> None:
        """Reorder the hypotheses, so that each of them continues the hypothesis that beam search has chosen for it.

        Args:
            rows (`torch.LongTensor` of shape `(rows,)`): hypothesis i continues the hypothesis in row `rows[i]`, which
                belongs to the same sentence.
        """
        self._slots.reorder(rows)

    def select(self, sentences: Tensor) -> None:
        """Keep only the given sentences, and drop cache slots to which none of their hypotheses attends.

        A slot holds the keys and values of one position of one hypothesis.

        Args:
            sentences (`torch.LongTensor` of shape `(selected,)`): indices of the sentences to keep.
        """
        # The slots to keep, (selected, slots), and the number of positions whose slots are used. All others are free.
        # The mask and the caches of all layers must drop the same slots.
        kept_slots, num_positions = self._slots.select(sentences)
        for layer in self._layers:
            layer.select(sentences, kept_slots, num_positions)
        if self._source_mask is not None:
            self._source_mask = self._source_mask[sentences]


class _SlotMask:
    """The mask that determines which slots of the KV caches each hypothesis attends to.

    A new position gets one slot per beam in each sentence, and the hypothesis in a beam stores its keys and values in
    its own slot. If a hypothesis continues a different beam, it attends to the slots of that beam's past.

    Args:
        batch_size (`int`): the number of sentences.
        new_positions (`int`): the number of positions for which there are slots at first, and for which free slots are
            added later.
        num_beams (`int`): the number of hypotheses per sentence.
    """

    def __init__(self, batch_size: int, new_positions: int, num_beams: int):
        self._num_beams = num_beams
        # The mask of `new_positions` positions that are still free, (1, 1, beams, new_positions * beams).
        self._mask_of_free_slots = _make_mask_of_free_slots(num_beams, new_positions)
        # Added to the scores of self-attention, (batch, 1, beams, slots): 0 where a hypothesis attends to a slot, or
        # will attend to it once it is used, and very negative elsewhere.
        self._mask = self._mask_of_free_slots.repeat(batch_size, 1, 1, 1)
        # The first slots of each sentence are used, and the others are free.
        self._num_used_slots = 0

    def batch_size(self) -> int:
        """Return the number of sentences."""
        return len(self._mask)

    def all_are_used(self) -> bool:
        """Return True if there is no free slot for the next position."""
        return self._num_used_slots == self._mask.shape[3]

    def add_position(self) -> Tensor | None:
        """Use the free slots of one more position, and return the mask of all used slots.

        Returns:
            `torch.Tensor` of shape `(batch, 1, beams, used_slots)`, which is added to the scores; None if there is one
            beam, because a single hypothesis attends to all used slots.
        """
        self._num_used_slots += self._num_beams
        if self._num_beams == 1:
            return None
        return self._mask[..., : self._num_used_slots]

    def reorder(self, rows: Tensor) -> None:
        """Let each hypothesis attend to the used slots of the hypothesis that it continues.

        A slot holds the keys and values of one position of one hypothesis. In `self._mask`, `(batch, 1, beams, slots)`,
        it has 0 for the hypotheses that attend to it, and a very negative number for the others. The axis of size 1
        stands for the heads, which all have the same mask.

        Args:
            rows (`torch.LongTensor` of shape `(rows,)`): hypothesis i continues the hypothesis in row `rows[i]`, which
                belongs to the same sentence.
        """
        if self._num_beams == 1:
            # Each hypothesis continues itself.
            return
        # Find the beam that each hypothesis continues, within its sentence. The rows of a sentence are adjacent, in the
        # order of its beams, so beam b of sentence s is in row s * beams + b, and the remainder of a division by the
        # number of beams is b. For example, with 2 beams, rows = [1, 0, 2, 2] has the beams [1, 0] for sentence 0, and
        # [0, 0] for sentence 1.
        rows_by_sentence = rows.view(-1, 1, self._num_beams, 1)  # (batch, 1, beams, 1)
        continued_beams = rows_by_sentence % self._num_beams

        # Copy the mask of the continued beam. `gather` needs an index for each element of its result, so `expand_as`
        # repeats the beam for all slots. For sentence s, beam i and slot t, `gather` along axis 2, the beams, reads
        # used_mask[s, 0, continued_beams[s, 0, i, 0], t].
        used_mask = self._mask[..., : self._num_used_slots]  # (batch, 1, beams, used_slots)
        reordered_mask = used_mask.gather(2, continued_beams.expand_as(used_mask))
        # `used_mask` is a view, so this changes `self._mask`. `reordered_mask` is a copy, so the order of writing does
        # not matter.
        used_mask.copy_(reordered_mask)

    def select(self, sentences: Tensor) -> tuple[Tensor, int]:
        """Keep only the given sentences, drop the slots that none of their hypotheses needs, and add free slots.

        A slot holds the keys and values of one position of one hypothesis. The slots of a sentence are either used or
        free, i.e. for later positions. A used slot is needed if at least one hypothesis attends to it. Afterwards, each
        sentence has its needed slots, perhaps some masked ones, and then the free slots.

        For example, one sentence has 2 beams and 3 positions, so slots 0 to 5 are used. If both hypotheses attend to
        slots 0 and 2, and each attends to its own slot of the last position, 4 or 5, the needed slots are [0, 2, 4, 5].
        They become slots 0 to 3, which is the size of 2 positions, and free slots follow.

        Args:
            sentences (`torch.LongTensor` of shape `(selected,)`): indices of the sentences to keep.

        Returns:
            The slots that the caches must keep, `(selected, slots)`: first the used slots, then arbitrary ones in the
            place of free slots; and the number of positions whose slots are used.
        """
        # The mask has the used slots first.
        selected_mask = self._mask[sentences]  # (selected, 1, beams, slots)
        used_mask = selected_mask[..., : self._num_used_slots]  # (selected, 1, beams, used_slots)
        # The indices of the slots to keep, (selected, needed_slots), where needed_slots = num_positions * beams.
        needed_slots, num_positions = _find_needed_slots(used_mask)

        # Copy the mask of the needed slots, (selected, 1, beams, needed_slots): `gather` along axis 3, the slots, reads
        # the same slots for all beams of a sentence. So the indices become (selected, 1, 1, needed_slots), and `expand`
        # repeats them for each beam; -1 leaves an axis as it is.
        needed_slots_by_beam = needed_slots[:, None, None].expand(-1, -1, self._num_beams, -1)
        mask_of_needed_slots = used_mask.gather(3, needed_slots_by_beam)
        # (selected, 1, beams, free_slots)
        mask_of_free_slots = self._mask_of_free_slots.expand(len(sentences), -1, -1, -1)
        self._mask = torch.cat([mask_of_needed_slots, mask_of_free_slots], dim=3)
        # The masked slots among `needed_slots` count as used, because the next position comes after them.
        self._num_used_slots = needed_slots.shape[1]

        # The caches get as many free slots as the mask. Their content does not matter, so slot 0 is copied into them.
        # For example, [3, 5] with two free slots becomes [3, 5, 0, 0].
        num_free_slots = self._mask_of_free_slots.shape[3]
        kept_slots = nn.functional.pad(needed_slots, (0, num_free_slots), value=0)
        return kept_slots, num_positions


def _make_mask_of_free_slots(num_beams: int, num_positions: int) -> Tensor:
    """Make the mask of free slots, `(1, 1, beams, slots)`: each hypothesis will attend only to its own slots.

    Slots are ordered by position, and by beam within a position.
    """
    is_own_slot_at_position = torch.eye(num_beams, dtype=torch.bool, device="cpu")  # (beams, beams)
    is_own_slot = is_own_slot_at_position.repeat(1, num_positions)  # (beams, slots)
    return make_additive_mask(is_own_slot[None, None], torch.float32)


def _find_needed_slots(additive_mask: Tensor) -> tuple[Tensor, int]:
    """Find the used slots that at least one hypothesis attends to.

    A slot holds the keys and values of one position of one hypothesis, so a position has one slot per beam.

    Sentences may need different numbers of slots, but the result has the same number for each: the largest, rounded up
    to whole positions of one slot per beam. Sentences that need fewer get other slots in addition, which stay masked.

    For example, a sentence has 2 beams and 4 slots. Beam 0 attends to slots 0 and 2, and beam 1 to slots 0 and 3. Then
    3 slots are needed: 0, 2 and 3. This is rounded up to 2 positions, i.e. 4 slots, so the result is [0, 2, 3, 1] and
    2. No beam attends to slot 1, which only fills the last place.

    Args:
        additive_mask (`torch.Tensor` of shape `(batch, 1, beams, slots)`): the values that are added to the scores of
            the used slots: 0 where a hypothesis attends to a slot, and very negative elsewhere.

    Returns:
        The indices of the slots, `(batch, positions * beams)`, with the needed slots first and in their order; and the
        number of positions.
    """
    num_beams = additive_mask.shape[2]
    is_attended = additive_mask[:, 0] == 0  # (batch, beams, slots)
    is_needed = is_attended.any(dim=1)  # (batch, slots)
    most_needed_slots = int(is_needed.sum(dim=1).max())
    # For example, with 4 beams, 9 needed slots are rounded up to 3 positions, which have 12 slots.
    num_positions = math.ceil(most_needed_slots / num_beams)
    num_kept_slots = num_positions * num_beams
    # The indices of all slots, with the needed ones first: a sort in descending order moves True, as 1, to the front,
    # and a stable sort keeps the order among equal values. For example, if `is_needed` is [False, True, False, True],
    # the indices are [1, 3, 0, 2].
    needed_slots_first = is_needed.int().argsort(dim=1, descending=True, stable=True)  # (batch, slots)
    return needed_slots_first[:, :num_kept_slots], num_positions


class _Layer:
    """One decoder layer (section 3.1) with its cached keys and values. Each call processes one position."""

    def __init__(
        self,
        layer: VanillaTransformerDecoderLayer,
        states: Tensor,
        mask: Tensor | None,
        num_beams: int,
        new_positions: int,
    ):
        """Pack the layer's weights, and compute the cross-attention keys and values from the encoder's output.

        Args:
            layer (`VanillaTransformerDecoderLayer`): the model's layer.
            states (`torch.Tensor` of shape `(batch, source, d_model)`): the encoder's output.
            mask (`torch.Tensor` of shape `(batch, source)`, *optional*): 1 for real source tokens.
            num_beams (`int`): the number of hypotheses per sentence.
            new_positions (`int`): the number of positions for which the cache has slots at first.
        """
        self_attention = layer.self_attn
        batch_size = len(states)
        self._num_heads = self_attention.config.num_heads
        self._num_beams = num_beams
        self._scaling = self_attention.scaling

        # `pack` returns an object that is called like a layer. Its method `relu` also applies a ReLU to the output, and
        # `plus` adds a residual connection. One matmul computes query, key and value, which `__call__` splits by their
        # widths.
        projections = (self_attention.q_proj, self_attention.k_proj, self_attention.v_proj)
        self._project_inputs = pack(*projections)
        self._query_key_value_widths = [projection.out_features for projection in projections]
        self._project_heads = pack(self_attention.out_proj)
        self._key_cache = _SlotCache(batch_size, new_positions, num_beams, self._num_heads, self_attention.key_dim)
        self._value_cache = _SlotCache(batch_size, new_positions, num_beams, self._num_heads, self_attention.value_dim)
        self._self_attention_norm = layer.self_attn_layer_norm

        self._cross_attention = _make_cross_attention(layer.encoder_attn, states, mask, num_beams)
        self._cross_attention_norm = layer.encoder_attn_layer_norm

        self._fc1 = pack(layer.fc1)
        self._fc2 = pack(layer.fc2)
        self._final_norm = layer.final_layer_norm

    def __call__(self, x: Tensor, past_mask: Tensor | None, source_mask: Tensor | None) -> Tensor:
        """Compute the layer's output for one position of every hypothesis, `(rows, d_model)`.

        The new position is stored in the caches of self-attention.

        Args:
            x (`torch.Tensor` of shape `(rows, d_model)`): the layer's input.
            past_mask (`torch.Tensor` of shape `(batch, 1, beams, slots)`, *optional*): added to the scores of
                self-attention.
            source_mask (`torch.Tensor` of shape `(batch, 1, 1, source)`, *optional*): added to the scores of
                cross-attention.
        """
        # Each is (rows, heads * d), where rows = batch * beams.
        queries, keys, values = self._project_inputs(x).split(self._query_key_value_widths, dim=-1)
        queries_by_head = _split_heads(queries, self._num_heads, self._num_beams)  # (batch, beams, heads, d)
        keys_by_head = _split_heads(keys, self._num_heads, self._num_beams)
        values_by_head = _split_heads(values, self._num_heads, self._num_beams)

        # This stores the new position in the caches, and returns the keys and values of all positions so far,
        # (batch, slots, heads, d). They include the new position, because a token also attends to itself.
        past_keys = self._key_cache.append(keys_by_head)
        past_values = self._value_cache.append(values_by_head)
        heads = _attend(queries_by_head, past_keys, past_values, past_mask, self._scaling)  # (rows, heads * d)

        # There are three sublayers, each of which computes LayerNorm(x + Sublayer(x)) (section 3.1). The output of a
        # sublayer becomes x, the input of the next one. First, self-attention ends with the output projection: a packed
        # layer's `plus(a, x)` computes x + a W^T + b.
        x = self._self_attention_norm(self._project_heads.plus(heads, x))
        # `add_attention` computes x + Sublayer(x) for the attention to the source, including all projections.
        x = self._cross_attention_norm(self._cross_attention.add_attention(x, source_mask))
        # The feed-forward network (Eq. 2): a packed layer's `relu(x)` computes max(0, x W^T + b).
        hidden = self._fc1.relu(x)
        return self._final_norm(self._fc2.plus(hidden, x))

    def select(self, sentences: Tensor, slots: Tensor, positions: int) -> None:
        """Keep only the given sentences and slots; see [`_SlotCache.select`] for the arguments."""
        self._key_cache.select(sentences, slots, positions)
        self._value_cache.select(sentences, slots, positions)
        self._cross_attention.select(sentences)


def _make_cross_attention(
    attention: VanillaTransformerAttention, states: Tensor, mask: Tensor | None, num_beams: int
) -> "_Cross | _SingleSentenceCross":
    """Make the cross-attention of a layer. A faster class is used for one short sentence without padding.

    `states` is the encoder's output, `(batch, source, d_model)`. `mask` is 1 for its real tokens, or None if all are.
    """
    batch_size, source_length, d_model = states.shape
    has_single_unpadded_sentence = batch_size == 1 and mask is None
    # With _SingleSentenceCross, generate() of 32 tokens by the base model is 9 to 14 % faster for a source of 5 tokens,
    # up to 10 % for 15, and no faster for 30 (one thread of an AMD EPYC with AVX-512, float32 and bfloat16). Its
    # matrices, (source * heads, d_model), are smaller than the projections, (d_model, d_model), up to this length.
    is_short = attention.config.num_heads * source_length <= d_model
    if has_single_unpadded_sentence and is_short:
        return _SingleSentenceCross(attention, states)
    return _Cross(attention, states, num_beams)


class _SlotCache:
    """A cache for the keys or values of all hypotheses, as one tensor of shape `(batch, slots, heads, d)`.

    The tensor is in float32, because attention in bfloat16 is slower on CPUs, and takes a small share of a step.
    """

    def __init__(self, batch_size: int, new_positions: int, num_beams: int, num_heads: int, head_dim: int):
        self._num_beams = num_beams
        num_slots = new_positions * num_beams
        cache = torch.empty(batch_size, num_slots, num_heads, head_dim, dtype=torch.float32, device="cpu")
        self._store(cache, positions=0)

    def _store(self, cache: Tensor, positions: int) -> None:
        """Set the tensor that holds the cache, and the number of filled positions."""
        # (batch, slots, heads, d), where a position has one slot per beam
        self._cache = cache
        self._num_filled_positions = positions
        # One view of the cache per position, (batch, beams, heads, d). They are created here, so that `append` need not
        # create one at each step.
        self._slots_by_position = cache.unflatten(1, (-1, self._num_beams)).unbind(1)

    def append(self, new: Tensor) -> Tensor:
        """Append one position, `(batch, beams, heads, d)`, and return all used slots, `(batch, slots, heads, d)`.

        The cache must have free slots. [`CPUDecoder`] makes sure of this before each position.
        """
        # `_slots_by_position` holds views of the cache, so this writes into the cache, and casts to float32.
        self._slots_by_position[self._num_filled_positions].copy_(new)
        self._num_filled_positions += 1
        num_used_slots = self._num_filled_positions * self._num_beams
        return self._cache[:, :num_used_slots]

    def select(self, sentences: Tensor, slots: Tensor, positions: int) -> None:
        """Keep only the given sentences, and only the given slots of each sentence.

        A slot holds the keys, or the values, of one position of one hypothesis.

        Args:
            sentences (`torch.LongTensor` of shape `(selected,)`): indices of the sentences to keep.
            slots (`torch.LongTensor` of shape `(selected, new_slots)`): the slots to keep, in their new order.
            positions (`int`): the number of filled positions. The first `positions * beams` slots are used, and the
                others are free. The next call of `append` writes into the first free ones.
        """
        # Each slot of a sentence becomes a row of one long list, so that a single number selects it. `self._cache` has
        # the shape (batch, slots, heads, d). For example, with 8 slots per sentence, slot 3 of sentence 2 is row
        # 2 * 8 + 3 = 19.
        cache_rows = self._cache.flatten(0, 1)  # (batch * slots, heads, d)
        slots_per_sentence = self._cache.shape[1]
        first_rows = sentences[:, None] * slots_per_sentence  # the row of each sentence's slot 0, (selected, 1)
        # The row of each slot to keep, (selected, new_slots).
        rows = first_rows + slots
        # `index_select` needs indices with one axis. So the two axes of `rows` become one, and the result gets both of
        # them back: (selected, new_slots, heads, d).
        selected_rows = cache_rows.index_select(0, rows.flatten())  # (selected * new_slots, heads, d)
        self._store(selected_rows.unflatten(0, rows.shape), positions)


class _Cross:
    """Cross-attention with keys and values that are computed only once, when the object is created.

    They are computed from the encoder's output, `(batch, source, d_model)`.
    """

    def __init__(self, attention: VanillaTransformerAttention, states: Tensor, num_beams: int):
        self._num_heads = attention.config.num_heads
        self._num_beams = num_beams
        self._scaling = attention.scaling
        self._project_query = pack(attention.q_proj)
        self._project_heads = pack(attention.out_proj)
        # (batch, source, heads, d)
        self._keys, self._values = _project_source(attention, states)
        source_length = states.shape[1]
        if source_length > _MAX_POSITIONS_FOR_SUMS:
            # `_attend` then uses torch's fused attention, which reads each head faster if it is contiguous.
            self._keys = _make_heads_contiguous(self._keys)
            self._values = _make_heads_contiguous(self._values)

    def add_attention(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Compute x + Sublayer(x), `(rows, d_model)`. `mask`, `(batch, 1, 1, source)`, is added to the scores."""
        query = _split_heads(self._project_query(x), self._num_heads, self._num_beams)  # (batch, beams, heads, d_k)
        heads = _attend(query, self._keys, self._values, mask, self._scaling)  # (rows, heads * d_v)
        return self._project_heads.plus(heads, x)

    def select(self, sentences: Tensor) -> None:
        """Keep only the sentences with the given indices, `(selected,)`."""
        self._keys = self._keys[sentences]
        self._values = self._values[sentences]


class _SingleSentenceCross:
    """Cross-attention for one short sentence without padding, with two small matmuls per step.

    Head i computes softmax(x A_i + a_i) B_i with A_i = W_i^Q K_i^T / sqrt(d_k), a_i = b_i^Q K_i^T / sqrt(d_k) and
    B_i = V_i W_i^O. These matrices are computed once, and are smaller than the projections. The attention weights of a
    head sum to 1, so each B_i includes 1 / h of the output bias.
    """

    def __init__(self, attention: VanillaTransformerAttention, states: Tensor):
        """Multiply the projections by the sentence's keys and values, which stay the same in all steps.

        A step then computes softmax(x A + a) B for all heads at once, with two matmuls instead of a query projection,
        the products with keys and values, and an output projection. The attributes are

        - `_score_weight`, `(heads * source, d_model)`: the transpose of A = [A_1, A_2, ...], because a linear layer
          multiplies by the transpose of its weight;
        - `_score_bias`, `(heads * source,)`: a = [a_1, a_2, ...], or None if the query projection has no bias;
        - `_output_weight`, `(heads * source, d_model)`: B, which is B_1, B_2 and so on below each other.

        With S source tokens, index h * S + j belongs to head h and source token j, where both count from 0. For example
        with 5 tokens, index 12 belongs to head 2 and token 2.

        Args:
            attention (`VanillaTransformerAttention`): the attention layer.
            states (`torch.Tensor` of shape `(1, source, d_model)`): the encoder's output.
        """
        num_heads = attention.config.num_heads
        source_length = states.shape[1]
        source_keys, source_values = _project_source(attention, states)  # (1, source, heads, d)
        # Without the axis of the batch, which has one sentence, (heads, source, d).
        keys = source_keys[0].transpose(0, 1)
        values = source_values[0].transpose(0, 1)

        # The transpose of A, and a, which give the scores of all heads, (rows, heads * source), for the layer's input,
        # (rows, d_model).
        self._score_weight, self._score_bias = _combine_queries_and_keys(attention, keys)
        # B, which gives the layer's output, (rows, d_model), for the attention weights of all heads,
        # (rows, heads * source).
        self._output_weight = _combine_values_and_outputs(attention, values)
        # The shape into which `add_attention` divides a row of heads * source scores, because the softmax is computed
        # for each head.
        self._heads_and_source = (num_heads, source_length)

    def add_attention(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Compute x + Sublayer(x), `(rows, d_model)`. The sentence has no padding, so `mask` is None."""
        x_float32 = x.float()
        scores = nn.functional.linear(x_float32, self._score_weight, self._score_bias)  # (rows, heads * source)
        weights = scores.unflatten(1, self._heads_and_source).softmax(dim=-1)  # (rows, heads, source)
        # addmm(a, b, c) computes a + b c, (rows, d_model).
        return torch.addmm(x_float32, weights.flatten(1), self._output_weight).to(x.dtype)

    def select(self, sentences: Tensor) -> None:
        """Do nothing, because the batch has only one sentence."""


def _combine_queries_and_keys(attention: VanillaTransformerAttention, keys: Tensor) -> tuple[Tensor, Tensor | None]:
    """Multiply the query projection by the keys, so that one linear map computes all scores from the layer's input.

    For an input x, `(1, d_model)`, a head with the query projection W, `(d_k, d_model)`, and b, `(d_k,)`, and with the
    keys K, `(source, d_k)`, computes the scores (x W^T + b) K^T / sqrt(d_k), `(1, source)`. Because W^T K^T = (K W)^T,
    this is a linear layer with the weight K W / sqrt(d_k), `(source, d_model)`, and the bias K b / sqrt(d_k).

    The weights of all heads are put below each other. With S source tokens, row h * S + j of the weight and of the bias
    computes the score of head h for source token j. For example with 5 tokens, row 12 belongs to head 2 and token 2.
    The scores need no further scaling.

    Args:
        attention: the attention layer.
        keys: the keys of a sentence, `(heads, source, d_k)`.

    Returns:
        The weights of all heads, `(heads * source, d_model)`, and their biases, `(heads * source,)`, or None if the
        query projection has no bias.
    """
    num_heads = attention.config.num_heads
    # The factor 1 / sqrt(d_k) is part of the keys, so it is in the matrix and in the bias below.
    scaled_keys = keys * attention.scaling  # (heads, source, d_k)
    # The first d_k rows of the weight belong to the first head, the next d_k rows to the second, and so on.
    query_weight = read_float_weight(attention.q_proj).float()  # (heads * d_k, d_model)
    query_weight_by_head = query_weight.unflatten(0, (num_heads, -1))  # (heads, d_k, d_model)
    # `@` multiplies the matrices of each head: (source, d_k) @ (d_k, d_model) = (source, d_model).
    score_weight_by_head = scaled_keys @ query_weight_by_head  # (heads, source, d_model)
    # Joining the first two axes puts the S rows of head h at h * S to h * S + S - 1.
    score_weight = score_weight_by_head.flatten(0, 1)  # (heads * source, d_model)

    query_bias = attention.q_proj.bias
    if query_bias is None:
        return score_weight, None
    query_bias_by_head = query_bias.float().view(num_heads, -1, 1)  # (heads, d_k, 1)
    score_bias_by_head = scaled_keys @ query_bias_by_head  # (heads, source, 1)
    return score_weight, score_bias_by_head.flatten()


def _combine_values_and_outputs(attention: VanillaTransformerAttention, values: Tensor) -> Tensor:
    """Multiply the values by the output projection, so that one matrix computes the output from attention weights.

    A head with the attention weights p, `(1, source)`, and the values V, `(source, d_v)`, adds p V W^T to the layer's
    output, where W, `(d_model, d_v)`, are the columns of the output projection that belong to this head. V W^T,
    `(source, d_model)`, does not depend on p, so it is computed here. With S source tokens, row h * S + j of the result
    belongs to head h and source token j.

    The bias b is part of the result: b / heads is added to each row. The weights p of a head sum to 1, so a head adds
    b / heads to the layer's output, and all heads together add b.

    Args:
        attention: the attention layer.
        values: the values of a sentence, `(heads, source, d_v)`.

    Returns:
        The matrices of all heads, `(heads * source, d_model)`, which include the bias of the output projection.
    """
    num_heads = attention.config.num_heads
    d_model = attention.config.d_model
    output_weight = read_float_weight(attention.out_proj).float()  # (d_model, heads * d_v)
    # The first d_v columns of the weight belong to the first head, the next d_v columns to the second, and so on. So
    # `view` divides the columns by head. `permute` then transposes the matrix of each head, and puts the heads first.
    columns_by_head = output_weight.view(d_model, num_heads, -1)  # (d_model, heads, d_v)
    transposed_by_head = columns_by_head.permute(1, 2, 0)  # W^T of each head, (heads, d_v, d_model)
    # `@` multiplies the matrices of each head: (source, d_v) @ (d_v, d_model) = (source, d_model).
    outputs_by_head = values @ transposed_by_head  # (heads, source, d_model)
    output_bias = attention.out_proj.bias
    if output_bias is not None:
        # (d_model,), added to each of the rows
        outputs_by_head = outputs_by_head + output_bias.float() / num_heads
    return outputs_by_head.flatten(0, 1)


def _project_source(attention: VanillaTransformerAttention, states: Tensor) -> tuple[Tensor, Tensor]:
    """Compute cross-attention keys and values, both `(batch, source, heads, d)` in float32, from encoder states.

    `states` has the shape `(batch, source, d_model)`.
    """
    num_heads = attention.config.num_heads
    key_width = attention.k_proj.out_features
    value_width = attention.v_proj.out_features
    # One matmul computes the keys and values of each source token.
    project_keys_and_values = pack(attention.k_proj, attention.v_proj)
    rows = project_keys_and_values(states.flatten(0, 1))  # (batch * source, key_width + value_width)
    projected = rows.unflatten(0, states.shape[:2]).float()  # (batch, source, key_width + value_width)
    keys, values = projected.split([key_width, value_width], dim=-1)
    # The two parts of a split are views that are not contiguous, so they are copied.
    keys_by_head = keys.contiguous().unflatten(-1, (num_heads, -1))
    values_by_head = values.contiguous().unflatten(-1, (num_heads, -1))
    return keys_by_head, values_by_head


def _make_heads_contiguous(x: Tensor) -> Tensor:
    """Copy a tensor `(batch, source, heads, d)` so that each head is contiguous in memory. The shape stays the same."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def _split_heads(projected: Tensor, num_heads: int, num_beams: int) -> Tensor:
    """Reshape projections from `(rows, heads * d)` to `(batch, beams, heads, d)`."""
    head_dim = projected.shape[-1] // num_heads
    return projected.view(-1, num_beams, num_heads, head_dim)


def _attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
    """Compute attention (Eq. 1) and concatenate the heads: `(rows, heads * d_v)`, in the query's dtype.

    Args:
        query (`torch.Tensor` of shape `(batch, beams, heads, d_k)`): one position of every hypothesis.
        keys, values (`torch.Tensor` of shape `(batch, slots, heads, d)`): the cache of each sentence. In
            self-attention, a slot belongs to one position of one hypothesis, and in cross-attention to a source token.
        mask (`torch.Tensor` of shape `(batch, 1, beams or 1, slots)`, *optional*): added to the scores.
        scaling (`float`): 1 / sqrt(d_k).
    """
    # Both branches set `heads` to the output of attention, (batch, beams, heads, d_v). Which of them runs depends only
    # on their speed: sums are faster for many sentences with one query each and few slots.
    batch_size, num_beams = query.shape[:2]
    num_slots = keys.shape[1]
    has_many_single_queries = num_beams == 1 and batch_size >= _MIN_SENTENCES_FOR_SUMS
    # With one beam, there is one slot per position.
    if has_many_single_queries and num_slots <= _MAX_POSITIONS_FOR_SUMS:
        heads = _attend_by_sums(query.float(), keys, values, mask, scaling)
    else:
        # torch's fused attention takes and returns (batch, heads, length, d), so axes 1 and 2 are exchanged before and
        # after it. The length is the number of beams for the query, and the number of slots for keys and values.
        heads = nn.functional.scaled_dot_product_attention(
            query.float().transpose(1, 2),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            attn_mask=mask,
            scale=scaling,
        )
        heads = heads.transpose(1, 2)  # (batch, beams, heads, d_v)
    return heads.reshape(batch_size * num_beams, -1).to(query.dtype)


def _attend_by_sums(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
    """Compute attention (Eq. 1) for one hypothesis per sentence, by elementwise products and sums instead of matmuls.

    A slot is a target position in self-attention, and a source token in cross-attention.

    Args:
        query (`torch.FloatTensor` of shape `(batch, 1, heads, d_k)`): one position of each hypothesis.
        keys (`torch.FloatTensor` of shape `(batch, slots, heads, d_k)`): the cached keys.
        values (`torch.FloatTensor` of shape `(batch, slots, heads, d_v)`): the cached values.
        mask (`torch.FloatTensor` of shape `(batch, 1, 1, slots)`, *optional*): added to the scores.
        scaling (`float`): 1 / sqrt(d_k).

    Returns:
        `torch.FloatTensor` of shape `(batch, 1, heads, d_v)`.
    """
    scaled_query = query * scaling  # (batch, 1, heads, d_k)
    products = keys * scaled_query  # (batch, slots, heads, d_k)
    scores = products.sum(dim=-1)  # (batch, slots, heads)
    if mask is not None:
        mask_of_slots = mask.flatten(1)  # (batch, slots)
        scores = scores + mask_of_slots.unsqueeze(-1)
    weights = scores.softmax(dim=1)  # (batch, slots, heads)
    weighted_values = values * weights.unsqueeze(-1)  # (batch, slots, heads, d_v)
    return weighted_values.sum(dim=1, keepdim=True)


def _remove_padding_of_single_sentence(states: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Remove the padding if the batch has one sentence, which then needs no mask. Return the states and the mask.

    Args:
        states (`torch.Tensor` of shape `(batch, source, d_model)`): the encoder's output.
        mask (`torch.Tensor` of shape `(batch, source)`, *optional*): 1 for real source tokens, 0 for padding.
    """
    is_single_sentence = len(states) == 1
    # A sentence that consists only of padding stays as it is, because attention needs at least one token.
    if is_single_sentence and mask is not None and mask.any():
        is_real_token = mask[0].bool()  # (source,)
        return states[:, is_real_token], None
    return states, mask


def _encode_positions(decoder: VanillaTransformerDecoder, begin: int, count: int) -> Tensor:
    """Compute the positional encodings (section 3.5) of up to `count` positions, starting at `begin`.

    Returns:
        `torch.Tensor` of shape `(count, d_model)`, or fewer rows at the end of a learned table.

    Raises:
        ValueError: if `begin` is beyond a learned table.
    """
    end = begin + count
    if decoder.config.position_embedding_type == "learned":
        end = min(end, decoder.config.max_position_embeddings)
        if end <= begin:
            # The table has no row for `begin`. Look it up nevertheless, so that `add_positions` raises its ValueError.
            end = begin + 1
    position_ids = torch.arange(begin, end, device="cpu")
    # `add_positions` computes Dropout(sqrt(d_model) E + PE) for embeddings E. With E = 0, in float32 and in evaluation
    # mode, which has no dropout, this is PE itself.
    zero_embeds = torch.zeros(end - begin, decoder.config.d_model, dtype=torch.float32, device="cpu")
    return decoder.add_positions(zero_embeds, position_ids, bound=end)
