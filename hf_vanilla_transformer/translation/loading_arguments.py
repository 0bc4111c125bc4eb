"""Which model to load, and where to."""

from dataclasses import dataclass, field
from typing import Any

import torch


_OF_THE_HUB = "of the model on the Hub"


@dataclass
class LoadingArguments:
    """The model to load, and where to load it."""

    _argument_group_name = "model"

    model_name_or_path: str = field(metadata={"help": "The folder of a saved model, or its name on the Hub."})
    revision: str | None = field(default=None, metadata={"help": f"Branch, tag or commit {_OF_THE_HUB}."})
    token: str | None = field(
        default=None, metadata={"help": "Access token of the Hub; by default the one that `hf auth login` stored."}
    )
    trust_remote_code: bool = field(
        default=False, metadata={"help": f"Run the code {_OF_THE_HUB}, for models of other architectures."}
    )
    device: str | None = field(
        default=None, metadata={"help": "cpu, cuda, cuda:1, ...; by default the accelerator if torch finds one."}
    )

    def __post_init__(self) -> None:
        if self.device is not None:
            check_device(self.device)

    def options(self) -> dict[str, Any]:
        """Keyword arguments for `from_pretrained`."""
        return {"revision": self.revision, "token": self.token, "trust_remote_code": self.trust_remote_code}


def check_device(name: str) -> None:
    """Raise ValueError if torch does not know a device, or does not find it on this machine."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (AssertionError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"device is {name}, which torch cannot use here; give cpu, or leave it out.") from error
