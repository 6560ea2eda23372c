"""The labels of a folder of images, in labels.json:

{"folder": "/home/me/street", "revision": 3,
 "classes": [{"name": "background", "color": "#808080"}, …],
 "clicks": [{"photo": "a/b.jpg", "x": 0.31, "y": 0.72, "class": 0}, …],
 "strokes": [{"photo": "a/b.jpg", "class": 1, "radius": 0.02, "points": [[0.3, 0.7], …]}, …],
 "done": ["a/b.jpg", …]}

x and y are shares of the image's width and height, a radius is one of its width. Classes are
numbered from 0; a stroke whose class is null erases earlier ones. Every save increases the
revision; the page sends the one that its changes are based on.
"""

import json
import re
from pathlib import Path
from typing import Any

from croc.errors import UserError
from croc.io import replacing

FILE = "labels.json"
START = {
    "classes": [
        {"name": "background", "color": "#7a7f87"},
        {"name": "object", "color": "#0c97ff"},
    ],
    "clicks": [],
    "strokes": [],
    "done": [],
}
"""The labels of a new folder."""
MAX_CLASSES = 255
MALFORMED = (AttributeError, LookupError, TypeError, ValueError)


def read_labels(content: Any) -> dict[str, Any]:
    """What the page may change, checked, and nothing else; raises one of MALFORMED."""
    classes = [
        {"name": entry["name"].strip(), "color": entry["color"].lower()}
        for entry in content["classes"]
    ]
    names = [entry["name"] for entry in classes]
    if not 0 < len(names) <= MAX_CLASSES or len(set(names)) < len(names):
        raise ValueError(f"classes must be 1 to {MAX_CLASSES} and have different names")
    if not all(len(name.splitlines()) == 1 for name in names):  # a line each in classes.txt
        raise ValueError("names of classes must be one line")
    if not all(re.fullmatch("#[0-9a-f]{6}", entry["color"]) for entry in classes):
        raise ValueError("colors must have the form #rrggbb")
    clicks = [
        {key: click[key] for key in ("photo", "x", "y", "class")} for click in content["clicks"]
    ]
    for click in clicks:
        is_inside = 0 <= click["x"] < 1 and 0 <= click["y"] < 1
        if not is_inside or click["class"] not in range(len(classes)):
            raise ValueError(f"no such place or class: {click}")
        check_photo(click["photo"])
    keys = "photo", "class", "radius", "points"
    strokes = [{key: stroke[key] for key in keys} for stroke in content.get("strokes", ())]
    for stroke in strokes:
        is_inside = all(0 <= x < 1 and 0 <= y < 1 for x, y in stroke["points"])
        if not is_inside or stroke["class"] not in (None, *range(len(classes))):
            raise ValueError("no such stroke or class")
        if not 0 < stroke["radius"] < 1:
            raise ValueError(f"a stroke cannot have the radius {stroke['radius']}")
        check_photo(stroke["photo"])
    done = list(content.get("done", ()))
    for name in done:
        check_photo(name)
    return {"classes": classes, "clicks": clicks, "strokes": strokes, "done": done}


def check_photo(name: Any) -> None:
    """It need not exist: labels of deleted photographs are kept."""
    if not isinstance(name, str):
        raise TypeError(f"{name} is not a photograph's name")


def open_labels(folder: Path, to: Path) -> dict[str, Any]:
    """Those of an earlier session, which must be of the same folder."""
    file, root = to / FILE, str(folder.resolve())
    labels: dict[str, Any] = {"folder": root, "revision": 0} | START
    if file.exists():
        try:
            content = json.loads(file.read_text("utf-8"))
            known = {key: content[key] for key in ("folder", "revision") if key in content}
            labels |= known | read_labels(content)
        except MALFORMED as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else error
            raise UserError(
                f"{file} cannot be read: {reason}; correct it or move it away"
            ) from None
    if labels["folder"] != root:
        raise UserError(
            f"{to} contains the labels of {labels['folder']}: choose another --to, or, if the "
            f'images have moved, change "folder" in {file}'
        )
    save_labels(labels, to)
    return labels


def save_labels(labels: dict[str, Any], to: Path) -> None:
    """One line for each key: with indentation, json would take seconds for many strokes."""
    lines = (f'"{key}": {json.dumps(value, ensure_ascii=False)}' for key, value in labels.items())
    with replacing(to / FILE) as path:
        path.write_text("{" + ",\n ".join(lines) + "}\n", "utf-8")
