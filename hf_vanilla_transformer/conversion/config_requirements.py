"""Which configurations another system can hold."""

from typing import Any

from ..model.configuration_vanilla_transformer import VanillaTransformerConfig


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
            raise ValueError(f"{name} is {given!r}, but {system} needs {needed!r}; convert a model with that value.")
