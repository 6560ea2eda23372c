"""`croc app label`: photographs to clicks, masks and an exported head."""

import base64
import io
import json
import os
import threading
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
from croc.data.decode import decode_image
from croc.data.scenes import make_scene
from croc.errors import UserError
from croc.eval.datasets import open_segmentation
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


def save(served: Served, revision: int | None = None, **changes: Any) -> Any:
    if revision is None:
        revision = served.request("GET", "/api/start").json["revision"]
    fields = {"revision": revision, "classes": CLASSES, "clicks": CLICKS, "more": "dropped"}
    return post(served, "labels", **(fields | changes))


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
        assert save(served).status == 200
        names = served.server.photos.names
        shown = masks_of(served, *range(len(names)))
        assert len(shown) == 6
        assert post(served, "export", photographs=[]).status == 200
        export = settled(served, exporting=True)["export"]
        order = post(served, "order", photographs=[]).json["certainty"]
        assert sorted(order) == sorted(map(str, shown))
        assert all(0 <= value <= 1 for value in order.values()), order
    head = croc.load_segmenter(export["head"])
    facts = json.loads((Path(export["head"]) / "head.json").read_text())["facts"]
    assert facts["made by"] == "croc app label"
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
        save(served)
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
    os.utime(photos / "1.png", (0, 0))  # unpacked from an archive: older than its tokens
    broken = sorted((photos.parent / "to" / "tokens").rglob("*.safetensors"))[2:4]
    broken[0].write_bytes(b"")
    broken[1].write_bytes(broken[1].read_bytes()[:1000])
    with labeling(photos, segmenter) as served:
        settled(served)
        assert len(computed) == 9
        assert masks_of(served, 1)[1].shape == (64, 64)


def test_bad_requests_change_nothing(photos: Path, segmenter: Segmenter) -> None:
    with labeling(photos, segmenter) as served:
        settled(served)
        save(served)
        for body in (b"", b"[]", b'{"photographs": "a"}'):
            assert served.request("POST", "/api/masks", body).status == 400
        click, (one, two) = CLICKS[0], CLASSES
        stroke = {"photo": "0.png", "class": None, "radius": 0.1, "points": [[0.5, 0.5]]}
        assert save(served, strokes=[stroke]).status == 200
        assert save(served).status == 200
        saved = (photos.parent / "to" / "labels.json").read_bytes()
        for changes in (
            *({"classes": classes} for classes in (None, [], [one, one], [one, {"name": "b"}])),
            *({"classes": [one, two | entry]} for entry in ({"name": "a\nb"}, {"color": "red"})),
            *({"clicks": [click | entry]} for entry in ({"x": 1}, {"y": "a"}, {"class": 2})),
            *({"clicks": clicks} for clicks in (None, [{}], [click | {"photo": 1}])),
            *({"strokes": [stroke | entry]} for entry in ({"class": 2}, {"radius": 0})),
            *({"strokes": [stroke | {"points": points}]} for points in ([[0, 1]], [[0]], 1)),
            {"done": [1]},
        ):
            assert save(served, **changes).status == 400
        assert post(served, "labels", x=1).status == 400
        assert post(served, "masks", photographs=[-1, 99]).json == {"masks": {}}
        assert served.request("GET", "/api/photographs/99").status == 404
        alone = {"Origin": NO_ORIGIN}
        assert served.request("POST", "/api/labels", b"{}", alone).status == 403
        assert (photos.parent / "to" / "labels.json").read_bytes() == saved


