"""What a protocol reads of a data set, and hashes of data, by which finished scores are found.

With a hold-out it reads parts of the training split: this is for making choices, so that the
validation split is used only once, at the end.
"""

import functools
import hashlib
import os
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from croc.errors import UserError
from croc.eval.datasets import SPLITS, SegmentationData, Subset, open_segmentation
from croc.eval.metrics import IGNORED
from croc.eval.protocols import Request
from croc.eval.videos import open_videos

READ_WHOLE_BYTES = 2**28
SAMPLED_FILES = 64
SAMPLED_BYTES = 2**20

OpenData = dict[tuple[str, str], tuple[dict[str, Any], str]]
"""By protocol and data: what is trained on ("train") and scored ("val", or "videos"), and the
hash of the data set."""


def open_data(requests: Iterable[Request], folder: Path) -> OpenData:
    """Everything is opened once; files in `folder`, where results are, do not change the hash."""
    splits = functools.cache(open_segmentation)
    held_out = functools.cache(hold_out_of)
    hash_of = functools.cache(identify_data)
    opened: OpenData = {}
    for request in requests:
        protocol, data, share = request.protocol, request.data, request.hold_out
        names = ("val",) if protocol in ("kmeans", "within") else SPLITS
        if protocol == "video":
            parts = {"videos": open_videos(data)}
        elif share:
            parts = {name: held_out(data, share, name) for name in names}
        else:
            parts = {name: splits(data, name) for name in names}
        opened[protocol, data] = parts, hash_of(data, folder)
    return opened


def hold_out_of(data: str, share: float, name: str) -> Subset:
    """The part of the training split that is trained on or scored; some of it must be labelled."""
    try:
        part = split_training(open_segmentation(data, "train", alone=True), share)[name]
        if not any((part.read(i).labels != IGNORED).any() for i in range(len(part))):
            use = {"train": "trained on", "val": "scored"}[name]
            raise UserError(f"--hold-out {share:g}: no pixel that is {use} is labelled")
    except UserError as error:  # say which of several data sets it is
        raise UserError(f"{data}: {error}") from None
    return part


def split_training(data: SegmentationData, share: float) -> dict[str, Subset]:
    """The share whose names hash lowest is scored ("val"), the rest trains ("train").

    The choice depends on the names alone, not on the order of files, the machine or a seed, and
    a larger share contains a smaller one.
    """

    def key(name: str) -> tuple[bytes, str]:
        text = f"croc hold-out\0{name}".encode("utf-8", "surrogateescape")
        return hashlib.sha256(text).digest(), name

    names = [data.name(number) for number in range(len(data))]
    ranked = sorted(set(names), key=key)  # images of one name stay together
    count = round(share * len(ranked))
    if not 0 < count < len(ranked):
        left = "to train on" if count else "to score"
        raise UserError(f"--hold-out {share:g} of {len(ranked)} training images leaves none {left}")
    chosen = set(ranked[:count])
    return {
        "train": Subset(data, tuple(i for i, name in enumerate(names) if name not in chosen)),
        "val": Subset(data, tuple(i for i, name in enumerate(names) if name in chosen)),
    }


def identify_data(spec: str, outside: Path | None = None) -> str:
    """Independent of the path; files below the folder `outside` do not count.

    Small data sets are read whole. Of large ones the names and sizes of all files count, and some
    of the bytes: an edit that keeps a file's size may go unnoticed. Dates do not count, since
    copying changes them.
    """
    kind, _, place = spec.partition(":")
    digest = hashlib.sha256(kind.encode())
    root = Path(place).expanduser()
    if kind == "scenes":  # generated: the first of each part stand for how they are generated
        for split in SPLITS:
            data = open_segmentation(spec, split)
            first = data.read(0)
            digest.update(f"{split} {len(data)}".encode() + first.image.tobytes())
            digest.update(first.labels.tobytes())
        videos = open_videos(spec)
        digest.update(f"videos {len(videos)}".encode() + videos[0].read_frame(0).tobytes())
    elif root.is_dir():
        sizes = _file_sizes(root, outside)
        for name, size in sizes.items():
            digest.update(f"{name}\0{size}\n".encode("utf-8", "surrogateescape"))
        names, limit = list(sizes), -1
        if sum(sizes.values()) > READ_WHOLE_BYTES:
            names, limit = names[:: max(1, len(names) // SAMPLED_FILES)], SAMPLED_BYTES
        for name in names:
            with (root / name).open("rb") as file:
                digest.update(file.read(limit))
    elif root.stat().st_size <= READ_WHOLE_BYTES:
        with root.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    else:
        with tarfile.open(root, "r:") as tar:  # copying keeps the dates of members
            for member in tar:
                line = f"{member.name}\0{member.size}\0{member.mtime}\n"
                digest.update(line.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:16]


def _file_sizes(root: Path, outside: Path | None) -> dict[str, int]:
    """All files below a folder in order, without hidden ones; links are followed, loops are not."""
    seen = {outside.resolve()} if outside else set()
    sizes = {}
    for folder, below, files in os.walk(root, followlinks=True):
        here = Path(folder)
        if here.resolve() in seen:
            below.clear()
            continue
        seen.add(here.resolve())
        below[:] = sorted(name for name in below if not name.startswith("."))
        for path in (here / name for name in files if not name.startswith(".")):
            if path.is_file():
                sizes[path.relative_to(root).as_posix()] = path.stat().st_size
    return dict(sorted(sizes.items()))
