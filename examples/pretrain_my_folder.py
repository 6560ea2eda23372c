"""Pre-train on my folder of photographs from Python, then score the features and draw clusters.

Shows: `croc.pretrain` with options, the `Run` that it returns, `croc.evaluate` before and after
training, and `croc.cluster` on two crops of a photograph, as in a training step.
Needs: a folder of photographs; by default, synthetic scenes. The network is the small one of
`croc demo` (four minutes on two cores with scenes, half a minute with --small); --recipe
coco-vits16 trains the paper's on one GPU (use `croc pretrain` for several).
Prints: losses, and for labeled data (--score, or scenes) the mIoU of linear segmentation before
and after. Writes to the folder --to: the run with its report.html, and clusters.png.

    python examples/pretrain_my_folder.py ~/Pictures --to runs/mine
    python examples/pretrain_my_folder.py --small

The same command resumes from the last checkpoint; if the run is finished, it only draws.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image
from torchvision.transforms.functional import pil_to_tensor

import croc
from croc.data.sources import open_source
from croc.lab.show.figures import paint

matplotlib.use("agg")
SHOWN = 4
SHARE = 0.75
"""Side of a crop relative to the photograph; the crops are at the top left and bottom right."""


def main() -> None:
    options = read_arguments()
    data: dict[str, Any] = {"root": options.folder or "scenes"}
    short: dict[str, Any] = {}
    if options.small:
        data, short = data | {"scenes": 96}, {"optim": {"epochs": 3}}
    single = {"devices": 1}  # one process, which also scores and draws
    run = croc.pretrain(options.recipe, data=data, folder=options.to / "run", run=single, **short)
    first, *_, last = run.metrics()
    print(f"step {last['step']}: loss {first['loss']:.3f} → {last['loss']:.3f}")

    scenes = "scenes:32" if options.small else "scenes"
    labeled = options.score or (None if options.folder else scenes)
    if labeled:  # by the network before training, and after
        steps: dict[str, Any] = {"steps": 50} if options.small else {}
        results = run.folder / "evaluation"
        for name, weights in (("untrained", f"random:{run.folder}"), ("trained", run)):
            result = croc.evaluate("linear", weights, labeled, results=results, **steps)
            print(f"{name:10} {result.scores['mIoU']:.1f} mIoU on {result.data}")

    source = open_source(run.config.data, run.config.run.seed)
    photographs = [Image.fromarray(source.read(n)) for n in range(min(SHOWN, len(source)))]
    draw_clusters(photographs, run, options.to / "clusters.png")
    print(run.folder / "report.html", options.to / "clusters.png", sep="\n")


def cluster_crops(
    photograph: Image.Image, boxes: list[tuple[int, int, int, int]], run: croc.Run
) -> list[Image.Image]:
    """Two crops and their joint clusters, in the order crop, clusters, crop, clusters."""
    crops = [photograph.crop(box) for box in boxes]
    features = croc.features(crops, run)
    tokens = torch.cat([x.patches.flatten(0, 1) for x in features])
    corners = [torch.tensor(box[:2]) for box in boxes]
    centers = [x.centers_px().flatten(0, 1) + corner for x, corner in zip(features, corners)]
    positions = torch.cat(centers) / max(photograph.size)  # the photograph's longer side is 1
    saliency = torch.full((len(tokens),), 1 / len(tokens))  # all patches have the same weight
    config = croc.ClusterConfig(k_start=8)
    clusters = croc.cluster(tokens[None, None], positions[None], saliency[None, None], config)

    # view × image × head × patch × cluster, of one image and one head
    assignments, valid = clusters.assignments[:, 0, 0], clusters.valid[0, 0]
    rows, columns = features[0].patches.shape[:2]
    pixels = torch.stack([pil_to_tensor(crop) / 255 for crop in crops])
    pictures = []
    for crop, painted in zip(crops, paint(pixels, assignments, valid, (rows, columns))):
        pictures += [crop, Image.fromarray((255 * painted).round().astype("uint8"))]
    return pictures


def draw_clusters(photographs: list[Image.Image], run: croc.Run, path: Path) -> None:
    """One row per photograph. Clusters that are missing in one of the crops are hatched."""
    titles = ("photograph", "first crop", "its clusters", "second crop", "its clusters")
    figure = Figure(figsize=(8.5, 1.72 * len(photographs) + 0.25), dpi=100, layout="constrained")
    all_axes = figure.subplots(len(photographs), len(titles), squeeze=False)
    for photograph, row in zip(photographs, all_axes):
        width, height = photograph.size
        wide, high = round(SHARE * width), round(SHARE * height)
        boxes = [(0, 0, wide, high), (width - wide, height - high, width, height)]
        for axes, picture in zip(row, [photograph, *cluster_crops(photograph, boxes, run)]):
            axes.imshow(picture, interpolation="bicubic")
            axes.set_axis_off()
        for box, color in zip(boxes, ("white", "black")):
            edge = Rectangle(box[:2], wide - 1, high - 1, fill=False, ec=color, lw=1.5)
            row[0].add_patch(edge)
    for axes, title in zip(all_axes[0], titles):
        axes.set_title(title, fontsize=9)
    figure.savefig(path)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", help="photographs at any depth")
    parser.add_argument("--recipe", default="demo", help="such as coco-vits16")
    parser.add_argument("--score", metavar="KIND:PATH", help="labeled data, as for croc evaluate")
    parser.add_argument("--to", type=Path, default=Path("runs/my-folder"), help="folder")
    parser.add_argument("--small", action="store_true", help="a minute at most, to try it out")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except croc.UserError as error:
        sys.exit(str(error))
