"""The page in a real browser: curves, sections, widths, themes and hostile names."""

import json
from pathlib import Path
from typing import Any

import pytest

from croc.lab.report.page import write_report
from tests.lab.browser import BROWSER, open_page, sideways
from tests.lab.report.fakes import add_pictures, add_scores, line, make_run

pytestmark = BROWSER


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of 60 and 40 steps with everything that a report can show."""
    folder = tmp_path_factory.mktemp("page")
    runs = [make_run(folder / "long", agreement=0.6, agreement_chance=0.17)]
    other = folder / f"short{'-with-a-long-name' * 4}"
    runs += [make_run(other, 40, offset=1.0, agreement=0.6, agreement_chance=0.16)]
    for run in runs:
        add_pictures(run, (0, 20, 40))
        add_scores(run)
    return write_report(runs, folder / "page.html")


def show(page: Any, path: Path) -> Any:
    page.goto(path.as_uri())
    page.wait_for_selector(".chart", state="attached")
    return page


def chart(page: Any, metric: str) -> Any:
    return page.locator(f'[data-metric="{metric}"]')


def axis(page: Any, metric: str) -> list[str]:
    """The labels of a chart's axes, once all changes are drawn."""
    chart(page, metric).scroll_into_view_if_needed()
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 30)))")
    return chart(page, metric).locator(".axes text").all_text_contents()


def readout(page: Any, metric: str) -> str:
    axis(page, metric)
    return chart(page, metric).locator(".readout").inner_text().replace("\n", " ")


def hover(page: Any, metric: str, share: float) -> None:
    """The pointer over the plot, at a share of its width."""
    plot = chart(page, metric).locator(".plot")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    x = box["x"] + 50 + share * (box["width"] - 62)
    page.mouse.move(x, box["y"] + box["height"] / 2)


def drag(page: Any, metric: str, start: float, end: float) -> None:
    hover(page, metric, start)
    page.mouse.down()
    hover(page, metric, (start + end) / 2)
    hover(page, metric, end)
    page.mouse.up()


def test_charts_by_pointer(path: Path):
    with open_page() as page:
        show(page, path)
        charts = {x.get_attribute("data-metric") for x in page.locator(".chart").all()}
        assert charts == line(1).keys() - {"step", "epoch"} | {"agreement"}
        assert readout(page, "seconds").startswith("at the end long 24 short")
        assert "log P" in chart(page, "entropy_image").locator("text.reference").text_content()
        axis(page, "agreement")  # reference lines close together share one text
        texts = chart(page, "agreement").locator("text.reference").all_text_contents()
        assert texts == ["chance 0.16 to 0.17"]

        before = axis(page, "loss"), axis(page, "loss_image")
        hover(page, "loss", 0.5)
        text = readout(page, "loss")
        assert text.split()[:2] in (["step", "30"], ["step", "31"])
        assert readout(page, "loss_image").split()[:2] == text.split()[:2]  # one cursor for all
        hover(page, "loss", 0.95)
        assert readout(page, "loss").endswith("–")  # the other run ended before

        drag(page, "loss", 0.25, 0.5)
        assert "30" in axis(page, "loss")
        assert "50" not in axis(page, "loss")
        assert axis(page, "loss_image") != before[1]
        assert page.locator("[data-reset]").inner_text().startswith("Zoomed to 15")
        chart(page, "loss").locator(".plot").dblclick()
        assert (axis(page, "loss"), axis(page, "loss_image")) == before
        drag(page, "loss", 0.25, 0.5)
        page.locator("[data-reset]").click()
        assert axis(page, "loss") == before[0]

        show(page, path)
        hover(page, "loss", 0.5)
        page.mouse.wheel(0, -100)  # scrolls the page
        assert axis(page, "loss") == before[0]
        hover(page, "loss", 0.5)
        page.keyboard.down("Control")
        page.mouse.wheel(0, -400)
        assert axis(page, "loss") != before[0]
        for _ in range(4):
            page.mouse.wheel(0, 4000)
        assert axis(page, "loss") == before[0]


def test_other_sections(path: Path):
    with open_page() as page:
        show(page, path)
        assert page.title() == "2 runs compared"
        links = page.locator("nav a").all_text_contents()
        assert links == ["Curves", "Clusters", "Scores", "Configuration"]

        first = page.locator(".slice").first.get_attribute("src")
        assert page.locator(".slice").count() == 4  # two images of each run
        page.locator("#picture-step").focus()
        page.keyboard.press("ArrowLeft")
        assert page.locator(".step-shown").inner_text() == "step 20"
        assert page.locator(".slice").first.get_attribute("src") != first
        labels = page.locator(".heads").first.inner_text()
        assert "K 4, 3 shared" in labels
        assert "share 0.93" in labels

        assert "mIoU 23.2" in page.locator("#scores ~ .cards").inner_text()
        page.locator("summary", has_text="2 classes").first.click()
        assert page.locator(".classes").first.is_visible()
        assert page.locator(".predictions img").count() == 4

        rows = page.locator("[data-option]")
        assert "optim.lr" in rows.first.inner_text()  # what differs comes first
        everything = rows.count()
        page.locator("#search").fill("optim lr")
        assert 0 < rows.filter(visible=True).count() < 8
        page.locator("#search").fill("")
        assert rows.filter(visible=True).count() == everything

        page.emulate_media(media="print")
        page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        assert page.locator(".chart svg .axes").count() == page.locator(".chart").count() > 0
        assert not page.locator("nav").is_visible()


HOSTILE = (
    "<script>window.ran=1</script>",
    "</script><script>window.ran=1</script>",
    "\"'><img src=x onerror=window.ran=1>",
    "a\nb\u2028c\u2029d\u0000e",
    "日本語 🐊 ‮drow",
    "${window.ran=1}`",
)


def test_hostile_names_are_only_text(tmp_path: Path):
    """In names of runs, metrics, classes, files and pictures."""
    runs = []
    for number, name in enumerate(HOSTILE[:1] + HOSTILE[2:]):
        name = name.replace("/", "_").replace("\0", "")
        run = make_run(tmp_path / f"{name}{number}", 20, **dict.fromkeys(HOSTILE, 1.0))
        config = json.loads((run / "config.json").read_text())
        config["recipe"], config["data"]["root"] = HOSTILE[1], list(HOSTILE)
        (run / "config.json").write_text(json.dumps(config))
        add_pictures(run, (0, 10), HOSTILE[:4])
        add_scores(run, HOSTILE, protocol=HOSTILE[0], data=HOSTILE[1], backbone=HOSTILE[2])
        runs.append(run)
    runs.append(make_run(tmp_path / "no text: \udc80", 20))
    path = write_report(runs, tmp_path / "page.html")
    text = path.read_text()
    assert text.lower().count("<script") == 3  # the theme's, the data, and ours
    assert "\u2028" not in text.split('id="page-data"')[1]
    with open_page(width=390) as page:
        show(page, path)
        for details in page.locator("summary").all():
            details.click()
        assert set(HOSTILE) <= set(page.locator(".chart h4").all_text_contents())
        assert page.evaluate("window.ran") is None
        assert page.locator("main img:not([src^='data:'])").count() == 0
        assert sideways(page) == 0