def test_done_photographs_are_exported_as_training_data(photos: Path, segmenter: Segmenter) -> None:
    """Also those that are not stored as they are shown, and whose names are the same in two folders
    or with another ending."""
    exif = Image.Exif()
    exif[0x0112] = 6  # a phone held upright
    turned = Image.open(photos / "1.png")
    turned.save(photos / "turned.jpg", exif=exif)
    turned.convert("RGBA").save(photos / "2.webp")
    turned.save(photos / "more-5.jpg")
    done = ["0.png", "2.png", "2.webp", "more-5.jpg", "more/5.png", "turned.jpg", "gone.jpg"]
    with labeling(photos, segmenter) as served:
        settled(served)
        save(served, done=done)
        post(served, "export")
        count, folder = settled(served, exporting=True)["export"]["labeled"]
    data = open_segmentation(f"folder:{folder}", "train")
    assert (len(data), count, data.classes) == (6, 6, ("background", "blue"))
    images = Path(folder) / "images" / "train"
    assert sorted(path.name for path in images.iterdir()) == [
        *("0.png", "2.png.png", "2.webp.png", "more-5-7.jpg", "more-5-8.png", "turned.png"),
    ]
    assert (images / "0.png").samefile(photos / "0.png")
    read = {data.name(n): data.read(n) for n in range(6)}
    assert read["turned"].labels.shape == (90, 80)
    masks = Path(folder).parent / "masks"
    assert (read["more-5-8"].labels == np.asarray(Image.open(masks / "more" / "5.png"))).all()
    shown = decode_image((photos / "2.webp").read_bytes(), 999)
    assert (read["2.webp"].image == shown).all()


def test_labels_of_another_folder_are_refused(photos: Path, segmenter: Segmenter) -> None:
    to = photos.parent / "to"
    with labeling(photos, segmenter) as served:
        save(served)
    content = json.loads((to / "labels.json").read_text())
    labels = {"classes": CLASSES, "clicks": CLICKS, "strokes": [], "done": []}
    assert content == {"folder": str(photos), "revision": 1} | labels
    with pytest.raises(UserError, match=r"contains the labels of .*/photos: choose another --to"):
        LabelServer(photos / "more", to, segmenter)
    (to / "labels.json").write_text('{"classes": []}')
    with pytest.raises(UserError, match=r"labels.json cannot be read: classes must be 1 to 255"):
        LabelServer(photos, to, segmenter)


def test_save_based_on_older_labels_is_refused(photos: Path, segmenter: Segmenter) -> None:
    with labeling(photos, segmenter) as served:
        assert save(served, revision=0).json == {"revision": 1}
        assert save(served, revision=0, clicks=[]).status == 409
        assert len(clicks_of(photos)) == 4
    with labeling(photos, segmenter) as served:
        assert save(served, revision=0, clicks=[]).status == 409
        assert save(served, revision=1, clicks=[]).status == 200


def test_save_does_not_wait_for_masks(photos: Path, segmenter: Segmenter) -> None:
    """Nor is it lost at Ctrl-C while they are computed."""
    with labeling(photos, segmenter) as served:
        release = threading.Event()
        served.server.pool.submit(release.wait)
        try:
            assert save(served).status == 200
            assert len(clicks_of(photos)) == 4
        finally:
            release.set()


MASKS = "[...document.querySelectorAll('.tile .mask')].map(mask => mask.hidden ? '' : mask.src)"
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
    stage = page.locator(f".tile:has(.name:text-is('{photo}')) .stage")
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
    chosen = "#classes .choose[aria-pressed=true] .name"
    names = "#classes .choose .name"
    with labeling(photos, segmenter) as served, label_page(served) as page:
        until(page, "document.querySelector('#skipped summary').textContent === '1 skipped'")
        assert page.locator("#export").is_disabled()
        page.locator(".rename").nth(1).click()
        page.keyboard.type("red")
        page.keyboard.press("Enter")
        assert page.locator(chosen).inner_text() == "red"
        assert not any(click(page, "0.png", 0.1))
        assert "another class" in page.locator("#hint").inner_text()
        page.keyboard.press("1")
        assert page.locator(chosen).inner_text() == "background"
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
        page.locator("#classes .choose").nth(2).click()
        page.locator(".tile:has(.name:text-is('more/5.png')) .stage").focus()
        for _ in range(4):
            page.keyboard.press("ArrowRight")
        page.keyboard.press("Space")
        until(page, "document.querySelectorAll('.dot').length === 3")

        page.locator("#uncertain").click()
        page.wait_for_selector("#by-name:visible")
        until(page, f"{BUSY} === 'false'")
        shares = [int(text.rstrip("%")) for text in page.locator(".certainty").all_inner_texts()]
        assert shares == sorted(shares)
        titles = "[...document.querySelectorAll('.tile .name')].map(name => name.textContent)"
        worst_first = page.evaluate(titles)
        page.locator("#by-name").click()
        assert page.evaluate(titles) == sorted(worst_first) != worst_first

        page.locator("#export").click()
        until(page, "/6 masks in/.test(document.getElementById('export-text').textContent)")
        assert len(list((photos.parent / "to" / "export" / "masks").rglob("*.png"))) == 6
        head = croc.load_segmenter(photos.parent / "to" / "export" / "head")
        assert head.classes == ("background", "red", "blue")
        seen = page.evaluate(MASKS)
        page.reload()
        until(page, f"before => JSON.stringify({MASKS}) === JSON.stringify(before)", seen)
        assert page.locator(names).all_inner_texts() == [
            "background",
            "red",
            "blue",
        ]
        assert page.locator("#classes .choose .clicks").all_inner_texts() == ["0", "1", "2"]
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


