"""A trained folder on the Hub: whether this process may push there, and one commit with all of its files."""

from fnmatch import fnmatchcase
from pathlib import Path

from huggingface_hub import CommitOperation, CommitOperationAdd, CommitOperationDelete, HfApi, ModelCard, ModelCardData
from huggingface_hub.errors import HfHubHTTPError, HTTPError, LocalTokenNotFoundError

from .folder import FILES_OF_A_RUN, files_of_a_run


# A pickle, which stock pushes during the training send along.
_NOT_TO_SHARE = "training_args.bin"


def prepare_repository(
    name: str,
    metadata: ModelCardData,
    *,
    token: str | None = None,
    private: bool | None = None,
    revision: str | None = None,
) -> str:
    """Make sure, before hours of training, that a model can be pushed; make its repository if there is none.

    Args:
        name (`str`): `"name"` or `"user/name"`.
        metadata (`ModelCardData`): of the model card that will be pushed.
        token (`str`, *optional*): instead of the one of `hf auth login` or of the environment variable `HF_TOKEN`.
        private (`bool`, *optional*): of a repository that is made; as the user's settings say if None.
        revision (`str`, *optional*): branch to push to, made if need be; `"main"` if None.

    Returns:
        `str`: `"user/name"`.

    Raises:
        ConnectionError: if the Hub cannot be reached.
        PermissionError: if there is no token, the Hub does not know it, or it may not write there.
        ValueError: if the Hub does not take such a card, for example because it does not know the licence.
    """
    api = HfApi(token=token)
    tokens_page = f"{api.endpoint}/settings/tokens"
    try:
        api.whoami()
        _check_metadata(metadata)
        repo_id = api.create_repo(name, private=private, exist_ok=True).repo_id
        api.auth_check(repo_id, write=True)
        if revision is not None:
            api.create_branch(repo_id, branch=revision, exist_ok=True)
    except LocalTokenNotFoundError as error:
        raise PermissionError(
            f"there is no token to push to {name} with; make one with the right to write at {tokens_page}, then run "
            "`hf auth login` or set HF_TOKEN."
        ) from error
    except HfHubHTTPError as error:
        if error.response.status_code == 401:
            raise PermissionError(
                f"the Hub does not know the token to push to {name} with; make one with the right to write at "
                f"{tokens_page}, then run `hf auth login` or set HF_TOKEN."
            ) from error
        if error.response.status_code == 403:
            raise PermissionError(
                f"the token may not write to {name}; make one that may at {tokens_page}, or name another repository."
            ) from error
        raise ConnectionError(f"the Hub refuses {name}: {describe_error(error)}") from error
    except (ConnectionError, HTTPError) as error:
        raise ConnectionError(
            f"the Hub cannot be reached to push to {name} ({describe_error(error)}); check the network and "
            "HF_HUB_OFFLINE, or train without pushing."
        ) from error
    return repo_id


def _check_metadata(metadata: ModelCardData) -> None:
    try:
        ModelCard(f"---\n{metadata.to_yaml()}\n---\n").validate()
    except HTTPError:
        # Clients before 2.0 ask huggingface.co, whatever HF_ENDPOINT says, and it may be out of reach.
        return
    except ValueError as error:
        raise ValueError(f"the Hub refuses the model card's metadata: {' '.join(str(error).split())}") from error


def push_run(folder: Path, repo_id: str, *, message: str, token: str | None = None, revision: str | None = None) -> str:
    """Push a trained folder in one commit: model, code, tokenizer, card and scores; no checkpoints, no pickles.

    Files of an earlier run that this one does not have, but for a card, are removed in the same commit.

    Args:
        folder (`Path`): what `scripts/train.py` wrote.
        repo_id (`str`): `"user/name"` of a repository that is there.
        message (`str`): of the commit.
        token (`str`, *optional*): see [`prepare_repository`].
        revision (`str`, *optional*): branch, made if need be; `"main"` if None.

    Returns:
        `str`: the commit's address.

    Raises:
        ValueError: if the folder holds no model.
    """
    files = {path.name: path for path in files_of_a_run(folder) if path.name != _NOT_TO_SHARE}
    if "config.json" not in files or not any(name.endswith(".safetensors") for name in files):
        raise ValueError(f"{folder} holds no model (config.json and weights); name the folder of a trained one.")
    api = HfApi(token=token)
    if revision is not None:
        api.create_branch(repo_id, branch=revision, exist_ok=True)
    there = set(api.list_repo_files(repo_id, revision=revision)) - files.keys() - {"README.md"}
    stale = [name for name in sorted(there) if any(fnmatchcase(name, pattern) for pattern in FILES_OF_A_RUN)]
    operations: list[CommitOperation] = [CommitOperationDelete(name) for name in stale]
    operations += [CommitOperationAdd(name, path) for name, path in files.items()]
    return api.create_commit(repo_id, operations, commit_message=message, revision=revision).commit_url


def describe_error(error: BaseException) -> str:
    """The first line of an error, or of the one that caused it where that says more."""
    cause = error.__cause__
    first = str(error).strip().split("\n")[0] or type(error).__name__
    return f"{first} {describe_error(cause)}" if cause is not None and isinstance(error, RuntimeError) else first
