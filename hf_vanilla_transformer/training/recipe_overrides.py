"""Merge the arguments of a recipe with those that a user gave."""

from collections.abc import Mapping
from typing import Any

from ..data.pair_arguments import resolve_side


# Arguments that supersede arguments of a recipe under other names, because both together would contradict each other.
_SUPERSEDED_ARGUMENTS = {
    # If both are set, the Trainer prefers the number of updates to the number of epochs.
    "num_train_epochs": ("max_steps",),
    # With validation pairs of the user's own, no training pairs are held out.
    "validation_file": ("validation_size",),
    # The tokens of an update are divided into batches that fit into memory, whatever batches the recipe has.
    "tokens_per_update": ("tokens_per_batch", "gradient_accumulation_steps"),
}


def override_recipe(recipe: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a recipe, overridden by those that the user gave.

    An argument of the user also removes the recipe's arguments that it would contradict. For example, the recipe's
    number of updates is removed if the user gives a number of epochs, and its languages are removed if the user gives
    text files whose names end in no languages; see [`resolve_side`].
    """
    removed_names: set[str] = set()
    for argument, superseded_names in _SUPERSEDED_ARGUMENTS.items():
        if arguments.get(argument):
            removed_names.update(superseded_names)
    if resolve_side("source", arguments, recipe).declared_language is None:
        removed_names.add("source_lang")
    if resolve_side("target", arguments, recipe).declared_language is None:
        removed_names.add("target_lang")

    merged_arguments = {name: value for name, value in recipe.items() if name not in removed_names}
    merged_arguments.update(arguments)
    return merged_arguments
