"""`croc app label`: photographs to clicks, masks and an exported head."""

import base64
import io
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import croc
from croc.data.scenes import make_scene
from croc.lab.app.label_server import LabelServer
from croc.segmentation.segmenter import Segmenter
from croc.weights.open import open_backbone
from tests.lab.app.serving import NO_ORIGIN, Served, listening
from tests.lab.app.test_page import until
from tests.lab.browser import BROWSER, is_dark, open_page, sideways

PX, GRID = 128, 8
WEIGHTS = "random:vit_tiny_patch16_224"


@pytest.fixture(scope="module")
def segmenter() -> Segmenter:
    return Segmenter(open_backbone(WEIGHTS), nn.Identity(), (), (), PX, blocks=1)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Six: two halves of plain color each, at two sizes, one below; and a broken one."""
    folder = tmp_path / "photos"
    (folder / "more").mkdir(parents=True)
    for n in range(6):
        image = np.zeros((60 + 20 * (n % 2), 90, 3), np.uint8)
        image[:, : 40 + 2 * n] = (200, 60, 30)
        image[:, 40 + 2 * n :] = (30, 90, 200)
        noise = np.random.default_rng(n).integers(0, 30, image.shape, np.uint8)
        name = "more/5.png" if n == 5 else f"{n}.png"
        Image.fromarray(image + noise).save(folder / name)
    (folder / "broken.jpg").write_bytes(b"\xff\xd8 no photograph")
    return folder


@contextmanager
def labeling(photos: Path, segmenter: Segmenter, to: Path | None = None) -> Iterator[Served]:
    server = LabelServer(photos, to or photos.parent / "to", segmenter)
    with listening(server) as served:
        yield served


def settled(served: Served, *, exporting: bool = False) -> Any:
    """The progress once the tokens are computed, and the masks are exported."""
    progress: Any = None
    for _ in range(400):
        progress = served.request("GET", "/api/progress").json
        known = len(progress["ready"]) + len(progress["skipped"])
        if known == len(served.server.photos) and (
            progress["export"]["state"] == ("done" if exporting else "none")
        ):
            return progress
        time.sleep(0.05)
    pytest.fail(f"not settled: {progress}")


def post(served: Served, name: str, **fields: Any) -> Any:
    return served.request("POST", f"/api/{name}", json.dumps(fields))


CLASSES = [{"name": "background", "color": "#7a7f87"}, {"name": "blue", "color": "#0c97ff"}]
CLICKS = [
    {"photo": photo, "x": x, "y": 0.4, "class": int(x > 0.5)}
    for photo in ("0.png", "more/5.png")
    for x in (0.1, 0.9)
]


def masks_of(served: Served, *numbers: int) -> dict[int, np.ndarray]:
    answer = post(served, "masks", photographs=numbers).json["masks"]
    files = {n: base64.b64decode(entry["mask"].partition(",")[2]) for n, entry in answer.items()}
    return {int(n): np.asarray(Image.open(io.BytesIO(file))) for n, file in files.items()}


def test_exported_head_gives_the_masks_of_the_page(photos: Path, segmenter: Segmenter) -> None:
    """Of two sides that differ in color, from two clicks on each."""
    with labeling(photos, segmenter) as served:
        assert settled(served)["skipped"] == [["broken.jpg", "not a readable image"]]
        assert masks_of(served, 0) == {}  # no clicks yet
        assert post(served, "export", photographs=[]).status == 400
        assert post(served, "labels", classes=CLASSES, clicks=CLICKS).status == 200
        names = served.server.photos.names
        shown = masks_of(served, *range(len(names)))
        assert len(shown) == 6
        assert post(served, "export", photographs=[]).status == 200
        export = settled(served, exporting=True)["export"]
        order = post(served, "order", photographs=[]).json["certainty"]
        assert sorted(order) == sorted(map(str, shown))
        assert all(0 <= value <= 1 for value in order.values())
    head = croc.load_segmenter(export["head"])
    assert head.classes == ("background", "blue")
    assert head.colors[1] == (12, 151, 255)
    for number, mask in shown.items():
        with Image.open(Path(export["masks"]) / names[number]) as image:
            assert image.mode == "P"
            assert (image.getpalette() or [])[3:6] == [12, 151, 255]
            exported = np.asarray(image)
        assert (exported == mask).all()  # photographs no larger than the page's masks
        (again,) = croc.segment(photos / names[number], head)
        assert (again == mask).mean() > 0.995  # the page's tokens are rounded to float16
        assert mask[:, :30].mean() < 0.1
        assert mask[:, -30:].mean() > 0.9


def test_tokens_and_labels_are_kept_and_changed_photographs_computed_again(
    photos: Path, segmenter: Segmenter, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[int] = []
    compute = type(segmenter.backbone).features

    def counting(self: Any, images: torch.Tensor, blocks: int = 1) -> torch.Tensor:
        computed.append(len(images))
        return compute(self, images, blocks)

    monkeypatch.setattr(type(segmenter.backbone), "features", counting)
    with labeling(photos, segmenter) as served:
        settled(served)
        post(served, "labels", classes=CLASSES, clicks=CLICKS)
        before = masks_of(served, 0, 1)
    assert len(computed) == 6
    with labeling(photos, segmenter) as served:
        settled(served)
        assert len(computed) == 6
        start = served.request("GET", "/api/start").json
        assert (start["classes"], start["clicks"]) == (CLASSES, CLICKS)
        after = masks_of(served, 0, 1)
    assert all((before[n] == after[n]).all() for n in (0, 1))
    Image.fromarray(make_scene(7, 1, 64).image).save(photos / "1.png")
    with labeling(photos, segmenter) as served:
        settled(served)
        assert len(computed) == 7
        assert masks_of(served, 1)[1].shape == (64, 64)


def test_bad_requests_change_nothing(photos: Path, segmenter: Segmenter) -> None:
    with labeling(photos, segmenter) as served:
        settled(served)
        post(served, "labels", classes=CLASSES, clicks=CLICKS)
        saved = (photos.parent / "to" / "labels.json").read_bytes()
        for body in (b"", b"[]", b'{"photographs": "a"}'):
            assert served.request("POST", "/api/masks", body).status == 400
        assert post(served, "masks", photographs=[-1, 99]).json == {"masks": {}}
        assert served.request("GET", "/api/photographs/99").status == 404
        alone = {"Origin": NO_ORIGIN}
        assert served.request("POST", "/api/labels", b"{}", alone).status == 403
        assert (photos.parent / "to" / "labels.json").read_bytes() == saved


MASKS = "[...document.querySelectorAll('.mask')].map(mask => mask.hidden ? '' : mask.src)"
BUSY = "document.getElementById('photographs').getAttribute('aria-busy')"


@contextmanager
def label_page(served: Served, **options: Any) -> Iterator[Any]:
    with open_page(**options) as page:
        page.goto(served.url)
        until(page, "document.querySelectorAll('.tile').length === 6")
        until(page, f"{BUSY} === 'false'")
        yield page


def click(page: Any, photo: str, x: float, y: float = 0.4) -> list[str]:
    """In shares of the photograph's sides; the masks that follow."""
    before = page.evaluate(MASKS)
    stage = page.locator(f".tile:has([title='{photo}']) .stage")
    box = stage.bounding_box()
    stage.click(position={"x": x * box["width"], "y": y * box["height"]})
    page.wait_for_timeout(100)
    until(page, f"{BUSY} === 'false'")
    after = page.evaluate(MASKS)
    assert after != before or not any(after)
    return after


