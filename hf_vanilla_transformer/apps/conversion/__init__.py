"""Convert models between this package and other systems, and prove that the result is equal to its source.

There is one module for each system. `from_marian`, `from_hf_marian`, `from_fsmt` and `from_fairseq` write a trained
folder from a different system's model. `to_ctranslate2` and `to_hf_marian` write a model for CTranslate2, and for
transformers' Marian class. The functions are imported when they are first used.
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
    # Imported late, because the module of a system imports the libraries that its source needs.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # from_marian is in the module marian, and so on.
    system = name.partition("_")[2]
    return getattr(import_module(f".{system}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
