"""The explorer in a real browser: every control, by pointer and by keyboard."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.lab.app.serving import Served, encoded, serving, tiny_model
from tests.lab.browser import BROWSER, is_dark, open_page, sideways

pytestmark = BROWSER
OVERLAYS = "JSON.stringify([...document.querySelectorAll('.crop canvas')].map(c => c.toDataURL()))"


@contextmanager
def explorer(served: Served, **options: Any) -> Iterator[Any]:
    with open_page(**options) as page:
        page.goto(served.url)
        page.wait_for_selector(".one-head canvas")
        until(page, "!document.getElementById('play').disabled")
        until_settled(page)
        yield page


def until(page: Any, expression: str, argument: Any = None) -> None:
    """Playwright's own waiting evaluates strings in the page, which its policy forbids."""
    end = time.monotonic() + 20
    while not page.evaluate(expression, argument):
        assert time.monotonic() < end, expression
        page.wait_for_timeout(30)


def until_settled(page: Any) -> None:
    """Every model has answered and is drawn."""
    until(page, "document.getElementById('panels').getAttribute('aria-busy') === 'false'")
    frame = "new Promise(end => requestAnimationFrame(() => requestAnimationFrame(end)))"
    page.evaluate(f"() => {frame}")


def wait_for_change(page: Any, before: str) -> str:
    until(page, f"before => {OVERLAYS} !== before", before)
    until_settled(page)
    return page.evaluate(OVERLAYS)


def boxes(page: Any) -> list[list[int]]:
    """Width, height, x and y of both, as announced to screen readers."""
    labels = [box.get_attribute("aria-label") for box in page.locator(".box").all()]
    return [[int(n) for n in re.findall(r"\d+", label.partition(".")[0])] for label in labels]


def box_center(page: Any, number: int) -> tuple[float, float]:
    box = page.locator(f".box-{number}").bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def drag(page: Any, start: tuple[float, float], dx: float, dy: float) -> None:
    page.mouse.move(*start)
    page.mouse.down()
    page.mouse.move(start[0] + dx / 2, start[1] + dy / 2)
    page.mouse.move(start[0] + dx, start[1] + dy)
    page.mouse.up()


def test_boxes_by_pointer_and_keyboard(served: Served) -> None:
    with explorer(served) as page:
        first, seen = boxes(page), page.evaluate(OVERLAYS)
        x, y = box_center(page, 0)
        drag(page, (x - 60, y - 60), 24, 12)
        moved = boxes(page)
        assert moved[0][:2] == first[0][:2]
        assert moved[0][2] > first[0][2]
        assert moved[1] == first[1]
        seen = wait_for_change(page, seen)
        corner = page.locator(".box-1 .nw").bounding_box()
        drag(page, (corner["x"] + 15, corner["y"] + 15), 20, 30)
        assert boxes(page)[1][0] < moved[1][0]
        drag(page, box_center(page, 1), 2000, 2000)
        width, height, left, top = boxes(page)[1]
        assert (left + width, top + height) == (384, 384)
        seen = wait_for_change(page, seen)

        page.locator(".box-0").focus()
        width, height, left, top = boxes(page)[0]
        for key in ("ArrowRight", "ArrowDown", "Shift+ArrowLeft", "Shift+ArrowUp"):
            page.keyboard.press(key)
        assert boxes(page)[0] == [width - 8, height - 8, left + 8, top + 8]
        page.keyboard.press("-")
        assert boxes(page)[0][0] < width - 8
        for _ in range(6):
            page.keyboard.press("+")
        assert boxes(page)[0][0] > width + 40
        wait_for_change(page, seen)

        page.locator(".thumbnail").nth(1).click()  # the boxes start again
        until(page, "document.getElementById('picture-name').textContent === 'scene 2'")
        for key in ("ArrowLeft", "ArrowUp"):  # B onto A, then a little smaller
            page.locator(".box-1").focus()
            for _ in range(12):
                page.keyboard.press(key)
        page.keyboard.press("-")
        first = boxes(page)
        drag(page, box_center(page, 1), 10, 10)  # neither hides the other
        assert boxes(page)[0] == first[0]
        assert boxes(page)[1] != first[1]
        page.locator(".box-0").focus()
        corner = page.locator(".box-0").bounding_box()
        drag(page, (corner["x"] + corner["width"], corner["y"] + corner["height"]), 20, 20)
        assert boxes(page)[0][0] > first[0][0]


def test_settings_and_their_resets(served: Served) -> None:
    with explorer(served) as page:
        seen = page.evaluate(OVERLAYS)
        sliders = {"position_weight": ("End", "∞", "4"), "k_start": ("End", "24", "5")}
        sliders["sharpness"] = ("Home", "1", "20")
        for name, (key, expected, default) in sliders.items():
            row = page.locator(".control", has=page.locator(f"#slider-{name}"))
            assert row.locator("output").inner_text() == default
            assert row.locator(".reset").is_disabled()
            page.locator(f"#slider-{name}").focus()
            page.keyboard.press(key)
            assert row.locator("output").inner_text() == expected
            seen = wait_for_change(page, seen)
            row.locator(".reset").click()
            assert row.locator("output").inner_text() == default
            seen = wait_for_change(page, seen)
        assert page.locator(".panel").first.locator(".one-head").count() == 3
        page.locator("input[value=last]").check()
        seen = wait_for_change(page, seen)
        until(page, "document.querySelector('.heads').hidden")
        page.locator("#draw").click()
        seen = wait_for_change(page, seen)
        page.locator("#reset-all").click()
        wait_for_change(page, seen)
        assert page.locator("input[value=values]").is_checked()
        assert page.locator("#message").is_hidden()


