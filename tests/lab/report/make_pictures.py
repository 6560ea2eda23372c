"""The pictures of docs/report.md: python -m tests.lab.report.make_pictures RUN ..."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

from croc.lab.report.build import write_report
from tests.lab.browser import open_page
from tests.lab.report.test_page import drag, hover, show

DOCS = Path(__file__).parents[3] / "docs"


@contextmanager
def picture(name: str, report: Path, *size: int, dark: bool = False) -> Iterator[Any]:
    """Taken at the end, with few colours, so that the file is small."""
    with open_page(*size, dark=dark) as page:
        show(page, report).evaluate("document.documentElement.style.scrollBehavior = 'auto'")
        yield page
        page.wait_for_timeout(500)
        page.screenshot(path=DOCS / name)
    with Image.open(DOCS / name) as taken:
        taken.convert("RGB").quantize(256).save(DOCS / name, optimize=True)


if __name__ == "__main__":
    path = Path(sys.argv[1]).resolve() / "report.html"
    write_report(list(map(Path, sys.argv[1:])), path)
    with picture("report.png", path, 1280, 1060) as page:
        page.locator("#smoothing").fill("0.6")
        hover(page, "loss_image", 0.6)
    with picture("report-clusters.png", path, 900, 745, dark=True) as page:
        page.evaluate("document.getElementById('clusters').scrollIntoView()")
    with picture("report-phone.png", path, 390, 844) as page:
        drag(page, "loss", 0.2, 0.9)
        hover(page, "loss", 0.5)
