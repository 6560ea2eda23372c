"""Pictures for the page: the run's own of its clusters, and any others made small."""

import base64
import io
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

FOLDER = "pictures"
KEPT = 12
WIDTH_PX = 900
LARGEST_PX = 40_000_000
"""Pixels of a picture that is taken in at all."""
LARGEST_BYTES = 300_000
"""Of a picture of clusters on the page; ours take half of that at most."""
UNREADABLE = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)
"""What Pillow raises for a file that is no whole picture."""


def picture_path(folder: Path, step: int) -> Path:
    return folder / FOLDER / f"clusters-{step:08d}.jpg"


def pictures(folder: Path) -> dict[int, Path]:
    """Those of a run by step, in order."""
    found = {}
    for path in (folder / FOLDER).glob("clusters-*.jpg"):
        match = re.fullmatch(r"clusters-(\d{1,15})\.jpg", path.name)
        if match and path.is_file():
            found[int(match[1])] = path
    return dict(sorted(found.items()))


def drop_pictures(folder: Path, choose: Callable[[list[int]], list[int]]) -> None:
    found = pictures(folder)
    for step in choose(list(found)):
        found[step].unlink(missing_ok=True)


def steps_to_drop(steps: list[int], kept: int = KEPT) -> list[int]:
    """Of too many, one after the other whose neighbours are closest; the ends stay."""
    steps, dropped = list(steps), []
    while len(steps) > max(2, kept):
        gaps = [after - before for before, after in zip(steps, steps[2:])]
        dropped.append(steps.pop(1 + gaps.index(min(gaps))))
    return dropped


def cluster_pictures(folder: Path, most_bytes: int) -> tuple[list[dict[str, Any]], list[str]]:
    """As the page takes them, fewer if they would be too large; and a note on what cannot be."""
    shown, notes = [], []
    for step, path in pictures(folder).items():
        try:
            shown.append({"step": step, **_embedded_clusters(path)})
        except UNREADABLE:
            notes.append(f"{FOLDER}/{path.name} cannot be read, and is left out")
    total = sum(len(picture["src"]) for picture in shown)
    kept = min(KEPT, len(shown) * most_bytes // max(1, total))
    steps = [picture["step"] for picture in shown]
    left_out = steps_to_drop(steps, kept) if kept > 1 else steps[:-1]
    return [picture for picture in shown if picture["step"] not in left_out], notes


def _embedded_clusters(path: Path) -> dict[str, Any]:
    with _opened(path) as picture:
        picture.load()
        about = _caption(picture.info.get("comment", b""))
        source = _as_jpeg(picture, WIDTH_PX)
        if len(source) > LARGEST_BYTES:
            raise ValueError(f"{path} is too large a picture")
        return {"src": source, "size": picture.size, "about": about}


def _caption(comment: Any) -> dict[str, Any] | None:
    """What the drawing said of its tiles; None unless all of it is of the right form."""
    try:
        about = json.loads(comment)
        names, heads = [str(name) for name in about["images"]], int(about["heads"])
        kinds = {"k": int, "shared": int, "share": float}
        rows = {name: [list(map(kind, row)) for row in about[name]] for name, kind in kinds.items()}
        of = int(about["of"])
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return None
    fits = all(
        len(row) == len(names) and all(len(r) == heads for r in row) for row in rows.values()
    )
    finite = all(math.isfinite(share) for row in rows["share"] for share in row)
    if not (fits and finite and names and 0 < heads <= of):
        return None
    return {"images": names, "heads": heads, "of": of, **rows}


def reduced(path: Path) -> str:
    """Any picture as a data URL of a JPEG that is not wider than a page."""
    with _opened(path) as picture:
        return _as_jpeg(picture, WIDTH_PX)


def _opened(path: Path) -> Image.Image:
    picture = Image.open(path, formats=("JPEG", "PNG"))
    if picture.width * picture.height > LARGEST_PX:
        picture.close()
        raise ValueError(f"{path} is too large a picture")
    return picture


def _as_jpeg(picture: Image.Image, width: int) -> str:
    small = picture.convert("RGB")
    if small.width > width:
        height = max(1, round(small.height * width / small.width))
        small = small.resize((width, height), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    small.save(file, "JPEG", quality=78, optimize=True)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
