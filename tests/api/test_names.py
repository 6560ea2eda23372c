"""The names of `import croc`: documented, their docstrings run, and what weights can be."""

import doctest
import importlib
import os
import re
from pathlib import Path

import pytest
import torch

import croc
from tests.api.refusals import refused

MODULES = ["backbones", "clusters", "photographs", "runs", "scores"]


@pytest.mark.parametrize("name", MODULES)
def test_the_docstrings_are_right(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Pasted as they are: a run lands beside where one is."""
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(importlib.import_module(f"croc.lab.api.{name}"))
    assert result.attempted >= 4
    assert result.failed == 0


def test_the_page_tells_of_every_name():
    page = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
    told = set(re.findall(r"^::: croc\.(\S+)$", page, re.MULTILINE))
    assert told == set(croc.__all__) - {"__version__"}


class TestWeights:
    def test_may_be_a_run(self, run: croc.Run, photograph: Path):
        assert os.fspath(run) == str(run.folder)
        images = torch.randn(1, 3, 32, 32)
        expected = run.backbone().features(images)
        torch.testing.assert_close(croc.load_backbone(run).features(images), expected)
        (by_run,), (by_folder,) = (
            croc.features(photograph, weights) for weights in (run, run.folder)
        )
        assert torch.equal(by_run.patches, by_folder.patches)
        found = croc.evaluate("incontext", run, "scenes:4", neighbours=3, workers=0)
        assert found.backbone == "tiny@2"

    def test_of_other_kinds_are_refused(self, run: croc.Run, photograph: Path):
        backbone = run.backbone()
        said = "tiny@2 is a backbone that is open: give its run, file or name"
        refused(said, croc.load_backbone, backbone)
        refused(said, croc.evaluate, "linear", backbone, "scenes:4")
        said = "a run, a file or a name, not of type NoneType"
        refused(said, croc.load_backbone, None)
        refused(said, croc.features, photograph, None)
        refused(said, croc.evaluate, "linear", None, "scenes:4")
        said = "what load_backbone gave: no VisionTransformer"
        refused(said, croc.features, photograph, backbone.vit)
