"""Every reader on a small tree in the real layout, and on the real data if it is available."""

import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from croc.errors import UserError
from croc.eval import coco
from croc.eval.datasets import (
    ADE_CLASSES,
    SPLITS,
    VOC_CLASSES,
    Labelled,
    open_segmentation,
)
from tests.eval import trees

# A folder with the real small sets; without it the tests on them are skipped.
REAL = Path(os.environ.get("CROC_DATA", "no-data"))

ANIMAL, INDOOR = coco.THINGS.index("animal"), coco.THINGS.index("indoor")
PLANT, SOLID = coco.STUFF.index("plant"), coco.STUFF.index("solid")
TEXTILE, WATER = coco.STUFF.index("textile"), coco.STUFF.index("water")


def labels_of(spec: str, split: str, index: int = 0) -> list[int]:
    return open_segmentation(spec, split).read(index).labels[0].tolist()


def read_all(spec: str, split: str) -> list[Labelled]:
    data = open_segmentation(spec, split)
    return [data.read(index) for index in range(len(data))]


def error_of(spec: str, split: str = "val") -> str:
    """The message of the error of opening and reading everything."""
    with pytest.raises(UserError) as caught:
        read_all(spec, split)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("root", ["", "VOC2012", "VOCdevkit/VOC2012"])
def test_voc_from_each_of_its_roots(tmp_path, root):
    trees.write(tmp_path / root, trees.voc())
    train, val = (open_segmentation(f"voc12:{tmp_path}", split) for split in SPLITS)
    assert train.classes == val.classes == VOC_CLASSES
    assert len(VOC_CLASSES) == 21
    assert [train.name(index) for index in range(len(train))] == ["a", "b"]
    assert [val.name(index) for index in range(len(val))] == ["c", "d"]
    assert train.read(1).labels[0].tolist() == [0, 20, 255, 0, 20, 255, 0, 20]
    assert val.read(0).labels[0].tolist() == [0, 15, 255, 0, 15, 255, 0, 15]
    assert (val.read(1).labels == 255).all()
    assert val.read(1).image.shape == (trees.HEIGHT, trees.WIDTH, 3)  # of a gray JPEG


@pytest.mark.parametrize("root", ["", "ADEChallengeData2016"])
def test_ade_counts_from_one(tmp_path, root):
    trees.write(tmp_path / root, trees.ade())
    assert len(open_segmentation(f"ade20k:{tmp_path}", "train").classes) == 150
    assert (ADE_CLASSES[0], ADE_CLASSES[12], ADE_CLASSES[149]) == ("wall", "person", "flag")
    assert labels_of(f"ade20k:{tmp_path}", "train")[:3] == [255, 0, 149]
    assert labels_of(f"ade20k:{tmp_path}", "val")[:2] == [255, 1]


def test_folder_counts_its_classes_over_both_splits(tmp_path):
    spec = f"folder:{trees.write(tmp_path, trees.folder())}"
    train, val = (open_segmentation(spec, split) for split in SPLITS)
    assert (len(train), len(val)) == (1, 2)
    assert train.classes == val.classes == tuple("0123456")
    assert val.read(0).labels[0].tolist() == [2, 6] * 4


@pytest.mark.parametrize(
    ("kind", "tree"), [("folder", trees.folder), ("coco-things-mini", trees.mini)]
)
@pytest.mark.parametrize("prefix", ["", "./"])
def test_tar_and_folder_are_equal(tmp_path, kind, tree, prefix):
    folder = trees.write(tmp_path / "folder", tree())
    archive = trees.write_tar(tmp_path / "data.tar", tree(), prefix)
    for split in SPLITS:
        plain = open_segmentation(f"{kind}:{folder}", split)
        packed = open_segmentation(f"{kind}:{archive}", split)
        assert (len(plain), plain.classes) == (len(packed), packed.classes)
        for index in range(len(plain)):
            one, other = plain.read(index), packed.read(index)
            assert one.name == other.name
            np.testing.assert_array_equal(one.image, other.image)
            np.testing.assert_array_equal(one.labels, other.labels)


def test_broken_tars(tmp_path):
    archive = trees.write_tar(tmp_path / "data.tar", trees.folder())
    archive.write_bytes(archive.read_bytes()[:5000])
    assert str(archive) in error_of(f"folder:{archive}")
    archive.write_bytes(b"no tar at all" * 100)
    assert "not a complete tar archive" in error_of(f"folder:{archive}")


