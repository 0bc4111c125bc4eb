"""Int8 weights through transformers' own interface: `from_pretrained(folder, quantization_config=Int8Config())`."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING, AUTO_QUANTIZER_MAPPING
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from .packed_linear import Int8Linear


INT8 = "vanilla_transformer_int8"
_SOFTMAX = "lm_head.weight"


@dataclass
class Int8Config(QuantizationConfigMixin):
    """Makes the matrices of all linear layers int8, the one before the softmax included: see [`Int8Linear`].

    Embeddings, biases and norms stay as they are. A matrix that serves as embedding and before the softmax becomes two.
    """

    quant_method: Any = INT8


class Int8Quantizer(HfQuantizer):
    """What transformers calls while it loads a model with [`Int8Config`], or one that was saved so."""

    requires_calibration = False

    def _process_model_before_weight_loading(self, model: Any, **kwargs: Any) -> None:
        if not hasattr(model, "state_dict_to_save"):
            raise ValueError(
                f"Int8Config is for the models of hf_vanilla_transformer, and {type(model).__name__} is not one; take "
                "another quantization_config, such as TorchAoConfig."
            )
        if not self.pre_quantized:
            return
        for name, layer in _layers(model, nn.Linear):
            sizes = layer.in_features, layer.out_features, layer.bias is not None
            model.set_submodule(name, Int8Linear(*sizes, device="meta", dtype=layer.weight.dtype))
        self._untie_softmax(model)

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        if self.pre_quantized:
            for _, layer in _layers(model, Int8Linear):
                layer.weight_scale.requires_grad_(False)
            return model
        devices = set((getattr(model, "hf_device_map", None) or {}).values())
        if len(devices) > 1:
            raise ValueError(
                f"device_map spreads the model over {', '.join(map(str, devices))}, but weights become int8 on one "
                "device; load it without device_map, save it, and load what was saved with device_map."
            )
        for name, layer in _layers(model, nn.Linear):
            model.set_submodule(name, Int8Linear.of(layer))
        self._untie_softmax(model)
        return model

    def _untie_softmax(self, model: Any) -> None:
        """Integers before the softmax are no embeddings any more."""
        self._tied = [
            (keys, keys.pop(_SOFTMAX))
            for keys in (model._tied_weights_keys or {}, model.all_tied_weights_keys)
            if _SOFTMAX in keys
        ]

    def _dequantize(self, model: Any, dtype: Any = None) -> Any:
        for name, layer in _layers(model, Int8Linear):
            model.set_submodule(name, layer.to_linear())
        for keys, source in self._tied:
            keys[_SOFTMAX] = source
        model.tie_weights()
        # Saving a model turns this entry of its configuration into a string.
        return model.to(getattr(torch, dtype) if isinstance(dtype, str) else dtype)

    def get_state_dict_and_metadata(self, model: Any) -> tuple[dict[str, Any] | None, dict[str, str]]:
        """What `save_pretrained` writes: weights, or None for the model's own, and entries of the file's header."""
        return model.state_dict_to_save(), {}

    def is_serializable(self) -> bool:
        """Whether such a model can be saved."""
        return True

    @property
    def is_trainable(self) -> bool:
        """Whether adapters on such a model can be trained; without any, the Trainer refuses."""
        return True


def register_quantizer() -> None:
    """Make `from_pretrained` know [`Int8Config`], and folders saved with it. Registering twice changes nothing.

    What was registered last counts, because a folder's own code has a quantizer of its own.
    """
    AUTO_QUANTIZATION_CONFIG_MAPPING[INT8] = Int8Config
    AUTO_QUANTIZER_MAPPING[INT8] = Int8Quantizer


def _layers(model: Any, kind: type) -> list[tuple[str, Any]]:
    return [(name, module) for name, module in model.named_modules() if type(module) is kind]
