"""`croc.features`: what it gives, and what it refuses in one line."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import croc
from croc.data.scenes import make_scene
from croc.lab.show.features import describe
from croc.lab.show.look import look_at_run
from croc.method.photometric import normalise
from tests.api.refusals import RANDOM, refused


class TestFeatures:
    def test_are_the_tokens_of_the_backbone(self):
        backbone = croc.load_backbone(RANDOM)
        images = torch.rand(3, 3, 64, 96)
        found = croc.features(images, backbone, size_px=96)
        expected = backbone.features(normalise(images)).permute(0, 2, 3, 1)
        torch.testing.assert_close(torch.stack([each.patches for each in found]), expected)
        whole = backbone.vit.forward_features(normalise(images))
        for number, each in enumerate(found):
            assert each.cls is not None
            torch.testing.assert_close(each.cls, whole[number, 0])
            assert each.size_px == (64, 96)

    def test_are_those_that_croc_show_draws(self, run: croc.Run, photograph: Path):
        (found,) = croc.features(photograph, run.folder)
        look = look_at_run(run.folder)
        shown = describe(look, str(photograph), look.side_px(None), None)
        assert found.patches.shape[:2] == shown.grid == (8, 5)
        torch.testing.assert_close(found.patches.flatten(0, 1), shown.patches)
        assert found.size_px == (96, 60)

    def test_of_a_path_a_picture_and_bytes_are_the_same(self, run: croc.Run, photograph: Path):
        with Image.open(photograph) as stored:
            image = stored.copy()
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        backbone = run.backbone()
        several = [photograph, str(photograph), image, pixels, pixels / 255]
        first, *others = croc.features(several, backbone)
        for other in others:
            torch.testing.assert_close(other.patches, first.patches)

    @pytest.mark.parametrize("batch", [1, 2, 5])
    def test_do_not_depend_on_the_batch(self, run: croc.Run, batch: int):
        images = [torch.rand(3, 40, side) for side in (40, 24, 40, 32, 24)]
        backbone = run.backbone()
        found = croc.features(images, backbone, batch=batch)
        for image, each in zip(images, found, strict=True):
            alone = croc.features(image, backbone)[0]
            torch.testing.assert_close(each.patches, alone.patches)
            assert each.size_px == (image.shape[1], image.shape[2])

    def test_of_a_turned_photograph_are_upright(self, run: croc.Run, tmp_path: Path):
        scene = Image.fromarray(make_scene(5, 1).image[:, :48])
        exif = Image.Exif()
        exif[0x0112] = 6
        scene.save(tmp_path / "turned.png", exif=exif)
        with Image.open(tmp_path / "turned.png") as image:
            by_path, by_image = croc.features([tmp_path / "turned.png", image], run.folder)
        assert by_path.size_px == by_image.size_px == (48, 96)
        torch.testing.assert_close(by_path.patches, by_image.patches)

    def test_of_what_is_transparent_are_on_white(self, run: croc.Run, tmp_path: Path):
        image = Image.new("RGBA", (40, 40), (255, 0, 0, 0))
        image.paste((0, 0, 255, 255), (0, 0, 20, 40))
        image.save(tmp_path / "clear.png")
        white = image.copy()
        white.paste((255, 255, 255, 255), (20, 0, 40, 40))
        several = [image, tmp_path / "clear.png", white.convert("RGB")]
        first, *others = croc.features(several, run.folder)
        for other in others:
            torch.testing.assert_close(other.patches, first.patches)

    def test_sizes(self, run: croc.Run, photograph: Path):
        def grid(size_px: Any) -> tuple[int, ...]:
            return tuple(
                croc.features(photograph, run.folder, size_px=size_px)[0].patches.shape[:2]
            )

        assert grid(None) == (8, 5)  # twice the view's 32 px, in patches of 8
        assert grid(96) == (12, 8)  # 60 px are 7.5 patches
        assert grid((16, 48)) == grid([16, 48]) == (2, 6)
        assert grid(8) == (1, 1)

    def test_places(self):
        found = croc.Features(torch.zeros(2, 4, 3), None, (50, 200))
        assert found.centres_px()[1, 3].tolist() == [175.0, 37.5]
        assert found.patch_at(199, 24) == (0, 3)
        assert all(
            found.patch_at(*found.centres_px()[row, column].tolist()) == (row, column)
            for row in range(2)
            for column in range(4)
        )
        refused("200, 10 lies outside the photograph of 200 × 50 px", found.patch_at, 200, 10)

    def test_of_a_convnet_have_no_cls(self):
        (found,) = croc.features(torch.rand(3, 64, 64), "random:resnet18", size_px=(64, 64))
        assert found.cls is None
        assert found.patches.shape == (4, 4, 512)
        assert "no cls" in repr(found)

    def test_take_an_iterator_slice_by_slice(self, run: croc.Run):
        taken, taken_when_computed = [], []

        def photographs() -> Iterator[Image.Image]:
            for colour in ("red", "olive", "blue", "gray", "white"):
                taken.append(colour)
                yield Image.new("RGB", (40, 40), colour)

        backbone = run.backbone()
        count = lambda *_: taken_when_computed.append(len(taken))  # noqa: E731
        backbone.vit.patch_embed.register_forward_hook(count)
        assert len(croc.features(photographs(), backbone, batch=2)) == 5
        assert taken_when_computed == [2, 4, 5]

    def test_on_a_gpu_by_its_number(
        self, run: croc.Run, photograph: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        for device in (0, 1, "cuda"):
            refused("sees no GPU here", croc.features, photograph, run, device=device)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        refused("no cuda:2 here: GPUs count from 0 to 1", croc.features, photograph, run, device=2)
        moved = []
        backbone = run.backbone()
        monkeypatch.setattr(backbone, "to", moved.append)
        croc.features(photograph, backbone, device=1)
        assert moved == [torch.device("cuda:1")]

    def test_of_nothing_is_nothing(self, run: croc.Run):
        assert croc.features([], run.folder) == []

    @pytest.mark.parametrize(
        ("images", "said"),
        [
            ("nowhere.jpg", "nowhere.jpg cannot be read as a photograph: No such file"),
            (".", "is a folder"),
            (torch.zeros(1, 40, 40), "3 × height × width, not 1 × 40 × 40"),
            (torch.zeros(3, 0, 40), "not 3 × 0 × 40"),
            (torch.randn(3, 40, 40), "before it is normalised"),
            (torch.full((3, 40, 40), float("nan")), "must be in 0 … 1, not in nan"),
            (torch.zeros(3, 40, 40, dtype=torch.int64), "give bytes"),
            (Image.new("I;16", (40, 40)), "mode I;16"),
            (3, "not of type int"),
        ],
    )
    def test_refuse(self, run: croc.Run, images: Any, said: str):
        refused(said, croc.features, images, run.folder)

    def test_refuse_a_broken_file(self, run: croc.Run, photograph: Path, tmp_path: Path):
        broken = tmp_path / "broken.png"
        broken.write_bytes(photograph.read_bytes()[:400])
        refused("broken.png cannot be read", croc.features, [photograph, broken], run.folder)
        with Image.open(broken) as image:
            refused("cannot be decoded", croc.features, image, run.folder)

    def test_refuse_bad_options(self, run: croc.Run, photograph: Path):
        refused("10 px do not consist", croc.features, photograph, run.folder, size_px=(8, 10))
        refused("at least 8, one patch", croc.features, photograph, run.folder, size_px=4)
        refused("size_px must be positive", croc.features, photograph, run.folder, size_px=(0, 8))
        for odd in ((32,), [8, 8, 8], (8, 8.5), "32", 32.0):
            refused("or a pair of them", croc.features, photograph, run.folder, size_px=odd)
        refused("batch must be", croc.features, photograph, run.folder, batch=0)
        for odd in ("gpu", -1, 0.5):
            refused(f"no device '{odd}'", croc.features, photograph, run.folder, device=odd)
        refused("no such run or file", croc.features, photograph, run.folder / "no")
