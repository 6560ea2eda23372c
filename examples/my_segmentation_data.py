"""Evaluate on my own segmentation dataset, in its own layout.

Shows: a class that reads labeled photographs, `croc.register_dataset` to register the dataset, and
`croc.evaluate` on it like on any other dataset, with class scores and a figure.
Needs: a folder as below; by default, one with synthetic scenes is written.

    photographs/NAME.jpg or .png
    masks/NAME.png       a color for each class, any other color is ignored
    colors.json         {"sky": [86, 180, 233], "grass": [0, 158, 115], ...}
    val.txt              one NAME per line: these are scored, all others train

(Label maps with numbers instead of colors need no Python: `folder:PATH` reads images/{train,val}
and labels/{train,val}, see docs/evaluate.md.)
Prints: the mIoU of two protocols and the IoU of each class. Writes to the folder --to:
results.jsonl and pictures/ of predictions next to the labels.

    python examples/my_segmentation_data.py FOLDER --weights runs/mine
    python examples/my_segmentation_data.py --small

Without --weights it evaluates an untrained network.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

import croc
from croc.data.scenes import CLASSES, make_scene

IGNORED = 255


@dataclass(frozen=True)
class ColoredMasks:
    """One split of the dataset. It is copied to worker processes, so it holds names, not images."""

    folder: Path
    names: tuple[str, ...]
    colors: dict[str, list[int]]

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.colors)

    def __len__(self) -> int:
        return len(self.names)

    def name(self, index: int) -> str:
        return self.names[index]

    def read(self, index: int) -> croc.LabeledImage:
        name = self.names[index]
        image = read_colors(self.folder / "photographs" / name)
        mask = read_colors(self.folder / "masks" / f"{Path(name).stem}.png")
        labels = np.full(mask.shape[:2], IGNORED, np.uint8)
        for number, color in enumerate(self.colors.values()):
            labels[(mask == color).all(axis=-1)] = number
        return croc.LabeledImage(image, labels, name)


def read_colors(path: Path) -> np.ndarray:
    try:
        with Image.open(path) as image:
            return np.array(image.convert("RGB"))
    except OSError as error:  # possibly in a worker process
        raise croc.UserError(f"{path} cannot be read: {error}") from None


def open_masks(path: str, split: str) -> ColoredMasks:
    """`path` is the part after "masks:", `split` is "train" or "val"."""
    folder = Path(path).expanduser()
    try:
        colors = json.loads((folder / "colors.json").read_text())
    except ValueError as error:
        raise croc.UserError(f"{folder / 'colors.json'} is not JSON: {error}") from None
    scored = set((folder / "val.txt").read_text().splitlines())
    names = sorted(path.name for path in (folder / "photographs").glob("[!.]*"))
    chosen = [name for name in names if (Path(name).stem in scored) == (split == "val")]
    return ColoredMasks(folder, tuple(chosen), colors)


def main() -> None:
    options = read_arguments()
    folder = options.folder or make_folder(options.to / "data", 32 if options.small else 160)
    default_px = 96 if options.folder is None else 448
    settings = {"image_px": options.image_px or default_px, "blocks": 1}
    croc.register_dataset("masks", open_masks)
    for protocol in ("incontext", "linear"):
        if protocol == "linear":
            settings |= {"steps": 30 if options.small else 500, "lrs": (1e-2,)}
        data = f"masks:{folder}"
        result = croc.evaluate(protocol, options.weights, data, results=options.to, **settings)
        print(f"{protocol}: {result.scores['mIoU']:.1f} mIoU, {result.backbone}")
        ious = {name: "–" if iou is None else f"{iou:.0f}" for name, iou in result.classes.items()}
        print("  " + ", ".join(f"{name} {iou}" for name, iou in ious.items()))
        print(f"  {options.to / result.picture}")


def make_folder(folder: Path, count: int) -> Path:
    """Scenes in the layout above; a quarter are validation images."""
    (folder / "photographs").mkdir(parents=True, exist_ok=True)
    (folder / "masks").mkdir(exist_ok=True)
    colors = np.random.default_rng(0).integers(0, 256, (len(CLASSES), 3), np.uint8)
    names = [f"scene-{index:03}" for index in range(count)]
    for index, name in enumerate(names):
        scene = make_scene(2, index)
        Image.fromarray(scene.image).save(folder / "photographs" / f"{name}.png")
        Image.fromarray(colors[scene.labels]).save(folder / "masks" / f"{name}.png")
    by_class = dict(zip(CLASSES, colors.tolist()))
    (folder / "colors.json").write_text(json.dumps(by_class, indent=1) + "\n")
    (folder / "val.txt").write_text("\n".join(names[::4]) + "\n")
    return folder


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, help="data in the layout above")
    parser.add_argument("--weights", default="random:vit_tiny_patch16_224", help="a run, a file, …")
    parser.add_argument("--image-px", type=int, help="side to which photographs are squashed")
    parser.add_argument("--to", type=Path, default=Path("runs/my-data"), help="folder")
    parser.add_argument("--small", action="store_true", help="a minute at most, to try it out")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except (croc.UserError, OSError) as error:
        sys.exit(str(error))
