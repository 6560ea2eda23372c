"""The public Python API: its docstrings, and what each function returns."""

import doctest
import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import croc
from croc.cli import main
from croc.config import PretrainConfig
from croc.data.scenes import CLASSES, make_scene
from croc.errors import UserError
from croc.eval import protocols
from croc.lab import api
from croc.lab.show.look import look_at_run, read_photograph, whole_view
from croc.method.clustering.join_split import cluster
from croc.method.photometric import normalize
from croc.results import read_results
from tests.tiny import tiny_config

RANDOM = "random:vit_tiny_patch16_224"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> croc.Run:
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    return croc.pretrain(tiny_config(), folder=folder, run={"stop_after_steps": 2})


@pytest.fixture(scope="module")
def photograph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """96 px high and 60 wide."""
    path = tmp_path_factory.mktemp("photographs") / "scene.png"
    Image.fromarray(make_scene(5, 0).image[:, :60]).save(path)
    return path


def test_docstring_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(api)
    assert result.attempted >= 20
    assert result.failed == 0


class TestFeatures:
    def test_equal_the_tokens_of_the_backbone(self):
        backbone = croc.load_backbone(RANDOM)
        images = torch.rand(3, 3, 64, 96)
        features = croc.features(images, backbone, size_px=96)
        expected = backbone.features(normalize(images)).permute(0, 2, 3, 1)
        torch.testing.assert_close(torch.stack([x.patches for x in features]), expected)
        cls = torch.stack([x.cls for x in features if x.cls is not None])
        torch.testing.assert_close(cls, backbone.vit.forward_features(normalize(images))[:, 0])
        assert features[0].size_px == (64, 96)

    def test_equal_those_that_croc_show_draws(self, run: croc.Run, photograph: Path):
        (features,) = croc.features(photograph, run)
        backbone = look_at_run(run.folder).backbone
        view = whole_view(read_photograph(str(photograph)), 64, backbone.patch_px)
        expected = backbone.forward_tokens(view.pixels, "values").patches[0, 0]
        assert features.patches.shape[:2] == (8, 5)  # twice the view's 32 px, in patches of 8
        torch.testing.assert_close(features.patches.flatten(0, 1), expected)
        for size_px, grid in ((96, (12, 8)), ([16, 48], (2, 6)), (8, (1, 1))):
            (features,) = croc.features(photograph, run, size_px=size_px)
            assert features.patches.shape[:2] == grid

    def test_do_not_depend_on_how_an_image_is_passed(
        self, run: croc.Run, photograph: Path, tmp_path: Path
    ):
        with Image.open(photograph) as stored:
            image = stored.copy()
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        clear = image.convert("RGBA")
        clear.putpixel((3, 3), (0, 0, 0, 0))
        white = image.copy()
        white.putpixel((3, 3), (255, 255, 255))
        exif = Image.Exif()
        exif[0x0112] = 6  # stored lying, shown upright
        image.rotate(90, expand=True).save(tmp_path / "turned.png", exif=exif)
        with Image.open(tmp_path / "turned.png") as turned:
            for group in (
                [photograph, str(photograph), image, pixels, pixels / 255, turned, turned.filename],
                [white, clear],
            ):
                first, *others = croc.features(group, run.backbone())
                for other in others:
                    assert other.size_px == (96, 60)
                    torch.testing.assert_close(other.patches, first.patches)

    def test_do_not_depend_on_the_batch(self, run: croc.Run):
        images = [torch.rand(3, 40, side) for side in (40, 24, 40, 32, 24)]
        backbone = run.backbone()
        expected = [croc.features(image, backbone)[0].patches for image in images]
        for batch in (1, 2, 5):
            features = croc.features(iter(images), backbone, batch=batch)
            for x, patches, image in zip(features, expected, images, strict=True):
                torch.testing.assert_close(x.patches, patches)
                assert x.size_px == (image.shape[1], image.shape[2])
        assert croc.features([], backbone) == []

    def test_patches_by_pixel(self):
        features = croc.Features(torch.zeros(2, 4, 3), None, (50, 200))
        assert features.centers_px()[1, 3].tolist() == [175.0, 37.5]
        assert features.patch_at(199, 24) == (0, 3)
        x, y = features.centers_px()[1, 2].tolist()
        assert features.patch_at(x, y) == (1, 2)

    def test_convnets_have_no_cls(self):
        (features,) = croc.features(torch.rand(3, 64, 64), "random:resnet18", size_px=(64, 64))
        assert features.cls is None
        assert features.patches.shape == (4, 4, 512)
        assert "no cls" in repr(features)


