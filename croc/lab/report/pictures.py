"""The pictures of a run's clusters on disk, and any picture made small for the page."""

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

FOLDER = "pictures"
KEPT = 12
WIDTH_PX = 900


def picture_path(folder: Path, step: int) -> Path:
    return folder / FOLDER / f"clusters-{step:08d}.jpg"


def pictures(folder: Path) -> dict[int, Path]:
    """Those of a run by step, in order."""
    paths = sorted((folder / FOLDER).glob("clusters-[0-9]*.jpg"))
    return {int(path.stem.removeprefix("clusters-")): path for path in paths}


def drop_pictures(folder: Path, choose: Callable[[list[int]], list[int]]) -> None:
    paths = pictures(folder)
    for step in choose(list(paths)):
        paths[step].unlink(missing_ok=True)


def steps_to_drop(steps: list[int], kept: int = KEPT) -> list[int]:
    """Drops the step whose neighbours are closest until `kept` are left; first and last stay."""
    steps, dropped = list(steps), []
    while len(steps) > max(2, kept):
        gaps = [after - before for before, after in zip(steps, steps[2:])]
        dropped.append(steps.pop(1 + gaps.index(min(gaps))))
    return dropped


def cluster_pictures(folder: Path, max_bytes: int) -> tuple[list[dict[str, Any]], list[str]]:
    """A run's pictures for the page, as many as fit, and notes on unreadable ones."""
    shown, notes = {}, []
    for step, path in pictures(folder).items():
        try:
            with Image.open(path, formats=("JPEG",)) as picture:
                about = json.loads(picture.info.get("comment") or "null")
                url, size = to_data_url(picture), picture.size
        except OSError:
            notes.append(f"{FOLDER}/{path.name} cannot be read and is left out")
        else:
            shown[step] = {"step": step, "src": url, "size": size, "about": about}
    total = sum(len(picture["src"]) for picture in shown.values())
    kept = min(KEPT, len(shown) * max_bytes // max(1, total))
    steps = list(shown)
    dropped = steps_to_drop(steps, kept) if kept > 1 else steps[:-1]
    return [picture for step, picture in shown.items() if step not in dropped], notes


def to_data_url(picture: Image.Image) -> str:
    """As a JPEG no wider than a page."""
    small = picture.convert("RGB")
    small.thumbnail((WIDTH_PX, small.height), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    small.save(file, "JPEG", quality=78, optimize=True)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
