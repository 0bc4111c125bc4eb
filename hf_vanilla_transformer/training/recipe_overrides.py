"""Merge a recipe, i.e. a named set of run arguments, with the arguments that the user has given."""

from collections.abc import Mapping
from typing import Any

from ..data.pair_arguments import resolve_side


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

    A given argument also removes recipe arguments that would contradict it:

    - If the user gives a number of epochs, the recipe's number of updates is removed.
    - If the user gives text files whose names do not end in languages, the recipe's languages are removed; see
      [`resolve_side`].
    - `_SUPERSEDED_ARGUMENTS` lists the other cases.
    """
    removed_names: set[str] = set()
    for argument, superseded_names in _SUPERSEDED_ARGUMENTS.items():
        if arguments.get(argument):
            removed_names.update(superseded_names)
    # `resolve_side` decides whether the recipe's languages apply to the given pairs. Its `declared_language` is the
    # language that the user gives, or else the recipe's language if it applies, or else None. In the last case, the
    # recipe's language must not be used, so it is removed here. For example, the recipe has the source language "en"
    # and names no files, but the user gives the files a.txt and b.txt, which may be in any language. If the recipe has
    # no language, nothing is removed.
    if resolve_side("source", arguments, recipe).declared_language is None:
        removed_names.add("source_lang")
    if resolve_side("target", arguments, recipe).declared_language is None:
        removed_names.add("target_lang")

    merged_arguments = {name: value for name, value in recipe.items() if name not in removed_names}
    merged_arguments.update(arguments)
    return merged_arguments
