"""`croc.pretrain` and `croc.Run`: a run from Python."""

import os
import re
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import croc
from croc.config import PretrainConfig
from croc.data.scenes import make_scene
from tests.api.refusals import refused
from tests.tiny import tiny_config


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

        monkeypatch.setattr("croc.train.loop.pretrain", train)
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
