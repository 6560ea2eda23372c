"""What the tests ask of a report in a browser."""

from pathlib import Path
from typing import Any

from croc.lab.report.build import report
from croc.lab.web.page import write_page


def write(to: Path, *runs: Path, scores: tuple[Path, ...] = ()) -> Path:
    write_page(to, report(runs, scores))
    return to


def show(page: Any, path: Path) -> Any:
    page.goto(path.as_uri())
    page.wait_for_selector(".chart", state="attached")
    return page


def chart(page: Any, metric: str) -> Any:
    return page.locator(f'[data-metric="{metric}"]')


def axis(page: Any, metric: str) -> list[str]:
    """The texts along a chart's axes, once what was asked for is drawn."""
    chart(page, metric).scroll_into_view_if_needed()
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 30)))")
    return chart(page, metric).locator(".axes text").all_text_contents()


def readout(page: Any, metric: str) -> str:
    axis(page, metric)
    return chart(page, metric).locator(".readout").inner_text().replace("\n", " ")


def sideways(page: Any) -> int:
    """Pixels by which the page is wider than the window."""
    return page.evaluate("document.documentElement.scrollWidth - window.innerWidth")


def hover(page: Any, metric: str, share: float) -> None:
    """The pointer over a place of the plot, from its left to its right end."""
    x, y = _place(page, metric, share)
    page.mouse.move(x, y)


def drag(page: Any, metric: str, start: float, end: float) -> None:
    page.mouse.move(*_place(page, metric, start))
    page.mouse.down()
    page.mouse.move(*_place(page, metric, (start + end) / 2))
    page.mouse.move(*_place(page, metric, end))
    page.mouse.up()


def _place(page: Any, metric: str, share: float) -> tuple[float, float]:
    plot = chart(page, metric).locator(".plot")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    left, right = box["x"] + 50, box["x"] + box["width"] - 12
    return left + share * (right - left), box["y"] + box["height"] / 2
