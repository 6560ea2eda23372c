"""`croc segment predict`: a mask for every image, streamed; resumes after an interruption."""

import csv
import hashlib
import json
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo
from torch import Tensor

from croc import __version__
from croc.data.decode import WHOLE_PX, downscale_image
from croc.data.loader import iterate
from croc.data.sources import printable
from croc.errors import UserError
from croc.eval.features import progress
from croc.eval.machine import find_machine
from croc.io import replacing
from croc.segmentation.edges import follow_edges
from croc.segmentation.images import ImageFile, Loaded, Reader, list_images
from croc.segmentation.options import PredictOptions
from croc.segmentation.rle import write_coco
from croc.segmentation.scores import certainty, score_images
from croc.segmentation.segmenter import Segmenter, argmax_upsampled, head_hash, load_segmenter
from croc.signals import catch_signals
from croc.tables import count_noun
from croc.weights.backbones import check_fit

SETTINGS, TABLE, FORMAT = "settings.json", "masks.csv", 1
SETTINGS_KEY = "croc"
"""The key of a text in each PNG: the hash of the settings that the mask was made with."""
VALUES_KEY = "croc values"
"""The key of another one: the mask's row of masks.csv, without the file."""
OVERLAY_PX = 1280
WRITERS, MAX_PENDING_WRITES = 4, 16
MAX_LISTED_FAILURES = 20


