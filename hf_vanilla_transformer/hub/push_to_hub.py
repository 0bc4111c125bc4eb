"""Push a trained folder to the Hub: check permissions first, then one commit with all files."""

import os
import re
from pathlib import Path

from huggingface_hub import HfApi, ModelCard, ModelCardData
from huggingface_hub.errors import HfHubHTTPError, HTTPError, LocalTokenNotFoundError

from ..support.atomic_files import write_text
from ..support.user_errors import InputError
from .model_folder import FILES_OF_A_RUN, NOT_TO_SHARE, check_links, files_of_a_run


# The example of `model_card.md`; other code in the card may be of other models.
_EXAMPLE = re.compile(
    r"(# This runs the code in the folder: read it first\.\ntokenizer = AutoTokenizer)\.from_pretrained\(.*\)\n"
    r"(model = AutoModelForSeq2SeqLM)\.from_pretrained\(.*\)\n"
)


def prepare_repository(
    name: str,
    metadata: ModelCardData,
    *,
    token: str | None = None,
    private: bool | None = None,
    revision: str | None = None,
) -> str:
    """Check, before hours of training, that a model can be pushed; create its repository if it does not exist.

    The name may lack the user; returns `"user/name"`. Defaults are the token of `hf auth login` or `HF_TOKEN`, the
    visibility that the user set on the Hub, and the branch `"main"`; another branch is created if it does not exist.

    Raises:
        ConnectionError: if the Hub cannot be reached.
        PermissionError: if there is no token, or the Hub rejects it, or it has no write access.
        ValueError: if the Hub rejects the metadata, for example because it does not know the licence; or if the
            repository exists and is public, although `private` is set.
    """
    api = HfApi(token=token)
    page = f"{api.endpoint}/settings/tokens"
    advice = f"create one with write access at {page}, then run `hf auth login` or set HF_TOKEN."
    try:
        api.whoami()
        _check_metadata(metadata)
        repo_id = api.create_repo(name, private=private, exist_ok=True).repo_id
        api.auth_check(repo_id, write=True)
        if private and not api.model_info(repo_id).private:
            raise InputError(
                f"{repo_id} is public, although hub_private_repo is set; make it private at {api.endpoint}/{repo_id}/"
                "settings, name another repository, or leave hub_private_repo out."
            )
        if revision is not None:
            api.create_branch(repo_id, branch=revision, exist_ok=True)
    except LocalTokenNotFoundError as error:
        raise PermissionError(f"there is no token to push to {name}; {advice}") from error
    except HfHubHTTPError as error:
        if error.response.status_code == 401:
            raise PermissionError(f"the Hub rejects the token to push to {name}; {advice}") from error
        if error.response.status_code == 403:
            raise PermissionError(
                f"the token has no write access to {name}; create one at {page}, or name another repository."
            ) from error
        raise ConnectionError(f"the Hub rejects {name}: {describe_error(error)}") from error
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
        # Clients before 2.0 ask huggingface.co, not HF_ENDPOINT, and it may be unreachable.
        return
    except ValueError as error:
        raise InputError(f"the Hub rejects the model card's metadata: {' '.join(str(error).split())}") from error


def push_run(
    folder: str | os.PathLike[str], repo_id: str, *, message: str, token: str | None = None, revision: str | None = None
) -> str:
    """Push a trained folder in one commit: model, code, tokenizer, card and scores; no checkpoints, no pickles.

    The same commit removes files of an earlier run that this run does not have, except its card. The example of the
    folder's card then names the repository, because its own name may be another repository's on the Hub.

    Args:
        folder (`str` or `PathLike`): output folder of `hf-vanilla-transformer train`.
        repo_id (`str`): `"user/name"` of an existing repository.
        message (`str`): commit message.
        token (`str`, *optional*): see [`prepare_repository`].
        revision (`str`, *optional*): branch, created if it does not exist. Default: `"main"`.

    Returns:
        `str`: the URL of the commit.

    Raises:
        ValueError: if the folder holds no model, or a link to a file elsewhere.
    """
    files = {path.name: path for path in files_of_a_run(Path(folder)) if path.name not in NOT_TO_SHARE}
    if "config.json" not in files or not any(name.endswith(".safetensors") for name in files):
        raise InputError(f"{folder} has no config.json or no weights; name the folder of a trained model.")
    check_links(files.values())
    api = HfApi(token=token)
    if revision is not None:
        api.create_branch(repo_id, branch=revision, exist_ok=True)
    card = files.get("README.md")
    if card is not None and not card.is_symlink():  # A link may be of the Hub's cache.
        _name_repository(card, repo_id, revision)
    commit = api.upload_folder(
        repo_id=repo_id,
        folder_path=Path(folder),
        commit_message=message,
        revision=revision,
        allow_patterns=list(files),
        delete_patterns=[pattern for pattern in FILES_OF_A_RUN if pattern != "README.md"],
    )
    return commit.commit_url


def _name_repository(card: Path, repo_id: str, revision: str | None) -> None:
    """Let the example of a card load the model from a repository."""
    text, said = card.read_text(encoding="utf-8"), f', revision="{revision}"' if revision else ""
    call = f'.from_pretrained("{repo_id}"{said}, trust_remote_code=True)\n'
    named = _EXAMPLE.sub(lambda found: f"{found[1]}{call}{found[2]}{call}", text)
    if named != text:
        write_text(card, named)


def describe_error(error: BaseException) -> str:
    """The first line of an error; of a RuntimeError also that of its cause."""
    cause = error.__cause__
    first = str(error).strip().split("\n")[0] or type(error).__name__
    return f"{first} {describe_error(cause)}" if cause is not None and isinstance(error, RuntimeError) else first