@BROWSER
def test_newer_labels_of_another_tab_are_loaded(photos: Path, segmenter: Segmenter) -> None:
    with labeling(photos, segmenter) as served, label_page(served, expected="409") as page:
        click(page, "0.png", 0.1)
        save(served)  # the other tab
        click(page, "0.png", 0.3)
        until(page, "document.querySelectorAll('.dot').length === 4")
        assert "changed in another tab" in page.locator("#message").inner_text()
        assert page.locator("#undo").is_disabled()
        click(page, "1.png", 0.1)
        until(page, "document.getElementById('message').hidden")
        assert len(clicks_of(photos)) == 5


@BROWSER
def test_failed_save_is_repeated(photos: Path, segmenter: Segmenter) -> None:
    with labeling(photos, segmenter) as served, label_page(served, expected="500") as page:
        page.route("**/api/labels", lambda route: route.fulfill(status=500, body="{}"), times=1)
        box = page.locator(".stage").first.bounding_box()
        page.mouse.click(box["x"] + 9, box["y"] + 9)
        until(page, "/not saved/.test(document.getElementById('message').textContent)")
        asks = "!window.dispatchEvent(new Event('beforeunload', { cancelable: true }))"
        assert page.evaluate(asks)
        until(page, "document.getElementById('message').hidden")
        assert not page.evaluate(asks)
        assert len(clicks_of(photos)) == 1


@BROWSER
def test_removed_class_leaves_the_chosen_one(photos: Path, segmenter: Segmenter) -> None:
    chosen = "#classes .choose[aria-pressed=true] .name"
    with labeling(photos, segmenter) as served, label_page(served) as page:
        for name in ("b", "c", "d"):
            page.locator("#add").click()
            page.keyboard.type(name)
            page.keyboard.press("Enter")
        page.locator("#classes .choose").nth(3).click()
        page.locator(".remove").first.click()  # object
        assert page.locator(chosen).inner_text() == "c"
        page.locator("#undo").click()
        assert page.locator(chosen).inner_text() == "c"
        page.locator("#classes .choose").nth(1).click()
        page.locator("#undo").click()  # d's name
        assert page.locator(chosen).inner_text() == "object"


@BROWSER
def test_photographs_are_marked_done(photos: Path, segmenter: Segmenter) -> None:
    shown = "[...document.querySelectorAll('.tile:not([hidden]) .name')].map(n => n.textContent)"
    with labeling(photos, segmenter) as served, label_page(served) as page:
        page.locator(".tile .done").nth(1).click()
        page.locator(".tile .stage").nth(3).hover()
        page.keyboard.press("f")
        assert page.locator("#done-count").inner_text() == "2 of 6 done"
        page.locator("#not-done").check()
        assert page.evaluate(shown) == ["0.png", "2.png", "4.png", "more/5.png"]
        page.reload()
        until(page, "document.querySelectorAll('.done[aria-pressed=true]').length === 2")
        page.locator(".tile .done").nth(1).click()
        assert page.locator("#done-count").inner_text() == "1 of 6 done"
        page.locator("#undo").click()
        until(page, f"{BUSY} === 'false'")
    assert json.loads((photos.parent / "to" / "labels.json").read_text())["done"] == [
        *("1.png", "3.png"),
    ]


