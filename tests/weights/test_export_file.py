"""`croc export`: files and folders give the same weights by themselves; the card describes them."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

import croc
from croc.cli import main
from croc.config import parse_config
from croc.eval.evaluate import identify_network
from croc.results import read_results
from croc.train.loop import pretrain
from croc.weights.backbones import fingerprint
from croc.weights.card import _score_row, hub_license
from croc.weights.checkpoint import checkpoints
from croc.weights.export import Export, export
from croc.weights.open import open_backbone
from croc.weights.record import read_record, without_folder, without_paths
from tests.eval.commands import call
from tests.tiny import tiny_config
from tests.weights.conftest import make_file

IMAGES = torch.rand(2, 3, 48, 32, generator=torch.Generator().manual_seed(0))


def features(backbone: Any) -> torch.Tensor:
    return backbone.features(IMAGES, blocks=2)


@pytest.mark.parametrize("fixture", ["run", "mae_run"])
def test_the_features_are_those_of_the_rounded_backbone(
    fixture: str, tmp_path: Path, request: pytest.FixtureRequest
):
    run = request.getfixturevalue(fixture)
    file, card = export(Export(str(run), str(tmp_path / "new" / "a.safetensors")))
    original, loaded = open_backbone(str(run)), open_backbone(str(file))
    assert not torch.equal(features(loaded), features(original))
    original.bfloat16().float()
    assert torch.equal(features(loaded), features(original))
    assert fingerprint(loaded) == fingerprint(original)
    assert identify_network(loaded) == identify_network(original)
    with safe_open(file, framework="pt") as opened:
        assert not [name for name in opened.keys() if "head" in name]  # noqa: SIM118
        assert opened.get_tensor("cls_token").dtype == torch.bfloat16
        assert opened.metadata()["format"] == "pt"
    network = "student" if fixture == "mae_run" else "teacher"  # MAE has no teacher
    assert f"backbone of the {network}" in card.read_text()
    assert ("Masked Autoencoders" in card.read_text()) == (fixture == "mae_run")


def test_every_source(run: Path, bundled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A run, its checkpoint, a file, a bundled name: the same weights, and a name for each."""
    monkeypatch.chdir(tmp_path)
    exact = fingerprint(open_backbone(str(run)))
    export(Export(str(run), "one.safetensors", dtype="float32"))
    rounded = fingerprint(open_backbone("small-a"))
    assert exact != rounded
    for source, name, kind, weights in (
        (str(run), "tiny", "timm", exact),
        (str(checkpoints(run)[-1]), "tiny", "timm", exact),
        ("one.safetensors", "one", "timm", exact),
        ("small-a", "small-a", "timm", rounded),
    ):
        (folder,) = export(Export(source, kind))
        assert folder == Path(f"{name}-{kind}")
        monkeypatch.setenv("HOME", str(tmp_path))
        for path in (str(folder), f"{folder}/model.safetensors", f"~/{folder}"):
            assert fingerprint(croc.load_backbone(path)) == weights
        assert croc.load_backbone(folder).name == folder.name
        assert f"\n# {name}\n" in (folder / "README.md").read_text()
        record = read_record(folder / "model.safetensors")
        assert (record.image_px, record.step, record.images_seen) == (32, 3, 24)
        assert parse_config(record.config, "record")[0].model == tiny_config().model
        shutil.rmtree(folder)


def test_no_path_leaves_the_machine(run: Path, tmp_path: Path):
    config = tiny_config(Path("/home/me/runs/x"))
    data = replace(config.data, root=("/home/me/coco/", "~/more/a-{00..09}.tar", "scenes"))
    model = replace(config.model, init="timm:vit_tiny_patch16_224@/home/me/w.pth")
    cleaned = without_paths(replace(config, data=data, model=model))
    assert cleaned.data.root == ("coco", "a-{00..09}.tar", "scenes")
    assert cleaned.model.init == "timm:vit_tiny_patch16_224@w.pth"
    assert cleaned.run.folder is None
    for name in ("timm:vit_small_patch16_224.dino", "hf:me/mine@v1/model.safetensors"):
        assert without_folder(name) == name
    for path in export(Export(str(run), str(tmp_path / "a.safetensors"))):
        assert str(run.parent).encode() not in path.read_bytes()


