"""Which system a source comes from."""

from pathlib import Path

from transformers import PreTrainedConfig

from ..support.user_errors import InputError


# By `model_type` of a config.json, and by the ending of files of weights.
_MODEL_TYPES = {"marian": "hf_marian", "fsmt": "fsmt"}
_ENDINGS = {".npz": "marian", ".pt": "fairseq"}


def recognize(source: str, revision: str | None = None, token: str | None = None) -> str:
    """The system of a source, by its config.json and the names of its files; no weights are read.

    Args:
        source (`str`): a folder, a file of weights, or a name on the Hub.
        revision, token (`str`, *optional*): of the repository on the Hub.

    Raises:
        FileNotFoundError: if there is no such source.
        ValueError: if it is of none of these systems, or of several.
    """
    path = Path(source)
    names = sorted(each.name for each in path.iterdir()) if path.is_dir() else [path.name]
    found = {_ENDINGS[suffix] for name in names if (suffix := Path(name).suffix) in _ENDINGS and path.exists()}
    model_type = None
    if "config.json" in names or not path.exists():
        model_type = _model_type(source, revision=revision, token=token)
    if model_type in _MODEL_TYPES:
        found.add(_MODEL_TYPES[model_type])
    if not found:
        raise InputError(
            f"{source} has no .npz (marian), no .pt (fairseq), and no config.json whose model_type is "
            f"{' or '.join(_MODEL_TYPES)}{f', but {model_type}' if model_type else ''}; nothing else can be converted."
        )
    if len(found) > 1:
        raise InputError(f"{source} holds models of {' and '.join(sorted(found))}; choose one of them with --from.")
    return found.pop()


def _model_type(source: str, **options: str | None) -> str | None:
    try:
        fields, _ = PreTrainedConfig.get_config_dict(source, **options)
    except (OSError, ValueError) as error:
        if Path(source).exists():
            raise InputError(f"the config.json of {source} cannot be read: {error}") from error
        raise FileNotFoundError(f"there is no folder {source}, and the Hub answered: {error}") from error
    return fields.get("model_type")
