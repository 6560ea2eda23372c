"""The README and the pages: their Python runs, their links lead somewhere, it stays short."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_readme_stays_short():
    assert len(PAGES[0].read_text().splitlines()) <= 250


@pytest.mark.parametrize("page", ["README.md", "docs/evaluate.md"])
def test_its_python_runs(page: str, capsys: pytest.CaptureFixture[str]):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(block, {})
    assert "tensor" in capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target
