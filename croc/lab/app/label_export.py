"""The export of `croc app label`: a head, a mask of each image, and training data.

head/                          a segmenter, as of `croc segment fit`
masks/NAME.png                 as of `croc segment predict`
labeled/images/train/NAME.jpg  the images marked done, as `croc segment fit` reads them:
labeled/labels/train/NAME.png  with the same masks
labeled/classes.txt
"""

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw
from torch import Tensor, nn

from croc.data.decode import WHOLE_PX, decode_image
from croc.lab.app.photos import Photos
from croc.segmentation.segmenter import argmax_upsampled, save_segmenter

AS_STORED = {"JPEG": (".jpg", ".jpeg"), "PNG": (".png",)}
"""Formats, and their endings, of images that training data may have."""
ORIENTATION = 0x0112
UNPAINTED = 255


def export_labels(
    head: nn.Conv2d, labels: dict[str, Any], photos: Photos, to: Path
) -> Iterator[dict[str, Any]]:
    """Write everything in place of an earlier export; yields what the page shows."""
    classes = tuple(entry["name"] for entry in labels["classes"])
    colors: Any = tuple(tuple(bytes.fromhex(x["color"][1:])) for x in labels["classes"])
    segmenter = replace(photos.segmenter, head=head, classes=classes, colors=colors)
    new, folder = to / "new", to / "export"
    shutil.rmtree(new, ignore_errors=True)
    metadata = {"made by": "croc app label", "clicks": len(labels["clicks"])}
    save_segmenter(segmenter, new / "head", metadata)
    flat = [name.replace("/", "-") for name in photos.mask_names]
    count, marked = Counter(name.lower() for name in flat), set(labels["done"])
    done = 0
    for number, (index, size) in enumerate(photos.sizes.items(), start=1):
        yield {"state": "running", "done": number}
        scores = head(photos.tokens(index)[None].float())[0]
        mask = find_mask(scores, labels, photos.names[index], size)
        path = new / "masks" / f"{photos.mask_names[index]}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        mask.save(path)
        if photos.names[index] in marked:
            name = flat[index] if count[flat[index].lower()] == 1 else f"{flat[index]}-{index}"
            for part in ("images", "labels"):
                (new / "labeled" / part / "train").mkdir(parents=True, exist_ok=True)
            put_image(photos.paths[index], new / "labeled" / "images" / "train" / name)
            mask.save(new / "labeled" / "labels" / "train" / f"{name}.png")
            done += 1
    if done:
        text = "".join(f"{name}\n" for name in classes)
        (new / "labeled" / "classes.txt").write_text(text, "utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    new.rename(folder)
    yield {
        "state": "done",
        "done": len(photos.sizes),
        "head": str(folder / "head"),
        "masks": str(folder / "masks"),
        "labeled": [done, str(folder / "labeled")],
    }


def find_mask(
    scores: Float[Tensor, "classes rows columns"],
    labels: dict[str, Any],
    photo: str,
    size: tuple[int, int],
) -> Image.Image:
    """The classes of the highest scores, and over them the strokes in their order."""
    classes = argmax_upsampled(scores, size)
    height, width = size
    canvas = Image.new("L", (width, height), UNPAINTED)
    draw = ImageDraw.Draw(canvas)
    for stroke in labels["strokes"]:
        if stroke["photo"] == photo:
            fill = UNPAINTED if stroke["class"] is None else stroke["class"]
            points = [(x * width, y * height) for x, y in stroke["points"]]
            radius = stroke["radius"] * width
            draw.line(points, fill, max(1, round(2 * radius)))
            for x, y in points:
                draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill)
    painted = np.asarray(canvas)
    return to_image(np.where(painted == UNPAINTED, classes, painted), labels)


def to_image(classes: UInt8[np.ndarray, "h w"], labels: dict[str, Any]) -> Image.Image:
    image = Image.fromarray(classes)
    colors = b"".join(bytes.fromhex(entry["color"][1:]) for entry in labels["classes"])
    image.putpalette(colors + bytes(768 - len(colors)))  # a full palette keeps 8 bits
    return image


def put_image(photo: Path, target: Path) -> None:
    """A link or copy of an upright JPEG or PNG; others are written as PNGs, since training data
    are read as they are stored."""
    with Image.open(photo) as image:
        is_plain = image.mode in ("RGB", "L") and image.getexif().get(ORIENTATION, 1) == 1
        suffix = photo.suffix.lower()
        is_plain &= suffix in AS_STORED.get(image.format or "", ())
        is_plain &= not image.has_transparency_data
    if not is_plain:
        pixels = decode_image(photo.read_bytes(), WHOLE_PX)
        Image.fromarray(pixels).save(f"{target}.png", compress_level=1)
        return
    target = Path(f"{target}{suffix}")
    try:
        os.link(photo.resolve(), target)
    except OSError:  # on another disk
        shutil.copyfile(photo, target)
