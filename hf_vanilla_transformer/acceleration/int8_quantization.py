"""Int8 quantization of models with `from_pretrained(folder, quantization_config=Int8Config())`.

Quantization replaces each `nn.Linear` with an `Int8Linear`. A saved model takes about half the space of a float32
model. On CPUs without gradients, the matmuls are computed in int8 as well (`prepacked_weights.Int8PackedLinear`).
docs/precision_and_memory.md ("Quality and speed") and docs/benchmarks.md ("Decoding") report quality and speed.

tests/acceleration/test_int8_quantization.py compares the layers with the formula in NumPy, and models with float32.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING, AUTO_QUANTIZER_MAPPING
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from ..model.input_checks import InputError
from ..model.pretrained_model import INT8
from .fast_path_checks import is_plain_cpu_tensor
from .prepacked_weights import Int8PackedLinear, pack


_LM_HEAD = "lm_head.weight"
# The range of int8 weights is symmetric: -127 to 127.
_LARGEST = 127


class Int8Linear(nn.Linear):
    """A linear layer with int8 weights: x (s W)^T + b, where W holds integers from -127 to 127.

    s holds a scale for each row of W.

    On CPUs with int8 matmuls, and without gradients, x is quantized as well: to 256 levels from min(x, 0) to max(x, 0),
    or to 128 levels if the processor lacks VNNI. The range covers the whole batch, so each sentence of a batch affects
    how the others are rounded.

    Args:
        in_features, out_features (`int`): the numbers of columns and rows of W.
        bias (`bool`): whether the layer has b.
        device (`torch.device`, *optional*): the device of W, s and b.
        dtype (`torch.dtype`, *optional*): the dtype of s and b.
    """

    weight_scale: nn.Parameter

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        # nn.Linear would allocate a floating-point matrix. The tensors below have no values until `from_linear` or
        # transformers fills them.
        nn.Module.__init__(self)
        self.in_features = in_features
        self.out_features = out_features
        integers = torch.empty(out_features, in_features, device=device, dtype=torch.int8)
        scale = torch.empty(out_features, device=device, dtype=dtype)
        self.weight = nn.Parameter(integers, requires_grad=False)
        self.weight_scale = nn.Parameter(scale, requires_grad=False)
        bias_parameter = None
        if bias:
            bias_parameter = nn.Parameter(torch.empty_like(scale))
        self.register_parameter("bias", bias_parameter)

    @classmethod
    @torch.no_grad()
    def from_linear(cls, layer: nn.Linear) -> "Int8Linear":
        """Quantize a linear layer: divide each row of its matrix by a scale, and round the quotients to integers.

        The scale of a row is chosen so that its largest magnitude becomes 127. For example, the row [0.5, -1.27] has
        the scale 0.01 and the integers [50, -127]. The new layer shares the old layer's bias.
        """
        weight = layer.weight
        quantized = cls(
            layer.in_features,
            layer.out_features,
            bias=layer.bias is not None,
            device=weight.device,
            dtype=weight.dtype,
        )
        largest_magnitudes = weight.abs().amax(dim=1)  # (out,)
        # The scale has the dtype of the weight, so it is rounded to 16 bits if that is bfloat16 or float16. The lines
        # below read the rounded scale back from the new layer and divide by it in float32, because the layer will
        # multiply the integers by the rounded scale. Dividing by a more precise scale would add to the error.
        quantized.weight_scale.copy_(largest_magnitudes / _LARGEST)
        # A row of zeros has the scale 0, and is divided by a tiny number instead. Its integers are then 0.
        smallest_divisor = torch.finfo(torch.float32).tiny
        divisors = quantized.weight_scale.float().clamp(min=smallest_divisor)[:, None]  # (out, 1)
        integers = (weight.float() / divisors).round().clamp(-_LARGEST, _LARGEST)  # (out, in)
        quantized.weight.copy_(integers)
        quantized.bias = layer.bias
        return quantized.train(layer.training)

    @torch.no_grad()
    def to_linear(self) -> nn.Linear:
        """Dequantize the layer: return an ordinary linear layer with the matrix s W and the same bias.

        W are the integers, and s is the scale of each row.
        """
        weight = self.float_weight()
        # `skip_init` leaves the new layer's weights uninitialized, because they are replaced below.
        layer = nn.utils.skip_init(
            nn.Linear,
            self.in_features,
            self.out_features,
            bias=self.bias is not None,
            device=weight.device,
            dtype=weight.dtype,
        )
        layer.weight.copy_(weight)
        layer.bias = self.bias
        return layer.train(self.training)

    def float_weight(self) -> Tensor:
        """Return the dequantized matrix s W, `(out, in)`, in the dtype of s."""
        return self.weight * self.weight_scale[:, None]

    def forward(self, x: Tensor) -> Tensor:
        """Compute outputs of shape `(..., out)` from inputs of shape `(..., in)`."""
        # The int8 matmuls have no gradient. With gradients or on other devices, the weights are dequantized.
        if not torch.is_grad_enabled() and is_plain_cpu_tensor(x) and Int8PackedLinear.can_compute([self]):
            return pack(self)(x)
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return nn.functional.linear(x, self.float_weight().to(x.dtype), bias)


@dataclass
class Int8Config(QuantizationConfigMixin):
    """A configuration for `from_pretrained`, which then quantizes all linear layers to int8.

    Pass it as the argument `quantization_config`.

    The LM head is quantized as well, and it is untied if it is tied to the embeddings. Embeddings, biases and norms
    keep their dtype. [`Int8Linear`] has the formula.
    """

    quant_method: Any = INT8


class _RemovedTie(NamedTuple):
    """An entry for the LM head that was removed from a dictionary of tied weights and can be restored.

    Args:
        tied_weights: the dictionary, one of the two that the model may have.
        name_of_embeddings: the name of the weight with which the LM head shared its memory.
    """

    tied_weights: dict[str, str]
    name_of_embeddings: str

    def restore(self) -> None:
        """Put the entry back into the dictionary."""
        self.tied_weights[_LM_HEAD] = self.name_of_embeddings


class Int8Quantizer(HfQuantizer):
    """The quantizer that transformers uses to load a model with [`Int8Config`], or a model that was saved in int8."""

    requires_calibration = False

    def _process_model_before_weight_loading(self, model: PreTrainedModel, **kwargs: Any) -> None:
        """Replace each linear layer with an empty `Int8Linear` if the saved weights are already int8."""
        # All models of this package have this method.
        is_own_model = hasattr(model, "state_dict_to_save")
        if not is_own_model:
            raise InputError(
                f"Int8Config is for the models of hf_vanilla_transformer, and {type(model).__name__} is not one; use "
                "another quantization_config, such as TorchAoConfig."
            )
        if not self.pre_quantized:
            # The model loads floating-point weights, which are quantized after loading.
            return
        for name, linear in _find_layers(model, nn.Linear):
            # The device "meta" allocates no memory. transformers fills the layer when it loads the saved weights.
            empty_layer = Int8Linear(
                linear.in_features,
                linear.out_features,
                bias=linear.bias is not None,
                device="meta",
                dtype=linear.weight.dtype,
            )
            model.set_submodule(name, empty_layer)
        self._untie_lm_head(model)

    def _process_model_after_weight_loading(self, model: PreTrainedModel, **kwargs: Any) -> PreTrainedModel:
        """Quantize each linear layer. If they were saved in int8, only disable the gradients of their scales."""
        if self.pre_quantized:
            for _, layer in _find_layers(model, Int8Linear):
                # transformers enables gradients for all floating-point weights that it loads.
                layer.weight_scale.requires_grad_(False)
            return model
        _check_is_on_one_device(model)
        for name, linear in _find_layers(model, nn.Linear):
            model.set_submodule(name, Int8Linear.from_linear(linear))
        self._untie_lm_head(model)
        return model

    def _untie_lm_head(self, model: PreTrainedModel) -> None:
        """Untie the LM head from the embeddings, because integers cannot share a floating-point matrix.

        The model has up to two dictionaries of tied weights: from the name of a weight to the name of the weight with
        which it shares its memory, for example from "lm_head.weight" to "model.shared.weight". This method removes the
        LM head from both, in place. `self._removed_ties` remembers what was removed, so that `_dequantize` can restore
        it.
        """
        self._removed_ties: list[_RemovedTie] = []
        dictionaries = [model.all_tied_weights_keys]
        if model._tied_weights_keys:
            dictionaries.append(model._tied_weights_keys)
        for tied_weights in dictionaries:
            if _LM_HEAD in tied_weights:
                name_of_embeddings = tied_weights.pop(_LM_HEAD)
                self._removed_ties.append(_RemovedTie(tied_weights, name_of_embeddings))

    def _dequantize(self, model: PreTrainedModel, dtype: torch.dtype | str | None = None) -> PreTrainedModel:
        """Replace each `Int8Linear` with a floating-point linear layer, and tie the LM head again."""
        for name, layer in _find_layers(model, Int8Linear):
            model.set_submodule(name, layer.to_linear())
        # When the model was loaded, `_untie_lm_head` removed the LM head from the model's dictionaries of tied weights,
        # and stored what it removed in this list. The list is empty if the LM head was not tied.
        for removed_tie in self._removed_ties:
            removed_tie.restore()
        # This reads the restored entries, and needs an LM head that is a floating-point layer again.
        model.tie_weights()
        if isinstance(dtype, str):
            # Saving a model turns the dtype in its configuration into a string.
            dtype = getattr(torch, dtype)
        return model.to(dtype)  # type: ignore[arg-type]

    def get_state_dict_and_metadata(self, model: Any) -> tuple[dict[str, Tensor] | None, dict[str, str]]:
        """Return the weights that `save_pretrained` saves, and empty metadata.

        If the weights are None, `save_pretrained` saves the model's own `state_dict()`.
        """
        return model.state_dict_to_save(), {}

    def is_serializable(self) -> bool:
        """Return True, because quantized models can be saved."""
        return True

    @property
    def is_trainable(self) -> bool:
        """True, because adapters can be trained on top of a quantized model.

        Without adapters, the Trainer raises an error.
        """
        return True


def register_quantizer() -> None:
    """Register [`Int8Config`] with transformers, so that `from_pretrained` accepts it and can load int8 models.

    Calling this again changes nothing.
    """
    AUTO_QUANTIZATION_CONFIG_MAPPING[INT8] = Int8Config
    AUTO_QUANTIZER_MAPPING[INT8] = Int8Quantizer


_LayerClass = TypeVar("_LayerClass", bound=nn.Linear)


def _find_layers(model: nn.Module, layer_class: type[_LayerClass]) -> list[tuple[str, _LayerClass]]:
    """Return the names and the modules of all layers whose class is exactly `layer_class`, not a subclass of it.

    The result is a list, so the caller may replace the layers while it iterates over them.
    """
    return [(name, module) for name, module in model.named_modules() if type(module) is layer_class]


def _check_is_on_one_device(model: PreTrainedModel) -> None:
    """Raise InputError if transformers has spread a model over several devices."""
    # transformers sets this attribute if the model was loaded with a `device_map`.
    device_map = getattr(model, "hf_device_map", None) or {}
    devices = set(device_map.values())
    if len(devices) > 1:
        raise InputError(
            f"device_map spreads the model over {', '.join(map(str, devices))}, but quantization needs one device; "
            "load the model without device_map, save it, and load the saved folder with device_map."
        )
