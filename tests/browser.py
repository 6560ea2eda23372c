"""A page in a real browser, which fails the test for any error that the page's console shows."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
BROWSER = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")


@contextmanager
def open_page(width: int = 1280, height: int = 900, dark: bool = False) -> Iterator[Any]:
    """A tab that may reach nothing but files and this machine."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"] if os.getuid() == 0 else []
        )
        page = browser.new_page(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
        )
        problems: list[str] = []
        page.on("console", lambda said: said.type == "error" and problems.append(said.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda asked: _local(asked.url) or problems.append(asked.url))
        try:
            yield page
        finally:
            browser.close()
        assert problems == []


def _local(url: str) -> bool:
    return url.startswith(("file:", "data:", "blob:", "about:", "http://127.0.0.1:"))
