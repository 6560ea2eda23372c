"""Whatever names weights can be exported; the card tells of them; torch.hub finds the shipped."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import croc
from croc.eval.features import fingerprint
from croc.train.checkpoint import checkpoints
from croc.train.loop import pretrain
from croc.weights import shipped
from croc.weights.card import hub_licence
from croc.weights.export import Export, export
from croc.weights.export.snippets import snippet
from croc.weights.page import read_page
from tests.evals.commands import call
from tests.export.foreign import Job, describe_here, deviation, work_abroad
from tests.export.sources import PAGE, make_file
from tests.tiny import tiny_config, tiny_mae

ROOT = Path(__file__).parents[2]


def front(folder: Path) -> dict[str, str]:
    """The card's front matter, its list of tags in one line."""
    text = (folder / "README.md").read_text()
    matter = re.match(r"---\n(.*?)\n---\n\n# ", text, re.DOTALL)
    assert matter
    lines = matter[1].replace("tags:\n- ", "tags: ").replace("\n- ", ", ").splitlines()
    return dict(line.split(": ", 1) for line in lines)


def test_every_source(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A run, its checkpoint, a file, a shipped name: the same weights, and a name for each."""
    monkeypatch.setattr(shipped, "folders", lambda: [tmp_path / "weights"])
    monkeypatch.chdir(tmp_path)
    exact = fingerprint(croc.load_backbone(str(run)))
    export(Export(str(run), "one.safetensors", dtype="float32"))
    export(Export("one.safetensors", str(tmp_path / "weights" / "small.safetensors")))
    rounded = fingerprint(croc.load_backbone("small"))
    expected = {
        str(run): ("tiny-timm", exact),
        str(checkpoints(run)[-1]): ("tiny-safetensors", exact),
        "one.safetensors": ("one-timm", exact),
        "small": ("small-timm", rounded),
    }
    assert exact != rounded
    for what, (name, weights) in expected.items():
        (folder,) = export(Export(what, name.partition("-")[2]))
        assert folder == Path(name)
        assert fingerprint(croc.load_backbone(f"{name}/model.safetensors")) == weights
        assert f"\n# {name.partition('-')[0]}\n" in (folder / "README.md").read_text()
        page = read_page(folder / "model.safetensors")
        assert page
        assert (page.step, page.recipe, page.licence[:4]) == (2, "tiny", "not ")


def test_a_method_without_a_teacher(tmp_path: Path):
    run = pretrain(tiny_mae(tmp_path / "mae", stop_after_steps=1), "tiny-mae")
    (folder,) = export(Export(str(run), "timm", folder=str(tmp_path / "out")))
    assert "backbone of the student" in (folder / "README.md").read_text()
    assert "Masked Autoencoders Are Scalable" in (folder / "README.md").read_text()
    exported = croc.load_backbone(str(folder / "model.safetensors"))
    assert fingerprint(exported) == fingerprint(croc.load_backbone(str(run)))


def test_the_card(run: Path, tmp_path: Path):
    out = tmp_path / "out"
    assert call("linear", run, "scenes:4", out) == 0
    (folder,) = export(
        Export(
            str(run),
            "timm",
            folder=str(tmp_path / "made"),
            name="a|b",
            scores=str(out / "results.jsonl"),
            licence="CC-BY-4.0; mine",
        )
    )
    text = (folder / "README.md").read_text()
    assert front(folder) == {
        "license": "cc-by-4.0",
        "library_name": "timm",
        "pipeline_tag": "image-feature-extraction",
        "tags": '"timm", "self-supervised", "dense-features", "vision-transformer", "croc"',
    }
    score = json.loads((out / "results.jsonl").read_text())["scores"]["mIoU"]
    assert f"| Scenes, 4 images | mIoU {score:.1f} | as here |" in text
    for said in (r"# a\|b", "local-dir:made", "16 (0.667 epochs)", "tiny, step 2", "in float32"):
        assert said in text
    assert "minus (0.485, 0.456, 0.406), over (0.229, 0.224, 0.225)" in text
    assert "@inproceedings{stegmuller2023croc" in text
    assert '"k_start": 5' in text
    assert str(run.parent) not in text


def test_licences(tmp_path: Path):
    """A file's own goes on, unless another is given; what hubs do not know is "other"."""
    assert [hub_licence(text) for text in ("MIT", "mine", "", " Apache-2.0, x")] == [
        *("mit", None, None),
        "apache-2.0",
    ]
    file = make_file(tmp_path / "a.safetensors", "vit_tiny_patch16_224")
    (kept,) = export(Export(str(file), "timm", folder=str(tmp_path / "kept")))
    assert front(kept)["license"] == "apache-2.0"
    (other,) = export(Export(str(file), "timm", folder=str(tmp_path / "o"), licence="ask me: mine"))
    assert (front(other)["license"], front(other)["license_name"]) == ("other", "see-the-card")
    assert "| licence | ask me: mine |" in (other / "README.md").read_text()
    assert json.loads((other / "config.json").read_text())["pretrained_cfg"]["license"] == "other"


def test_names_are_quoted_in_code():
    for kind in ("timm", "onnx"):
        compile(snippet(kind, 'a"b\\c\nü', PAGE), "card", "exec")


def test_both_hubconfs_are_one():
    packaged = ROOT / "croc" / "weights" / "export" / "hubconf.py"
    assert (ROOT / "hubconf.py").read_bytes() == packaged.read_bytes()


SHIPPED = """
import torch
vit = torch.hub.load("repository", "backbone", source="local", name="small")
try:
    torch.hub.load("repository", "backbone", source="local", name="smal")
except ValueError as error:
    assert str(error) == "there is no smal.safetensors here; names: small", error
else:
    raise AssertionError("it found smal")
def describe(images):
    with torch.inference_mode():
        tokens = vit.forward_features(torch.from_numpy(images))
    return tokens[:, 0], tokens[:, 1:]
"""


def test_the_hub_gives_shipped_weights(run: Path, tmp_path: Path):
    """As torch.hub does after it has fetched the repository, of which it needs two files."""
    weights = tmp_path / "repository" / "weights"
    file, _ = export(Export(str(run), str(weights / "small.safetensors")))
    shutil.copy(ROOT / "hubconf.py", weights.parent)
    images = {"wide": torch.randn(2, 3, 24, 48, generator=torch.Generator().manual_seed(0))}
    found = work_abroad({"hub": Job(SHIPPED, images)}, tmp_path)["hub"]
    assert deviation(found, str(file), images)["wide"] < 1e-4
    assert describe_here(str(file), images["wide"])[1].shape == (2, 18, 192)


def test_a_card_tells_what_a_run_began_with(tmp_path: Path):
    """Whose licence it bears and whether it had labels is not known, so neither is claimed."""
    first = pretrain(tiny_config(tmp_path / "first", stop_after_steps=1, report=False), "tiny")
    config = tiny_config(tmp_path / "second", stop_after_steps=1, report=False)
    config = replace(config, model=replace(config.model, init=str(first)))
    (made,) = export(Export(str(pretrain(config, "tiny")), "timm", folder=str(tmp_path / "out")))
    card = (made / "README.md").read_text()
    assert "| started from | first |" in card
    assert "trained further without labels by CrOC" in card
    assert card.startswith("---\nlicense: other\n")
    assert "| licence | not stated; the photographs" in card
