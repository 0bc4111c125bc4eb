"""Push a trained model to the Hub: check permissions before training, and push all files in one commit."""

import os
import re
from pathlib import Path

from huggingface_hub import HfApi, ModelCard, ModelCardData
from huggingface_hub.errors import HfHubHTTPError, HTTPError, LocalTokenNotFoundError

from ..support.atomic_files import write_text
from ..support.user_errors import InputError
from .model_folder import CARD, FILES_OF_A_RUN, NOT_TO_SHARE, check_links, files_of_a_run


# The example in `model_card.md` loads the model in two lines that call `from_pretrained`. These are the parts before
# the calls. Because of the comment, the pattern does not match other code in a card, which may load other models.
_BEFORE_TOKENIZER_CALL = "# This runs the code in the folder: read it first.\ntokenizer = AutoTokenizer"
_BEFORE_MODEL_CALL = "model = AutoModelForSeq2SeqLM"
_ANY_CALL = r"\.from_pretrained\(.*\)\n"
_LOADING_LINES = re.compile(re.escape(_BEFORE_TOKENIZER_CALL) + _ANY_CALL + re.escape(_BEFORE_MODEL_CALL) + _ANY_CALL)


def prepare_repository(
    name: str,
    metadata: ModelCardData,
    *,
    token: str | None = None,
    private: bool | None = None,
    revision: str | None = None,
) -> str:
    """Check before training that the model can be pushed afterward, and create its repository if it does not exist.

    Args:
        name: the repository's name, with or without the user's name.
        metadata: the model card's metadata, which the Hub checks.
        token: the access token; by default, the token from `hf auth login` or `HF_TOKEN`.
        private: whether a new repository is private; by default, the user's setting on the Hub decides.
        revision: the branch to push to, by default `"main"`. It is created if it does not exist.

    Returns:
        The repository as `"user/name"`.

    Raises:
        ConnectionError: if the Hub cannot be reached.
        PermissionError: if there is no token, or the Hub rejects it, or it has no write access.
        ValueError: if the Hub rejects the metadata, for example because it does not know the license, or if the
            repository already exists and is public although `private` is set.
    """
    api = HfApi(token=token)
    page = f"{api.endpoint}/settings/tokens"
    try:
        return _create_repository(api, name, metadata, private=private, revision=revision)
    except LocalTokenNotFoundError as error:
        raise PermissionError(f"there is no token to push to {name}; {_advise_on_token(page)}") from error
    except HfHubHTTPError as error:
        # The Hub has answered. This class derives from HTTPError, so this clause must come before the next one.
        raise _explain_rejection(error, name, page) from error
    except (ConnectionError, HTTPError) as error:
        raise ConnectionError(
            f"the Hub cannot be reached to push to {name} ({describe_error(error)}); check the network and "
            "HF_HUB_OFFLINE, or train without pushing."
        ) from error


def _advise_on_token(page: str) -> str:
    """Return the advice to create a token on a page of the Hub."""
    return f"create one with write access at {page}, then run `hf auth login` or set HF_TOKEN."


def _explain_rejection(error: HfHubHTTPError, name: str, page: str) -> OSError:
    """Return the error to raise if the Hub rejects a request for the repository `name`.

    `page` is the page of the Hub on which users create tokens.
    """
    if error.response.status_code == 401:
        return PermissionError(f"the Hub rejects the token to push to {name}; {_advise_on_token(page)}")
    if error.response.status_code == 403:
        return PermissionError(
            f"the token has no write access to {name}; create one at {page}, or name another repository."
        )
    return ConnectionError(f"the Hub rejects {name}: {describe_error(error)}")


def _create_repository(
    api: HfApi, name: str, metadata: ModelCardData, private: bool | None, revision: str | None
) -> str:
    """Create a repository and its branch if they do not exist, and return the repository as `"user/name"`.

    The arguments are those of [`prepare_repository`]. The checks that need no repository come first, so that a wrong
    token or wrong metadata leave no empty repository on the Hub.

    Raises:
        ValueError: if the Hub rejects the metadata, or if the repository is public although `private` is set.
        LocalTokenNotFoundError, HfHubHTTPError, ConnectionError, HTTPError: if a request to the Hub fails.
    """
    # This fails if there is no valid token.
    api.whoami()
    _check_metadata(metadata)
    # The result has the user's name, which `name` may lack.
    repo_id = api.create_repo(name, private=private, exist_ok=True).repo_id
    # If the repository existed before, its owner may allow this user only to read it.
    api.auth_check(repo_id, write=True)
    if private:
        _check_is_private(api, repo_id)
    # The branch comes last, so that nothing is changed in a repository that is rejected above.
    if revision is not None:
        api.create_branch(repo_id, branch=revision, exist_ok=True)
    return repo_id


def _check_is_private(api: HfApi, repo_id: str) -> None:
    """Raise InputError if a repository is public. One that existed before keeps its visibility."""
    if not api.model_info(repo_id).private:
        raise InputError(
            f"{repo_id} is public, although hub_private_repo is set; make it private at {api.endpoint}/{repo_id}/"
            "settings, name another repository, or leave hub_private_repo out."
        )


