"""What the tests of the page share: opening it, waiting, pointing."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.app.serving import Served
from tests.browser import open_page

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
    """Every model has answered and is drawn: a picture taken before could be of one alone."""
    until(page, "document.getElementById('panels').getAttribute('aria-busy') === 'false'")
    frame = "new Promise(end => requestAnimationFrame(() => requestAnimationFrame(end)))"
    page.evaluate(f"() => {frame}")


def boxes(page: Any) -> list[list[int]]:
    labels = [box.get_attribute("aria-label") for box in page.locator(".box").all()]
    return [[int(n) for n in re.findall(r"\d+", label.partition(".")[0])] for label in labels]


def wait_for_change(page: Any, before: str) -> str:
    until(page, f"before => {OVERLAYS} !== before", before)
    until_settled(page)
    return page.evaluate(OVERLAYS)


def box_centre(page: Any, number: int) -> tuple[float, float]:
    place = page.locator(f".box-{number}").bounding_box()
    return place["x"] + place["width"] / 2, place["y"] + place["height"] / 2


def drag(page: Any, start: tuple[float, float], dx: float, dy: float) -> None:
    page.mouse.move(*start)
    page.mouse.down()
    page.mouse.move(start[0] + dx / 2, start[1] + dy / 2)
    page.mouse.move(start[0] + dx, start[1] + dy)
    page.mouse.up()
