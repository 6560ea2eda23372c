"""Every reader on a small tree in the real layout, and on the real data if it is available."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from croc.errors import UserError
from croc.eval import coco
from croc.eval.datasets import ADE_CLASSES, SPLITS, VOC_CLASSES, open_segmentation
from tests.eval import trees

# A folder with the real small sets; without it the tests on them are skipped.
REAL = Path(os.environ.get("CROC_DATA", "no-data"))

ANIMAL, INDOOR, PERSON = map(coco.THINGS.index, ("animal", "indoor", "person"))
PLANT, SOLID, TEXTILE, WATER = map(coco.STUFF.index, ("plant", "solid", "textile", "water"))
VOID = [255] * 8
STUFF = [255, 255, TEXTILE, WATER, SOLID, 255, 255, 255]


def read_all(spec: str) -> None:
    data = open_segmentation(spec, "val")
    for index in range(len(data)):
        data.read(index)


def error_of(spec: str) -> str:
    with pytest.raises(UserError) as caught:
        read_all(spec)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "members", "root", "split", "names", "row"),
    [
        ("voc12", trees.voc(), "", "train", "a b", [0, 20, 255, 0, 20, 255, 0, 20]),
        ("voc12", trees.voc(), "VOC2012", "val", "d c", [0, 15, 255, 0, 15, 255, 0, 15]),
        ("voc12", trees.voc(), "VOCdevkit/VOC2012", "val", "c d", VOID),
        ("ade20k", trees.ade(), "", "train", "ADE_train_00000001", [255, 0, 149] * 2 + [255, 0]),
        ("ade20k", trees.ade(), "ADEChallengeData2016", "val", "ADE_val_00000001", [255, 1] * 4),
        ("folder", trees.folder(), "", "val", "z y", [2, 6] * 4),
        (
            *("coco-things", trees.panoptic("train"), "", "train", "000000000003 000000000009"),
            [255, ANIMAL, ANIMAL, 255, INDOOR, 255, 255, 255],
        ),
        ("coco-things", trees.panoptic(), "", "val", "000000000009 000000000003", VOID),
        (
            *("coco-stuff-panoptic", trees.panoptic(), "", "val", "000000000003 000000000009"),
            [255, 255, 255, 255, 255, WATER, PLANT, 255],
        ),
        *(
            ("coco-stuff", trees.stuff("val", folder), "", "val", "000000000009", STUFF)
            for folder in ("stuffthingmaps/", "stuffthingmaps_trainval2017/", "annotations/", "")
        ),
        (
            *("coco-things-mini", trees.mini(), "", "train", "1"),
            [255, PERSON, ANIMAL, INDOOR, 255, 255, PERSON, ANIMAL],
        ),
    ],
)
def test_labels_of_each_layout(kind, members, root, split, names, row, tmp_path):
    """The row is of the last name; some photographs are gray JPEGs."""
    trees.write(tmp_path / root, members)
    data = open_segmentation(f"{kind}:{tmp_path}", split)
    assert [data.name(index) for index in range(len(data))] == sorted(names.split())
    read = data.read(sorted(names.split()).index(names.split()[-1]))
    assert read.labels[0].tolist() == row
    assert read.image.shape == (trees.HEIGHT, trees.WIDTH, 3)


def test_classes(tmp_path):
    assert (len(VOC_CLASSES), len(ADE_CLASSES)) == (21, 150)
    assert (ADE_CLASSES[0], ADE_CLASSES[12], ADE_CLASSES[149]) == ("wall", "person", "flag")
    spec = f"folder:{trees.write(tmp_path, trees.folder())}"  # counted over both splits
    assert [open_segmentation(spec, split).classes for split in SPLITS] == [tuple("0123456")] * 2
    assert open_segmentation(spec, "train", alone=True).classes == tuple("01234")
    by_id = {value + 1: label for value, label in coco.stuff_classes().items() if label != 255}
    assert list(by_id) == list(range(92, 183))
    known = {92: "textile", 112: "furniture-stuff", 118: "floor", 120: "water", 124: "plant"}
    known |= {149: "ground", 157: "sky", 161: "furniture-stuff", 171: "wall", 182: "solid"}
    assert {number: coco.STUFF[by_id[number]] for number in known} == known


@pytest.mark.parametrize("prefix", ["", "./"])
def test_tar_folder_and_copies_are_equal(tmp_path, prefix):
    folder = trees.write(tmp_path / "folder", trees.mini())
    archive = trees.write_tar(tmp_path / "data.tar", trees.mini(), prefix)
    plain, packed = (open_segmentation(f"coco-things-mini:{x}", "val") for x in (folder, archive))
    assert len(plain) == len(packed) == 1
    for other in (packed, pickle.loads(pickle.dumps(packed))):
        np.testing.assert_array_equal(plain.read(0).image, other.read(0).image)
        np.testing.assert_array_equal(plain.read(0).labels, other.read(0).labels)


def test_broken_tars(tmp_path):
    archive = trees.write_tar(tmp_path / "data.tar", trees.folder())
    archive.write_bytes(archive.read_bytes()[:5000])
    assert str(archive) in error_of(f"folder:{archive}")
    archive.write_bytes(b"no tar at all" * 100)
    assert "not a complete tar archive" in error_of(f"folder:{archive}")


def test_exif_does_not_turn_a_labeled_photograph(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = trees.encode(Image.new("RGB", (trees.WIDTH, trees.HEIGHT)), "JPEG", exif=exif)
    trees.write(tmp_path, trees.folder() | {"images/val/y.jpg": turned})
    image = open_segmentation(f"folder:{tmp_path}", "val").read(0).image
    assert image.shape == (trees.HEIGHT, trees.WIDTH, 3)


def test_photographs_are_converted_as_in_training(tmp_path):
    """16-bit gray is not clipped, transparency is white."""
    gray = np.tile(np.linspace(0, 65535, 8).astype(np.uint16), (6, 1))
    clear = Image.new("RGBA", (8, 6))
    for number, image in enumerate((Image.fromarray(gray), clear)):
        png, labels = trees.encode(image), trees.gray_png(trees.label_map(0))
        trees.write(tmp_path, {f"images/val/{number}.png": png, f"labels/val/{number}.png": labels})
    data = open_segmentation(f"folder:{tmp_path}", "val")
    ramp, white = (data.read(number).image for number in (0, 1))
    assert np.array_equal(ramp[0, :, 0], np.round(np.linspace(0, 255, 8)))
    assert white.min() == 255


def test_empty_lines_of_classes_count(tmp_path):
    trees.write(tmp_path, trees.folder() | {"classes.txt": b"a\n\nc\nd\n\n"})
    assert open_segmentation(f"folder:{tmp_path}", "val").classes == ("a", "1", "c", "d")


def test_scenes_of_the_two_splits_differ():
    train, val = (open_segmentation("scenes", split) for split in SPLITS)
    assert (len(train), len(val), len(open_segmentation("scenes:3", "val"))) == (256, 64, 3)
    assert (train.read(0).image != val.read(0).image).any()
    assert train.read(255).labels.max() < len(train.classes)


FOLDER = "labels/val/y.png"
JSON = "annotations/panoptic_val2017.json"


@pytest.mark.parametrize(
    ("kind", "tree", "change", "message"),
    [
        ("coco-things", trees.panoptic, {JSON: None}, f"ROOT/{JSON} is missing: see "),
        (
            *("coco-things", trees.panoptic, {"val2017/000000000003.jpg": None}),
            "ROOT/val2017/000000000003.jpg is missing: see ",
        ),
        ("voc12", trees.voc, {"SegmentationClass/d.png": None}, "d.png is missing: see "),
        ("voc12", trees.voc, {"ImageSets/Segmentation/val.txt": b"\n"}, "*.jpg is missing"),
        (
            *("ade20k", trees.ade),
            {"annotations/validation/ADE_val_00000001.png": trees.gray_png(trees.label_map(151))},
            "ADE_val_00000001.png has the label 151",
        ),
        (
            *("folder", trees.folder, {FOLDER: trees.gray_png(trees.label_map(1, size=(8, 9)))}),
            "images/val/y.jpg is 8×6 but ROOT/labels/val/y.png is 8×9",
        ),
        ("folder", trees.folder, {FOLDER: b"broken"}, "y.png cannot be decoded"),
        ("folder", trees.folder, {FOLDER: trees.encode(Image.new("RGB", (8, 6)))}, "mode RGB"),
        ("folder", trees.folder, {"images/val": None}, "ROOT/images/val is missing: see "),
        (
            *("coco-things", trees.panoptic, {"annotations/panoptic_val2017.json": b'{"a": ['}),
            "ROOT/annotations/panoptic_val2017.json is not complete JSON",
        ),
    ],
)
def test_bad_files_are_named(tmp_path, kind, tree, change, message):
    gone = tuple(name for name, content in change.items() if content is None)
    members = {name: data for name, data in tree().items() if not (gone and name.startswith(gone))}
    members |= {name: data for name, data in change.items() if data is not None}
    trees.write(tmp_path, members)
    assert message.replace("ROOT", str(tmp_path)) in error_of(f"{kind}:{tmp_path}")


@pytest.mark.parametrize(
    ("kind", "counts", "classes"),
    [("coco-things-mini", (292, 186), 12), ("idd-lite", (1403, 204), 7)],
)
def test_real_data(kind, counts, classes):
    archive = REAL / f"{kind}.tar"
    if not archive.exists():
        pytest.skip("the real data is not available")
    splits = [open_segmentation(f"{kind}:{archive}", split) for split in SPLITS]
    assert tuple(len(data) for data in splits) == counts
    for data, stride in zip(splits, (4, 1)):
        assert len(data.classes) == classes
        read = range(0, len(data), stride)
        seen = {label for index in read for label in np.unique(data.read(index).labels).tolist()}
        assert seen == {*range(classes), 255}