def test_cluster_equals_the_method():
    tokens, positions = torch.randn(2, 3, 32, 4), torch.rand(2, 32, 2)
    saliency = torch.full((2, 3, 32), 1 / 32)
    config = croc.ClusterConfig(k_start=5)
    clusters = croc.cluster(tokens, positions, saliency, config)
    keys = torch.arange(2)
    by_view = (
        tokens.unflatten(2, (2, 16)).movedim(2, 0),
        positions.unflatten(1, (2, 16)).movedim(1, 0),
        saliency.unflatten(2, (2, 16)).movedim(2, 0),
    )
    expected = cluster(*by_view, config, keys=keys)
    assert torch.equal(clusters.assignments, expected.assignments)
    assert torch.equal(clusters.valid, expected.valid)
    other = croc.cluster(tokens, positions, saliency, config, keys=torch.tensor([7, 8]))
    assert not torch.equal(clusters.assignments, other.assignments)

    seeds = torch.stack([torch.randperm(32)[:12] for _ in range(6)]).view(2, 3, 12)
    clusters = croc.cluster(tokens, positions, saliency, seeds=seeds.int())
    default = croc.ClusterConfig()
    expected = cluster(*by_view, default, seeds=seeds)
    assert torch.equal(clusters.assignments, expected.assignments)
    one = croc.cluster(tokens, positions, saliency, views=1)
    assert one.assignments.shape == (1, 2, 3, 32, 12)


def test_cluster_accepts_rounded_saliency_and_cosines():
    saliency = torch.rand(2, 3, 32)
    saliency /= saliency.sum(dim=-1, keepdim=True)
    tokens, positions = torch.randn(2, 3, 32, 4), torch.rand(2, 32, 2)
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        clusters = croc.cluster(tokens.to(dtype), positions.to(dtype), saliency.to(dtype))
        assert clusters.count.shape == (2, 3)
    config = croc.ClusterConfig(variant="released")
    cosines = torch.rand(2, 3, 32) * 2 - 1
    assert croc.cluster(tokens, positions, cosines, config).count.min() >= 2


