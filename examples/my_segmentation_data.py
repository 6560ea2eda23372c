"""Add my own segmentation data set, in its own layout, to the evaluation.

Shows: a class that reads labelled photographs, `croc.add_data` to give the data set a name, and
`croc.evaluate` on it as on any other: the whole protocol, scores of classes, a picture.
Needs: a folder as below. Without one it makes one of synthetic scenes, to look at and to copy.

    photographs/NAME.jpg or .png
    masks/NAME.png       a colour for each class, any other colour is ignored
    colours.json         {"sky": [86, 180, 233], "grass": [0, 158, 115], ...}
    val.txt              a NAME a line: these are scored, all others train

(For label maps that hold numbers instead of colours no Python is needed: `folder:PATH` reads
images/{train,val} and labels/{train,val}, see docs/evaluate.md.)
Prints: the mIoU by two protocols and the IoU of each class. Leaves in the folder --to:
results.jsonl and pictures/ of predictions beside the truth.

    python examples/my_segmentation_data.py FOLDER --weights runs/mine
    python examples/my_segmentation_data.py --small

Without --weights an untrained network is scored: what a trained one has to beat.
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
class ColouredMasks:
    """One part of the data set; worker processes get copies, so it holds names, not pictures."""

    folder: Path
    names: tuple[str, ...]
    colours: dict[str, list[int]]

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.colours)

    def __len__(self) -> int:
        return len(self.names)

    def name(self, index: int) -> str:
        return self.names[index]

    def read(self, index: int) -> croc.Labelled:
        name = self.names[index]
        image = read_colours(self.folder / "photographs" / name)
        mask = read_colours(self.folder / "masks" / f"{Path(name).stem}.png")
        labels = np.full(mask.shape[:2], IGNORED, np.uint8)
        for number, colour in enumerate(self.colours.values()):
            labels[(mask == colour).all(axis=-1)] = number
        return croc.Labelled(image, labels, name)


def read_colours(path: Path) -> np.ndarray:
    try:
        with Image.open(path) as image:
            return np.array(image.convert("RGB"))
    except OSError as error:  # said in one line, wherever it is read
        raise croc.UserError(f"{path} cannot be read: {error}") from None


def open_masks(path: str, split: str) -> ColouredMasks:
    """What stands after "masks:", and "train" or "val"."""
    folder = Path(path).expanduser()
    colours = read_palette(folder / "colours.json")
    scored = set((folder / "val.txt").read_text().splitlines())
    names = sorted(path.name for path in (folder / "photographs").glob("[!.]*"))
    chosen = [name for name in names if (Path(name).stem in scored) == (split == "val")]
    return ColouredMasks(folder, tuple(chosen), colours)


def read_palette(path: Path) -> dict[str, list[int]]:
    try:
        colours = json.loads(path.read_text())
    except ValueError as error:
        raise croc.UserError(f"{path} is no JSON: {error}") from None
    if not isinstance(colours, dict) or not all(map(is_colour, colours.values())):
        raise croc.UserError(f'{path} must be as {{"sky": [86, 180, 233], ...}}')
    return colours


def is_colour(value: object) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(each in range(256) for each in value)


def main() -> None:
    asked = read_arguments()
    folder = asked.folder or make_folder(asked.to / "data", 32 if asked.small else 160)
    own_px = 96 if asked.folder is None else 448
    options = {"image_px": asked.image_px or own_px, "blocks": 1}
    croc.add_data("masks", open_masks)
    for protocol in ("incontext", "linear"):
        if protocol == "linear":
            options |= {"steps": 30 if asked.small else 500, "rates": (1e-2,)}
        result = croc.evaluate(
            protocol, asked.weights, f"masks:{folder}", results=asked.to, **options
        )
        print(f"{protocol}: {result.scores['mIoU']:.1f} mIoU, {result.backbone}")
        print("  " + ", ".join(f"{name} {say(iou)}" for name, iou in result.classes.items()))
        print(f"  {asked.to / result.picture}")


def say(iou: float | None) -> str:
    return "–" if iou is None else f"{iou:.0f}"


def make_folder(folder: Path, count: int) -> Path:
    """Scenes in the layout that is told of above; a quarter of them is scored."""
    (folder / "photographs").mkdir(parents=True, exist_ok=True)
    (folder / "masks").mkdir(exist_ok=True)
    colours = np.random.default_rng(0).integers(0, 256, (len(CLASSES), 3), np.uint8)
    names = [f"scene-{index:03}" for index in range(count)]
    for index, name in enumerate(names):
        scene = make_scene(2, index)
        Image.fromarray(scene.image).save(folder / "photographs" / f"{name}.png")
        Image.fromarray(colours[scene.labels]).save(folder / "masks" / f"{name}.png")
    by_class = dict(zip(CLASSES, colours.tolist()))
    (folder / "colours.json").write_text(json.dumps(by_class, indent=1) + "\n")
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
