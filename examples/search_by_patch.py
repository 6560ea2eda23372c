"""Search by patch: where in my photographs is something like this?

Shows: dense features of photographs (`croc.features`), and one use of them. One patch of the first
photograph is compared with every patch of all others, by the cosine of their features.
Needs: photographs, or a folder of them; by default, synthetic scenes. Without --weights it first
trains the small network of `croc demo` (four minutes on two cores; with --small half a minute,
which is enough for little more than colors).
Prints: the best patch of each photograph, best first, and files that cannot be read.
Writes: similar.png in the folder --to.

    python examples/search_by_patch.py ~/Pictures --at 320 200 --weights runs/mine
    python examples/search_by_patch.py --small
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image, ImageOps

import croc
from croc.data.scenes import make_scene

matplotlib.use("agg")
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm")
SCENE, SCENE_QUERY = 6, (30.0, 14.0)
"""The scene with the query, and the query's pixel: a brick wall."""


@dataclass(frozen=True)
class Match:
    """The patch of a photograph that is most similar to the query."""

    photograph: Path
    cosine: float
    row: int
    column: int
    cosines: torch.Tensor
    """Of all patches of the photograph, rows × columns."""


def main() -> None:
    options = read_arguments()
    options.to.mkdir(parents=True, exist_ok=True)
    photographs = find_photographs(options.photographs)
    at = options.at
    if not options.photographs:
        photographs, at = save_scenes(options.to / "photographs", options.small), at or SCENE_QUERY
    weights = options.weights
    if weights is None:  # a finished run is reused
        short: Any = {"data": {"scenes": 96}, "optim": {"epochs": 3}} if options.small else {}
        run = {"report": False, "devices": 1}  # one process, which searches
        weights = croc.pretrain("demo", folder=options.to / "run", run=run, **short)

    backbone = croc.load_backbone(weights)
    backbone.to("cuda" if torch.cuda.is_available() else "cpu")
    features: dict[Path, croc.Features] = {}
    for photograph in photographs:  # one by one, to skip files that cannot be read
        try:
            (features[photograph],) = croc.features(photograph, backbone)
        except croc.UserError as error:
            if photograph in options.photographs[:1]:  # the query cannot be skipped
                raise
            print(f"skipped: {error}")
    if len(features) < 2:
        raise croc.UserError("pass at least two photographs, or a folder of them")

    first, query = next(iter(features.items()))
    height, width = query.size_px
    row, column = query.patch_at(*(at or (width / 2, height / 2)))
    matches = search(query.patches[row, column], features)
    itself = next(match for match in matches if match.photograph == first)
    best = [match for match in matches if match is not itself][: options.best]
    print(f"like the patch in row {row}, column {column} of {first.name}:")
    for rank, match in enumerate(best, start=1):
        x, y = features[match.photograph].centers_px()[match.row, match.column]
        print(f"{rank:3}  cosine {match.cosine:.3f}  {match.photograph.name} at {x:.0f}, {y:.0f}")
    draw([itself, *best], options.to / "similar.png")
    print(options.to / "similar.png")


def search(patch: torch.Tensor, features: dict[Path, croc.Features]) -> list[Match]:
    """The best patch of each photograph, the best photograph first."""
    matches = []
    for photograph, x in features.items():
        cosines = F.cosine_similarity(x.patches, patch, dim=-1)
        row, column = divmod(int(cosines.argmax()), cosines.shape[1])
        matches.append(Match(photograph, float(cosines.max()), row, column, cosines))
    return sorted(matches, key=lambda match: -match.cosine)


def draw(matches: list[Match], path: Path) -> None:
    """The query, then the matches, colored where they are similar to it."""
    columns = min(5, len(matches))
    rows = -(-len(matches) // columns)
    figure = Figure(figsize=(1.7 * columns, 1.95 * rows), dpi=100, layout="constrained")
    lowest = torch.cat([match.cosines.flatten() for match in matches]).median()
    for number, match in enumerate(matches):
        axes = figure.add_subplot(rows, columns, number + 1)
        share = ((match.cosines - lowest) / (1 - lowest)).clamp(0, 1)
        draw_photograph(axes, match, torch.ones_like(share) if number == 0 else share)
        title = "the patch" if number == 0 else f"{number}: cosine {match.cosine:.2f}"
        axes.set_title(title, fontsize=9)
    figure.savefig(path)


def draw_photograph(axes: Axes, match: Match, share: torch.Tensor) -> None:
    """Dim gray where the share is 0, full color where it is 1."""
    with Image.open(match.photograph) as image:
        pixels = np.asarray(ImageOps.exif_transpose(image).convert("RGB")) / 255
    rows, columns = share.shape
    large = F.interpolate(share[None, None], size=pixels.shape[:2], mode="bilinear")
    weight = large[0, 0].numpy()[..., None]
    shown = weight * pixels + (1 - weight) * 0.55 * pixels.mean(axis=-1, keepdims=True)
    aspect = (columns / rows) * (pixels.shape[0] / pixels.shape[1])  # of a patch
    axes.imshow(shown, extent=(0, columns, rows, 0), aspect=aspect)
    axes.set_axis_off()
    for color, width in (("black", 3.5), ("white", 1.6)):
        corner = (match.column, match.row)
        axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=color, linewidth=width))


def find_photographs(names: list[Path]) -> list[Path]:
    paths = []
    for name in names:
        inside = sorted(name.rglob("[!.]*")) if name.is_dir() else [name]
        paths += [path for path in inside if path.suffix.lower() in SUFFIXES]
    return paths


def save_scenes(folder: Path, small: bool) -> list[Path]:
    folder.mkdir(exist_ok=True)
    indices = range(SCENE, SCENE + (12 if small else 60))
    paths = [folder / f"scene-{index:02}.png" for index in indices]
    for index, path in zip(indices, paths):
        Image.fromarray(make_scene(1, index).image).save(path)
    return paths


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("photographs", nargs="*", type=Path, help="the first one has the query")
    parser.add_argument("--at", nargs=2, type=float, metavar=("X", "Y"), help="pixel of the patch")
    parser.add_argument("--weights", help="a run, a file, or what croc.load_backbone takes")
    parser.add_argument("--best", type=int, default=9, help="photographs shown")
    parser.add_argument("--to", type=Path, default=Path("runs/search-by-patch"), help="folder")
    parser.add_argument("--small", action="store_true", help="a minute at most, to try it out")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except croc.UserError as error:
        sys.exit(str(error))
