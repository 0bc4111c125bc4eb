"""This model's weights in other systems, and theirs in this model, one module per system, each with a proof.

`from_marian`, `from_hf_marian`, `from_fsmt` and `from_fairseq` write a trained folder from another system's model,
`to_ctranslate2` and `to_hf_marian` write a model for CTranslate2 and for transformers' Marian; they are imported on
first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from .ctranslate2 import to_ctranslate2
    from .fairseq import from_fairseq
    from .fsmt import from_fsmt
    from .hf_marian import from_hf_marian, to_hf_marian
    from .marian import from_marian

__all__ = ["from_fairseq", "from_fsmt", "from_hf_marian", "from_marian", "to_ctranslate2", "to_hf_marian"]


def __getattr__(name: str) -> Any:
    # A system's module imports what its source needs.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{name.partition('_')[2]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
