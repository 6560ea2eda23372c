"""The page in a real browser: every control, by pointer and by keyboard."""

import re
from pathlib import Path

import pytest

from tests.app.pages import (
    OVERLAYS,
    box_centre,
    boxes,
    drag,
    explorer,
    until,
    until_settled,
    wait_for_change,
)
from tests.app.serving import Served, encoded, serving, tiny_model
from tests.browser import BROWSER

pytestmark = BROWSER


def test_boxes_by_pointer_and_keyboard(served: Served) -> None:
    with explorer(served) as page:
        first, seen = boxes(page), page.evaluate(OVERLAYS)
        assert page.locator(".thumbnail").count() == 6
        x, y = box_centre(page, 0)
        drag(page, (x - 60, y - 60), 24, 12)
        moved = boxes(page)
        assert moved[0][:2] == first[0][:2]
        assert moved[0][2] > first[0][2]
        assert moved[0][3] > first[0][3]
        assert moved[1] == first[1]
        seen = wait_for_change(page, seen)
        corner = page.locator(".box-1 .nw").bounding_box()
        drag(page, (corner["x"] + 15, corner["y"] + 15), 20, 30)
        sized = boxes(page)
        assert sized[1][0] < moved[1][0]
        assert sized[1][1] < moved[1][1]
        drag(page, box_centre(page, 1), 2000, 2000)
        width, height, left, top = boxes(page)[1]
        assert (left + width, top + height) == (384, 384)
        seen = wait_for_change(page, seen)

        page.locator(".box-0").focus()
        before = boxes(page)[0]
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
        assert boxes(page)[0] == [before[0], before[1], before[2] + 8, before[3] + 8]
        page.keyboard.press("Shift+ArrowLeft")
        page.keyboard.press("Shift+ArrowUp")
        assert boxes(page)[0] == [before[0] - 8, before[1] - 8, before[2] + 8, before[3] + 8]
        page.keyboard.press("-")
        assert boxes(page)[0][0] < before[0] - 8
        for _ in range(6):
            page.keyboard.press("+")
        assert boxes(page)[0][0] > before[0] + 40
        wait_for_change(page, seen)
        assert page.locator("#message").is_hidden()


def test_boxes_that_lie_over_each_other_can_both_be_had(served: Served) -> None:
    with explorer(served) as page:
        for key in ("ArrowLeft", "ArrowUp"):  # B onto A, and then a little smaller than it
            page.locator(".box-1").focus()
            for _ in range(12):
                page.keyboard.press(key)
        page.keyboard.press("-")
        first = boxes(page)
        drag(page, box_centre(page, 1), 10, 10)
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
        for name, (key, expected, own) in sliders.items():
            row = page.locator(".control", has=page.locator(f"#slider-{name}"))
            assert row.locator("output").inner_text() == own
            assert row.locator(".reset").is_disabled()
            page.locator(f"#slider-{name}").focus()
            page.keyboard.press(key)
            assert row.locator("output").inner_text() == expected
            seen = wait_for_change(page, seen)
            row.locator(".reset").click()
            assert row.locator("output").inner_text() == own
            seen = wait_for_change(page, seen)
        assert page.locator(".panel").first.locator(".one-head").count() == 3
        page.locator("input[value=keys]").check()
        seen = wait_for_change(page, seen)
        page.locator("input[value=last]").check()
        seen = wait_for_change(page, seen)
        until(page, "document.querySelector('.heads').hidden")
        page.locator("#draw").click()
        seen = wait_for_change(page, seen)
        page.locator("#reset-all").click()
        wait_for_change(page, seen)
        assert page.locator("input[value=values]").is_checked()
        assert page.locator("#message").is_hidden()


def test_heads_are_chosen_for_each_model(served: Served) -> None:
    with explorer(served) as page:
        first, second = page.locator(".panel").all()
        assert first.locator("h2").inner_text() == "first"
        assert second.locator("h2").inner_text() == "second"
        seen = page.evaluate(OVERLAYS)
        second.locator(".one-head").nth(2).click()
        wait_for_change(page, seen)
        pressed = [
            [head.get_attribute("aria-pressed") for head in panel.locator(".one-head").all()]
            for panel in (first, second)
        ]
        assert pressed == [["true", "false", "false"], ["false", "false", "true"]]
        says = second.locator(".one-head").nth(2).locator(".text").inner_text()
        assert second.locator(".says").inner_text() in says.replace("\n", " ")


def test_a_patch_and_what_is_similar(served: Served) -> None:
    with explorer(served) as page:
        crop = page.locator(".panel").first.locator(".crop-1 canvas")
        crop.hover(position={"x": 30, "y": 30})
        caption = page.locator(".panel").first.locator(".caption")
        until(page, "/^Cluster \\d/.test(document.querySelector('.caption').textContent)")
        assert re.search(r"\d+ patches of A, \d+ of B", caption.inner_text())
        crop.click(position={"x": 30, "y": 30})
        page.wait_for_selector("#whole:visible")
        until_settled(page)
        assert page.locator(".scale:visible").count() == 2
        until(page, "document.querySelector('.caption').textContent === 'Cosine 1.00'")
        seen = page.evaluate(OVERLAYS)
        drag(page, box_centre(page, 1), -15, -5)  # it stays with the boxes
        wait_for_change(page, seen)
        page.locator(".leave").first.click()
        assert page.locator("#whole").is_hidden()

        crop.focus()  # the same by keyboard alone
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowUp")
        page.keyboard.press("Enter")
        page.wait_for_selector("#whole:visible")
        until(page, "document.querySelector('.caption').textContent === 'Cosine 1.00'")
        page.keyboard.press("Escape")
        assert page.locator("#whole").is_hidden()


