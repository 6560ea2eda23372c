"""Search by patch: where in my photographs is something like this?

Shows: dense features of photographs (`croc.features`), and what they are good for. One patch of
the first photograph is compared with every patch of all others, by the cosine of their features.
Needs: photographs, or a folder of them. Without any it takes synthetic scenes, and without
--weights it first trains the small network of `croc demo` (four minutes on two cores; with --small
half a minute, and then it finds little more than colours).
Prints: the best patch of each photograph, best first, and what cannot be read. Leaves: similar.png
in the folder --to.

    python examples/search_by_patch.py ~/Pictures --at 320 200 --weights runs/mine
    python examples/search_by_patch.py --small
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

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
"""The first scene, and where in it the search starts: at a wall of bricks."""
TOO_FEW = "give two photographs at least, or a folder of them"


@dataclass(frozen=True)
class Match:
    """The patch of a photograph that is most like the query."""

    photograph: Path
    cosine: float
    row: int
    column: int
    cosines: torch.Tensor
    """Of all its patches, rows × columns."""


def main() -> None:
    asked = read_arguments()
    asked.to.mkdir(parents=True, exist_ok=True)
    photographs = find_photographs(asked.photographs) or save_scenes(asked.to, asked.small)
    at = asked.at or (None if asked.photographs else SCENE_QUERY)
    weights = asked.weights or train(asked.to, asked.small)

    described = describe(photographs, weights)
    check(described, photographs[0] if photographs[0] in asked.photographs else None)
    first, query = next(iter(described.items()))
    height, width = query.size_px
    row, column = query.patch_at(*(at or (width / 2, height / 2)))
    found = search(query.patches[row, column], described)
    itself = next(match for match in found if match.photograph == first)
    matches = [match for match in found if match is not itself]

    print(f"like the patch in row {row}, column {column} of {first.name}:")
    for place, match in enumerate(matches[: asked.best], start=1):
        x, y = described[match.photograph].centres_px()[match.row, match.column]
        print(f"{place:3}  cosine {match.cosine:.3f}  {match.photograph.name} at {x:.0f}, {y:.0f}")
    picture = asked.to / "similar.png"
    draw([itself, *matches[: asked.best]], picture)
    print(picture)


def check(described: dict[Path, croc.Features], asked_about: Path | None) -> None:
    """Without the photograph that was named first, another would be asked about."""
    if asked_about not in (None, *described):
        raise croc.UserError(f"{asked_about} cannot be read, and it is what is asked about")
    if len(described) < 2:
        raise croc.UserError(TOO_FEW)


def describe(photographs: list[Path], weights: Path | str | croc.Run) -> dict[Path, croc.Features]:
    """One by one, so that one that cannot be read is said and left out."""
    backbone = croc.load_backbone(weights)
    backbone.to("cuda" if torch.cuda.is_available() else "cpu")
    described = {}
    for photograph in photographs:
        try:
            (described[photograph],) = croc.features(photograph, backbone)
        except croc.UserError as error:
            print(f"left out: {error}")
    return described


def search(patch: torch.Tensor, described: dict[Path, croc.Features]) -> list[Match]:
    """The best patch of each photograph, the best photograph first."""
    matches = []
    for photograph, features in described.items():
        cosines = F.cosine_similarity(features.patches, patch, dim=-1)
        row, column = divmod(int(cosines.argmax()), cosines.shape[1])
        matches.append(Match(photograph, float(cosines.max()), row, column, cosines))
    return sorted(matches, key=lambda match: -match.cosine)


def draw(matches: list[Match], path: Path) -> None:
    """The query as it is, then the matches, lit where they are like it."""
    columns = min(5, len(matches))
    rows = -(-len(matches) // columns)
    figure = Figure(figsize=(1.7 * columns, 1.95 * rows), dpi=100, layout="constrained")
    lowest = torch.cat([match.cosines.flatten() for match in matches]).median()
    for number, match in enumerate(matches):
        axis = figure.add_subplot(rows, columns, number + 1)
        axis.set_axis_off()
        share = ((match.cosines - lowest) / (1 - lowest)).clamp(0, 1)
        draw_photograph(axis, match, torch.ones_like(share) if number == 0 else share)
        said = "the patch" if number == 0 else f"{number}: cosine {match.cosine:.2f}"
        axis.set_title(said, fontsize=9)
    figure.savefig(path)


def draw_photograph(axis: Axes, match: Match, light: torch.Tensor) -> None:
    """Gray and dim where there is no light, in full colours where it is 1."""
    with Image.open(match.photograph) as image:
        pixels = np.asarray(ImageOps.exif_transpose(image).convert("RGB")) / 255
    rows, columns = light.shape
    spread = F.interpolate(light[None, None], size=pixels.shape[:2], mode="bilinear")[0, 0]
    share = spread.numpy()[..., None]
    shown = share * pixels + (1 - share) * 0.55 * pixels.mean(axis=-1, keepdims=True)
    square = (rows / columns) * (pixels.shape[1] / pixels.shape[0])  # patches may not be square
    axis.imshow(shown, extent=(0, columns, rows, 0), aspect=1 / square)
    for colour, width in (("black", 3.5), ("white", 1.6)):
        place = (match.column, match.row)
        axis.add_patch(Rectangle(place, 1, 1, fill=False, edgecolor=colour, linewidth=width))


def train(to: Path, small: bool) -> croc.Run:
    """The demo's network; the second time it is there already."""
    options = {"data": {"scenes": 96}, "optim": {"epochs": 3}} if small else {}
    alone = {"report": False, "devices": 1}  # of several processes each would go on to search
    return croc.pretrain("demo", folder=to / "run", run=alone, **options)


def find_photographs(names: list[Path]) -> list[Path]:
    found = []
    for name in names:
        inside = sorted(name.rglob("[!.]*")) if name.is_dir() else [name]
        found += [path for path in inside if path.suffix.lower() in SUFFIXES]
    if names and len(found) < 2:
        raise croc.UserError(TOO_FEW)
    return found


def save_scenes(to: Path, small: bool) -> list[Path]:
    folder = to / "photographs"
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
    parser.add_argument("photographs", nargs="*", type=Path, help="the first is asked about")
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
