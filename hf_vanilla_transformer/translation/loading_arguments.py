"""Define the command-line options that choose a model and a device."""

from dataclasses import dataclass
from typing import Any

import torch

from ..support.build_arguments import option
from ..support.user_errors import InputError


@dataclass
class LoadingArguments:
    """Command-line options that name the model to load and the device to load it onto."""

    _argument_group_name = "model"

    model_name_or_path: str = option(..., "The folder of a saved model, or its name on the Hub.")
    revision: str | None = option(None, "Branch, tag or commit of the model on the Hub.")
    token: str | None = option(None, "Access token of the Hub (default: that of `hf auth login`).")
    trust_remote_code: bool = option(False, "Run the code of the model on the Hub, for other architectures.")
    device: str | None = option(None, "cpu, cuda, cuda:1, ... (default: an accelerator).")

    def __post_init__(self) -> None:
        if self.device is not None:
            check_device(self.device)

    def options(self) -> dict[str, Any]:
        """Return the Hub options (revision, token and remote code) as keyword arguments for `from_pretrained`."""
        return {"revision": self.revision, "token": self.token, "trust_remote_code": self.trust_remote_code}


@dataclass
class EnsembleLoadingArguments(LoadingArguments):
    """Command-line options that name one model, or several models to load as an ensemble, and the device."""

    model_name_or_path: list[str] = option(  # type: ignore[assignment]
        ..., "The folder of a saved model, or its name on the Hub; several are an ensemble."
    )


def check_device(name: str) -> None:
    """Raise ValueError if PyTorch does not recognize a device name, or this machine lacks the device."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (AssertionError, NotImplementedError, RuntimeError) as error:
        raise InputError(f"device is {name}, which torch cannot use here; give cpu, or leave it out.") from error
