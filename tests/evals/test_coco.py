"""COCO's panoptic and stuff labels on small trees."""

import json

import numpy as np
import pytest

from croc.errors import UserError
from croc.eval import coco
from croc.eval.datasets import open_segmentation
from tests.evals import trees

ANIMAL, INDOOR = coco.THINGS.index("animal"), coco.THINGS.index("indoor")
PLANT, SOLID = coco.STUFF.index("plant"), coco.STUFF.index("solid")
TEXTILE, WATER = coco.STUFF.index("textile"), coco.STUFF.index("water")


def test_supercategories_are_the_papers():
    assert len(coco.THINGS) == 12
    assert len(coco.STUFF) == 15
    assert list(coco.THINGS) == sorted(coco.THINGS)
    assert list(coco.STUFF) == sorted(coco.STUFF)
    paper = "water structural ceiling sky building furniture-stuff solid wall raw-material plant "
    paper += "textile floor food-stuff ground window"
    assert set(coco.STUFF) == set(paper.split())


def test_ids_of_stuff():
    by_id = coco.stuff_classes_by_id()
    assert list(by_id) == list(range(92, 183))
    known = {92: "textile", 112: "furniture-stuff", 118: "floor", 120: "water", 124: "plant"}
    known |= {149: "ground", 157: "sky", 161: "furniture-stuff", 171: "wall", 182: "solid"}
    assert {number: coco.STUFF[by_id[number]] for number in known} == known


def test_every_other_suffix_names_its_supercategory():
    for name, supercategory in coco.STUFF_SUPERCATEGORIES.items():
        if name.endswith("-other"):
            assert supercategory.startswith(name.removesuffix("-other"))


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


def test_mini_refuses_ids_without_a_category(tmp_path):
    label = {"labels/val/2.png": trees.gray_png(trees.label_map(0, 12))}
    data = open_segmentation(
        f"coco-things-mini:{trees.write(tmp_path, trees.mini() | label)}", "val"
    )
    with pytest.raises(UserError, match=r"2\.png holds the label 12"):
        data.read(0)


@pytest.mark.parametrize(
    ("kind", "tree", "gone"),
    [
        ("coco-things", trees.panoptic, "annotations/panoptic_val2017.json"),
        ("coco-things", trees.panoptic, "annotations/panoptic_val2017/000000000009.png"),
        ("coco-things", trees.panoptic, "val2017/000000000003.jpg"),
        ("coco-stuff", trees.stuff, "stuffthingmaps/val2017/000000000009.png"),
        ("coco-things-mini", trees.mini, "categories.json"),
    ],
)
def test_missing_files_are_named(tmp_path, kind, tree, gone):
    (trees.write(tmp_path, tree()) / gone).unlink()
    with pytest.raises(UserError) as caught:
        open_segmentation(f"{kind}:{tmp_path}", "val")
    assert str(caught.value).startswith(f"{tmp_path}/{gone} is missing: get ")
    assert "cocodataset.org" in str(caught.value)


def test_missing_stuffthingmaps(tmp_path):
    trees.write(tmp_path, {"val2017/1.jpg": trees.photograph()})
    with pytest.raises(UserError, match="stuffthingmaps/val2017 is missing"):
        open_segmentation(f"coco-stuff:{tmp_path}", "val")


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"annotations": []}', b'{"categories": [1]}'])
def test_other_json(tmp_path, content):
    name = "annotations/panoptic_val2017.json"
    trees.write(tmp_path, trees.panoptic() | {name: content})
    with pytest.raises(UserError, match=r"panoptic_val2017\.json is not as it should be"):
        open_segmentation(f"coco-things:{tmp_path}", "val")


def test_unknown_supercategory(tmp_path):
    content = json.dumps({"1": ["unicorn", "myth"]}).encode()
    trees.write(tmp_path, trees.mini() | {"categories.json": content})
    with pytest.raises(UserError, match="supercategory myth"):
        open_segmentation(f"coco-things-mini:{tmp_path}", "val")


def test_segment_numbers_use_all_channels():
    colours = np.array([[[1, 2, 3], [255, 255, 255]]], np.uint8)
    assert coco.segment_numbers(colours).tolist() == [[1 + 2 * 256 + 3 * 65_536, 2**24 - 1]]
