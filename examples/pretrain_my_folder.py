"""Pre-train on my folder of photographs from Python, then score the features and see clusters.

Shows: `croc.pretrain` with options, the `Run` that it gives, `croc.evaluate` before and after
training, and `croc.cluster` on two crops of a photograph, as a training step would join them.
Needs: a folder of photographs. Without one it takes synthetic scenes and no download. The network
is the small one of `croc demo` (four minutes on two cores with scenes, with --small half a minute);
--recipe coco-vits16 is the real one, for a GPU (for several there is `croc pretrain`).
Prints: losses, and for labelled data (--score, or scenes) the mIoU of linear segmentation before
and after. Leaves in the folder --to: the run with its report.html, and clusters.png.

    python examples/pretrain_my_folder.py ~/Pictures --to runs/mine
    python examples/pretrain_my_folder.py --small

The same command again goes on from the last checkpoint, or only draws if the run is finished.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image
from torchvision.transforms.functional import pil_to_tensor

import croc
from croc.data import open_source
from croc.lab.show.figures import PALETTE, by_size, paint

matplotlib.use("agg")
SHOWN = 4
SHARE = 0.75
"""Of the photograph's sides in a crop; one lies in the top left corner, one in the other."""


@dataclass(frozen=True)
class Joined:
    """A photograph, two crops of it, and the clusters that were found in both together."""

    photograph: Image.Image
    boxes: list[tuple[int, int, int, int]]
    crops: list[Image.Image]
    clusters: croc.Clusters
    grid: tuple[int, int]


def main() -> None:
    asked = read_arguments()
    data = {"root": asked.folder or "scenes"}
    options = {}
    if asked.small:
        data, options = data | {"scenes": 96}, {"optim": {"epochs": 3}}
    one = {"devices": 1}  # of several processes each would go on to score and to draw
    run = croc.pretrain(asked.recipe, data=data, folder=asked.to / "run", run=one, **options)
    lines = run.metrics()
    first, last = lines[0], lines[-1]
    print(f"step {last['step']}: loss {first['loss']:.3f} → {last['loss']:.3f}")

    scenes = "scenes:32" if asked.small else "scenes"
    score = asked.score or (None if asked.folder else scenes)
    if score:
        compare(run, score, asked.small)
    draw(join_crops(some_photographs(run), run), asked.to / "clusters.png")
    print(run.folder / "report.html", asked.to / "clusters.png", sep="\n")


def compare(run: croc.Run, data: str, small: bool) -> None:
    """Linear segmentation by the features learned, and by the same network's before training."""
    options: dict[str, Any] = {}
    if small:
        options["steps"] = 50
    to = run.folder / "evaluation"
    for name, weights in (("untrained", f"random:{run.folder}"), ("trained", run)):
        result = croc.evaluate("linear", weights, data, results=to, **options)
        print(f"{name:10} {result.scores['mIoU']:.1f} mIoU on {result.data}")


def join_crops(photographs: list[Image.Image], run: croc.Run) -> list[Joined]:
    boxes = [two_boxes(*photograph.size) for photograph in photographs]
    crops = [[image.crop(box) for box in two] for image, two in zip(photographs, boxes)]
    described = croc.features([crop for two in crops for crop in two], run)
    pairs = zip(described[::2], described[1::2])
    return [join(*each) for each in zip(photographs, boxes, crops, pairs)]


def join(
    photograph: Image.Image,
    boxes: list[tuple[int, int, int, int]],
    crops: list[Image.Image],
    described: tuple[croc.Features, croc.Features],
) -> Joined:
    """Cluster the tokens of both crops as one set, by what they are and where they lie."""
    tokens = torch.cat([each.patches.flatten(0, 1) for each in described])
    corners = [torch.tensor(box[:2]) for box in boxes]
    places = [each.centres_px().flatten(0, 1) + at for each, at in zip(described, corners)]
    positions = torch.cat(places) / max(photograph.size)  # in its frame the longer side is 1
    saliency = torch.full((len(tokens),), 1 / len(tokens))  # all patches count alike
    config = croc.ClusterConfig(k_start=8)
    clusters = croc.cluster(tokens[None, None], positions[None], saliency[None, None], config)
    rows, columns = described[0].patches.shape[:2]
    return Joined(photograph, boxes, crops, clusters, (rows, columns))


def two_boxes(width: int, height: int) -> list[tuple[int, int, int, int]]:
    """Left, top, right and bottom of two crops of the same size."""
    wide, high = round(SHARE * width), round(SHARE * height)
    return [(0, 0, wide, high), (width - wide, height - high, width, height)]


def draw(found: list[Joined], path: Path) -> None:
    """A row a photograph: its crops, and in both the clusters; one that a crop lacks is hatched."""
    names = ("photograph", "first crop", "its clusters", "second crop", "its clusters")
    figure = Figure(figsize=(8.5, 1.72 * len(found) + 0.25), dpi=100, layout="constrained")
    axes = figure.subplots(len(found), len(names), squeeze=False)
    for row, each in zip(axes, found):
        painted = [paint_crop(each, view) for view in range(2)]
        pictures = (each.photograph, each.crops[0], painted[0], each.crops[1], painted[1])
        for axis, picture in zip(row, pictures):
            axis.imshow(picture, interpolation="bicubic")
            axis.set_axis_off()
        for box, colour in zip(each.boxes, ("white", "black")):
            corner, size = box[:2], (box[2] - box[0] - 1, box[3] - box[1] - 1)
            row[0].add_patch(Rectangle(corner, *size, fill=False, edgecolor=colour, linewidth=1.5))
    for axis, name in zip(axes[0], names):
        axis.set_title(name, fontsize=9)
    figure.savefig(path)


def paint_crop(joined: Joined, view: int) -> np.ndarray:
    """Of one image and one head: assignments are view × image × head × patch × cluster."""
    assignments, valid = joined.clusters.assignments[:, 0, 0], joined.clusters.valid[0, 0]
    colours = PALETTE[by_size(assignments)]
    pixels = pil_to_tensor(joined.crops[view]) / 255
    return paint(pixels, assignments[view], valid, joined.grid, colours).permute(1, 2, 0).numpy()


def some_photographs(run: croc.Run) -> list[Image.Image]:
    """The first of those that the run was trained on."""
    config = run.config
    source = open_source(config.data, config.run.seed)
    return [Image.fromarray(source.read(index)) for index in range(min(SHOWN, len(source)))]


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", help="photographs at any depth")
    parser.add_argument("--recipe", default="demo", help="such as coco-vits16")
    parser.add_argument("--score", metavar="KIND:PATH", help="labelled data, as --data has them")
    parser.add_argument("--to", type=Path, default=Path("runs/my-folder"), help="folder")
    parser.add_argument("--small", action="store_true", help="a minute at most, to try it out")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except croc.UserError as error:
        sys.exit(str(error))
