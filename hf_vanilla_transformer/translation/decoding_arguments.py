"""Define the command-line options for beam search: beam size, length penalty, maximum length and stopping rule."""

from dataclasses import dataclass, fields
from typing import Any, Literal

from ..model.generation_settings import LARGEST_LENGTH_PENALTY
from ..support.argument_checks import check_optional
from ..support.build_arguments import option
from ..support.user_errors import InputError


# Maps each value of --early_stopping to the value that `generate()` expects.
_EARLY_STOPPING: dict[str, bool | str] = {"true": True, "false": False, "never": "never"}


@dataclass
class DecodingArguments:
    """Command-line options that control beam search.

    An option that the user leaves out takes its value from the model's `generation_config`, whose defaults are the
    paper's search settings.
    """

    _argument_group_name = "decoding"

    num_beams: int | None = option(None, "Beam size; 1 is greedy search, the paper's is 4.")
    length_penalty: float | None = option(
        None, "Length penalty; higher values give longer translations (default: the model's)."
    )
    max_new_tokens: int | None = option(None, "Maximum length of a translation (default: the source's length + 50).")
    early_stopping: Literal["true", "false", "never"] | None = option(
        None,
        "When the search of a sentence ends. never, the paper's: when no better translation can be found. "
        "true, which is faster: when as many hypotheses have finished as there are beams. false: when no running "
        "hypothesis could be better by ending now.",
    )

    def __post_init__(self) -> None:
        for name in ("num_beams", "max_new_tokens"):
            check_optional(self, name)
        if self.length_penalty is not None and not abs(self.length_penalty) <= LARGEST_LENGTH_PENALTY:
            raise InputError(
                f"length_penalty is {self.length_penalty}; it must lie between -{LARGEST_LENGTH_PENALTY} and "
                f"{LARGEST_LENGTH_PENALTY}. The paper's is 0.6."
            )

    def generate_kwargs(self) -> dict[str, Any]:
        """Return the options that the user has set, as keyword arguments for `generate()`."""
        arguments: dict[str, Any] = {}
        for field in fields(self):
            setting = getattr(self, field.name)
            if setting is not None:
                arguments[field.name] = setting
        if self.early_stopping is not None:
            # The command line has only strings, but `generate()` expects booleans for "true" and "false". This replaces
            # the string that the loop has put there.
            arguments["early_stopping"] = _EARLY_STOPPING[self.early_stopping]
        return arguments
