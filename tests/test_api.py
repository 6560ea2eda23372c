"""The names of `import croc`: what they give, and what they refuse in one line."""

import doctest
import importlib
import inspect
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import croc
from croc import clustering
from croc.cli import main
from croc.config import PretrainConfig
from croc.data.scenes import CLASSES, make_scene
from croc.evals import protocols
from croc.evals.datasets import open_segmentation
from croc.evals.results import read_results
from croc.photometric import normalise
from croc.show.features import describe
from croc.show.look import look_at_run
from tests.tiny import tiny_config

MODULES = ["backbones", "clusters", "photographs", "runs", "scores"]
RANDOM = "random:vit_tiny_patch16_224"
SEEDS = torch.arange(12).expand(2, 3, 12)
LAST = torch.tensor([31])


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


def refused(match: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """Past the tests' own check of types and shapes, which nobody else has."""
    call = inspect.unwrap(call) if inspect.isfunction(call) else call
    with pytest.raises(croc.UserError, match=match) as found:
        call(*arguments, **options)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("name", MODULES)
def test_the_docstrings_are_right(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Pasted as they are: a run lands beside where one is."""
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(importlib.import_module(f"croc.api.{name}"))
    assert result.attempted >= 4
    assert result.failed == 0


def test_the_page_tells_of_every_name():
    page = (Path(__file__).parent.parent / "docs" / "api.md").read_text()
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
            (torch.full((3, 40, 40), float("nan")), "must lie in 0 … 1, not in nan"),
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


class TestCluster:
    tokens, positions = torch.randn(2, 3, 32, 4), torch.rand(2, 32, 2)
    saliency = torch.full((2, 3, 32), 1 / 32)

    def test_is_the_clustering(self):
        config = croc.ClusterConfig(k_start=5)
        given = (self.tokens, self.positions, self.saliency, config)
        found = croc.cluster(*given)
        expected = clustering.cluster(*given, keys=torch.arange(2))
        assert isinstance(found, croc.Clusters)
        assert torch.equal(found.assignments, expected.assignments)
        assert torch.equal(found.valid, expected.valid)
        other = croc.cluster(*given, keys=torch.tensor([7, 8]))
        assert not torch.equal(found.assignments, other.assignments)

    def test_of_one_view(self):
        found = croc.cluster(self.tokens, self.positions, self.saliency, views=1)
        assert found.assignments.shape == (1, 2, 3, 32, 12)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
    def test_takes_shares_that_are_rounded(self, dtype: torch.dtype):
        tokens, positions, saliency = (
            values.to(dtype) for values in (self.tokens, self.positions, torch.rand(2, 3, 32))
        )
        saliency = (saliency / saliency.sum(dim=-1, keepdim=True)).to(dtype)
        assert croc.cluster(tokens, positions, saliency).count.shape == (2, 3)

    def test_takes_seeds(self):
        seeds = torch.stack([torch.randperm(32)[:12] for _ in range(6)]).view(2, 3, 12)
        given = (self.tokens, self.positions, self.saliency)
        found = croc.cluster(*given, seeds=seeds)
        expected = clustering.cluster(*given, croc.ClusterConfig(), seeds=seeds)
        assert torch.equal(found.assignments, expected.assignments)
        assert torch.equal(croc.cluster(*given, seeds=seeds.int()).cost, found.cost)

    def test_of_the_released_variant_takes_cosines(self):
        config = croc.ClusterConfig(variant="released")
        cosines = torch.rand(2, 3, 32) * 2 - 1
        assert croc.cluster(self.tokens, self.positions, cosines, config).count.min() >= 2
        given = (self.tokens, self.positions, cosines * torch.inf, config)
        refused("saliency must be finite", croc.cluster, *given)

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"views": 3}, "32 tokens cannot come from 3 views"),
            ({"views": 0}, "from 0 views"),
            ({"tokens": torch.rand(2, 32, 4)}, "images × heads × tokens × width, not 2 × 32 × 4"),
            ({"positions": torch.rand(2, 31, 2)}, "positions must be 2 × 32 × 2, not 2 × 31 × 2"),
            ({"saliency": torch.rand(2, 3, 8)}, "saliency must be 2 × 3 × 32, not 2 × 3 × 8"),
            ({"tokens": np.zeros((2, 3, 32, 4))}, "tokens must be a tensor of floats, not a nda"),
            ({"tokens": torch.ones(2, 3, 32, 4).long()}, "tensor of floats, not torch.int64"),
            ({"positions": torch.rand(2, 32, 2).double()}, "float32, positions of torch.float64"),
            ({"saliency": saliency.half()}, "float32, saliency of torch.float16: convert one"),
            ({"saliency": saliency.to("meta")}, "tokens are on cpu, saliency on meta: move one"),
            ({"tokens": tokens / 0}, "tokens must be finite"),
            ({"positions": positions * torch.nan}, "positions must be finite"),
            ({"saliency": 2 * saliency}, "sum to 1 over the tokens of an image and head, not to 2"),
            ({"saliency": saliency * 1.002}, "not to 1.002: divide it by its sum"),
            ({"saliency": saliency.index_fill(2, LAST, -1 / 32)}, "not be negative: -0.03125"),
            ({"seeds": SEEDS[:, :, :11]}, "seeds must be 2 × 3 × 12, not 2 × 3 × 11"),
            ({"seeds": SEEDS + 21}, "from 0 to 31"),
            ({"seeds": SEEDS - 1}, "from 0 to 31"),
            ({"seeds": SEEDS // 2}, "seeds must differ from each other"),
            ({"seeds": SEEDS.float()}, "tensor of integers, not torch.float32"),
            ({"seeds": SEEDS.tolist()}, "tensor of integers, not a list"),
            ({"seeds": SEEDS.to("meta")}, "tokens are on cpu, seeds on meta"),
            ({"keys": torch.arange(3)}, "keys must be 2, not 3"),
            ({"keys": torch.arange(2).int()}, "tensor of torch.int64, not torch.int32"),
            ({"keys": [0, 1]}, "tensor of torch.int64, not a list"),
            ({"keys": torch.arange(2).to("meta")}, "tokens are on cpu, keys on meta"),
        ],
    )
    def test_refuses(self, changes: dict[str, Any], said: str):
        given: dict[str, Any] = {"tokens": self.tokens, "positions": self.positions, "views": 2}
        refused(said, croc.cluster, **(given | {"saliency": self.saliency} | changes))

    def test_refuses_too_many_clusters(self):
        config = croc.ClusterConfig(k_start=33)
        given = (self.tokens, self.positions, self.saliency, config)
        refused("more than the 32 tokens", croc.cluster, *given)
        refused("from 3 views", croc.cluster, *given, views=3)


class TestPretrain:
    def test_leaves_a_run(self, run: croc.Run):
        assert [line["step"] for line in run.metrics()] == [1, 2]
        assert run.config == replace(
            tiny_config(run.folder), run=replace(run.config.run, folder=str(run.folder))
        )
        images = torch.randn(1, 3, 32, 32)
        loaded = croc.load_backbone(run.folder).features(images)
        torch.testing.assert_close(run.backbone().features(images), loaded)
        assert croc.Run(run.folder) == run == croc.Run(str(run.folder))

    def test_goes_on_and_leaves_the_random_numbers_alone(self, run: croc.Run, tmp_path: Path):
        torch.manual_seed(3)
        expected = torch.rand(2)
        torch.manual_seed(3)
        for steps in (1, 2):
            again = croc.pretrain(
                tiny_config(), folder=tmp_path / "run", run={"stop_after_steps": steps}
            )
        assert torch.equal(torch.rand(2), expected)
        losses = [line["loss"] for line in again.metrics()]
        assert losses == [line["loss"] for line in run.metrics()]

    def test_options(self, tmp_path: Path):
        options: dict[str, Any] = {"data": {"scenes": 24}, "optim": {"batch": 8}}
        options |= {"views": {"scale": [0.5, 1.0]}, "folder": tmp_path / "run"}
        options |= {"run": {"stop_after_steps": 1, "report": False}, "resume": "never"}
        config = croc.pretrain("demo", **options).config
        assert (config.data.scenes, config.optim.batch) == (24, 8)
        assert config.data.root == ("scenes",)
        assert config.views.scale == (0.5, 1.0)
        refused("--resume never", croc.pretrain, "demo", **options)

    def test_data(self, tmp_path: Path):
        for index in range(8):
            folder = tmp_path / "ab"[index % 2]
            folder.mkdir(exist_ok=True)
            Image.fromarray(make_scene(0, index).image).save(folder / f"{index}.png")
        run = croc.pretrain(
            tiny_config(),
            data=[tmp_path / "a", str(tmp_path / "b")],
            folder=tmp_path / "run",
            run={"stop_after_steps": 1},
        )
        assert run.config.data.root == (str(tmp_path / "a"), str(tmp_path / "b"))

    @pytest.mark.parametrize(
        ("recipe", "options", "said"),
        [
            ("demos", {}, "no recipe demos; perhaps you meant demo"),
            ("qqq", {}, "no recipe qqq; there are coco-vits16"),
            (PretrainConfig(), {}, "a PretrainConfig is no recipe"),
            (
                "demo",
                {"cluster": {"kstart": 3}},
                "cluster.kstart; perhaps you meant cluster.k_start",
            ),
            ("demo", {"epochs": 3}, "there is no option epochs"),
            ("demo", {"optim.epochs": 3}, "write optim={'epochs': …} for optim.epochs"),
            ("demo", {"optim": 3}, "optim takes its options by their names"),
            ("dino-demo", {"cluster": {"k_start": 3}}, "there is no option cluster"),
            ("demo", {"optim": {"epochs": "3"}}, "the option optim.epochs cannot be '3'"),
            ("demo", {"loss": {"centring": "no"}}, "the option loss.centring cannot be 'no'"),
            ("demo", {"optim": {"epochs": 1}}, "--optim.warmup-epochs"),
            ("demo", {"folder": "x", "run": {"folder": "y"}}, "run.folder is given twice"),
            ("demo", {"resume": "x"}, "the option run.resume cannot be 'x'"),
            ("demo", {"data": {"root": "no/such", "workers": 0}}, "no/such"),
            ("coco-vits16", {}, "--data.root"),
            ("demo", {"data": "no/such"}, "no/such"),
        ],
    )
    def test_refuses(self, recipe: Any, options: dict[str, Any], said: str):
        refused(re.escape(said), croc.pretrain, recipe, **options)

    @pytest.mark.parametrize(
        ("interactive", "asked", "taken"),
        [(True, "auto", 1), (True, 2, 2), (False, "auto", "auto")],
    )
    def test_takes_one_device_in_a_notebook(
        self,
        interactive: bool,
        asked: int | str,
        taken: int | str,
        run: croc.Run,
        monkeypatch: pytest.MonkeyPatch,
    ):
        configs = []

        def train(config: PretrainConfig, name: str) -> Path:
            configs.append(config)
            return run.folder

        monkeypatch.setattr("croc.train.pretrain", train)
        monkeypatch.setattr("lightning.fabric.utilities.imports._IS_INTERACTIVE", interactive)
        croc.pretrain("demo", run={"devices": asked, "seed": 3})
        assert (configs[0].run.devices, configs[0].run.seed) == (taken, 3)

    def test_no_run(self, tmp_path: Path):
        refused("holds no run", croc.Run, tmp_path)

    def test_in_a_thread(self, tmp_path: Path):
        """Where no signal's handler can be set, and none is missed."""
        found: list[croc.Run] = []

        def work() -> None:
            once = {"stop_after_steps": 1}
            found.append(croc.pretrain(tiny_config(), folder=tmp_path / "run", run=once))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert found[0].metrics()[-1]["step"] == 1

    @pytest.mark.parametrize(
        ("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, croc.AskedToEnd)]
    )
    def test_a_signal_saves_first(self, number: int, kind: type[BaseException], tmp_path: Path):
        folder, metrics = tmp_path / "run", tmp_path / "run" / "metrics.jsonl"

        def ask() -> None:
            while not metrics.exists() or not metrics.stat().st_size:
                time.sleep(0.01)
            os.kill(os.getpid(), number)

        before = signal.getsignal(number)
        asker = threading.Thread(target=ask, daemon=True)
        asker.start()
        with pytest.raises(kind, match="saved step") as ended:
            croc.pretrain(tiny_config(), folder=folder, optim={"epochs": 1000})
        asker.join()
        assert signal.getsignal(number) == before
        assert croc.Run(folder).backbone().stride_px == 8
        assert getattr(ended.value, "exit_code", None) in (None, 75)


class TestEvaluate:
    def test_is_what_the_command_line_finds(
        self, run: croc.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.chdir(tmp_path)
        options: dict[str, Any] = {"seeds": 1, "restarts": 1}
        found = croc.evaluate("kmeans", run.folder, "scenes:4", **options)
        assert not list(tmp_path.iterdir())
        assert found.picture is None
        flags = ["--kmeans.seeds", "1", "--kmeans.restarts", "1", "--to", "out"]
        said = ["--weights", str(run.folder), "--data", "scenes:4", *flags]
        assert main(["evaluate", "kmeans", *said]) == 0
        (line,) = read_results(tmp_path / "out")
        assert found.scores == line["scores"]
        assert found.classes == line["classes"]
        assert found.weights_hash == line["weights_hash"]

    def test_writes_where_it_is_asked_to(self, run: croc.Run, tmp_path: Path):
        found = croc.evaluate(
            "linear", str(run.folder), "scenes:4", results=tmp_path / "out", epochs=1, workers=0
        )
        (line,) = read_results(tmp_path / "out")
        assert line["scores"] == found.scores
        assert (found.config["epochs"], found.config["steps"]) == (1, None)
        assert found.picture is not None
        assert (tmp_path / "out" / found.picture).is_file()

    def test_all(self, run: croc.Run, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("croc.api.scores.protocols_of", lambda *_: ("incontext", "kmeans"))
        found = croc.evaluate("all", run.folder, "scenes:4", workers=0)
        assert [result.protocol for result in found] == ["incontext", "kmeans"]
        assert all(isinstance(result, croc.Result) for result in found)

    def test_holds_out(self, run: croc.Run):
        found = croc.evaluate(
            "incontext", run.folder, "scenes:8", hold_out=0.25, neighbours=3, workers=0
        )
        assert found.count == {"train": 6, "held out": 2}

    @pytest.mark.parametrize(
        ("protocol", "data", "options", "said"),
        [
            ("liner", "scenes", {}, "no protocol liner; perhaps you meant linear"),
            ("linear", "scenes", {"step": 3}, "no option step; perhaps you meant steps"),
            ("linear", "scenes", {"steps": "3"}, "the option steps cannot be '3'"),
            ("linear", "scenes", {"steps": 3, "epochs": 3}, "give one of them"),
            ("linear", "scenes", {"device": "gpu"}, "the option device cannot be 'gpu'"),
            ("linear", "scenes", {"workers": -1}, "--workers must be 0 or more"),
            ("video", "voc12:x", {}, "video cannot be scored on voc12:x"),
            ("kmeans", "voc13:x", {}, "no data set is called voc13:x"),
            ("all", "scenes", {"steps": 3}, "to change steps, name one protocol"),
            ("linear", Path("mine"), {}, "KIND:PATH, such as 'folder:mine', not the path mine"),
            ("linear", None, {}, "KIND:PATH, such as 'folder:mine', not None"),
        ],
    )
    def test_refuses(
        self, run: croc.Run, protocol: Any, data: Any, options: dict[str, Any], said: str
    ):
        refused(re.escape(said), croc.evaluate, protocol, run.folder, data, **options)


@dataclass(frozen=True)
class Halves:
    """Four scenes, whose labels are changed to order."""

    change: Callable[[Tensor], Tensor] = torch.clone
    count: int = 4
    classes: tuple[str, ...] = CLASSES

    def __len__(self) -> int:
        return self.count

    def name(self, index: int) -> str:
        return f"half {index}"

    def read(self, index: int) -> Any:
        scene = make_scene(9, index, 32)
        changed = self.change(torch.from_numpy(scene.labels)).numpy()
        kind = croc.Labelled if self.change is torch.clone else Unchecked
        return kind(image=scene.image, labels=changed, name=self.name(index))


class Unchecked(croc.Labelled):
    """Past the tests' own check of shapes."""

    def __init__(self, **fields: Any) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class Odd(Halves):
    """Gives what it is told to."""

    given: Any = None

    def read(self, index: int) -> Any:
        return self.given


def too_large(labels: Tensor) -> Tensor:
    return labels + 200


def cut(labels: Tensor) -> Tensor:
    return labels[:, :16]


@pytest.fixture
def added() -> Iterator[None]:
    """What a test adds is gone after it."""
    yield
    protocols.ADDED.clear()


@pytest.mark.usefixtures("added")
class TestAddedData:
    def test_are_evaluated(self, run: croc.Run, tmp_path: Path):
        opened = []

        def open_halves(path: str, split: str) -> Halves:
            opened.append((path, split))
            return Halves()

        refused("no data set is called halves", open_segmentation, "halves:x", "val")
        croc.add_data("halves", open_halves)
        assert protocols.protocols_of("halves:x") == protocols.SEGMENTATION
        found = croc.evaluate(
            "incontext", run.folder, f"halves:{tmp_path}", image_px=32, label_px=32, workers=1
        )
        assert opened == [(str(tmp_path), "train"), (str(tmp_path), "val")]
        assert set(found.classes) == set(CLASSES)
        assert found.scores["mIoU"] > 50  # what is asked about is remembered

    @pytest.mark.parametrize("change", [too_large, cut, Tensor.float])
    def test_are_looked_at(self, change: Callable[[Tensor], Tensor], tmp_path: Path):
        croc.add_data("halves", lambda path, split: Halves(change))
        data = open_segmentation(f"halves:{tmp_path}", "val")
        said = {too_large: "a label is 2", cut: "its labels", Tensor.float: "must be bytes"}
        refused(f"halves, half 0: .*{said[change]}", data.read, 0)

    def test_must_read_labelled(self, tmp_path: Path):
        pixels, labels = np.zeros((4, 4, 3), np.uint8), np.zeros((4, 4), np.uint8)
        wrong = {
            "read must give croc.Labelled.*, not tuple": (pixels, labels, "a"),
            "not NoneType": None,
            "image must be a NumPy array, not Tensor": Unchecked(
                image=torch.zeros(4, 4, 3), labels=labels, name="a"
            ),
        }
        for said, given in wrong.items():
            croc.add_data("odd", lambda path, split, given=given: Odd(given=given))
            refused(f"odd, half 0: .*{said}", open_segmentation(f"odd:{tmp_path}", "val").read, 0)

    def test_bad_ones_are_refused(self, tmp_path: Path):
        for kind in ("voc12", "davis17", "scenes", "", "a:b"):
            refused("are taken", croc.add_data, kind, lambda path, split: Halves())
        for opened, said in (
            (Halves(count=0), "the part val has no images"),
            (Halves(classes=()), "1 to 255 classes are possible, not 0"),
            (object(), "has no classes, __len__, name, read"),
        ):
            croc.add_data("halves", lambda path, split, opened=opened: opened)  # pyright: ignore
            refused(said, open_segmentation, f"halves:{tmp_path}", "val")
        refused("no such folder", open_segmentation, f"halves:{tmp_path}/no", "val")
