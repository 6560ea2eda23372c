"""Weights on the Hugging Face hub, named hf:USER/NAME."""

import logging
import re
from pathlib import Path

from huggingface_hub import hf_hub_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from croc.errors import UserError
from croc.weights.files import first_line

PREFIX = "hf:"
ADDRESS = re.compile(r"hf:([\w.-]+/[\w.-]+)(?:@(refs/(?:pr|convert)/[^/]+|[^/]+))?(?:/(.+))?")
REASONS: dict[type[Exception], str] = {
    GatedRepoError: "its owner has to grant you access, on its page",
    RepositoryNotFoundError: "there is no such repository, or it is private and your token (hf "
    "auth login, or HF_TOKEN) cannot read it",
    RevisionNotFoundError: "the repository has no such revision",
    LocalEntryNotFoundError: "the hub cannot be reached, and the file is not in the hub's cache",
    EntryNotFoundError: "the repository has no such file: name one, hf:USER/NAME/FILE",
}


def download(spec: str) -> Path:
    """The file, in the hub's own cache: the one that is named, or model.safetensors."""
    address = ADDRESS.fullmatch(spec)
    if address is None:
        raise UserError(f"{spec}: write hf:USER/NAME, hf:USER/NAME@REVISION or hf:USER/NAME/FILE")
    repository, revision, file = address.groups()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it reports every retry
    try:
        return Path(hf_hub_download(repository, file or "model.safetensors", revision=revision))
    except Exception as error:
        known = [reason for kind, reason in REASONS.items() if isinstance(error, kind)]
        reason = known[0] if known else first_line(error)
        raise UserError(f"{spec} cannot be downloaded: {reason}") from error


def name_of(spec: str) -> str | None:
    """NAME of hf:USER/NAME."""
    address = ADDRESS.fullmatch(spec)
    return address[1].partition("/")[2] if address else None
