"""Convert models between this package and other systems, and compare each converted model with its source.

Each system has its own module. The `from_` functions read a Marian or fairseq model, either in its original format or
as a transformers model, and write it to a folder in this package's format. `to_ctranslate2` and `to_hf_marian` export a
trained model to CTranslate2, which is an inference engine, and to transformers' `MarianMTModel`. The functions are
imported when they are first used.
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
    # Each module is imported only when it is needed, because it imports the libraries of its system.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # For example, the function from_marian is in the module marian.
    system = name.partition("_")[2]
    return getattr(import_module(f".{system}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