def test_heads_similarity_and_merging(served: Served) -> None:
    with explorer(served) as page:
        first, second = page.locator(".panel").all()
        assert [p.locator("h2").inner_text() for p in (first, second)] == ["first", "second"]
        seen = page.evaluate(OVERLAYS)
        second.locator(".one-head").nth(2).click()
        wait_for_change(page, seen)
        assert second.locator(".one-head[aria-pressed=true] strong").inner_text() == "Head 2"
        assert first.locator(".one-head[aria-pressed=true] strong").inner_text() == "Head 0"
        text = second.locator(".one-head").nth(2).locator(".text").inner_text()
        assert second.locator(".summary").inner_text() in text.replace("\n", " ")

        crop = first.locator(".crop-1 canvas")
        crop.hover(position={"x": 30, "y": 30})
        until(page, "/^Cluster \\d/.test(document.querySelector('.caption').textContent)")
        crop.click(position={"x": 30, "y": 30})
        page.wait_for_selector("#whole:visible")
        until_settled(page)
        assert page.locator(".scale:visible").count() == 2
        until(page, "document.querySelector('.caption').textContent === 'Cosine 1.00'")
        seen = page.evaluate(OVERLAYS)
        drag(page, box_center(page, 1), -15, -5)  # the patch moves with its box
        wait_for_change(page, seen)
        page.locator(".leave").first.click()
        assert page.locator("#whole").is_hidden()
        crop.focus()
        for key in ("ArrowLeft", "ArrowUp", "Enter"):
            page.keyboard.press(key)
        page.wait_for_selector("#whole:visible")
        until(page, "document.querySelector('.caption').textContent === 'Cosine 1.00'")
        page.keyboard.press("Escape")
        assert page.locator("#whole").is_hidden()

        state = page.locator("#merging-state")
        assert re.match(r"chosen K \d and \d", state.inner_text())
        assert page.locator("#curve .chosen").count() == 2
        assert page.locator("#curve .dot").count() == 2 * 4
        page.locator("#play").focus()  # no patch is pointed at any more
        page.mouse.move(0, 0)
        until_settled(page)
        seen = page.evaluate(OVERLAYS)
        page.locator("#play").click()
        assert state.inner_text().startswith("at K 5")
        assert page.locator("#play").inner_text() == "Pause"
        until(page, "document.getElementById('merging-state').textContent.startsWith('at K 4')")
        page.locator("#play").click()
        assert page.locator("#play").inner_text() == "Play"
        for _ in range(3):
            page.locator("#forward").click()
        assert state.inner_text().startswith("at K 2")
        assert page.locator(".summary").first.inner_text().startswith("K 2")
        page.locator("#back").click()
        assert state.inner_text().startswith("at K 3")
        page.locator("#step").focus()
        page.keyboard.press("Home")
        assert state.inner_text().startswith("at K 5")
        page.locator("#stop").click()
        assert state.inner_text().startswith("chosen K")
        until(page, f"before => {OVERLAYS} === before", seen)


SEND = """([event, name, data]) => {
    const files = new DataTransfer();
    files.items.add(new File([new Uint8Array(data)], name));
    const kind = event === "drop" ? DragEvent : ClipboardEvent;
    document.dispatchEvent(new kind(event, { dataTransfer: files, clipboardData: files }));
}"""


def test_uploads_by_file_drop_and_paste(served: Served, tmp_path: Path) -> None:
    hostile, bad = tmp_path / "<img src=x onerror=alert(1)>.png", tmp_path / "bad.png"
    hostile.write_bytes(encoded("PNG", 300, 200))
    bad.write_text("not a picture")
    width = "width => document.getElementById('photo').naturalWidth === width"
    with explorer(served, expected="status of 415") as page:  # the browser logs it by itself
        page.on("dialog", lambda dialog: pytest.fail(dialog.message))
        page.set_input_files("#file", bad)
        page.wait_for_selector("#message:visible")
        assert page.locator("#message").inner_text() == "That file cannot be read as a picture."
        assert page.locator("#picture-name").inner_text() == "scene 1"
        page.set_input_files("#file", hostile)
        until(page, width, 300)
        until(page, "document.querySelectorAll('.thumbnail').length === 7")
        assert page.locator("#picture-name").inner_text() == hostile.name
        assert page.locator("#message").is_hidden()
        page.evaluate(SEND, ["drop", "dropped.png", list(encoded("PNG", 90, 130))])
        until(page, width, 90)
        page.evaluate(SEND, ["paste", "pasted.png", list(encoded("PNG", 70, 64))])
        until(page, width, 70)
        page.locator(".thumbnail[data-picture=scene-3]").click()
        until(page, width, 384)
        until_settled(page)


def test_phone_in_the_dark_and_tab_order() -> None:
    with (
        serving(tiny_model()) as served,
        explorer(served, width=390, height=844, dark=True) as page,
    ):
        assert sideways(page) == 0
        for name in ("#photograph", ".panel", "#settings", "#merging"):
            assert page.locator(name).bounding_box()["width"] <= 390
        assert is_dark(page)
        page.locator("[data-theme-switch]").click()
        assert not is_dark(page)
        page.locator("[data-theme-switch]").click()
        assert is_dark(page)

        names = []
        for _ in range(40):
            page.keyboard.press("Tab")
            node = page.locator(":focus")
            if node.count():
                names.append(node.evaluate("node => node.id || node.className"))
                assert node.evaluate("node => getComputedStyle(node).outlineStyle") != "none" or (
                    node.get_attribute("type") == "radio"  # its text has the outline
                )
        expected = {"choose", "box box-0 lifted", "box box-1 lifted", "one-head", "play", "draw"}
        assert expected | {"step"} <= set(names)
