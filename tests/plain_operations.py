"""Run this process as one without the package: with the plain operations, which saved folders carry.

`pytest --plain-operations` and `python -m tests.conformance.run --plain-operations` do so.
"""


def use_plain_operations() -> None:
    """Undo what importing the package replaces; int8 weights stay, because they need the package anyway."""
    from transformers import AttentionInterface, AttentionMaskInterface

    import hf_vanilla_transformer  # noqa: F401  Importing it again replaces nothing again.
    from hf_vanilla_transformer.model import operations
    from hf_vanilla_transformer.model.pretrained_model import ATTENTION

    operations._REPLACEMENTS.clear()
    for interface in (AttentionInterface, AttentionMaskInterface):
        interface._global_mapping.pop(ATTENTION)
