"""Upload an exported retriever, ranker or system to a repository of a model hub, card and all. Repeat the command to
update it: the repository then holds what the folder holds. A repository with other content is left as it is."""

import argparse
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sparring.components.config import UserError, listing
from sparring.components.data.tokenizers import MODEL_CONFIG
from sparring.components.systems.config import SYSTEM
from sparring.workflows.program import program

OURS = (MODEL_CONFIG, SYSTEM)
"""Files that describe a folder. A repository that has one was filled by this command."""
EMPTY = {".gitattributes", "README.md"}
"""Files that a new repository may have."""
REPOSITORY = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "folder", type=Path, metavar="FOLDER", help="a folder that `export` wrote: its retriever, ranker or system"
    )
    parser.add_argument("repository", metavar="REPO_ID", help="the repository, such as my-team/my-retriever")
    parser.add_argument("--private", action="store_true", help="make a new repository private")
    parser.add_argument(
        "--revision", metavar="BRANCH", help="the branch to push to, which is created if it is missing (default: main)"
    )


def call(arguments: argparse.Namespace) -> None:
    """Check the folder, then the repository. Upload, and print the commit's URL."""
    folder, name = arguments.folder, arguments.repository
    _check_folder(folder)
    if not REPOSITORY.fullmatch(name):
        raise UserError(f"{name}: is not the id of a repository; accepted: OWNER/NAME of letters, digits, - _ .")
    import huggingface_hub

    try:
        api = huggingface_hub.HfApi()
    except ValueError as error:
        raise UserError(f"push: HF_ENDPOINT: {error}; accepted: the URL of a hub, or none") from None
    token = huggingface_hub.get_token()
    if token and not token.isascii():
        raise UserError("push: HF_TOKEN: the token has characters that no token of the hub has; make a new one there")
    if not token:
        raise UserError(
            "push: there is no token for the hub; make one in your account's settings there, then `hf auth "
            "login`, or set HF_TOKEN"
        )
    with _named(name, api.endpoint):
        remote = _content(api, name, arguments.revision)
        api.create_repo(name, private=arguments.private or None, exist_ok=True)
        if arguments.revision is not None:
            api.create_branch(name, branch=arguments.revision, exist_ok=True)
        # Files of an earlier push that this folder lacks would count as parts of the model.
        old = sorted(remote - {path.relative_to(folder).as_posix() for path in folder.rglob("*")} - {".gitattributes"})
        done = api.upload_folder(
            repo_id=name,
            folder_path=folder,
            revision=arguments.revision,
            delete_patterns=old or None,
            commit_message="Upload with Sparring",
        )
    print(f"{folder} is {done.commit_url}")


def _check_folder(folder: Path) -> None:
    """Raise UserError if `export` did not write the folder, or if its parts go to separate repositories."""
    if any((folder / name).is_file() for name in OURS):
        return
    inside = [file.parent for name in OURS for file in folder.glob(f"*/{name}")] if folder.is_dir() else []
    if inside:
        raise UserError(f"{folder}: holds several things; push one of them: {listing(sorted(inside))}")
    fault = "is not a model or system of ours" if folder.is_dir() else "there is no such folder"
    raise UserError(f"{folder}: {fault}; accepted: what `{program()} export` wrote, such as DIRECTORY/retriever")


def _content(api: Any, name: str, revision: str | None) -> set[str]:
    """Return the files of a repository's branch. Empty if there is no repository. UserError if another program wrote
    them."""
    from huggingface_hub.errors import RevisionNotFoundError

    if not api.repo_exists(name):  # one request, while a listing tries six times if the hub does not answer
        return set()
    try:
        files = set(api.list_repo_files(name, revision=revision))
    except RevisionNotFoundError:  # it will branch off main, and have its files
        files = set(api.list_repo_files(name))
    if files - EMPTY and not files & set(OURS):
        some = sorted(files - EMPTY)
        more = f" and {len(some) - 3} more" if len(some) > 3 else ""
        raise UserError(
            f"{name}: exists with other content ({listing(some[:3])}{more}); accepted: a new name, an "
            "empty repository, or one that this command has filled"
        )
    return files


@contextmanager
def _named(name: str, endpoint: str) -> Iterator[None]:
    """Turn refusals by the hub or the network into UserErrors of one line."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    try:
        yield
    except OfflineModeIsEnabled:
        raise UserError(f"{name}: nothing is sent while HF_HUB_OFFLINE is set") from None
    except HFValidationError as error:
        raise UserError(f"{name}: {' '.join(str(error).split())}") from None
    except HfHubHTTPError as error:
        status = None if error.response is None else error.response.status_code
        reason = {
            401: "the hub does not accept the token; make one that may write, then `hf auth login`, or set HF_TOKEN",
            403: "the token may not write there; accepted: a token that may, or a repository of its owner",
            404: "there is no such owner, or the token may not see it",
        }.get(status or 0, f"the hub says: {_first_line(error)}")
        raise UserError(f"{name}: {reason}") from None
    except (httpx2.HTTPError, OSError) as error:
        raise UserError(f"{name}: {endpoint} cannot be reached: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
