"""Photographs and their label maps, paired by name; lists of names and classes."""

from collections.abc import Sequence
from pathlib import PurePosixPath

from croc.errors import UserError
from croc.eval.files import Files, Missing
from croc.eval.metrics import IGNORED

PICTURES = (".jpg", ".jpeg", ".png")


def read_lines(files: Files, name: str) -> list[str]:
    try:
        return files.read(name).decode().splitlines()
    except UnicodeDecodeError:
        raise UserError(f"{files.path(name)} is no text in UTF-8: save it so") from None


def class_names(files: Files, name: str) -> tuple[str, ...]:
    """A name a line; labels count from 0, and 255 is taken."""
    names = [line.strip() for line in read_lines(files, name) if line.strip()]
    if len(names) > IGNORED:
        raise UserError(f"{files.path(name)} names {len(names)} classes, {IGNORED} are the most")
    twice = [each for each in names if names.count(each) > 1]
    if twice:
        raise UserError(
            f"{files.path(name)} names {twice[0]!r} twice: give each class its own name"
        )
    return tuple(names)


def pair_named(
    files: Files, names: Sequence[str], images: str, labels: str
) -> list[tuple[str, str]]:
    """Photographs and label maps of the given names; all must be there."""
    for folder, suffix in ((images, ".jpg"), (labels, ".png")):
        present = set(files.children(folder))
        for name in names:
            if name + suffix not in present:
                raise Missing(files.path(f"{folder}/{name}{suffix}"))
    return [(f"{images}/{name}.jpg", f"{labels}/{name}.png") for name in names]


def pair_listed(
    files: Files, images: str, labels: str, suffixes: tuple[str, ...] = PICTURES
) -> list[tuple[str, str]]:
    """All photographs of a folder with their label maps; neither may lack the other."""
    pictures, maps = _by_stem(files, images, suffixes), _by_stem(files, labels, (".png",))
    if not pictures:
        raise Missing(files.path(f"{images}/*.jpg"))
    for stem in sorted(pictures.keys() ^ maps.keys()):
        missing = f"{labels}/{stem}.png" if stem in pictures else f"{images}/{stem}.jpg"
        raise Missing(files.path(missing))
    return [
        (f"{images}/{name}", f"{labels}/{maps[stem]}") for stem, name in sorted(pictures.items())
    ]


def _by_stem(files: Files, folder: str, suffixes: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in files.children(folder):
        if name.lower().endswith(suffixes):
            stem = PurePosixPath(name).stem
            if stem in found:
                raise UserError(
                    f"{files.path(folder)} holds {found[stem]} and {name}: which one is meant?"
                )
            found[stem] = name
    return found
