"""The site: it builds without a warning, is whole, and asks nothing of other servers."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted(path.stem for path in (ROOT / "docs").glob("*.md"))
LOADED = {"script": "src", "img": "src", "iframe": "src", "link": "href", "source": "src"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "WARNING" not in said
    return folder


class Loaded(HTMLParser):
    """What a page makes the browser fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        target = given.get(LOADED.get(tag, ""))
        if target and given.get("rel") not in ("canonical", "next", "prev"):
            self.found.append(target)


def page_of(site: Path, name: str) -> Path:
    return site / "index.html" if name == "index" else site / name / "index.html"


def test_every_page_is_there_and_can_be_found(site: Path):
    index = json.loads((site / "search" / "search_index.json").read_text())
    places = {entry["location"].partition("#")[0] for entry in index["docs"]}
    for name in PAGES:
        assert page_of(site, name).is_file(), name
        assert ("" if name == "index" else f"{name}/") in places


def test_nothing_comes_from_elsewhere(site: Path):
    for path in site.rglob("*.html"):
        for target in Loaded(path.read_text()).found:
            assert not re.match(r"(https?:)?//", target), (path.name, target)
    for path in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//|@import", path.read_text()), path.name


def test_pictures_are_there_those_from_outside_docs_too(site: Path):
    for name in PAGES:
        page = page_of(site, name)
        for target in Loaded(page.read_text()).found:
            assert target.startswith("data:") or (page.parent / target).exists(), (name, target)
    assert list(site.glob("benchmarks/results/*.png"))


def test_the_sites_own_files_stay_out_of_it(site: Path):
    assert not (site / "hooks.py").exists()


@pytest.fixture
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs" / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_out_of_the_pages_become_words_or_links_to_the_repository(hooks: ModuleType):
    text = "See [the loop](../croc/train/loop.py), [README.md](../README.md) and [data](data.md)."
    words = "See the loop (`croc/train/loop.py`), README.md and [data](data.md)."
    assert hooks.mend(text, None) == words
    linked = hooks.mend(text, "https://host/croc/")
    assert "[the loop](https://host/croc/blob/main/croc/train/loop.py)" in linked
    assert hooks.mend("![bars](../benchmarks/results/a.png)", None) == (
        "![bars](benchmarks/results/a.png)"
    )


def test_lists_are_set_apart_but_not_torn(hooks: ModuleType):
    assert hooks.mend("Some:\n- one\n- two\n  more\n- three\n", None) == (
        "Some:\n\n- one\n- two\n  more\n- three\n"
    )
