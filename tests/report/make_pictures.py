"""The pictures of docs/report.md: python -m tests.report.make_pictures RUN ..."""

import sys
from pathlib import Path
from typing import Any

from PIL import Image

from tests.browser import open_page
from tests.report.pages import drag, hover, show, write

DOCS = Path(__file__).parent.parent.parent / "docs"
STILL = "document.documentElement.style.scrollBehavior = 'auto'"


def make_pictures(page_path: Path) -> None:
    with open_page(1280, 1060) as page:
        show(page, page_path).evaluate(STILL)
        page.locator("#smoothing").fill("0.6")
        page.evaluate("document.activeElement.blur()")
        hover(page, "loss_image", 0.6)
        _take(page, "report.png")
    with open_page(1280, 1060, dark=True) as page:
        show(page, page_path).evaluate(STILL)
        page.evaluate("document.getElementById('clusters').scrollIntoView()")
        _take(page, "report-clusters.png", width=900, dither=Image.Dither.FLOYDSTEINBERG)
    with open_page(390, 844) as page:
        show(page, page_path).evaluate(STILL)
        drag(page, "loss", 0.2, 0.9)
        page.evaluate("document.querySelector('.charts').previousSibling.scrollIntoView()")
        hover(page, "loss", 0.5)
        _take(page, "report-phone.png")


def _take(
    page: Any, name: str, width: int | None = None, dither: Image.Dither = Image.Dither.NONE
) -> None:
    """In few colours: a page has not many, and a picture of it should be small."""
    page.wait_for_timeout(500)
    page.screenshot(path=DOCS / name)
    with Image.open(DOCS / name) as picture:
        small = picture.convert("RGB")
    if width:
        small = small.resize((width, round(small.height * width / small.width)))
    few = small.quantize(256)
    small.quantize(palette=few, dither=dither).save(DOCS / name, optimize=True)


if __name__ == "__main__":
    to = Path(sys.argv[1]).resolve() / "report.html"
    make_pictures(write(to, *map(Path, sys.argv[1:])))
