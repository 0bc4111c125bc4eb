"""Merge a recipe, i.e. a named set of run arguments, with the arguments that the user has given."""

from collections.abc import Mapping
from typing import Any

from ..data.pair_arguments import Side, resolve_side


# Maps an argument that a user may give to recipe arguments with other names that would contradict it.
_SUPERSEDED_ARGUMENTS = {
    # If both are set, the Trainer ignores the number of epochs.
    "num_train_epochs": ("max_steps",),
    # If the user gives validation pairs, no training pairs are held out.
    "validation_file": ("validation_size",),
    # The tokens of an update are divided into batches that fit into memory, so the recipe's batches do not apply.
    "tokens_per_update": ("tokens_per_batch", "gradient_accumulation_steps"),
}


def override_recipe(recipe: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe's arguments, overridden by the arguments that the user has given.

    A given argument also removes recipe arguments that would contradict it. For example, a given number of epochs
    removes the recipe's number of updates.
    """
    removed_names = _find_superseded(arguments) | _find_languages_of_other_pairs(recipe, arguments)
    merged_arguments = {name: value for name, value in recipe.items() if name not in removed_names}
    merged_arguments.update(arguments)
    return merged_arguments


def _find_superseded(arguments: Mapping[str, Any]) -> set[str]:
    """Return the names of the recipe arguments that given arguments supersede."""
    superseded: set[str] = set()
    for argument, superseded_names in _SUPERSEDED_ARGUMENTS.items():
        if arguments.get(argument):
            superseded.update(superseded_names)
    return superseded


def _find_languages_of_other_pairs(recipe: Mapping[str, Any], arguments: Mapping[str, Any]) -> set[str]:
    """Return the names of the language arguments of a recipe that do not apply to the pairs that the user gives.

    For example, a recipe has the source language "en", but the user gives the files a.txt and b.txt, which may be in
    any language. [`resolve_side`] decides whether a language applies.
    """
    sides: tuple[Side, ...] = ("source", "target")
    names: set[str] = set()
    for side in sides:
        # The language that the user gives, or else the recipe's language if it applies, or else None.
        declared_language = resolve_side(side, arguments, recipe).declared_language
        if declared_language is None:
            names.add(f"{side}_lang")
    return names
