"""Every reader on a small tree in the real layout, and on the real data where it lies beside."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from croc.errors import UserError
from croc.eval.datasets import (
    ADE_CLASSES,
    SPLITS,
    VOC_CLASSES,
    Labelled,
    open_segmentation,
)
from tests.evals import trees

# A folder with the real small sets; without it the tests on them are skipped.
REAL = Path(os.environ.get("CROC_DATA", "no-data"))


def labels_of(spec: str, split: str, index: int = 0) -> list[int]:
    return open_segmentation(spec, split).read(index).labels[0].tolist()


def read_all(spec: str, split: str) -> list[Labelled]:
    data = open_segmentation(spec, split)
    return [data.read(index) for index in range(len(data))]


def refused(spec: str, split: str = "val") -> str:
    """The one line with which opening and reading all is refused."""
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


def test_gray_photographs_become_rgb(tmp_path):
    image = open_segmentation(f"voc12:{trees.write(tmp_path, trees.voc())}", "val").read(1).image
    assert image.shape == (trees.HEIGHT, trees.WIDTH, 3)
    assert (image == image[..., :1]).all()


@pytest.mark.parametrize(
    ("gone", "split"),
    [
        ("ImageSets/Segmentation/trainaug.txt", "train"),
        ("SegmentationClassAug/b.png", "train"),
        ("JPEGImages/c.jpg", "val"),
        ("SegmentationClass/d.png", "val"),
    ],
)
def test_voc_names_what_is_missing(tmp_path, gone, split):
    (trees.write(tmp_path, trees.voc()) / gone).unlink()
    message = refused(f"voc12:{tmp_path}", split)
    assert message.startswith(f"{tmp_path}/{gone} is missing: ")
    assert "SBD" in message


def test_empty_split_file(tmp_path):
    trees.write(tmp_path, trees.voc() | {"ImageSets/Segmentation/val.txt": b"\n"})
    assert "val.txt names no image" in refused(f"voc12:{tmp_path}")


@pytest.mark.parametrize("root", ["", "ADEChallengeData2016"])
def test_ade_counts_from_one(tmp_path, root):
    trees.write(tmp_path / root, trees.ade())
    assert len(open_segmentation(f"ade20k:{tmp_path}", "train").classes) == 150
    assert (ADE_CLASSES[0], ADE_CLASSES[12], ADE_CLASSES[149]) == ("wall", "person", "flag")
    assert labels_of(f"ade20k:{tmp_path}", "train")[:3] == [255, 0, 149]
    assert labels_of(f"ade20k:{tmp_path}", "val")[:2] == [255, 1]


def test_label_beyond_the_classes(tmp_path):
    label = "annotations/validation/ADE_val_00000001.png"
    trees.write(tmp_path, trees.ade() | {label: trees.gray_png(trees.label_map(1, 151))})
    message = refused(f"ade20k:{tmp_path}")
    assert str(tmp_path / label) in message
    assert "151" in message


def test_folder_counts_its_classes_over_both_splits(tmp_path):
    spec = f"folder:{trees.write(tmp_path, trees.folder())}"
    train, val = (open_segmentation(spec, split) for split in SPLITS)
    assert (len(train), len(val)) == (1, 2)
    assert train.classes == val.classes == tuple("0123456")
    assert val.read(0).labels[0].tolist() == [2, 6] * 4


def test_folder_with_named_classes(tmp_path):
    trees.write(tmp_path, trees.folder() | {"classes.txt": b"sky\nsea\n\nsand\n"})
    assert open_segmentation(f"folder:{tmp_path}", "val").classes == ("sky", "sea", "sand")
    assert "holds the label 6" in refused(f"folder:{tmp_path}")


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


def test_missing_partner_in_a_tar(tmp_path):
    members = trees.folder()
    del members["labels/val/z.png"]
    archive = trees.write_tar(tmp_path / "data.tar", members)
    assert refused(f"folder:{archive}").startswith(f"{archive}:labels/val/z.png is missing")
    members["labels/val/z.png"] = members.pop("images/val/y.jpg")
    assert "images/val/y.jpg is missing" in refused(f"folder:{trees.write(tmp_path, members)}")


def test_broken_tars(tmp_path):
    archive = trees.write_tar(tmp_path / "data.tar", trees.folder())
    archive.write_bytes(archive.read_bytes()[:5000])
    assert str(archive) in refused(f"folder:{archive}")
    archive.write_bytes(b"no tar at all" * 100)
    assert "no whole tar archive" in refused(f"folder:{archive}")


@pytest.mark.parametrize("missing", ["images/val", "labels/val"])
def test_missing_and_empty_folders(tmp_path, missing):
    members = {name: data for name, data in trees.folder().items() if not name.startswith(missing)}
    trees.write(tmp_path, members)
    assert refused(f"folder:{tmp_path}").startswith(f"{tmp_path}/{missing} is missing")
    for folder in ("images", "labels"):
        (tmp_path / "none" / folder / "val").mkdir(parents=True)
    assert "images/val/*.jpg is missing" in refused(f"folder:{tmp_path / 'none'}")


def test_sizes_that_differ(tmp_path):
    other = trees.gray_png(trees.label_map(1, size=(trees.WIDTH, 9)))
    trees.write(tmp_path, trees.folder() | {"labels/val/y.png": other})
    message = refused(f"folder:{tmp_path}")
    assert f"{tmp_path}/images/val/y.jpg is 8×6" in message
    assert f"{tmp_path}/labels/val/y.png is 8×9" in message


def test_exif_does_not_turn_a_labelled_photograph(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = trees.encode(Image.new("RGB", (trees.WIDTH, trees.HEIGHT)), "JPEG", exif=exif)
    trees.write(tmp_path, trees.folder() | {"images/val/y.jpg": turned})
    image = open_segmentation(f"folder:{tmp_path}", "val").read(0).image
    assert image.shape == (trees.HEIGHT, trees.WIDTH, 3)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"broken", "cannot be decoded"),
        (trees.encode(Image.new("RGB", (trees.WIDTH, trees.HEIGHT))), "mode RGB"),
        (trees.encode(Image.new("I;16", (trees.WIDTH, trees.HEIGHT))), "mode I;16"),
    ],
    ids=["broken", "colour", "deep"],
)
def test_unusable_label_maps(tmp_path, data, said):
    trees.write(tmp_path, trees.folder() | {"labels/val/y.png": data})
    message = refused(f"folder:{tmp_path}")
    assert said in message
    assert "labels/val/y.png" in message


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


@pytest.mark.parametrize("spec", ["cityscapes:x", "", "voc"])
def test_unknown_data_sets_list_the_known(spec):
    message = refused(spec)
    for kind in ("voc12:PATH", "coco-stuff:PATH", "folder:PATH", "scenes"):
        assert kind in message


def test_other_mistakes_in_the_name(tmp_path):
    assert "train or val" in refused("scenes", "test")
    assert "voc12:PATH" in refused("voc12:")
    assert "scenes:many" in refused("scenes:many")
    assert "scenes:0" in refused("scenes:0")
    assert refused(f"voc12:{tmp_path}/none").startswith(f"{tmp_path}/none is missing: get VOC2012")


@pytest.mark.parametrize(
    ("kind", "counts", "classes"),
    [("coco-things-mini", (292, 186), 12), ("idd-lite", (1403, 204), 7)],
)
def test_real_data(kind, counts, classes):
    archive = REAL / f"{kind}.tar"
    if not archive.exists():
        pytest.skip("the real data is not here")
    splits = [open_segmentation(f"{kind}:{archive}", split) for split in SPLITS]
    assert tuple(len(data) for data in splits) == counts
    for data, stride in zip(splits, (4, 1)):
        assert len(data.classes) == classes
        read = range(0, len(data), stride)
        seen = {label for index in read for label in np.unique(data.read(index).labels).tolist()}
        assert seen == {*range(classes), 255}
