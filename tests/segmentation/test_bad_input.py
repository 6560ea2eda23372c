"""Bad input of `croc segment`: one line, exit code 2, and nothing written."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from croc.cli import main
from croc.segmentation.segmenter import save_segmenter
from tests.refusals import check_refusal
from tests.segmentation.heads import make_head
from tests.segmentation.test_fit import WEIGHTS, make_data

FIT = f"fit --weights {WEIGHTS} --linear.image-px 64 --to new --workers 0 --data"
PREDICT = "predict --workers 0 --to new"
BAD = [
    (f"{FIT} folder:bad", "1.png has the label 7, which this dataset does not define"),
    (f"{FIT} folder:blank", "no training pixel is labeled: all labels are 255"),
    (f"{FIT} folder:none", "images/train/*.jpg is missing"),
    (f"{FIT} folder:nowhere", "nowhere is missing"),
    (f"{FIT} folder:good --to taken.onnx", "already exists and will not be overwritten"),
    (f"{FIT} folder:good --hold-out 0.1", "leaves none to score"),
    (f"{FIT} folder:good --linear.blocks 13", "has 12 blocks, not 13"),
    (f"{FIT} folder:good --incontext.memory 9", "--incontext.memory"),
    (f"{FIT} folder:good --weights colors", "colors cannot be stored"),
    (f"{PREDICT} other photos --to masks", "were made with a different head"),
    (f"{PREDICT} head photos/sub --to masks", "are for different images"),
    (f"{PREDICT} head taken", "no images in"),
    (f"{PREDICT} head text.txt", "is not an image file"),
    (f"{PREDICT} head nothing", "does not exist"),
    (f"{PREDICT} head photos --to odd", "settings.json cannot be read"),
    (f"{PREDICT} head photos --tile-px 40", "--tile-px: tiles of 40 px"),
    (f"{PREDICT} photos photos", "has no head"),
    (
        f"discover broken.jpg --weights {WEIGHTS} --to new --classes 2 --workers 0",
        "no image can be decoded",
    ),
    ("export memory --to x.onnx", "is an in-context head, which cannot be exported"),
    ("export head --to x.engine", "pass a file that ends in .onnx or .pt2"),
    ("export head --to taken.onnx", "already exists and will not be overwritten"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads, photographs with masks, and valid and invalid labeled data."""
    folder = tmp_path_factory.mktemp("folder")
    for name in ("good", "bad", "blank"):
        make_data(folder / name, 3)
    Image.fromarray(np.full((40, 50), 7, np.uint8)).save(folder / "bad/labels/train/1.png")
    for path in (folder / "blank/labels/train").iterdir():
        Image.fromarray(np.full((40, 50), 255, np.uint8)).save(path)
    for name in ("none/images/train", "none/labels/train", "taken", "odd", "photos/sub"):
        (folder / name).mkdir(parents=True)
    for name, kind, classes in (("head", "linear", 3), ("other", "linear", 4)):
        save_segmenter(make_head(WEIGHTS, kind, classes), folder / name, {})
    save_segmenter(make_head("random:resnet18", "incontext"), folder / "memory", {})
    for name in ("a.png", "sub/b.png"):
        Image.new("RGB", (40, 30)).save(folder / "photos" / name)
    (folder / "taken.onnx").touch()
    (folder / "text.txt").write_text("text")
    (folder / "broken.jpg").write_bytes(b"\xff\xd8\xff")
    (folder / "odd" / "settings.json").write_text("{")
    command = "segment predict head photos --to masks --workers 0"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(command.split()) == 0
    return folder


@pytest.mark.parametrize(("command", "fragment"), BAD)
def test_bad_input_is_refused(command: str, fragment: str, folder: Path, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    check_refusal(capsys, ["segment", *command.split()], fragment)
