"""What K depends on, against K that were made to depend on it."""

import json

import pytest
import torch
from PIL import Image

from benchmarks.chosen_k import analyse, choose, main
from croc.lab.show.look import look_at_run
from croc.train.loop import pretrain
from tests.tiny import tiny_config


def spread(shape: tuple[int, int, int]) -> torch.Tensor:
    """K of 2 to 9, evenly."""
    return torch.randint(2, 10, shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("shape", "named"), [((1, 50, 1), "images"), ((1, 1, 50), "heads")])
def test_the_cause_is_named(shape, named):
    k = spread(shape).expand(50, 50, 50)
    found = analyse("run", k)
    assert found.mean == pytest.approx(k.double().mean().item())
    assert found.variance == pytest.approx(k.double().var(correction=0).item())
    shares = {each: getattr(found, each) for each in ("seeds", "images", "heads", "both")}
    assert shares == pytest.approx({each: float(each == named) for each in shares}, abs=1e-9)


def test_pure_chance_is_the_seeds_however_few_they_are():
    """The means over three seeds differ between images by chance, too."""
    found = analyse("run", spread((3, 200, 100)))
    assert found.seeds == pytest.approx(1, abs=0.02)
    assert found.images == pytest.approx(0, abs=0.01)
    assert found.heads == pytest.approx(0, abs=0.01)
    assert found.seeds + found.images + found.heads + found.both == pytest.approx(1)


def test_chance_and_image_share_the_variance():
    """An image's own K, from 0 to 7 evenly (variance 21/4), and as much again by chance."""
    own = torch.arange(8).repeat(25)[None, :, None]
    k = own + spread((4, 200, 50))
    found = analyse("run", k)
    assert found.seeds == pytest.approx(0.5, abs=0.02)
    assert found.images == pytest.approx(0.5, abs=0.02)


def test_one_k_everywhere_has_no_cause():
    found = analyse("run", torch.full((3, 4, 5), 7))
    assert (found.variance, found.seeds, found.images, found.heads, found.both) == (0,) * 5
    assert found.histogram == {7: 1.0}


def test_the_command_draws_and_tells(tmp_path, capsys):
    run = pretrain(tiny_config(tmp_path / "run", stop_after_steps=1, report=False), "tiny")
    capsys.readouterr()
    options = ["--images", "5", "--seeds", "3", "--to", str(tmp_path / "k.png")]
    main(["--run", str(run), *options])
    told = json.loads(capsys.readouterr().out)
    page = json.loads((tmp_path / "k.json").read_text())
    assert page["runs"] == [told]
    assert (page["images"], page["seeds"]) == (5, 3)
    assert sum(told["histogram"].values()) == pytest.approx(1)
    assert set(map(int, told["histogram"])) <= set(range(2, 6))  # K_start is 5
    k = choose(look_at_run(run), 5, 3, torch.device("cpu"))
    assert k.shape == (3, 5, 3)
    assert told["mean"] == pytest.approx(k.double().mean().item())
    assert sum(told[each] for each in ("seeds", "images", "heads", "both")) == pytest.approx(1)
    with Image.open(tmp_path / "k.png") as picture:
        assert picture.size[0] > 500
