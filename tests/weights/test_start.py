"""Starting from weights: what fits is loaded whole, what does not is said in a line."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch

from croc.config import ModelConfig
from croc.errors import UserError
from croc.method.backbone import Backbone
from croc.train.checkpoint import checkpoints, load_checkpoint
from croc.train.loop import pretrain
from croc.weights.start import load_into
from tests.tiny import tiny_config

TINY = ModelConfig("vit_tiny_patch16_224", patch_px=8, depth=2)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    return pretrain(tiny_config(folder, stop_after_steps=2), "tiny")


def test_from_a_run(run: Path):
    """Its teacher; stochastic depth stays as the new run has it."""
    backbone = Backbone(TINY, 32, drop_path=0.25)
    assert load_into(backbone, str(run)) == "tiny@2, the teacher"
    teacher = load_checkpoint(checkpoints(run)[-1])["modules"]["teacher"]
    for name, value in backbone.state_dict().items():
        assert torch.equal(value, teacher[f"backbone.{name}"])
    assert [drop.rate for drop in backbone._drop_paths] == [0.25, 0.25]
    again = Backbone(TINY, 32)
    load_into(again, str(checkpoints(run)[-1]))
    assert torch.equal(again.vit.pos_embed, backbone.vit.pos_embed)


def test_from_a_run_with_views_of_another_size(run: Path):
    backbone = Backbone(TINY, 48)
    load_into(backbone, str(run))
    teacher = load_checkpoint(checkpoints(run)[-1])["modules"]["teacher"]
    expected = timm.layers.pos_embed.resample_abs_pos_embed(
        teacher["backbone.vit.pos_embed"], new_size=[6, 6], num_prefix_tokens=1
    )
    torch.testing.assert_close(backbone.vit.pos_embed, expected)
    with torch.no_grad():
        cls, patches = backbone(torch.randn(2, 1, 3, 48, 48))
    assert patches.shape == (2, 1, 36, 192)
    assert cls.isfinite().all()


def test_from_a_file_by_timms_name(tmp_path: Path):
    vit: Any = timm.create_model("vit_tiny_patch16_224")
    torch.save(vit.state_dict(), tmp_path / "w.pth")
    backbone = Backbone(ModelConfig("vit_tiny_patch16_224"), 224)
    said = load_into(backbone, f"timm:vit_tiny_patch16_224@{tmp_path / 'w.pth'}")
    assert said == "vit_tiny_patch16_224"
    for name, value in backbone.vit.state_dict().items():
        assert torch.equal(value, vit.state_dict()[name])


def test_a_start_draws_no_random_numbers(tmp_path: Path):
    """The heads are the same, whatever the backbone starts from."""
    torch.save(timm.create_model("vit_tiny_patch16_224", depth=2).state_dict(), tmp_path / "w.pth")
    backbone = Backbone(ModelConfig("vit_tiny_patch16_224", depth=2), 32)
    before = torch.random.get_rng_state()
    load_into(backbone, str(tmp_path / "w.pth"))
    assert torch.equal(torch.random.get_rng_state(), before)


def refusal(spec: str, model: ModelConfig = TINY) -> str:
    backbone = Backbone(model, 32)
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    with pytest.raises(UserError) as refused:
        load_into(backbone, spec)
    assert "\n" not in str(refused.value)
    assert "--weights" not in str(refused.value)
    for name, value in backbone.state_dict().items():
        assert torch.equal(value, before[name])
    return str(refused.value)


def test_what_does_not_fit(run: Path, tmp_path: Path):
    assert "width 192, not 384" in refusal(
        str(run), ModelConfig("vit_small_patch16_224", patch_px=8, depth=2)
    )
    assert "depth 2, not 3" in refusal(str(run), ModelConfig(TINY.name, patch_px=8, depth=3))
    assert "patches of 8 px, not 16 px" in refusal(str(run), ModelConfig(TINY.name, depth=2))
    scaled: Any = timm.create_model(TINY.name, patch_size=8, depth=2, init_values=1.0, img_size=32)
    torch.save(scaled.state_dict(), tmp_path / "scaled.pth")
    assert "layer scale True, not False" in refusal(str(tmp_path / "scaled.pth"))
    registers: Any = timm.create_model(TINY.name, patch_size=8, depth=2, reg_tokens=4, img_size=32)
    torch.save(registers.state_dict(), tmp_path / "registers.pth")
    assert "registers 4, not 0" in refusal(str(tmp_path / "registers.pth"))
    thin: Any = timm.create_model(TINY.name, patch_size=8, depth=2, mlp_ratio=2.0, img_size=32)
    torch.save(thin.state_dict(), tmp_path / "thin.pth")
    assert "fc1.weight is 384×192 there, 768×192 here" in refusal(str(tmp_path / "thin.pth"))
    large: Any = timm.create_model(TINY.name, patch_size=64, depth=2, img_size=64)
    torch.save(large.state_dict(), tmp_path / "large.pth")
    assert "patches of 64 px, images of 32 px" in refusal(str(tmp_path / "large.pth"))
    bare: Any = timm.create_model(
        TINY.name, patch_size=8, depth=2, img_size=32, class_token=False, global_pool="avg"
    )
    torch.save(bare.state_dict(), tmp_path / "bare.pth")
    assert "class token False, not True" in refusal(str(tmp_path / "bare.pth"))
    apart: Any = timm.create_model(
        TINY.name, patch_size=8, depth=2, img_size=32, no_embed_class=True
    )
    torch.save(apart.state_dict(), tmp_path / "apart.pth")
    said = refusal(str(tmp_path / "apart.pth"))
    assert "a position for the class token False, not True" in said


def test_what_is_no_start(tmp_path: Path):
    torch.save(timm.create_model("resnet18").state_dict(), tmp_path / "r18.pth")
    assert "r18 is a ConvNet" in refusal(str(tmp_path / "r18.pth"))
    assert "leave --init out" in refusal("random:vit_tiny_patch16_224")
    assert "--init nowhere: no such run or file" in refusal("nowhere")
    assert "random:" not in refusal("nowhere")
    assert refusal("").startswith("--init names nothing; a run's folder")
    assert "timm has no model 'vit_tin'" in refusal("timm:vit_tin")
    assert "there is no file" in refusal("timm:vit_tiny_patch16_224@nowhere.pth")


def test_a_runs_other_files_are_not_to_be_removed(run: Path):
    said = refusal(str(run / "config.json"))
    assert "remove" not in said
    assert "name the run's folder" in said
