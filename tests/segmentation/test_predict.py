"""Masks of folders: names, contents, and resuming without repeated or lost work."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from croc.cli import main
from croc.segmentation.images import Loaded, Reader, list_images
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
        path = masks / f"{name}.png"
        assert np.array_equal(read(path), segmenter.class_map(photos[photo]))
        with Image.open(path) as image:
            palette = image.getpalette()
        assert palette is not None
        assert palette[:9] == [value for color in segmenter.colors for value in color]
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


def is_running(group: int) -> bool:
    """Whether a process of the group is running; zombies do not count."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, own = path.read_text().rpartition(")")[2].split()[:3]
            if int(own) == group and state != "Z":
                return True
    return False


def test_killed_command_resumes(head: Path, tmp_path: Path):
    source, masks, count = tmp_path / "photos", tmp_path / "masks", 80
    for number in range(count):
        draw_photo(source / str(number % 3) / f"{number}.png", number)
    words = ["segment", "predict", str(head), str(source), "--to", str(masks), "--batch", "2"]
    words += ["--precision", "float32"]
    command = [sys.executable, "-m", "croc", *words, "--workers", "1"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    while len(list(masks.rglob("*.png"))) < 10:
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)  # its workers must exit, too
    process.wait()
    deadline = time.monotonic() + 20
    while is_running(process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    before = {name: file for name, file in files(masks).items() if name.endswith(".png")}
    assert 10 <= len(before) < count
    assert main([*words, "--workers", "0"]) == 0
    after = {name: file for name, file in files(masks).items() if name.endswith(".png")}
    assert len(after) == count
    assert {name: after[name] for name in before} == before
    assert predict(head, source, "--to", tmp_path / "whole") == 0
    whole = files(tmp_path / "whole")
    assert all(after[name][1] == whole[name][1] for name in after)
