"""Which configurations another system can hold."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from transformers import PretrainedConfig

from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..support.user_errors import InputError


def require(config: VanillaTransformerConfig, system: str, **fields: Any) -> None:
    """Check that a configuration has the values that a system needs.

    Args:
        config (`VanillaTransformerConfig`): of the model to convert.
        system (`str`): its name in the error.
        **fields: names of fields or properties of the configuration, and the values that the system needs. Equal
            widths of all heads are always needed.

    Raises:
        ValueError: if a value differs.
    """
    width = config.d_model // config.num_heads
    for name, needed in {"key_dim": width, "value_dim": width, **fields}.items():
        given = getattr(config, name)
        if given != needed:
            raise InputError(f"{name} is {given!r}, but {system} needs {needed!r}; convert a model with that value.")


def check_config(kind: type[PretrainedConfig], folder: Path, needed: Mapping[str, Any]) -> None:
    """Raise ValueError naming what this model cannot hold of one of transformers, by its class of configurations."""
    fields, _ = kind.get_config_dict(folder)
    config: Any = kind.from_dict(fields)
    heads = {"decoder_attention_heads": config.encoder_attention_heads}
    refuse(folder, unlike(fields, needed) + unlike(config.to_dict(), heads))


def refuse(source: object, unfit: Iterable[tuple[str, Any, str]], hint: str = "") -> None:
    """Raise ValueError if there are unfit fields (name, value, what it must be in words), with a hint on what to do."""
    fields = "; ".join(f"{name} is {given!r}, but must be {needed}" for name, given, needed in unfit)
    if fields:
        raise InputError(f"{source} cannot be converted: {fields}.{hint and ' '}{hint}")


def unlike(fields: Mapping[str, Any], needed: Mapping[str, Any]) -> list[tuple[str, Any, str]]:
    """Fields that have other values than needed, for `refuse`; one that is missing has the value that is needed."""
    return [(name, fields[name], repr(value)) for name, value in needed.items() if fields.get(name, value) != value]