def test_the_card_of_a_file(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """With the scores of these weights, exact or rounded, and of no others."""
    to, out = tmp_path / "a|b.safetensors", tmp_path / "out"
    for weights in (run, f"random:{run}"):
        assert call("linear", weights, "scenes:8", out, "--hold-out", "0.5") == 0
    export(Export(str(run), str(tmp_path / "same.safetensors")))
    assert call("linear", tmp_path / "same.safetensors", "scenes:8", out) == 0
    capsys.readouterr()
    scores = ("--scores", str(out / "results.jsonl"))
    license = ("--license", "mine | *alone*")
    assert main(["export", str(run), "--to", str(to), *scores, *license]) == 0
    text = to.with_suffix(".md").read_text()
    few = {"linear 1": 5.0, "linear all": 9.0, "deviation": {"linear 1": 0.5}}
    assert _score_row({**read_results(out)[0], "scores": few, "as_here": True})[2] == (
        "linear 1 5.0 ± 0.5"
    )
    exact, _, rounded = (line["scores"]["mIoU"] for line in read_results(out))
    assert f"| Scenes, 50% of its training split | mIoU {exact:.1f} | before rounding |" in text
    assert f"| Scenes, 8 images | mIoU {rounded:.1f} | these |" in text
    assert text.count("| mIoU") == 2
    for part in (r"mine \| \*alone\*", r"# a\|b", "24 (1 epochs)", "tiny, step 3"):
        assert part in text
    assert "@inproceedings{stegmuller2023croc" in text


def test_front_matter_and_licenses(run: Path, tmp_path: Path):
    """A file's own license stays unless another is given; what hubs do not know is "other". Of
    weights that a run started from, the license and whether they had labels are not known."""
    licenses = [hub_license(text) for text in ("MIT", "mine", "", " Apache-2.0, x")]
    assert licenses == ["mit", None, None, "apache-2.0"]
    file = make_file(tmp_path / "a.safetensors", "vit_tiny_patch16_224")
    (same,) = export(Export(str(file), "timm", folder=str(tmp_path / "same")))
    front = "---\nlicense: apache-2.0\nlibrary_name: timm\npipeline_tag: image-feature-extraction\n"
    assert (same / "README.md").read_text().startswith(front)
    (other,) = export(Export(str(file), "timm", folder=str(tmp_path / "o"), license="ask me: mine"))
    card = (other / "README.md").read_text()
    assert card.startswith("---\nlicense: other\nlicense_name: see-the-card\n")
    assert json.loads((other / "config.json").read_text())["pretrained_cfg"]["license"] == "other"

    config = tiny_config(tmp_path / "second", stop_after_steps=1, report=False)
    config = replace(config, model=replace(config.model, init=str(run)))
    (folder,) = export(Export(str(pretrain(config, "tiny")), "timm", folder=str(tmp_path / "out")))
    card = (folder / "README.md").read_text()
    for part in ("license: other", "| started from | tiny |", "trained further without labels"):
        assert part in card


def test_a_folder_is_whole_and_new(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Also after an export that was killed."""
    monkeypatch.chdir(tmp_path)
    Path("new/a.partial").mkdir(parents=True)
    Path("new/a.partial/stale").touch()
    assert main(["export", str(run), "--to", "timm", "--folder", "new/a"]) == 0
    assert os.listdir("new") == ["a"]
    names = ["README.md", "SHA256SUMS", "config.json", "model.safetensors"]
    assert sorted(os.listdir("new/a")) == names