@BROWSER
def test_one_photograph_is_looked_at_closely(photos: Path, segmenter: Segmenter) -> None:
    with labeling(photos, segmenter) as served, label_page(served) as page:
        click(page, "0.png", 0.1)
        page.locator("#not-done").check()
        page.locator(".tile .stage").nth(0).hover()
        page.keyboard.press("Enter")
        viewer = page.locator("#viewer")
        assert viewer.locator(".dot").count() == 1
        page.keyboard.press("1")
        stage = viewer.locator(".stage")
        box = stage.bounding_box()
        assert box["width"] > 800
        stage.click(position={"x": 0.9 * box["width"], "y": 0.5 * box["height"]})
        page.wait_for_selector("#viewer .mask:visible")
        assert len(clicks_of(photos)) == 2
        assert page.locator("#previous").is_disabled()
        page.keyboard.press("d")
        assert page.locator("#viewer-name").inner_text() == "1.png"
        page.keyboard.press("f")
        page.keyboard.press("d")
        page.keyboard.press("a")
        assert page.locator("#viewer-name").inner_text() == "0.png"  # done ones are hidden
        page.locator("#viewer-opacity").fill("0")
        page.wait_for_selector("#viewer .mask", state="visible")
        opacity = "getComputedStyle(document.querySelector('.mask')).opacity"
        assert page.evaluate(opacity) == page.locator("#opacity").input_value() == "0"
        page.keyboard.press("Escape")
        until(page, f"{MASKS}.filter(Boolean).length === 5")  # all that are not hidden
        page.locator(".tile .name").nth(5).click()
        assert page.locator("#viewer-name").inner_text() == "more/5.png"
        assert page.locator("#next").is_disabled()


@BROWSER
def test_strokes_win_over_the_prediction(photos: Path, segmenter: Segmenter) -> None:
    def drag(x: float, y: float, to: float) -> None:
        before = page.locator("#viewer .mask").get_attribute("src")
        box = page.locator("#viewer .stage").bounding_box()
        for number, share in enumerate((x, to)):
            y_px = box["y"] + y * box["height"]
            page.mouse.move(box["x"] + share * box["width"], y_px, steps=8)
            (page.mouse.up if number else page.mouse.down)()
        until(page, "s => document.querySelector('#viewer .mask').src !== s", before)

    with labeling(photos, segmenter) as served, label_page(served) as page:
        page.keyboard.press("1")
        click(page, "0.png", 0.1)
        page.locator(".tile .name").first.click()
        assert page.locator("#brush").is_disabled()
        page.keyboard.press("Escape")
        page.keyboard.press("2")
        click(page, "0.png", 0.9)
        page.locator(".tile .name").first.click()
        until(page, f"{BUSY} === 'false'")
        page.keyboard.press("b")
        drag(0.05, 0.5, 0.3)
        page.locator("#viewer-eraser").click()
        drag(0.2, 0.5, 0.3)
        assert len(clicks_of(photos)) == 2  # a stroke is no click
        mask = masks_of(served, 0)[0]
        height, width = mask.shape
        row = mask[height // 2]
        assert row[int(0.06 * width) : int(0.16 * width)].all()
        assert not row[int(0.23 * width) : int(0.29 * width)].any()
        assert not mask[height // 4, : width // 3].any()
        post(served, "export")
        export = settled(served, exporting=True)["export"]
        assert (np.asarray(Image.open(Path(export["masks"]) / "0.png")) == mask).all()
        page.locator("#viewer-undo").click()
        until(page, f"{BUSY} === 'false'")
        assert masks_of(served, 0)[0][height // 2, : int(0.3 * width)].mean() > 0.8


@BROWSER
def test_save_whose_answer_is_lost_is_not_another_tabs(photos: Path, segmenter: Segmenter) -> None:
    lose = """() => {
      const [send, lost] = [window.fetch, []];
      window.fetch = async (...request) => {
        if (request[0] !== "/api/labels") return send(...request);
        if (lost.push(request) === 1) await send(...request);
        else window.fetch = send;
        throw new TypeError("the tunnel broke");
      };
    }"""
    with labeling(photos, segmenter) as served, label_page(served, expected="409") as page:
        page.evaluate(lose)
        for number in (0, 1):
            page.locator(".stage").nth(number).click()
        until(page, "/not saved/.test(document.getElementById('message').textContent)")
        until(page, f"{BUSY} === 'false'")
        assert clicks_of(photos) == [("0.png", 1), ("1.png", 1)]
        assert page.locator("#message").is_hidden()
