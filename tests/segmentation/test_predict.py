"""Masks of folders, resumed without repeated or lost work, and run-length encoded."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from croc.cli import main
from croc.segmentation.images import Loaded, Reader, list_images
from croc.segmentation.rle import encode_mask, write_coco
from croc.segmentation.segmenter import load_segmenter, save_segmenter
from tests.segmentation.heads import make_head


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("heads") / "head"
    save_segmenter(make_head(), folder, {})
    return folder


def draw_photo(path: Path, seed: int, size: tuple[int, int] = (40, 30)) -> np.ndarray:
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), np.uint8)
    image = np.array(Image.fromarray(coarse).resize(size, Image.Resampling.NEAREST))
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path, lossless=True)
    return image


Photos = dict[str, np.ndarray]


@pytest.fixture
def photos(tmp_path: Path) -> Photos:
    names = ("a.png", "sub/a.png", "sub/b.bmp", "sub/b.png", "c.webp")
    folder = tmp_path / "photos"
    return {name: draw_photo(folder / name, seed) for seed, name in enumerate(names)}


def predict(head: Path | str, *words: Path | str) -> int:
    options = ("--workers", "0", "--precision", "float32")
    return main(["segment", "predict", str(head), *map(str, words), *options])


def read(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        assert image.mode == "P"
        return np.array(image)


def files(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Modification time and content of each file."""
    return {
        path.relative_to(folder).as_posix(): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_masks_mirror_the_folder(head: Path, photos: Photos, tmp_path: Path):
    masks = tmp_path / "masks"
    options = ("--batch", "3", "--overlays", "--probabilities", "--rle")
    assert predict(head, tmp_path / "photos", "--to", masks, *options) == 0
    segmenter = load_segmenter(head)
    names = {"a.png": "a", "sub/a.png": "sub/a", "c.webp": "c"}
    names |= {"sub/b.bmp": "sub/b.bmp", "sub/b.png": "sub/b.png"}  # the same stem
    written = {name for name in files(masks) if name.endswith(".png")}
    assert written == {"overlays/legend.png", *(f"{name}.png" for name in names.values())}
    for photo, name in names.items():
        assert np.array_equal(read(masks / f"{name}.png"), segmenter.class_map(photos[photo]))
    with Image.open(masks / "overlays" / "sub" / "a.jpg") as overlay:
        assert overlay.size == (40, 30)
    with np.load(masks / "probabilities" / "sub" / "a.npz") as content:
        shares = content["probabilities"]
    assert (shares.shape, shares.dtype) == ((3, 4, 4), np.float16)
    np.testing.assert_allclose(shares.astype(float).sum(axis=0), 1, atol=2e-3)
    coco = json.loads((masks / "masks.json").read_text())
    assert {entry["file_name"] for entry in coco["images"]} == set(photos)
    assert sum(entry["area"] for entry in coco["annotations"]) == len(photos) * 40 * 30


def test_masks_are_kept_until_settings_change(head: Path, photos: Photos, tmp_path: Path):
    source, masks = tmp_path / "photos", tmp_path / "masks"
    assert predict(head, source, "--to", masks) == 0
    before = files(masks)
    (masks / "a.png").unlink()
    draw_photo(source / "new.png", 9)
    assert predict(head, source, "--to", masks, "--batch", "2") == 0
    after = files(masks)
    assert set(after) == {*before, "new.png"}
    same = set(before) - {"a.png", "settings.json", "masks.csv"}
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    assert after["a.png"][1] == before["a.png"][1]
    assert predict(head, source, "--to", masks, "--overlays", "--rle") == 0
    overlaid = files(masks)
    assert {"masks.json", "overlays/legend.png", "overlays/sub/a.jpg"} <= set(overlaid)
    assert predict(head, source, "--to", masks) == 0  # the same masks, fewer outputs
    rewritten = {"settings.json": None, "masks.csv": None}
    assert files(masks) | rewritten == overlaid | rewritten
    assert predict(head, source, "--to", masks, "--tile-px", "32") == 0
    tiled = files(masks)
    assert all(tiled[name][0] > after[name][0] for name in after)
    # Outputs that belong to the replaced masks are deleted.
    assert set(tiled) == {*after, "overlays/legend.png"}


def test_masks_inside_the_folder_are_not_photographs(head: Path, photos: Photos, tmp_path: Path):
    source = tmp_path / "photos"
    (tmp_path / "link").symlink_to(source)
    for to in ("masks", "sub/../masks", "../link/masks"):
        assert predict(head, source, "--to", f"{source}/{to}") == 0
    assert sum(path.suffix == ".png" for path in (source / "masks").rglob("*")) == len(photos)


def test_every_image_has_its_own_mask(tmp_path: Path):
    names = ("a.jpg", "a.png", "a.jpg.png", "A.jpg.png.png", "b.png")
    for number, name in enumerate(names):
        draw_photo(tmp_path / name, number)
    listed, _ = list_images([str(tmp_path)], tmp_path / "masks")
    masks = {file.path.name: file.name for file in listed}
    assert masks == {**{name: name for name in names}, "b.png": "b"}


def test_overlays_of_large_images_are_small(head: Path, tmp_path: Path):
    draw_photo(tmp_path / "photos" / "a.png", 0, (2000, 500))
    assert predict(head, tmp_path / "photos", "--to", tmp_path / "masks", "--overlays") == 0
    assert read(tmp_path / "masks" / "a.png").shape == (500, 2000)
    with Image.open(tmp_path / "masks" / "overlays" / "a.jpg") as overlay:
        assert overlay.size == (1280, 320)
    listed, _ = list_images([str(tmp_path / "photos")], tmp_path / "masks")
    loaded = Reader(listed, 64, shown_px=1280)[0]  # what a reading process sends
    assert isinstance(loaded, Loaded)
    assert loaded.image is not None
    assert (loaded.size, loaded.image.shape) == ((500, 2000), (320, 1280, 3))


def test_table_has_a_row_for_every_mask(head: Path, photos: Photos, tmp_path: Path):
    source, masks = tmp_path / "photos", tmp_path / "masks"
    (source / "broken.jpg").write_bytes(b"no image")

    def rows() -> dict[str, list[str]]:
        with (masks / "masks.csv").open(newline="") as file:
            heading, *lines = csv.reader(file)
        assert heading == ["file", "certainty", "class 0", "class 1", "class 2"]
        certainties = [float(line[1] or "inf") for line in lines]
        assert certainties == sorted(certainties)
        return {line[0]: line[1:] for line in lines}

    assert predict(head, source, "--to", masks, "--probabilities") == 0
    before = rows()
    assert set(before) == set(photos)
    with np.load(masks / "probabilities" / "c.npz") as content:
        best = np.sort(content["probabilities"].astype(float), axis=0)
    assert float(before["c.webp"][0]) == pytest.approx((best[-1] - best[-2]).mean(), abs=2e-3)
    expected = np.bincount(read(masks / "c.png").ravel(), minlength=3) / (40 * 30)
    assert [float(x) for x in before["c.webp"][1:]] == pytest.approx(100 * expected, abs=0.01)
    Image.fromarray(np.full((30, 40), 2, np.uint8)).save(masks / "c.png")  # edited
    (masks / "a.png").unlink()
    assert predict(head, source, "--to", masks) == 0
    assert rows() == before | {"c.webp": ["", "0.00", "0.00", "100.00"]}


def test_edited_masks_are_kept(head: Path, photos: Photos, tmp_path: Path, capsys):
    source, masks = tmp_path / "photos", tmp_path / "masks"
    assert predict(head, source, "--to", masks) == 0
    with Image.open(masks / "a.png") as image:
        edited = image.copy()
    edited.paste(2, (0, 0, 40, 30))
    edited.save(masks / "a.png")
    draw_photo(source / "a.png", 7)  # neither a changed photo nor other settings replace it
    assert predict(head, source, "--to", masks, "--tile-px", "32") == 0
    assert (read(masks / "a.png") == 2).all()
    line = "5 masks in {}, 1 of them from before, 1 edited mask kept"
    assert line.format(masks) in capsys.readouterr().out
    edited.convert("RGB").save(masks / "a.png")
    assert predict(head, source, "--to", masks) == 2
    assert "a.png is not an 8-bit gray or palette PNG" in capsys.readouterr().err
    (masks / "settings.json").unlink()  # then nothing shows that the masks are ours
    assert predict(head, source, "--to", masks) == 2
    assert "was not written by croc segment predict" in capsys.readouterr().err


def test_mask_of_a_replaced_photo_is_made_again(head: Path, photos: Photos, tmp_path: Path):
    source, masks = tmp_path / "photos", tmp_path / "masks"
    assert predict(head, source, "--to", masks) == 0
    before = files(masks)
    draw_photo(source / "a.png", 8, (20, 10))
    assert predict(head, source, "--to", masks) == 0
    changed = {name for name, file in files(masks).items() if file != before[name]}
    assert changed - {"masks.csv"} == {"a.png", "settings.json"}
    assert read(masks / "a.png").shape == (10, 20)


def test_long_and_latin_1_names(head: Path, tmp_path: Path):
    source = tmp_path / "photos"
    draw_photo(source / f"{245 * 'x'}.png", 0)
    (source / os.fsdecode(b"caf\xe9.jpg")).write_bytes(b"broken")
    command = ["segment", "predict", str(head), str(source), "--to", str(tmp_path / "masks")]
    done = subprocess.run(
        [sys.executable, "-m", "croc", *command, "--workers", "0"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"},
    )
    assert done.returncode == 0, done.stderr
    assert f"skipped, cannot be decoded: {source}/caf\\xe9.jpg" in done.stdout
    assert (tmp_path / "masks" / f"{245 * 'x'}.png").exists()


def test_corrupt_files_are_skipped_and_listed(head: Path, photos: Photos, tmp_path: Path, capsys):
    corrupt = tmp_path / "photos" / "corrupt.jpg"
    corrupt.write_bytes(b"\xff\xd8\xff")
    assert predict(head, tmp_path / "photos", "--to", tmp_path / "masks", "--rle") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"5 masks in {tmp_path / 'masks'}"
    assert lines[-1].startswith(f"skipped, cannot be decoded: {corrupt} (")
    assert predict(head, corrupt, "--to", tmp_path / "none") == 2
    assert "no image can be decoded" in capsys.readouterr().err


def test_full_disk_leaves_complete_masks(head: Path, tmp_path: Path, small_disk, capsys):
    for number in range(60):
        draw_photo(tmp_path / "photos" / f"{number}.png", number, (400, 300))
    disk = small_disk(200)
    assert predict(head, tmp_path / "photos", "--to", disk / "masks", "--probabilities") == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "No space left on device" in error
    written = [path for path in (disk / "masks").rglob("*") if path.is_file()]
    assert not [path for path in written if path.suffix == ".partial"]
    masks = [path for path in written if path.suffix == ".png"]
    assert 0 < len(masks) < 60
    assert all(read(path).shape == (300, 400) for path in masks)


def decode_mask(counts: str, size: list[int]) -> np.ndarray:
    numbers: list[int] = []
    position = 0
    while position < len(counts):
        value, shift, bits, more = 0, 0, 0, True
        while more:
            bits = ord(counts[position]) - 48
            value |= (bits & 31) << shift
            more, shift, position = bool(bits & 32), shift + 5, position + 1
        if bits & 16:
            value -= 1 << shift
        numbers.append(value + (numbers[-2] if len(numbers) > 2 else 0))
    flat = np.repeat(np.arange(len(numbers)) % 2 == 1, numbers)
    return flat.reshape(size[::-1]).T


@pytest.mark.parametrize(
    "mask",
    [
        np.zeros((3, 4), bool),
        np.ones((3, 4), bool),
        np.eye(5, dtype=bool),
        np.random.default_rng(0).random((37, 61)) < 0.3,
        np.arange(600 * 500).reshape(600, 500) % 77_777 > 40_000,  # long runs of either length
    ],
    ids=["empty", "full", "diagonal", "noise", "long runs"],
)
def test_decoding_inverts_encoding(mask: np.ndarray):
    assert np.array_equal(decode_mask(encode_mask(mask), list(mask.shape)), mask)


def test_known_encoding():
    """Runs 1, 2, 1, 40: the last is written as its difference 38 = 6 + 32 · 1 from the second."""
    flat = np.repeat([False, True, False, True], [1, 2, 1, 40])
    assert encode_mask(flat.reshape(11, 4).T) == "121" + chr(48 + 32 + 6) + chr(48 + 1)


def test_coco_file_has_every_mask(tmp_path: Path):
    maps = {name: np.random.default_rng(seed).integers(0, 3, (9, 14), np.uint8)
            for seed, name in enumerate("ab")}  # fmt: skip
    maps["b"][maps["b"] == 1] = 2
    for name, classes in maps.items():
        Image.fromarray(classes).save(tmp_path / f"{name}.png")
    write_coco(tmp_path / "x.json", [(f"{n}.jpg", tmp_path / f"{n}.png") for n in maps], "pqr")
    coco = json.loads((tmp_path / "x.json").read_text())
    assert coco["categories"] == [{"id": k, "name": n} for k, n in enumerate("pqr")]
    images = [(entry["file_name"], entry["height"], entry["width"]) for entry in coco["images"]]
    assert images == [("a.jpg", 9, 14), ("b.jpg", 9, 14)]
    pairs = [(entry["image_id"], entry["category_id"]) for entry in coco["annotations"]]
    assert pairs == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 2)]
    for entry in coco["annotations"]:
        mask = list(maps.values())[entry["image_id"] - 1] == entry["category_id"]
        segmentation = entry["segmentation"]
        assert np.array_equal(decode_mask(segmentation["counts"], segmentation["size"]), mask)
        assert entry["area"] == mask.sum()
        y, x = mask.nonzero()
        assert entry["bbox"] == [x.min(), y.min(), np.ptp(x) + 1, np.ptp(y) + 1]
