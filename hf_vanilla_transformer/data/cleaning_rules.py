"""Name the rules by which `clean_pairs` removes training pairs. This module does not import `datasets`."""

from collections.abc import Sequence

from ..support.user_errors import InputError


# The rules in the order in which they are applied. `clean_pairs` describes them.
CLEANING_RULES = (
    "duplicates",
    "identical sides",
    "empty on one side",
    "in the test or validation pairs",
    "long lines",
    "length ratio",
)


def check_rules(names: Sequence[str]) -> None:
    """Raise InputError unless `names` is a list of names of cleaning rules."""
    if isinstance(names, str):
        raise InputError(f"give a list of cleaning rules, such as [{names!r}], instead of one string.")
    for name in names:
        if name not in CLEANING_RULES:
            raise InputError(f"there is no cleaning rule {name!r}; the rules are {', '.join(CLEANING_RULES)}.")