def clicks_of(photos: Path) -> list[tuple[str, int]]:
    content = json.loads((photos.parent / "to" / "labels.json").read_text())
    return [(click["photo"], click["class"]) for click in content["clicks"]]


@BROWSER
def test_labels_are_clicked_corrected_and_exported(photos: Path, segmenter: Segmenter) -> None:
    with labeling(photos, segmenter) as served, label_page(served) as page:
        until(page, "document.querySelector('#skipped summary').textContent === '1 skipped'")
        assert page.locator("#export").is_disabled()
        page.locator(".rename").nth(1).click()
        page.keyboard.type("red")
        page.keyboard.press("Enter")
        assert page.locator(".choose[aria-pressed=true] .name").inner_text() == "red"
        assert not any(click(page, "0.png", 0.1))
        assert "another class" in page.locator("#hint").inner_text()
        page.keyboard.press("1")
        assert page.locator(".choose[aria-pressed=true] .name").inner_text() == "background"
        assert all(click(page, "0.png", 0.9))  # masks of all photographs
        assert page.locator("#hint").is_hidden()
        assert page.locator(".dot").count() == 2

        page.locator("#add").click()
        page.keyboard.type("blue")
        page.keyboard.press("Enter")
        click(page, "0.png", 0.9)  # the same patch: its class changes
        assert clicks_of(photos) == [("0.png", 1), ("0.png", 2)]
        page.locator("#eraser").click()
        click(page, "0.png", 0.88)
        assert clicks_of(photos) == [("0.png", 1)]
        page.locator("#undo").click()
        until(page, "document.querySelectorAll('.dot').length === 2")
        page.locator(".choose").nth(2).click()
        page.locator(".tile:has([title='more/5.png']) .stage").focus()
        for _ in range(4):
            page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        until(page, "document.querySelectorAll('.dot').length === 3")

        page.locator("#uncertain").click()
        page.wait_for_selector("#by-name:visible")
        until(page, f"{BUSY} === 'false'")
        shares = [int(text.rstrip("%")) for text in page.locator(".certainty").all_inner_texts()]
        assert shares == sorted(shares)
        names = "[...document.querySelectorAll('.tile .name')].map(name => name.textContent)"
        worst_first = page.evaluate(names)
        page.locator("#by-name").click()
        assert page.evaluate(names) == sorted(worst_first) != worst_first

        page.locator("#export").click()
        until(page, "/6 masks in/.test(document.getElementById('export-text').textContent)")
        assert len(list((photos.parent / "to" / "export" / "masks").rglob("*.png"))) == 6
        head = croc.load_segmenter(photos.parent / "to" / "export" / "head")
        assert head.classes == ("background", "red", "blue")
        seen = page.evaluate(MASKS)
        page.reload()
        until(page, f"before => JSON.stringify({MASKS}) === JSON.stringify(before)", seen)
        assert page.locator(".choose .name").all_inner_texts() == ["background", "red", "blue"]
        assert page.locator(".choose .clicks").all_inner_texts() == ["0", "1", "2"]
        page.locator(".remove").nth(1).click()  # blue
        until(page, "document.querySelectorAll('.dot').length === 1")


@BROWSER
def test_label_page_on_a_phone_in_the_dark(photos: Path, segmenter: Segmenter) -> None:
    with (
        labeling(photos, segmenter) as served,
        label_page(served, width=390, height=844, dark=True) as page,
    ):
        assert sideways(page) == 0
        assert is_dark(page)
        click(page, "1.png", 0.1)
        page.keyboard.press("1")
        assert any(click(page, "1.png", 0.9))
