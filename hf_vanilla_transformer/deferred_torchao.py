"""Keeps `import hf_vanilla_transformer` from importing torchao.

transformers imports torchao, if it is installed, together with every model class, although only models quantized by
torchao need it; and torchao logs warnings about missing GPU libraries when it is imported. This module imports the
transformers module in question as if torchao were not installed, and makes it import torchao on first use.
"""

import sys
from contextlib import suppress
from importlib import import_module
from typing import Any

from transformers import utils


_QUANTIZER = "transformers.quantizers.quantizer_torchao"
_FLATTEN = "flatten_tensor_state_dict"


def _flatten_tensor_state_dict(*args: Any, **kwargs: Any) -> Any:
    support = import_module("torchao.prototype.safetensors.safetensors_support")
    return getattr(support, _FLATTEN)(*args, **kwargs)


def _is_not_available(*args: Any, **kwargs: Any) -> bool:
    return False


def _import_quantizer() -> None:
    is_available = utils.is_torchao_available
    utils.is_torchao_available = _is_not_available
    try:
        import_module(_QUANTIZER)
    finally:
        # In every module that imported it meanwhile, not only in `utils`.
        for module in list(sys.modules.values()):
            if getattr(module, "__dict__", {}).get("is_torchao_available") is _is_not_available:
                vars(module)["is_torchao_available"] = is_available
    vars(sys.modules[_QUANTIZER])[_FLATTEN] = _flatten_tensor_state_dict


if _QUANTIZER not in sys.modules:
    # Other versions of transformers may have no such module.
    with suppress(ImportError):
        _import_quantizer()
