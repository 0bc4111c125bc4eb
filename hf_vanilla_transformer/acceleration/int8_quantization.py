"""Int8 weights through transformers' own interface: `from_pretrained(folder, quantization_config=Int8Config())`."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
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
    """Section 3: x (s W)^T + b, where W holds integers from -127 to 127 and s a scale for each of its rows.

    On CPUs with int8 matmuls, and without gradients, x is quantized too: to 256 levels from min(x, 0) to max(x, 0), or
    to 128 levels where the processor lacks VNNI. The range is that of the whole batch, so each sentence of a batch
    affects how the others are rounded.

    Args:
        in_features, out_features (`int`): columns and rows of W.
        bias (`bool`): whether the layer has b.
        device (`torch.device`, *optional*): of W, s and b.
        dtype (`torch.dtype`, *optional*): of s and b.
    """

    weight_scale: nn.Parameter

    def __init__(self, in_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None):
        nn.Module.__init__(self)
        self.in_features, self.out_features = in_features, out_features
        integers = torch.empty(out_features, in_features, device=device, dtype=torch.int8)
        numbers = torch.empty(2, out_features, device=device, dtype=dtype)
        self.weight = nn.Parameter(integers, requires_grad=False)
        self.weight_scale = nn.Parameter(numbers[0].clone(), requires_grad=False)
        self.register_parameter("bias", nn.Parameter(numbers[1].clone()) if bias else None)

    @classmethod
    @torch.no_grad()
    def from_linear(cls, layer: nn.Linear) -> "Int8Linear":
        """Quantize a layer: the element of largest magnitude in each row of its matrix becomes 127 or -127."""
        weight = layer.weight
        new = cls(layer.in_features, layer.out_features, layer.bias is not None, weight.device, weight.dtype)
        new.weight_scale.copy_(weight.abs().amax(dim=1) / _LARGEST)
        # A row of zeros stays a row of zeros.
        scale = new.weight_scale.float().clamp(min=torch.finfo(torch.float32).tiny)[:, None]
        new.weight.copy_((weight.float() / scale).round().clamp(-_LARGEST, _LARGEST))
        new.bias = layer.bias
        return new.train(layer.training)

    @torch.no_grad()
    def to_linear(self) -> nn.Linear:
        """Dequantize: the linear layer x W'^T + b with W' = s W."""
        weight = self.float_weight()
        sizes = self.in_features, self.out_features, self.bias is not None
        new = nn.utils.skip_init(nn.Linear, *sizes, device=weight.device, dtype=weight.dtype)
        new.weight.copy_(weight)
        new.bias = self.bias
        return new.train(self.training)

    def float_weight(self) -> torch.Tensor:
        """s W, `(out, in)`, in the dtype of s."""
        return self.weight * self.weight_scale[:, None]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`(..., in)` to `(..., out)`."""
        if not torch.is_grad_enabled() and is_plain_cpu_tensor(x) and Int8PackedLinear.can_compute([self]):
            return pack(self)(x)
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return nn.functional.linear(x, self.float_weight().to(x.dtype), bias)


@dataclass
class Int8Config(QuantizationConfigMixin):
    """Quantizes the matrices of all linear layers to int8, the LM head included: see [`Int8Linear`].

    Embeddings, biases and norms keep their dtype. An LM head that is tied to the embeddings is untied.
    """

    quant_method: Any = INT8


class Int8Quantizer(HfQuantizer):
    """transformers calls this class to load a model with [`Int8Config`], or a model that was saved in int8."""

    requires_calibration = False

    def _process_model_before_weight_loading(self, model: Any, **kwargs: Any) -> None:
        if not hasattr(model, "state_dict_to_save"):
            raise InputError(
                f"Int8Config is for the models of hf_vanilla_transformer, and {type(model).__name__} is not one; use "
                "another quantization_config, such as TorchAoConfig."
            )
        if not self.pre_quantized:
            return
        for name, layer in _layers(model, nn.Linear):
            sizes = layer.in_features, layer.out_features, layer.bias is not None
            model.set_submodule(name, Int8Linear(*sizes, device="meta", dtype=layer.weight.dtype))
        self._untie_lm_head(model)

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        if self.pre_quantized:
            for _, layer in _layers(model, Int8Linear):
                layer.weight_scale.requires_grad_(False)
            return model
        devices = set((getattr(model, "hf_device_map", None) or {}).values())
        if len(devices) > 1:
            raise InputError(
                f"device_map spreads the model over {', '.join(map(str, devices))}, but quantization needs one "
                "device; load the model without device_map, save it, and load the saved folder with device_map."
            )
        for name, layer in _layers(model, nn.Linear):
            model.set_submodule(name, Int8Linear.from_linear(layer))
        self._untie_lm_head(model)
        return model

    def _untie_lm_head(self, model: Any) -> None:
        """An LM head of integers cannot share the embeddings' floating-point matrix."""
        self._tied = [
            (keys, keys.pop(_LM_HEAD))
            for keys in (model._tied_weights_keys or {}, model.all_tied_weights_keys)
            if _LM_HEAD in keys
        ]

    def _dequantize(self, model: Any, dtype: Any = None) -> Any:
        for name, layer in _layers(model, Int8Linear):
            model.set_submodule(name, layer.to_linear())
        for keys, source in self._tied:
            keys[_LM_HEAD] = source
        model.tie_weights()
        # Saving a model turns the dtype in its configuration into a string.
        return model.to(getattr(torch, dtype) if isinstance(dtype, str) else dtype)

    def get_state_dict_and_metadata(self, model: Any) -> tuple[dict[str, Any] | None, dict[str, str]]:
        """What `save_pretrained` writes: weights (None: the model's own), and metadata of the file's header."""
        return model.state_dict_to_save(), {}

    def is_serializable(self) -> bool:
        """Quantized models can be saved."""
        return True

    @property
    def is_trainable(self) -> bool:
        """Adapters on a quantized model can be trained; without adapters, the Trainer raises an error."""
        return True


def register_quantizer() -> None:
    """Register [`Int8Config`] with `from_pretrained`, also for folders saved with it. Repeating it changes nothing."""
    AUTO_QUANTIZATION_CONFIG_MAPPING[INT8] = Int8Config
    AUTO_QUANTIZER_MAPPING[INT8] = Int8Quantizer


def _layers(model: Any, kind: type) -> list[tuple[str, Any]]:
    return [(name, module) for name, module in model.named_modules() if type(module) is kind]
