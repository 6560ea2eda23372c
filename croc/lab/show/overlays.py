"""Predicted masks on disk: PNGs as DAVIS stores them, and videos with the masks painted over."""

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from jaxtyping import Bool, UInt8
from PIL import Image

from croc.errors import UserError

FRAMES_A_SECOND = 24  # DAVIS'
CODING = {"crf": "18", "preset": "veryfast"}  # x264's default takes longer than the network
WHITE = 255


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which takes its place at `path` when all went well; else there is none."""
    target = path.expanduser().resolve()
    if os.path.lexists(target) and not (target.is_dir() and not any(target.iterdir())):
        raise UserError(f"{path} exists and is not empty: delete it or pass another folder")
    partial = target.with_name(f".{target.name}-{os.getpid()}.partial")
    try:
        partial.mkdir(parents=True)
        yield partial
        partial.rename(target)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_masks(folder: Path, masks: UInt8[np.ndarray, "t h w"]) -> None:
    """FOLDER/00000.png and so on: the objects' numbers, in the colours that DAVIS gives them."""
    folder.mkdir()
    for t, mask in enumerate(masks):
        image = Image.fromarray(mask)
        image.putpalette(voc_palette())
        image.save(folder / f"{t:05d}.png")


def voc_palette() -> list[int]:
    """PASCAL VOC's 256 colours, which are DAVIS': red, green, blue, red, green …

    The index's bits 0, 3, 6 are red's highest, second and third, bits 1, 4, 7 are green's, and
    bits 2, 5 blue's.
    """
    return [
        sum(((index >> (3 * place + channel)) & 1) << (7 - place) for place in range(3))
        for index in range(256)
        for channel in range(3)
    ]


def need_av() -> None:
    """Refuses to start what PyAV must end."""
    if find_spec("av") is None:
        raise UserError("overlays are written by PyAV, which is not installed: pip install av")


def write_overlay(
    path: Path,
    frames: Iterable[UInt8[np.ndarray, "h w 3"]],
    predicted: UInt8[np.ndarray, "t h w"],
    truth: UInt8[np.ndarray, "t h w"] | None = None,
) -> None:
    """The painted frames as an mp4 that every browser plays: H.264 with halved colour."""
    import av

    _, height, width = predicted.shape
    odd = ((0, height % 2), (0, width % 2), (0, 0))
    with av.open(str(path), "w", options={"movflags": "+faststart"}) as video:
        stream = video.add_stream("libx264", rate=FRAMES_A_SECOND, options=CODING)
        stream.height, stream.width = height + height % 2, width + width % 2
        stream.pix_fmt = "yuv420p"
        for t, frame in enumerate(frames):
            painted = paint_objects(frame, predicted[t], None if truth is None else truth[t])
            even = np.pad(painted, odd, mode="edge")
            video.mux(stream.encode(av.VideoFrame.from_ndarray(even, format="rgb24")))
        video.mux(stream.encode())


def paint_objects(
    frame: UInt8[np.ndarray, "h w 3"],
    predicted: UInt8[np.ndarray, "h w"],
    truth: UInt8[np.ndarray, "h w"] | None = None,
) -> UInt8[np.ndarray, "h w 3"]:
    """Predicted objects under their colours, halved but for the edge; true ones' edges in white."""
    colours = object_colours()
    painted, inside, edge = frame.copy(), predicted > 0, edges(predicted)
    numbers = predicted - 1  # the background's wraps around, and is not painted
    painted[inside] = frame[inside] // 2 + colours[numbers[inside] % len(colours)] // 2
    painted[edge] = colours[numbers[edge] % len(colours)]
    if truth is not None:
        painted[edges(truth)] = WHITE
    return painted


def object_colours() -> UInt8[np.ndarray, "colours 3"]:
    from croc.lab.show.figures import PALETTE  # brings matplotlib, which evaluations do without

    return (PALETTE * 255).round().byte().numpy()


def edges(objects: UInt8[np.ndarray, "h w"]) -> Bool[np.ndarray, "h w"]:
    """Pixels of an object with a neighbour, of the eight, that is not of it."""
    height, width = objects.shape
    padded = np.pad(objects, 1, mode="edge")
    differs = np.zeros_like(objects, bool)
    for y in range(3):
        for x in range(3):
            differs |= padded[y : y + height, x : x + width] != objects
    return differs & (objects > 0)