def _check_metadata(metadata: ModelCardData) -> None:
    """Raise ValueError if the Hub rejects a model card's metadata. If the Hub cannot be reached, nothing is checked."""
    try:
        ModelCard(f"---\n{metadata.to_yaml()}\n---\n").validate()
    except HTTPError:
        # huggingface_hub before 2.0 always sends the metadata to huggingface.co, even if HF_ENDPOINT is set. That
        # server may be unreachable.
        return
    except ValueError as error:
        raise InputError(f"the Hub rejects the model card's metadata: {' '.join(str(error).split())}") from error


def push_run(
    folder: str | os.PathLike[str], repo_id: str, *, message: str, token: str | None = None, revision: str | None = None
) -> str:
    """Push a trained model to the Hub in one commit, with its code, tokenizer, card and scores.

    Checkpoints and pickle files are not pushed. The same commit removes files of an earlier run that this run does not
    have, but it never removes the card. Before the push, the example in the folder's card is changed so that it loads
    the model from the repository, because the folder's own name may belong to a different repository on the Hub.

    Args:
        folder (`str` or `PathLike`): the output folder of `hf-vanilla-transformer train`.
        repo_id (`str`): an existing repository, as `"user/name"`.
        message (`str`): the commit message.
        token (`str`, *optional*): the access token; by default, the token from `hf auth login` or `HF_TOKEN`.
        revision (`str`, *optional*): the branch to push to, by default `"main"`. It is created if it does not exist.

    Returns:
        `str`: the URL of the commit.

    Raises:
        ValueError: if the folder does not contain a model, or if it contains a link to a file outside the folder.
    """
    run_folder = Path(folder)
    paths = _paths_to_push(run_folder)
    api = HfApi(token=token)
    # `upload_folder` does not create a branch.
    if revision is not None:
        api.create_branch(repo_id, branch=revision, exist_ok=True)
    card = run_folder / CARD
    # If the card is a link, it may belong to the Hub's cache, which must not be changed.
    if card in paths and not card.is_symlink():
        # The upload reads the card, so this comes before it. If the upload fails, the card stays changed. This does no
        # harm, because the next push replaces the same lines again.
        _load_from_hub_in_card(card, repo_id, revision)
    commit = api.upload_folder(
        repo_id=repo_id,
        folder_path=run_folder,
        commit_message=message,
        revision=revision,
        # The names of the files to upload.
        allow_patterns=[path.name for path in paths],
        # Matching files in the repository are deleted unless the same commit uploads them. All other files stay.
        delete_patterns=_patterns_to_delete(),
    )
    return commit.commit_url


def _patterns_to_delete() -> list[str]:
    """Return the patterns of all files that any run may write, even if they are never pushed, except the card."""
    return [pattern for pattern in FILES_OF_A_RUN if pattern != CARD]


def _paths_to_push(folder: Path) -> list[Path]:
    """Return the files to push from the folder of a trained model.

    Raises ValueError if the folder does not contain a model, or if a file is a link that leads outside the folder.
    """
    # The files in NOT_TO_SHARE are the arguments of the training, which may contain paths on this machine.
    paths = [path for path in files_of_a_run(folder) if path.name not in NOT_TO_SHARE]
    has_config = any(path.name == "config.json" for path in paths)
    has_weights = any(path.suffix == ".safetensors" for path in paths)
    if not has_config or not has_weights:
        raise InputError(f"{folder} has no config.json or no weights; name the folder of a trained model.")
    check_links(paths)
    return paths


def _load_from_hub_in_card(card: Path, repo_id: str, revision: str | None) -> None:
    """Change the example in a model card so that it loads the model from a repository on the Hub.

    For example, `from_pretrained("runs/mine", ...)` becomes `from_pretrained("user/name", ...)`. A card that does not
    have the example stays as it is.
    """
    arguments = f'"{repo_id}", trust_remote_code=True'
    if revision:
        arguments = f'"{repo_id}", revision="{revision}", trust_remote_code=True'
    # The card loads the tokenizer in one line and the model in the next.
    call = f".from_pretrained({arguments})\n"
    new_lines = f"{_BEFORE_TOKENIZER_CALL}{call}{_BEFORE_MODEL_CALL}{call}"

    text = card.read_text(encoding="utf-8")
    # The replacement is a function, because backslashes in a replacement string would have a meaning.
    changed_text = _LOADING_LINES.sub(lambda _: new_lines, text)
    if changed_text != text:
        write_text(card, changed_text)


def describe_error(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of the error's class if there is no message.

    If huggingface_hub raises a RuntimeError, only its cause describes what happened. Therefore, the first line of the
    cause's message is appended.
    """
    first_line = str(error).strip().split("\n")[0] or type(error).__name__
    if error.__cause__ is not None and isinstance(error, RuntimeError):
        return f"{first_line} {describe_error(error.__cause__)}"
    return first_line
