"""The network of a run is that of --init, unless its options are passed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch

from croc.cli import main
from croc.config import CrocConfig, ModelConfig, ViewsConfig, read_config
from croc.method.backbone import Backbone
from croc.recipes import RECIPES
from croc.weights.init import follow_init, load_into
from croc.weights.open import open_backbone
from tests.tiny import FLAGS
from tests.weights.projects import VITS, dinov2, prefixed, zeros

SMALL: dict[str, Any] = {"depth": 2, "num_classes": 0, "img_size": 56}


def save_dinov2(name: str) -> None:
    torch.save(dinov2(dict(timm.create_model(name, **SMALL).state_dict())), "w.pth")


def save_timm(name: str) -> None:
    torch.save(timm.create_model(name, num_classes=0).state_dict(), "w.pth")


def save_dino() -> None:
    options: dict[str, Any] = {**SMALL, "patch_size": 8}
    vit = timm.create_model("vit_small_patch16_224", **options)
    torch.save(VITS["dino_full"](dict(vit.state_dict())), "w.pth")


def save_without_norm() -> None:
    options: dict[str, Any] = {**SMALL, "img_size": 64}
    weights = timm.create_model("vit_base_patch16_224", **options).state_dict()
    weights = {key: value for key, value in weights.items() if not key.startswith("norm.")}
    content = {"state_dict": prefixed("module.encoder_q.backbone.", weights)}
    torch.save(content | zeros("queue"), "w.pth")


CASES = {
    "DINO": (save_dino, "w.pth", ("vit_small_patch16_224", 8, 2)),
    "no final norm": (save_without_norm, "w.pth", ("vit_base_patch16_224", 16, 2)),
    "DINOv2 with registers": (
        lambda: save_dinov2("vit_small_patch14_reg4_dinov2"),
        "w.pth",
        ("vit_small_patch14_reg4_dinov2", 14, 2),
    ),
    "timm's Eva": (
        lambda: save_timm("eva02_tiny_patch14_224"),
        "timm:eva02_tiny_patch14_224@w.pth",
        ("eva02_tiny_patch14_224", 14, 12),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_network_and_views_follow(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    save, init, (name, patch_px, depth) = CASES[case]
    save()
    for recipe in ("posttrain", "demo", "mae-coco-20min"):
        config: Any = RECIPES[recipe]()
        config = replace(config, model=replace(config.model, init=init))
        followed = follow_init(config, recipe, {"data.root"})
        expected = replace(config.model, name=name, patch_px=patch_px, depth=depth)
        assert followed.model == expected
        size_px = followed.views.size_px
        assert size_px % patch_px == 0
        assert abs(size_px - config.views.size_px) <= patch_px / 2
        assert replace(followed, model=config.model, views=config.views) == config
    backbone = Backbone(followed.model, 4 * patch_px).eval()
    load_into(backbone, init)
    images = torch.randn(1, 3, 4 * patch_px, 4 * patch_px)
    source: Any = open_backbone(init)
    if case != "no final norm":  # it gets one
        ours = backbone.vit.eval().forward_features(images)
        torch.testing.assert_close(ours, source.vit.forward_features(images))


def test_what_is_passed_or_fits_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    save_timm("vit_tiny_patch16_224")
    init = "timm:vit_tiny_patch16_224@w.pth"
    model = ModelConfig("vit_tiny_patch16_224", init=init)
    assert follow_init(CrocConfig(model=model), "any", set()).model == model  # as in earlier runs
    other = CrocConfig(model=replace(model, name="vit_small_patch16_224"))
    for option in ("model.name", "model.patch-px", "model.depth"):
        assert follow_init(other, "any", {option}) == other
    sized = replace(other, views=ViewsConfig(size_px=200, early_px=90, early_epochs=1))
    followed = follow_init(sized, "any", {"views.size-px"})
    assert (followed.views.size_px, followed.views.early_px) == (200, 96)
    fresh = replace(other, model=ModelConfig())
    assert follow_init(fresh, "any", set()) == fresh


def test_commands_follow_and_resume_without_the_file(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save_timm("eva02_tiny_patch14_224")
    init = "timm:eva02_tiny_patch14_224@w.pth"
    shape = {"--model.depth", "--model.drop-path", "--views.size-px"}
    pairs = zip(FLAGS[::2], FLAGS[1::2])
    flags = [word for flag, value in pairs if flag not in shape for word in (flag, value)]
    flags += ["--data.root", "scenes", "--data.workers", "0", "--head.image-prototypes", "64"]
    flags += ["--head.cluster-prototypes", "32"]
    command = ["pretrain", "posttrain", "--init", init, *flags]
    size = ["--views.size-px", "42", "--run.folder", "run"]
    assert main([*command, "--run.folder", "no", "--views.size-px", "40"]) == 2
    assert "try --views.size-px 42" in capsys.readouterr().err
    assert main([*command, *size, "--run.stop-after-steps", "1"]) == 0
    (tmp_path / "w.pth").unlink()
    assert main([*command, *size, "--run.stop-after-steps", "2"]) == 0
    assert "resumes from step 1" in capsys.readouterr().err
    config, _ = read_config(Path("run/config.json"))
    assert (config.model.name, config.model.patch_px) == ("eva02_tiny_patch14_224", 14)
    assert main(["pretrain", "posttrain", *flags]) == 2
    assert "--anchor.weight needs --init" in capsys.readouterr().err
