"""The curves in a real browser: pointer, wheel, pinch and keys."""

from pathlib import Path
from typing import Any

import pytest

from tests.browser import BROWSER, open_page
from tests.report.fakes import line, make_run
from tests.report.pages import axis, chart, drag, hover, readout, show, write

pytestmark = BROWSER


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of 60 and 40 steps, as one page."""
    folder = tmp_path_factory.mktemp("charts")
    runs = make_run(folder / "long"), make_run(folder / "short", 40, offset=1.0)
    return write(folder / "page.html", *runs)


def test_every_metric_has_a_chart_that_says_its_last_values(path: Path):
    with open_page() as page:
        show(page, path)
        charts = [each.get_attribute("data-metric") for each in page.locator(".chart").all()]
        assert sorted(charts) == sorted(line(1).keys() - {"step", "epoch"})
        assert readout(page, "loss") == "at the end long 8.551 short 9.492"
        assert "log P" in chart(page, "entropy_image").locator("text.reference").text_content()
        assert page.title() == "2 runs compared"


def test_reference_lines_close_together_share_one_text(tmp_path: Path):
    runs = [
        make_run(tmp_path / f"{chance}", 5, agreement=0.6, agreement_chance=chance)
        for chance in (0.17, 0.16)
    ]
    with open_page() as page:
        show(page, write(tmp_path / "page.html", *runs))
        axis(page, "agreement")
        texts = chart(page, "agreement").locator("text.reference").all_text_contents()
        assert texts == ["chance 0.16 to 0.17"]
        assert chart(page, "agreement").locator("line.reference").count() == 2
        assert chart(page, "agreement_chance").count() == 0


def test_the_pointer_reads_the_nearest_step_of_all_runs(path: Path):
    with open_page() as page:
        show(page, path)
        hover(page, "loss", 0.5)
        said = readout(page, "loss")
        assert said.split()[:2] in (["step", "30"], ["step", "31"])
        assert "long" in said
        assert "short" in said
        assert (
            readout(page, "loss_image").split()[:2] == said.split()[:2]
        )  # one cursor for all charts
        hover(page, "loss", 0.95)
        assert "short –" in readout(page, "loss")  # which has ended before


def test_a_drag_zooms_all_charts_and_a_double_click_shows_all(path: Path):
    with open_page() as page:
        show(page, path)
        before = axis(page, "loss"), axis(page, "loss_image")
        drag(page, "loss", 0.25, 0.5)
        assert axis(page, "loss") != before[0]
        assert axis(page, "loss_image") != before[1]
        assert "30" in axis(page, "loss")
        assert "50" not in axis(page, "loss")
        assert page.locator("[data-reset]").inner_text().startswith("Zoomed to 15")
        chart(page, "loss").locator(".plot").dblclick()
        assert (axis(page, "loss"), axis(page, "loss_image")) == before
        drag(page, "loss", 0.25, 0.5)
        page.locator("[data-reset]").click()
        assert axis(page, "loss") == before[0]


def test_the_wheel_scrolls_the_page_until_a_chart_is_chosen(path: Path):
    with open_page() as page:
        show(page, path)
        before = axis(page, "loss")
        hover(page, "loss", 0.5)
        page.mouse.wheel(0, -100)
        assert axis(page, "loss") == before
        page.mouse.click(
            *page.evaluate(
                "[...document.querySelectorAll('.plot')].map((plot) => { "
                "const box = plot.getBoundingClientRect(); return [box.x + 150, box.y + 60] })[0]"
            )
        )
        page.mouse.wheel(0, -400)
        assert axis(page, "loss") != before
        page.mouse.wheel(0, 4000)
        page.mouse.wheel(0, 4000)
        page.mouse.wheel(0, 4000)
        page.mouse.wheel(0, 4000)
        assert axis(page, "loss") == before


def test_two_fingers_zoom(path: Path):
    with open_page() as page:
        show(page, path)
        before = axis(page, "loss")
        page.evaluate(PINCH)
        assert axis(page, "loss") != before


PINCH = """() => {
  const plot = document.querySelector('[data-metric="loss"] .plot');
  plot.setPointerCapture = () => {};
  const box = plot.getBoundingClientRect();
  const send = (kind, id, x) => plot.dispatchEvent(new PointerEvent(kind, { pointerId: id,
    pointerType: "touch", button: 0, clientX: box.x + x, clientY: box.y + 60, bubbles: true }));
  send("pointerdown", 11, 140); send("pointerdown", 12, 180);
  send("pointermove", 11, 80); send("pointermove", 12, 260);
  send("pointerup", 11, 80); send("pointerup", 12, 260);
}"""


def test_by_keyboard_alone(path: Path):
    """Tab reaches a chart; arrows move its cursor, + and − zoom, 0 shows all."""
    with open_page() as page:
        show(page, path)
        for _ in range(30):
            page.keyboard.press("Tab")
            if _focused(page, "role") == "slider":
                break
        assert _focused(page, "aria-label") == "Loss: cursor"
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"
        before = axis(page, "loss")
        page.keyboard.press("Home")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        assert readout(page, "loss").startswith("step 3 ")
        assert _focused(page, "aria-valuetext").startswith("step 3, long 9.0")
        page.keyboard.press("+")
        page.keyboard.press("+")
        assert axis(page, "loss") != before
        page.keyboard.press("End")  # the window follows
        assert "60" in axis(page, "loss")
        page.keyboard.press("-")
        page.keyboard.press("0")
        assert axis(page, "loss") == before


def _focused(page: Any, attribute: str) -> str:
    return page.evaluate(f"document.activeElement.getAttribute('{attribute}')")


def test_smoothing_units_and_hidden_runs(path: Path):
    with open_page() as page:
        show(page, path)
        raw = chart(page, "loss").locator("path.line").count()
        page.locator("#smoothing").fill("0.9")
        axis(page, "loss")
        assert chart(page, "loss").locator("path.line.faint").count() == raw == 2
        page.locator("#unit").select_option("images")
        hover(page, "loss", 1.0)
        assert "480 images" in readout(page, "loss")
        page.locator("#unit").select_option("epochs")
        hover(page, "loss", 0.99)
        assert readout(page, "loss").split()[:2] in (["epoch", "5.9"], ["epoch", "6"])
        page.locator(".toolbar .legend input").first.uncheck()
        assert "long" not in readout(page, "loss")
        assert "epoch 4" in readout(page, "loss")
        page.locator(".toolbar .legend input").last.uncheck()
        assert readout(page, "loss") is not None  # and nothing fails without any