@dataclass(frozen=True)
class Output:
    """The folder of the masks, and how they are made."""

    folder: Path
    head: str
    """Its hash."""
    segmenter: Segmenter
    options: PredictOptions

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Everything that a mask depends on, except its image."""
        sizes = ("image_px", "blocks", "resize", "colors")
        return {
            "format": FORMAT,
            "head": self.head,
            **{name: getattr(self.segmenter, name) for name in sizes},
            **{name: getattr(self.options, name) for name in ("tile_px", "upsampling")},
        }

    @cached_property
    def settings_hash(self) -> str:
        return hashlib.sha256(json.dumps(self.settings).encode()).hexdigest()[:16]

    def mask(self, file: ImageFile) -> Path:
        return self.folder / f"{file.name}.png"

    def overlay(self, file: ImageFile) -> Path:
        return self.folder / "overlays" / f"{file.name}.jpg"

    def probabilities(self, file: ImageFile) -> Path:
        return self.folder / "probabilities" / f"{file.name}.npz"

    def state(self, file: ImageFile) -> Literal["missing", "finished", "edited"]:
        """Whether its mask was made with these settings, after the image was last changed; or was
        edited: a mask that another program has saved does not have our text."""
        mask = self.mask(file)
        try:
            with Image.open(mask) as image:
                settings, mode = image.info.get(SETTINGS_KEY), image.mode
            is_newer = mask.stat().st_mtime_ns >= file.path.stat().st_mtime_ns
        except OSError:
            return "missing"
        if settings is None:
            if mode not in ("L", "P"):
                kind = "is not an 8-bit gray or palette PNG: save it as one"
                raise UserError(f"the edited mask {mask} {kind}, or delete it to have it remade")
            return "edited"
        options = self.options
        is_finished = (  # the mask is the last file written
            is_newer
            and settings == self.settings_hash
            and (not options.overlays or self.overlay(file).exists())
            and (not options.probabilities or self.probabilities(file).exists())
        )
        return "finished" if is_finished else "missing"

    def open(self, files: Sequence[ImageFile], root: str) -> None:
        """Create the folder, or check that its masks are of this head and these images."""
        settings_file = self.folder / SETTINGS
        content = {
            "croc": __version__,
            "photographs": root,
            "classes": self.segmenter.classes,
            **self.settings,
        }
        try:
            before = json.loads(settings_file.read_text(encoding="utf-8"))
            other = [name for name in ("head", "photographs") if before[name] != content[name]]
        except FileNotFoundError:
            other = []
            if foreign := next((mask for mask in map(self.mask, files) if mask.exists()), None):
                raise UserError(
                    f"{foreign} was not written by croc segment predict: choose another --to"
                ) from None
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{settings_file} cannot be read: choose another --to") from None
        if other:
            how = (
                "were made with a different head" if "head" in other else "are for different images"
            )
            raise UserError(f"the masks in {self.folder} {how}: choose another --to")
        self.folder.mkdir(parents=True, exist_ok=True)
        with replacing(settings_file) as partial_file:
            partial_file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

    def write(self, loaded: Loaded, classes: UInt8[np.ndarray, "H W"], scores: Tensor) -> None:
        shares = scores if self.segmenter.kind == "incontext" else scores.softmax(dim=0)
        overlay, probabilities = self.overlay(loaded.file), self.probabilities(loaded.file)
        for path in (overlay, probabilities):
            path.unlink(missing_ok=True)  # it belongs to the mask that is replaced
        if self.options.overlays and loaded.image is not None:
            painted = paint(loaded.image, classes, self.segmenter.colors)
            _write(overlay, partial(painted.save, format="JPEG", quality=90))
        if self.options.probabilities:
            _write(probabilities, partial(_save_npz, shares.half().cpu().numpy()))
        mask = Image.fromarray(classes)
        values = [f"{certainty(shares):.4f}", *class_percentages(mask, len(shares))]
        colors = [value for color in self.segmenter.colors for value in color]
        mask.putpalette(colors + [0] * (768 - len(colors)))  # a full palette keeps 8 bits
        info = PngInfo()
        info.add_text(SETTINGS_KEY, self.settings_hash)
        info.add_text(VALUES_KEY, ",".join(values))
        _write(self.mask(loaded.file), partial(mask.save, format="PNG", pnginfo=info))

    def write_table(self, files: Sequence[ImageFile], root: str) -> Path:
        """masks.csv, least certain first; edited masks have no certainty and come last."""
        classes, rows = self.segmenter.classes, []
        for file in files:
            with Image.open(self.mask(file)) as mask:
                values = mask.info.get(VALUES_KEY, "").split(",")
                if values == [""]:
                    values += class_percentages(mask, len(classes))
            rows.append([printable(os.fsencode(file.path.relative_to(root))), *values])
        rows.sort(key=lambda row: float(row[1] or "inf"))
        path = self.folder / TABLE
        with (
            replacing(path) as partial_file,
            partial_file.open("w", encoding="utf-8", newline="") as opened,
        ):
            csv.writer(opened).writerows([["file", "certainty", *classes], *rows])
        return path


def class_percentages(mask: Image.Image, classes: int) -> list[str]:
    return [f"{100 * n / (mask.width * mask.height):.2f}" for n in mask.histogram()[:classes]]


def _write(path: Path, save: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, shared=True) as partial_file:
        save(partial_file)


def _save_npz(shares: np.ndarray, path: Path) -> None:
    with path.open("wb") as file:  # given a name, numpy adds .npz
        np.savez_compressed(file, probabilities=shares)


def paint(
    image: UInt8[np.ndarray, "h w 3"],
    classes: UInt8[np.ndarray, "H W"],
    colors: Sequence[tuple[int, int, int]],
) -> Image.Image:
    """The image blended half and half with its class colors, at most 1280 px long."""
    small = Image.fromarray(downscale_image(image, OVERLAY_PX))
    labels = np.array(Image.fromarray(classes).resize(small.size, Image.Resampling.NEAREST))
    tint = Image.fromarray(np.array(colors, np.uint8)[labels])
    return Image.blend(small, tint, 0.5)


def draw_legend(segmenter: Segmenter) -> Image.Image:
    """The classes with their colors, one per row."""
    row, font = 28, ImageFont.load_default(size=18)
    width = max(font.getlength(name) for name in segmenter.classes)
    legend = Image.new("RGB", (round(width) + 2 * row, row * len(segmenter.classes)), "white")
    draw = ImageDraw.Draw(legend)
    for number, (name, color) in enumerate(zip(segmenter.classes, segmenter.colors)):
        draw.rectangle((4, number * row + 4, row - 4, (number + 1) * row - 5), fill=color)
        draw.text((row + 4, number * row + 3), name, "black", font)
    return legend


def predict(options: PredictOptions) -> list[str]:
    """Write what is missing; return the lines to print."""
    machine = find_machine(options, fast=True)
    segmenter = load_segmenter(options.head)
    if options.tile_px is not None:
        check_fit(segmenter.backbone, options.tile_px, segmenter.blocks, "--tile-px: tiles")
    folder = Path(options.to).expanduser()
    files, root = list_images(options.images, folder)
    head = head_hash(segmenter)  # before it may be rounded to bfloat16
    segmenter = segmenter.to(machine.device, machine.precision)
    output = Output(folder, head, segmenter, options)
    output.open(files, root)
    states = {file: output.state(file) for file in files}
    missing = [file for file, state in states.items() if state == "missing"]
    path = folder / "masks.json"
    for summary in (path, folder / TABLE):
        if missing:
            summary.unlink(missing_ok=True)  # it belongs to the masks that are replaced
    failed = write_masks(missing, output, machine.workers)
    if len(failed) == len(files):
        raise UserError("no image can be decoded")
    if options.overlays:
        draw_legend(segmenter).save(folder / "overlays" / "legend.png")
    kept = len(files) - len(missing)
    note = f", {kept:,} of them from before" if kept else ""
    if edited := list(states.values()).count("edited"):
        note += f", {count_noun(edited, 'edited mask')} kept"
    lines = [f"{count_noun(len(files) - len(failed), 'mask')} in {folder}{note}"]
    undecoded = set(failed)
    written = [file for file in files if file not in undecoded]
    lines.append(f"certainty and classes of each: {output.write_table(written, root)}")
    if options.rle:
        masks = [(file.path.relative_to(root).as_posix(), output.mask(file)) for file in written]
        write_coco(path, masks, segmenter.classes)
        lines.append(f"all masks in COCO's format: {path}")
    for file in failed[:MAX_LISTED_FAILURES]:
        name = printable(os.fsencode(file.path))
        lines.append(f"skipped, cannot be decoded: {name} ({file.problem})")
    unlisted = len(failed) - MAX_LISTED_FAILURES
    return lines + [f"and {unlisted} more"] * (unlisted > 0)


def write_masks(files: Sequence[ImageFile], output: Output, workers: int) -> list[ImageFile]:
    """Write the masks of these images; return those that cannot be decoded."""
    segmenter, options = output.segmenter, output.options
    failed: list[ImageFile] = []
    shown_px = OVERLAY_PX if options.overlays else None
    shown_px = WHOLE_PX if options.upsampling == "guided" else shown_px
    tiled = options.tile_px is not None
    reader = Reader(files, segmenter.image_px, segmenter.unit_px, tiled, shown_px)
    items = iterate(reader, range(len(files)), workers=workers, ahead=4)

    def readable() -> Iterator[Loaded]:
        for item in progress(items, "masks", len(files)):
            if isinstance(item, ImageFile):
                failed.append(item)
            else:
                yield item

    pending: deque[Future[None]] = deque()
    with (
        closing(items),
        catch_signals() as signals,
        ThreadPoolExecutor(WRITERS) as pool,  # files are compressed while the network runs
        torch.inference_mode(),
    ):
        images = score_images(readable(), segmenter, options.batch, options.tile_px)
        for loaded, scores in images:
            if options.upsampling == "guided" and loaded.image is not None:
                classes = follow_edges(scores, loaded.image)
            else:
                classes = argmax_upsampled(scores, loaded.size)
            pending.append(pool.submit(output.write, loaded, classes, scores))
            while len(pending) >= MAX_PENDING_WRITES or (pending and pending[0].done()):
                pending.popleft().result()
            if signals:
                raise KeyboardInterrupt("interrupted; the same command makes the remaining masks")
        for future in pending:
            future.result()
    return failed
