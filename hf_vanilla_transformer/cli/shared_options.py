"""Options that several verbs share: the engine, and the token budget of inference."""

from dataclasses import dataclass, field

from ..support.argument_checks import check_number


_ENGINES = ("torch", "ctranslate2")


@dataclass
class EngineArguments:
    """The runtime that computes."""

    _argument_group_name = "engine"

    engine: str = field(
        default="torch", metadata={"help": '"torch", or "ctranslate2", which needs the extra ctranslate2 and a CPU.'}
    )
    compute_type: str | None = field(
        default=None, metadata={"help": "Of ctranslate2: float32, the default, or bfloat16, int8, ..."}
    )

    def __post_init__(self) -> None:
        if self.engine not in _ENGINES:
            raise ValueError(f'engine is "{self.engine}"; choose one of {", ".join(_ENGINES)}.')
        if self.compute_type is not None and self.engine == "torch":
            raise ValueError(f"compute_type is {self.compute_type}, but has no effect without --engine ctranslate2.")


@dataclass
class BatchArguments:
    """The token budget of inference."""

    _argument_group_name = "batches"

    tokens_per_batch: int = field(
        default=4096, metadata={"help": "Maximum number of tokens in a batch, padding included."}
    )

    def __post_init__(self) -> None:
        check_number("tokens_per_batch", self.tokens_per_batch, 1)