def test_the_merging_plays(served: Served) -> None:
    with explorer(served) as page:
        says = page.locator("#merging-says")
        assert re.match(r"chosen K \d and \d", says.inner_text())
        assert page.locator("#curve .chosen").count() == 2
        assert page.locator("#curve .dot").count() == 2 * 4
        seen = page.evaluate(OVERLAYS)
        page.locator("#play").click()
        assert says.inner_text().startswith("at K 5")
        assert page.locator("#play").inner_text() == "Pause"
        until(page, "document.getElementById('merging-says').textContent.startsWith('at K 4')")
        page.locator("#play").click()
        assert page.locator("#play").inner_text() == "Play"
        page.locator("#forward").click()
        page.locator("#forward").click()
        page.locator("#forward").click()
        assert says.inner_text().startswith("at K 2")
        assert page.locator(".says").first.inner_text().startswith("K 2")
        page.locator("#back").click()
        assert says.inner_text().startswith("at K 3")
        page.locator("#step").focus()
        page.keyboard.press("Home")
        assert says.inner_text().startswith("at K 5")
        page.locator("#stop").click()
        assert says.inner_text().startswith("chosen K")
        until(page, f"before => {OVERLAYS} === before", seen)


def test_uploads_and_names(served: Served, tmp_path: Path) -> None:
    """A name is text, whatever it says."""
    hostile = tmp_path / "<img src=x onerror=alert(1)>.png"
    hostile.write_bytes(encoded("PNG", 300, 200))
    with explorer(served) as page:
        page.on("dialog", lambda dialog: pytest.fail(dialog.message))
        page.set_input_files("#file", hostile)
        until(page, "document.querySelectorAll('.thumbnail').length === 7")
        assert page.locator("#picture-name").inner_text() == hostile.name
        assert page.locator("#picture-name img").count() == 0
        until(page, "document.getElementById('photo').naturalWidth === 300")
        assert all(width == 136 for width, *_ in boxes(page))
        data = list(encoded("PNG", 90, 130))
        page.evaluate(
            """data => {
                const held = new DataTransfer();
                held.items.add(new File([new Uint8Array(data)], "dropped.png"));
                document.dispatchEvent(new DragEvent("drop", { dataTransfer: held }));
            }""",
            data,
        )
        until(page, "document.getElementById('photo').naturalWidth === 90")
        page.evaluate(
            """data => {
                const held = new DataTransfer();
                held.items.add(new File([new Uint8Array(data)], "pasted.png"));
                document.dispatchEvent(new ClipboardEvent("paste", { clipboardData: held }));
            }""",
            list(encoded("PNG", 70, 64)),
        )
        until(page, "document.getElementById('photo').naturalWidth === 70")
        page.locator(".thumbnail[data-picture=scene-3]").click()
        until(page, "document.getElementById('photo').naturalWidth === 384")
        assert page.locator("#message").is_hidden()


def test_what_is_no_picture_gets_a_message(served: Served, tmp_path: Path) -> None:
    """The browser itself notes the refused request, so `open_page` is not content; nothing else
    is amiss."""
    text = tmp_path / "text.png"
    text.write_text("no picture")
    notes: list[str] = []
    with pytest.raises(AssertionError):
        upload_text(served, text, notes)
    assert len(notes) == 2
    assert "the server responded with a status of 415" in notes[0]
    assert notes[1] == "all is well"


def upload_text(served: Served, text: Path, notes: list[str]) -> None:
    with explorer(served) as page:
        page.on("console", lambda said: notes.append(said.text))
        page.set_input_files("#file", text)
        page.wait_for_selector("#message:visible")
        assert page.locator("#message").inner_text() == "That file is no picture that can be read."
        assert page.locator("#picture-name").inner_text() == "scene 1"
        seen = page.evaluate(OVERLAYS)
        page.locator(".box-0").focus()
        page.keyboard.press("ArrowRight")
        wait_for_change(page, seen)
        notes.append("all is well")


def test_a_telephone_in_the_dark() -> None:
    with (
        serving(tiny_model()) as served,
        explorer(served, width=390, height=844, dark=True) as page,
    ):
        sizes = "[document.documentElement.scrollWidth, innerWidth]"
        assert page.evaluate(sizes) == [390, 390]
        colour = "getComputedStyle(document.body).backgroundColor"
        dark = page.evaluate(colour)
        page.locator("[data-theme-switch]").click()
        light = page.evaluate(colour)
        assert light != dark
        page.locator("[data-theme-switch]").click()
        assert page.evaluate(colour) == dark
        for place in ("#photograph", ".panel", "#settings", "#merging"):
            assert page.locator(place).bounding_box()["width"] <= 390


def test_everything_is_reached_by_tab() -> None:
    with serving(tiny_model()) as served, explorer(served) as page:
        reached = []
        for _ in range(40):
            page.keyboard.press("Tab")
            reached.append(
                page.evaluate(
                    "(e => [e.id || e.className, e.getAttribute('aria-label') || e.textContent "
                    "|| e.labels?.[0]?.textContent || '', getComputedStyle(e).outlineStyle])"
                    "(document.activeElement)"
                )
            )
        names = [name for name, _, _ in reached]
        for expected in (
            "choose",
            "box box-0 lifted",
            "box box-1 lifted",
            "one-head",
            "play",
            "draw",
            "step",
        ):
            assert expected in names
        assert all(said.strip() for name, said, _ in reached if name)
        shown = [style for name, _, style in reached if "box" in name or name in ("play", "choose")]
        assert all(style != "none" for style in shown)