def test_exif_does_not_turn_a_labelled_photograph(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = trees.encode(Image.new("RGB", (trees.WIDTH, trees.HEIGHT)), "JPEG", exif=exif)
    trees.write(tmp_path, trees.folder() | {"images/val/y.jpg": turned})
    image = open_segmentation(f"folder:{tmp_path}", "val").read(0).image
    assert image.shape == (trees.HEIGHT, trees.WIDTH, 3)


def test_nothing_is_decoded_before_it_is_read(tmp_path):
    broken = dict.fromkeys(trees.ade(), b"")
    assert len(open_segmentation(f"ade20k:{trees.write(tmp_path, broken)}", "val")) == 1


def test_scenes_of_the_two_splits_differ():
    train, val = (open_segmentation("scenes", split) for split in SPLITS)
    assert (len(train), len(val)) == (256, 64)
    assert len(open_segmentation("scenes:3", "val")) == 3
    assert (train.read(0).image != val.read(0).image).any()
    assert train.read(0).image.shape == (96, 96, 3)
    assert train.read(255).labels.max() < len(train.classes)
    with pytest.raises(IndexError):
        val.read(64)


def test_pickled_data_reads_the_same(tmp_path):
    archive = trees.write_tar(tmp_path / "data.tar", trees.folder())
    for spec in (f"folder:{archive}", f"folder:{trees.write(tmp_path, trees.folder())}", "scenes"):
        data = open_segmentation(spec, "val")
        data.read(0)
        copy = pickle.loads(pickle.dumps(data))
        np.testing.assert_array_equal(copy.read(1).image, data.read(1).image)


def test_ids_of_stuff():
    by_id = {value + 1: label for value, label in coco.stuff_classes().items() if label != 255}
    assert list(by_id) == list(range(92, 183))
    known = {92: "textile", 112: "furniture-stuff", 118: "floor", 120: "water", 124: "plant"}
    known |= {149: "ground", 157: "sky", 161: "furniture-stuff", 171: "wall", 182: "solid"}
    assert {number: coco.STUFF[by_id[number]] for number in known} == known


@pytest.mark.parametrize("split", ["train", "val"])
def test_things_are_merged(tmp_path, split):
    data = open_segmentation(f"coco-things:{trees.write(tmp_path, trees.panoptic(split))}", split)
    assert data.classes == coco.THINGS
    assert [data.name(0), data.name(1)] == ["000000000003", "000000000009"]
    expected = [255, ANIMAL, ANIMAL, 255, INDOOR, 255, 255, 255]
    assert data.read(1).labels[0].tolist() == expected
    assert (data.read(0).labels == 255).all()


def test_stuff_from_panoptic_labels(tmp_path):
    spec = f"coco-stuff-panoptic:{trees.write(tmp_path, trees.panoptic())}"
    data = open_segmentation(spec, "val")
    assert data.classes == coco.STUFF
    assert data.read(1).labels[0].tolist() == [255, 255, 255, 255, 255, WATER, PLANT, 255]


@pytest.mark.parametrize(
    "folder", ["stuffthingmaps/", "stuffthingmaps_trainval2017/", "annotations/", ""]
)
def test_stuff_from_stuffthingmaps(tmp_path, folder):
    data = open_segmentation(
        f"coco-stuff:{trees.write(tmp_path, trees.stuff('val', folder))}", "val"
    )
    expected = [255, 255, TEXTILE, WATER, SOLID, 255, 255, 255]
    assert data.read(0).labels[0].tolist() == expected


def test_mini_maps_ids_with_gaps(tmp_path):
    data = open_segmentation(f"coco-things-mini:{trees.write(tmp_path, trees.mini())}", "train")
    person = coco.THINGS.index("person")
    assert data.read(0).labels[0, :5].tolist() == [255, person, ANIMAL, INDOOR, 255]


@pytest.mark.parametrize(
    ("kind", "tree", "gone"),
    [
        ("coco-things", trees.panoptic, "annotations/panoptic_val2017.json"),
        ("coco-things", trees.panoptic, "annotations/panoptic_val2017/000000000009.png"),
        ("coco-things", trees.panoptic, "val2017/000000000003.jpg"),
        ("coco-stuff", trees.stuff, "stuffthingmaps/val2017/000000000009.png"),
        ("coco-things-mini", trees.mini, "categories.json"),
        ("voc12", trees.voc, "JPEGImages/c.jpg"),
        ("voc12", trees.voc, "SegmentationClass/d.png"),
    ],
)
def test_missing_files_are_named(tmp_path, kind, tree, gone):
    (trees.write(tmp_path, tree()) / gone).unlink()
    with pytest.raises(UserError) as caught:
        open_segmentation(f"{kind}:{tmp_path}", "val")
    assert str(caught.value).startswith(f"{tmp_path}/{gone} is missing: get ")


FOLDER = "labels/val/y.png"


@pytest.mark.parametrize(
    ("kind", "tree", "change", "message"),
    [
        ("voc12", trees.voc, {"ImageSets/Segmentation/val.txt": b"\n"}, "val.txt lists no images"),
        (
            "ade20k",
            trees.ade,
            {"annotations/validation/ADE_val_00000001.png": trees.gray_png(trees.label_map(151))},
            "ADE_val_00000001.png has the label 151",
        ),
        (
            "folder",
            trees.folder,
            {FOLDER: trees.gray_png(trees.label_map(1, size=(8, 9)))},
            "images/val/y.jpg is 8×6 but ROOT/labels/val/y.png is 8×9",
        ),
        ("folder", trees.folder, {FOLDER: b"broken"}, "y.png cannot be decoded"),
        ("folder", trees.folder, {FOLDER: trees.encode(Image.new("RGB", (8, 6)))}, "mode RGB"),
        ("folder", trees.folder, {"images/val": None}, "ROOT/images/val is missing: put images"),
        (
            "coco-things-mini",
            trees.mini,
            {"categories.json": json.dumps({"1": ["unicorn", "myth"]}).encode()},
            "supercategory myth",
        ),
        ("coco-things", trees.panoptic, {"annotations/panoptic_val2017.json": b"{"}, "unexpected"),
        ("coco-stuff", trees.stuff, {"stuffthingmaps": None}, "stuffthingmaps/val2017 is missing"),
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
