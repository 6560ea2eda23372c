"""A page in a real browser; any error on the page's console fails the test."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
BROWSER = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
LOCAL = ("file:", "data:", "blob:", "about:", "http://127.0.0.1:")


@contextmanager
def open_page(
    width: int = 1280, height: int = 900, dark: bool = False, expected: str | None = None
) -> Iterator[Any]:
    """A tab that may load only files and from this machine. The one console error that contains
    `expected`, if given, must occur."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"] if os.getuid() == 0 else []
        )
        viewport = {"width": width, "height": height}
        page = browser.new_page(viewport=viewport, color_scheme="dark" if dark else "light")
        errors: list[str] = []
        page.on("console", lambda entry: entry.type == "error" and errors.append(entry.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda sent: sent.url.startswith(LOCAL) or errors.append(sent.url))
        try:
            yield page
        finally:
            browser.close()
        assert len(errors) == (expected is not None), errors
        assert expected is None or expected in errors[0]


def sideways(page: Any) -> int:
    """Pixels by which the page is wider than the window."""
    return page.evaluate("document.documentElement.scrollWidth - window.innerWidth")


def is_dark(page: Any) -> bool:
    color = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(int(part) for part in color.strip("rgb()").split(",")) < 300
