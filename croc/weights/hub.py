"""The Hugging Face hub: weights named hf:USER/NAME, and `croc export --push USER/NAME`."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import CommitOperationAdd, HfApi, get_token, hf_hub_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from croc.errors import UserError
from croc.weights.files import first_line

PREFIX = "hf:"
MODEL = "model.safetensors"
"""The file of weights in an exported folder."""
REPOSITORY = r"[\w.-]+/[\w.-]+"
ADDRESS = re.compile(rf"hf:({REPOSITORY})(?:@(refs/(?:pr|convert)/[^/]+|[^/]+))?(?:/(.+))?")
REASONS: dict[type[Exception], str] = {
    GatedRepoError: "its owner has to grant you access, on its page",
    RepositoryNotFoundError: "there is no such repository, or it is private and your token (hf "
    "auth login, or HF_TOKEN) cannot read it",
    RevisionNotFoundError: "the repository has no such revision",
    LocalEntryNotFoundError: "the hub cannot be reached, and the file is not in the hub's cache",
    OfflineModeIsEnabled: "HF_HUB_OFFLINE is set",
    EntryNotFoundError: "the repository has no such file: name one, hf:USER/NAME/FILE",
}
STATUS = {401: "your token is not valid", 403: "your token does not have that permission"}


def download(spec: str) -> Path:
    """The named file, or model.safetensors, in the hub's own cache."""
    address = ADDRESS.fullmatch(spec)
    if address is None:
        raise UserError(f"{spec}: write hf:USER/NAME, hf:USER/NAME@REVISION or hf:USER/NAME/FILE")
    repository, revision, file = address.groups()
    with _reported(f"{spec} cannot be downloaded"):
        return Path(hf_hub_download(repository, file or MODEL, revision=revision))


def name_of(spec: str) -> str | None:
    """NAME of hf:USER/NAME."""
    address = ADDRESS.fullmatch(spec)
    return address[1].partition("/")[2] if address else None


def check_push(repository: str) -> None:
    if not re.fullmatch(REPOSITORY, repository):
        raise UserError(f"--push {repository}: write USER/NAME")
    if get_token() is None:
        raise UserError(
            "--push needs a Hugging Face token with write access: run `hf auth login` or set "
            "HF_TOKEN"
        )


def push(repository: str, files: dict[str, Path], public: bool) -> str:
    """Upload files, given by their names on the hub, in one commit; returns the page. A new
    repository is private unless `public`; an existing one keeps its visibility."""
    with _reported(f"--push {repository} failed, and nothing was written here"):
        url = HfApi().create_repo(repository, private=not public, exist_ok=True)
        additions = [CommitOperationAdd(name, path) for name, path in files.items()]
        HfApi().create_commit(repository, additions, commit_message="Exported by croc")
    return str(url)


@contextmanager
def _reported(problem: str) -> Iterator[None]:
    """Turn any error of the hub or the network into a one-line message."""
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it reports every retry
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        reasons = [reason for kind, reason in REASONS.items() if isinstance(error, kind)]
        reasons += [STATUS.get(status or 0) or first_line(error)]
        raise UserError(f"{problem}: {reasons[0]}") from error