class TestPretrain:
    def test_leaves_a_run_and_the_random_numbers_alone(self, run: croc.Run, tmp_path: Path):
        torch.manual_seed(3)
        expected = torch.rand(2)
        torch.manual_seed(3)
        croc.pretrain(tiny_config(), folder=tmp_path / "run", run={"stop_after_steps": 1})
        assert torch.equal(torch.rand(2), expected)
        assert [line["step"] for line in run.metrics()] == [1, 2]
        images = torch.randn(1, 3, 32, 32)
        for weights in (run, run.folder, str(run.folder)):
            loaded = croc.load_backbone(weights).features(images)
            torch.testing.assert_close(run.backbone().features(images), loaded)
        assert croc.Run(run.folder) == run == croc.Run(str(run.folder))
        assert os.fspath(run) == str(run.folder)

    def test_options(self, tmp_path: Path):
        for index in range(8):
            folder = tmp_path / "ab"[index % 2]
            folder.mkdir(exist_ok=True)
            Image.fromarray(make_scene(0, index).image).save(folder / f"{index}.png")
        options: dict[str, Any] = {"optim": {"batch": 4}, "views": {"scale": [0.5, 1.0]}}
        options |= {"data": [tmp_path / "a", str(tmp_path / "b")], "folder": tmp_path / "run"}
        options |= {"run": {"stop_after_steps": 1, "report": False}, "resume": "never"}
        config = croc.pretrain("demo", **options).config
        assert config.optim.batch == 4
        assert config.views.scale == (0.5, 1.0)
        assert config.data.root == (str(tmp_path / "a"), str(tmp_path / "b"))
        with pytest.raises(croc.UserError, match="--resume never"):
            croc.pretrain("demo", **options)

    def test_takes_one_device_in_a_notebook(self, run: croc.Run, monkeypatch: pytest.MonkeyPatch):
        configs: list[PretrainConfig] = []
        monkeypatch.setattr(
            "croc.train.loop.pretrain", lambda config, *_: configs.append(config) or run.folder
        )
        for interactive, devices in ((True, "auto"), (True, 2), (False, "auto")):
            monkeypatch.setattr("croc.fabric.IS_INTERACTIVE", interactive)
            croc.pretrain("demo", run={"devices": devices})
        assert [config.run.devices for config in configs] == [1, 2, "auto"]

    def test_works_in_a_thread(self, tmp_path: Path):
        """No signal handler can be set there."""
        options = {"folder": tmp_path / "run", "run": {"stop_after_steps": 1}}
        thread = threading.Thread(target=croc.pretrain, args=(tiny_config(),), kwargs=options)
        thread.start()
        thread.join()
        assert croc.Run(tmp_path / "run").metrics()[-1]["step"] == 1

    def test_signal_saves_first(self, tmp_path: Path):
        folder, metrics = tmp_path / "run", tmp_path / "run" / "metrics.jsonl"

        def send() -> None:
            while not metrics.exists() or not metrics.stat().st_size:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGTERM)

        before = signal.getsignal(signal.SIGTERM)
        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        with pytest.raises(croc.Interrupted, match="saved step") as ended:
            croc.pretrain(tiny_config(), folder=folder, optim={"epochs": 1000})
        sender.join()
        assert signal.getsignal(signal.SIGTERM) == before
        assert croc.Run(folder).backbone().stride_px == 8
        assert ended.value.exit_code == 75


class TestEvaluate:
    def test_equals_the_command_line(self, run: croc.Run, tmp_path: Path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        options: dict[str, Any] = {"seeds": 1, "restarts": 1}
        result = croc.evaluate("kmeans", run, "scenes:4", **options)
        assert not list(tmp_path.iterdir())
        assert result.picture is None
        flags = ["--kmeans.seeds", "1", "--kmeans.restarts", "1", "--to", "out"]
        weights = ["--weights", str(run.folder), "--data", "scenes:4"]
        assert main(["evaluate", "kmeans", *weights, *flags]) == 0
        (line,) = read_results(tmp_path / "out")
        assert result.scores == line["scores"]
        assert result.classes == line["classes"]

    def test_all_protocols(self, run: croc.Run, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("croc.lab.api.protocols_of", lambda *_: ("incontext", "kmeans"))
        results = croc.evaluate("all", run.folder, "scenes:4", workers=0)
        assert [result.protocol for result in results] == ["incontext", "kmeans"]


@dataclass(frozen=True)
class Scenes:
    """A user's own dataset, of four small scenes."""

    classes: tuple[str, ...] = CLASSES

    def __len__(self) -> int:
        return 4

    def name(self, index: int) -> str:
        return f"scene {index}"

    def read(self, index: int) -> croc.LabeledImage:
        scene = make_scene(9, index, 32)
        return croc.LabeledImage(scene.image, scene.labels, self.name(index))


def test_added_data_are_evaluated(run: croc.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(protocols.REGISTERED, "mine", None)  # removed again after the test
    opened = []
    croc.register_dataset("mine", lambda path, split: opened.append((path, split)) or Scenes())
    monkeypatch.setenv("HOME", str(tmp_path))
    small: dict[str, Any] = {"image_px": 32, "label_px": 32, "workers": 1}
    result = croc.evaluate("incontext", run.folder, "mine:~", **small)
    assert opened == [(str(tmp_path), "train"), (str(tmp_path), "val")]
    assert set(result.classes) == set(CLASSES)
    assert result.scores["mIoU"] > 50  # both parts have the same images
    monkeypatch.setattr(Scenes, "read", lambda *_: (np.zeros(3), np.zeros(3)))
    with pytest.raises(UserError, match="scene 0: read returned a tuple, not"):
        croc.evaluate("incontext", run.folder, f"mine:{tmp_path}", **small)
