"""Hashes that tell networks and data apart, so that no score is taken for another's."""

import hashlib
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import nn

from croc.eval.datasets import SPLITS, open_segmentation
from croc.eval.videos import open_videos

WHOLLY_READ_BYTES = 2**28
SAMPLED_FILES = 64
SAMPLED_BYTES = 2**20


def identify_network(network: nn.Module) -> str:
    """Of what the weights' own hash does not hold: activations, heads, strides.

    CLIP's weights, for one, fit two networks of timm's that differ in nothing but the activation.
    """
    heads = [getattr(module, "num_heads", None) for module in network.modules()]
    return hashlib.sha256(f"{network!r} {heads}".encode()).hexdigest()[:16]


def identify_data(spec: str, outside: Path | None = None) -> str:
    """The same wherever the data lie; what is written to the folder `outside` does not count.

    Small sets are read whole. Of large ones the names and sizes of all files count, and the bytes
    of some: an edit that keeps a file's size may go unseen there. Dates do not count, since copies
    have new ones.
    """
    kind, _, place = spec.partition(":")
    digest = hashlib.sha256(kind.encode())
    if kind == "scenes":
        _add_scenes(digest, spec)
    else:
        root = Path(place).expanduser()
        add = _add_folder if root.is_dir() else _add_archive
        add(digest, root, outside)
    return digest.hexdigest()[:16]


def _add_scenes(digest: Any, spec: str) -> None:
    """Made, not stored: what the first of them look like stands for the way they are made."""
    for split in SPLITS:
        data = open_segmentation(spec, split)
        first = data.read(0)
        digest.update(f"{split} {len(data)}".encode() + first.image.tobytes())
        digest.update(first.labels.tobytes())
    videos = open_videos(spec)
    digest.update(f"videos {len(videos)}".encode() + videos[0].read_frame(0).tobytes())


def _add_folder(digest: Any, root: Path, outside: Path | None) -> None:
    sizes = dict(sorted(_sizes(root, outside)))
    for name, size in sizes.items():
        digest.update(f"{name}\0{size}\n".encode("utf-8", "surrogateescape"))
    if sum(sizes.values()) <= WHOLLY_READ_BYTES:
        chosen, limit = list(sizes), -1
    else:
        chosen, limit = list(sizes)[:: max(1, len(sizes) // SAMPLED_FILES)], SAMPLED_BYTES
    for name in chosen:
        with (root / name).open("rb") as file:
            digest.update(file.read(limit))


def _sizes(root: Path, outside: Path | None) -> Iterator[tuple[str, int]]:
    """Of all files below a folder, hidden ones left out, through links but never in circles."""
    seen = {outside.resolve()} if outside else set()
    for folder, below, files in os.walk(root, followlinks=True):
        here = Path(folder)
        if here.resolve() in seen:
            below.clear()
            continue
        seen.add(here.resolve())
        below[:] = sorted(name for name in below if not name.startswith("."))
        for name in files:
            path = here / name
            if not name.startswith(".") and path.is_file():
                yield path.relative_to(root).as_posix(), path.stat().st_size


def _add_archive(digest: Any, archive: Path, _: Path | None) -> None:
    if archive.stat().st_size <= WHOLLY_READ_BYTES:
        with archive.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
        return
    with tarfile.open(archive, "r:") as tar:  # unlike a file's, a member's date survives copying
        for member in tar:
            line = f"{member.name}\0{member.size}\0{member.mtime}\n"
            digest.update(line.encode("utf-8", "surrogateescape"))
