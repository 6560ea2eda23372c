"""Runs and photographs as the pictures open them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from croc.errors import UserError
from croc.lab.show.look import Look, look_at_run, read_photograph, read_photographs, whole_view
from croc.method.photometric import unnormalise
from croc.method.views import patch_centres
from croc.train.checkpoint import checkpoint_path, checkpoints, load_checkpoint
from croc.train.loop import pretrain
from croc.weights.runs import untrained
from tests.tiny import tiny_config


def test_a_run_shows_its_teacher(run: Path):
    look = look_at_run(run)
    state = load_checkpoint(checkpoints(run)[-1])["modules"]["teacher"]
    for name, value in look.backbone.state_dict().items():
        assert torch.equal(value, state[f"backbone.{name}"])
    assert look.title == "tiny, step 1"
    assert not look.backbone.training
    assert look.picture("clusters", None) == run / "clusters.png"


def test_the_teacher_of_an_earlier_step(tmp_path: Path):
    config = tiny_config(tmp_path / "run", keep_every_steps=2, stop_after_steps=6, report=False)
    run = pretrain(config, "tiny")
    for step in (2, 4, 6):
        look = look_at_run(run, step)
        assert look.title == f"run, step {step}"
        state = load_checkpoint(checkpoint_path(run, step))["modules"]["teacher"]
        for name, value in look.backbone.state_dict().items():
            assert torch.equal(value, state[f"backbone.{name}"])
    with pytest.raises(UserError, match=r"--step 3: .* keeps the steps 0, 2, 4, 6$"):
        look_at_run(run, 3)


def test_the_network_before_its_first_step(run: Path):
    look = look_at_run(run, 0)
    assert look.title == "tiny, untrained"
    own = untrained(look.config).state_dict()
    for name, value in look.backbone.state_dict().items():
        assert torch.equal(value, own[name])
    assert not look.backbone.training


def test_other_methods_know_no_clusters(mae_run: Path):
    with pytest.raises(UserError, match=r"tiny-mae.*other methods know no clusters"):
        _ = look_at_run(mae_run).croc


def test_the_size_of_a_whole_image(run: Path):
    look: Look = look_at_run(run)
    assert look.side_px(None) == 64
    assert look.side_px(448) == 448
    for asked in (7, 2049, -1):
        with pytest.raises(UserError, match=f"--image-px {asked}: from 8"):
            look.side_px(asked)


@pytest.mark.parametrize(
    ("height", "width", "shape"),
    [
        (40, 60, (40, 64)),
        (60, 40, (64, 40)),
        (50, 50, (64, 64)),
        (3, 400, (8, 64)),
        (1, 1, (64, 64)),
    ],
)
def test_a_whole_image_is_resized_to_whole_patches(height: int, width: int, shape: tuple):
    picture = np.full((height, width, 3), 90, np.uint8)
    views = whole_view(picture, 64, 8)
    assert views.pixels.shape == (1, 1, 3, *shape)
    torch.testing.assert_close(unnormalise(views.pixels), torch.full((1, 1, 3, *shape), 90 / 255))
    assert views.positions.shape == (1, 1, shape[0] * shape[1] // 64, 2)
    assert views.positions.amax() < 1
    middle = torch.tensor([width, height]) / 2 / max(width, height)
    torch.testing.assert_close(views.positions.mean(dim=2)[0, 0], middle)


def test_its_positions_are_those_of_a_crop_of_everything():
    sizes = torch.tensor([[50, 50]])
    boxes = torch.tensor([[[0.0, 0.0, 50.0, 50.0]]])
    expected = patch_centres(boxes, torch.tensor([[False]]), sizes, 64, 8)
    found = whole_view(np.zeros((50, 50, 3), np.uint8), 64, 8).positions
    torch.testing.assert_close(found, expected)


def test_photographs_that_cannot_be_read(tmp_path: Path, photograph: str):
    assert read_photograph(photograph).shape == (40, 60, 3)
    (tmp_path / "text.jpg").write_text("no picture")
    for name, said in (("none.jpg", "No such file"), ("text.jpg", "image file$"), (".", "folder")):
        with pytest.raises(UserError, match=said):
            read_photograph(str(tmp_path / name))


def test_without_names_the_run_s_own_are_shown(run: Path):
    config = look_at_run(run).config
    assert [picture.shape[2] for picture in read_photographs(config, (), 40)] == [3] * 4
