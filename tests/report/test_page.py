"""The page around the curves, in a real browser: its parts, widths, themes, and hostile names."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.browser import BROWSER, open_page
from tests.report.fakes import HOSTILE, add_bench, add_pictures, add_scores, line, make_run
from tests.report.pages import axis, chart, readout, show, sideways, write

pytestmark = BROWSER


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs with all that a report can show."""
    folder = tmp_path_factory.mktemp("page")
    runs = make_run(folder / "one"), make_run(folder / ("other-with-a-long-name-" * 4), offset=0.5)
    for run in runs:
        add_pictures(run, (0, 20, 40))
        add_scores(run)
        add_bench(run)
    return write(folder / "page.html", *runs)


def test_all_parts_are_there_and_the_slider_leads_through_training(path: Path):
    with open_page() as page:
        show(page, path)
        links = page.locator("nav a").all_text_contents()
        assert links == ["Curves", "Clusters", "Scores", "Speed", "Configuration"]
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


def test_what_differs_comes_first_and_options_can_be_searched(path: Path):
    with open_page() as page:
        show(page, path)
        rows = page.locator("[data-option]")
        assert "optim.rate" in rows.first.inner_text()
        everything = rows.count()
        page.locator("#search").fill("optim rate")
        assert 0 < rows.filter(visible=True).count() < 8
        page.locator("#search").fill("")
        assert rows.filter(visible=True).count() == everything


@pytest.mark.parametrize("dark", [False, True])
def test_the_theme_follows_the_system_until_it_is_chosen(path: Path, dark: bool):
    with open_page(dark=dark) as page:
        show(page, path)
        assert _is_dark(page) == dark
        switch = page.locator("[data-theme-switch]")
        switch.click()
        assert (switch.inner_text(), _is_dark(page)) == ("Theme: light", False)
        switch.click()
        page.reload()
        assert (switch.inner_text(), _is_dark(page)) == ("Theme: dark", True)
        switch.click()
        assert (switch.inner_text(), _is_dark(page)) == ("Theme: auto", dark)


def _is_dark(page: Any) -> bool:
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(int(part) for part in colour.strip("rgb()").split(",")) < 300


@pytest.mark.parametrize("width", [390, 320])
def test_a_telephone_need_not_scroll_sideways(path: Path, width: int):
    with open_page(width=width, height=800) as page:
        show(page, path)
        for details in page.locator("summary").all():
            details.click()
        assert sideways(page) == 0
        for selector in (".chart", ".block", "article", ".toolbar"):
            for box in [each.bounding_box() for each in page.locator(selector).all()]:
                assert box["x"] >= 0, selector
                assert box["x"] + box["width"] <= width, selector


def test_paper_shows_all_curves(path: Path):
    with open_page() as page:
        show(page, path)
        page.emulate_media(media="print")
        page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        assert page.locator(".chart svg .axes").count() == page.locator(".chart").count() > 0
        assert not page.locator("nav").is_visible()


def test_hostile_names_are_only_text(tmp_path: Path):
    """In run names, metrics, options, classes, files, pictures, benches and notes."""
    runs = []
    for at, name in enumerate(HOSTILE[:1] + HOSTILE[2:]):
        name = name.replace("/", "_").replace("\0", "")
        runs.append(make_run(tmp_path / f"{name}{at}", 20, **dict.fromkeys(HOSTILE, 1.0)))
    for run in runs:
        config = json.loads((run / "config.json").read_text())
        config |= {"recipe": HOSTILE[1], "method": HOSTILE[2]}
        config["data"] |= {"root": list(HOSTILE), **dict.fromkeys(HOSTILE, HOSTILE[0])}
        (run / "config.json").write_text(json.dumps(config))
        add_pictures(run, (0, 10), HOSTILE[:4])
        add_scores(run, HOSTILE, protocol=HOSTILE[0], data=HOSTILE[1], backbone=HOSTILE[2])
        add_bench(run, dict.fromkeys(HOSTILE, 2.0), HOSTILE[1])
    path = write(tmp_path / "page.html", *runs)
    text = path.read_text()
    assert text.lower().count("<script") == 3  # the theme's, the data, and ours
    assert "\u2028" not in text.split('id="page-data"')[1]
    with open_page(width=390) as page:
        show(page, path)
        for details in page.locator("summary").all():
            details.click()
        page.keyboard.press("End")
        titles = page.locator(".chart h4").all_text_contents()
        assert set(HOSTILE) <= set(titles)
        assert page.evaluate("window.ran") is None
        assert (
            page.evaluate("document.querySelectorAll('main img:not([src^=\"data:\"])').length") == 0
        )
        assert sideways(page) == 0


def test_values_of_any_size_are_drawn(tmp_path: Path):
    """Constant, vast, tiny, all but equal, negative, missing, single: no error, no endless axis."""
    run = make_run(tmp_path / "odd", 1)
    odd = {
        "zero": lambda at: 0,
        "vast": lambda at: (-1) ** at * 9e99,
        "tiny": lambda at: at * 5e-324,
        "close": lambda at: 1e16 + 2 * at,
        "below": lambda at: -5 - at,
        "__proto__": lambda at: at,
        "constructor": lambda at: None if at else 1.5,
    }
    with (run / "metrics.jsonl").open("w") as file:
        for at in range(4):
            values = {name: law(at) for name, law in odd.items()}
            file.write(json.dumps({"step": 2**52 + at, "epoch": 0, **values}) + "\n")
    with open_page() as page:
        show(page, write(tmp_path / "page.html", run))
        for name in odd:
            assert axis(page, name)
            assert "NaN" not in chart(page, name).inner_html()
        assert page.locator(".chart").count() == len(odd)
        assert "1.5" in readout(page, "constructor")


def test_a_hundred_thousand_lines_load_at_once(tmp_path: Path):
    run = make_run(tmp_path / "long", 1)
    usual = json.dumps(line(1) | {"step": "STEP", "loss": "LOSS"}) + "\n"
    with (run / "metrics.jsonl").open("w") as file:
        for step in range(1, 100_001):
            loss = 99.0 if step == 54_321 else step % 10
            file.write(usual.replace('"STEP"', str(step)).replace('"LOSS"', str(loss)))
    path = write(tmp_path / "page.html", run)
    assert path.stat().st_size < 10_000_000
    with open_page() as page:
        began = time.perf_counter()
        show(page, path)
        assert time.perf_counter() - began < 2
        assert "step 100,000" in readout(page, "loss")
        assert "100" in axis(page, "loss")  # the one outlier is still there
        assert chart(page, "loss").locator("path.band").count() == 1
