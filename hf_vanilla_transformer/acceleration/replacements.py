"""Replace the model's operations with the faster implementations in this folder."""

from ..model.attention_masks import flash_attention
from ..model.beam_search import top_tokens
from ..model.generation_vanilla_transformer import next_token_steps, search_without_beams
from ..model.modeling_vanilla_transformer import sinusoidal_positions
from ..model.operations import (
    cast_for_matmul,
    cast_once_for_layers,
    cast_weights_once,
    drop,
    linear,
    replace,
    smoothed_cross_entropy_of_states,
)
from .attention import register_attention
from .cpu_search import next_token_steps_on_cpus, search_without_beams_on_cpus
from .flash_attention import flash_attention_with_padding
from .grouped_top_tokens import top_tokens_by_groups
from .int8_quantization import register_quantizer
from .linear_and_dropout import (
    cast_once_for_layers_on_accelerators,
    cast_to_matmul_dtype,
    cast_weights_once_under_autocast,
    fast_drop,
    fast_linear,
)
from .loss_of_states import smoothed_cross_entropy_without_logits
from .position_tables import tabulated_positions


def replace_operations() -> None:
    """Replace the model's plain operations, and register the attention and the int8 quantizer with transformers.

    Importing the package calls this function. Earlier replacements of the same operations are overwritten.
    """
    # The first argument is the plain operation, and the second one takes its place. The order of the calls is
    # arbitrary.
    replace(sinusoidal_positions, tabulated_positions)
    replace(flash_attention, flash_attention_with_padding)
    replace(linear, fast_linear)
    replace(drop, fast_drop)
    replace(cast_for_matmul, cast_to_matmul_dtype)
    replace(cast_once_for_layers, cast_once_for_layers_on_accelerators)
    replace(cast_weights_once, cast_weights_once_under_autocast)
    replace(smoothed_cross_entropy_of_states, smoothed_cross_entropy_without_logits)
    replace(top_tokens, top_tokens_by_groups)
    replace(next_token_steps, next_token_steps_on_cpus)
    replace(search_without_beams, search_without_beams_on_cpus)
    register_attention()
    register_quantizer()
