"""croc bench: figures that add up, settings that run out of memory, and a clear word otherwise."""

import gc
import json
import warnings
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from croc.cli import main
from croc.config import CrocConfig
from croc.lab.bench import run as bench_run
from croc.lab.bench.arithmetic import step_flop
from croc.lab.bench.canvases import made_up_canvases
from croc.lab.bench.clock import host_waits
from croc.lab.bench.lines import fit_line
from croc.lab.bench.options import BenchConfig
from croc.lab.bench.settings import plan
from croc.lab.bench.trainer import Trainer
from croc.method.views import make_views
from croc.train.devices import make_fabric
from tests.tiny import FLAGS, tiny_config

QUICK = ["--bench.steps", "2", "--bench.warmup", "1"]
STAGES = ["views", "teacher", "clustering", "heads", "loss", "student"]
STAGES += ["backward", "update", "EMA", "rest"]


def bench(to: Path, *flags: str) -> dict[str, Any]:
    assert main(["bench", "demo", *FLAGS, *QUICK, "--bench.to", str(to), *flags]) == 0
    with Image.open(to / "bench.png") as picture:
        assert min(picture.size) > 300
    assert {path.name for path in to.iterdir()} == {"bench.json", "bench.png"}
    return json.loads((to / "bench.json").read_text())


def test_a_step_is_taken_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    page = bench(tmp_path / "bench")
    said = capsys.readouterr().out
    assert page["recipe"] == "demo"
    assert page["hardware"]["cores"] >= 1
    assert page["versions"]["torch"]
    assert page["date"].startswith("20")
    assert page["ceiling"]["dtype"] == "float32"
    assert page["not_yet_measured"] == []
    (setting,) = page["settings"]
    assert setting["config"]["optim"]["batch"] == 8
    assert setting["sizes"]["tokens"] == 32
    figures = setting["figures"]
    assert list(figures["split_ms"]) == STAGES
    assert all(taken >= 0 for taken in figures["split_ms"].values())
    assert sum(figures["split_ms"].values()) == pytest.approx(figures["watched_ms"], rel=0.01)
    assert figures["split_ms"]["rest"] < 0.3 * figures["watched_ms"]
    step = figures["step_ms"]
    assert 0 < step["p10"] <= step["median"] <= step["p90"]
    assert 8e3 / step["p90"] * 0.5 < figures["images_per_s"] < 8e3 / step["p10"] * 2
    assert 0 < figures["of_ceiling"] < 1
    assert figures["tflops"] == pytest.approx(figures["of_ceiling"] * page["ceiling"]["tflops"])
    assert figures["first_step_s"] <= figures["ready_s"]
    assert figures["loss_alone_ms"] > 0
    assert figures["loss"] > 0
    assert (figures["host_waits"], figures["clustering_by"]) == (0, "definition")
    assert figures["loaded"]["images"] == 24
    assert figures["loaded"]["of_ready"] > 0
    for word in (*STAGES, "images/s", "of ready tensors", "loss alone", "bench"):
        assert word in said


def test_without_data_none_are_loaded(tmp_path: Path):
    page = bench(tmp_path / "bench", "--data.root", "--bench.steps", "1")
    assert page["settings"][0]["figures"]["loaded"] is None


def test_one_quantity_is_varied(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    values = ["--bench.vary", "tokens", "--bench.values", "4", "2", "3"]
    page = bench(tmp_path / "bench", *values, "--data.root")
    assert [setting["label"] for setting in page["settings"]] == ["2 × 2²", "2 × 3²", "2 × 4²"]
    assert [setting["value"] for setting in page["settings"]] == [8, 18, 32]
    assert [setting["config"]["views"]["size_px"] for setting in page["settings"]] == [16, 24, 32]
    flop = [sum(setting["figures"]["flop"].values()) for setting in page["settings"]]
    assert flop == sorted(flop)
    assert "2 × 3²" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("vary", "values", "read", "expected"),
    [
        ("batch", (), lambda c: c.optim.batch, [2, 4, 8, 16]),
        ("batch", ("9", "3", "3"), lambda c: c.optim.batch, [3, 9]),
        ("tokens", (), lambda c: c.views.size_px, [16, 24, 32, 48, 64]),
        ("k-start", (), lambda c: c.cluster.k_start, [4, 8, 12, 16, 24, 32]),
        ("heads", (), lambda c: c.cluster.tokens, ["last", "values"]),
        ("model", (), lambda c: c.model.name.split("_")[1], ["tiny", "small", "base"]),
    ],
)
def test_the_settings_of_a_variation(
    vary: Any, values: tuple[str, ...], read: Callable[[CrocConfig], object], expected: list[object]
):
    settings = plan(tiny_config(), BenchConfig(vary=vary, values=values))
    assert [read(setting.config) for setting in settings] == expected
    assert len({setting.label for setting in settings}) == len(settings)


def test_what_runs_out_of_memory_is_noted_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    plain = bench_run.measure

    def tight(fabric, setting, *rest):
        if setting.sizes.batch > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return plain(fabric, setting, *rest)

    monkeypatch.setattr(bench_run, "measure", tight)
    vary = ["--bench.vary", "batch", "--bench.values", "2", "8", "--data.root"]
    page = bench(tmp_path / "bench", *vary)
    assert [setting["out_of_memory"] for setting in page["settings"]] == [False, True]
    assert page["settings"][1]["figures"] is None
    assert "8: out of memory" in capsys.readouterr().out
    run = ["bench", "demo", *FLAGS, *QUICK, "--bench.to", str(tmp_path / "none")]
    assert main(run) == 2
    assert "lower --optim.batch" in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "none").exists()


def test_other_errors_are_not_taken_for_memory():
    assert bench_run.ran_out_of_memory(RuntimeError("Inductor: CUDA out of memory. Tried"))
    assert bench_run.ran_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    assert not bench_run.ran_out_of_memory(RuntimeError("shapes do not match"))


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--bench.steps", "0"], "--bench.steps must be at least 1"),
        (["--bench.warmup", "0"], "--bench.warmup must be at least 1"),
        (["--bench.vary", "colour"], "--bench.vary"),
        (["--bench.values", "3"], "--bench.values needs --bench.vary"),
        (["--bench.vary", "batch", "--bench.values", "many"], "whole numbers"),
        (["--bench.vary", "batch", "--bench.values", "4096"], "--optim.batch 1024"),
        (["--bench.vary", "heads", "--bench.values", "5"], "1 (the last tokens) and 3"),
        (["--bench.vary", "k-start", "--bench.values", "73"], "more than the 72 tokens"),
        (["--bench.vary", "k-start", "--bench.values", "1"], "at least 2"),
        (["--bench.vary", "model", "--bench.values", "vit_smal_patch16_224"], "did you mean"),
        (["--cluster.k-start", "73"], "more than the 72 tokens"),
        (["--bench.to", "/proc/nowhere/bench"], "/proc/nowhere"),
        (["--data.root", "no/such/folder"], "no/such/folder"),
        (["--run.devices", "2"], "one device"),
        (["--bench.setps", "3"], "perhaps you meant --bench.steps"),
    ],
)
def test_bad_input_is_one_line(
    flags: list[str],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "demo", *flags]) == 2
    said = capsys.readouterr()
    assert expected in said.err
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert list(tmp_path.iterdir()) == []


def test_a_measurement_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "bench.json").write_text("months of work")
    assert main(["bench", "demo", *FLAGS, "--bench.to", str(tmp_path)]) == 2
    assert "choose another --bench.to" in capsys.readouterr().err
    assert (tmp_path / "bench.json").read_text() == "months of work"
    assert main(["bench", "coco"]) == 2
    assert "there is no recipe 'coco'" in capsys.readouterr().err


def test_help(capsys: pytest.CaptureFixture[str]):
    assert main(["bench"]) == 0
    assert "coco-vits16" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["bench", "coco-vits16", "--help"])
    said = capsys.readouterr().out
    assert "--bench.vary" in said
    assert "--cluster.k-start" in said


@pytest.mark.parametrize(
    ("tokens", "micro_batch"), [("values", None), ("last", None), ("values", 4)]
)
def test_the_arithmetic_is_what_torch_counts(tokens: Any, micro_batch: int | None):
    """Of a whole step without its views; the attention by plain products, which it can count."""
    config = tiny_config(micro_batch=micro_batch)
    config = replace(config, cluster=replace(config.cluster, tokens=tokens))
    (setting,) = plan(config, BenchConfig())
    trainer = Trainer(make_fabric(config.run), setting)
    canvases = next(made_up_canvases(config, 1, torch.device("cpu")))
    with sdpa_kernel(SDPBackend.MATH):
        with FlopCounterMode(display=False) as all_of_it:
            trainer.step(canvases)
        with FlopCounterMode(display=False) as views:
            make_views(canvases, config.views, 8)
    counted = all_of_it.get_total_flops() - views.get_total_flops()
    expected = sum(step_flop(trainer.method.student, 8, config.views.size_px).values())
    assert expected == pytest.approx(counted, rel=1e-3)


def test_a_setting_leaves_no_network_behind():
    config = tiny_config()
    (setting,) = plan(config, BenchConfig())
    fabric = make_fabric(config.run)
    trainer = Trainer(fabric, setting)
    trainer.step(next(made_up_canvases(config, 1, fabric.device)))
    left = weakref.ref(trainer.method.student)
    del trainer
    gc.collect()
    assert left() is None


def test_lines():
    line = fit_line([1, 2, 4], [3, 5, 9])
    assert line is not None
    assert (line.slope, line.intercept, line.r2) == pytest.approx((2, 1, 1))
    assert line.worst == pytest.approx(0, abs=1e-9)
    bent = fit_line([1, 2, 3], [1, 4, 9])
    assert bent is not None
    assert bent.at(2) == pytest.approx(14 / 3)
    assert bent.worst == pytest.approx(1 / 3)
    assert fit_line([1, 2], [1, 2]) is None


def test_waits_of_the_host_are_told_from_other_warnings(monkeypatch: pytest.MonkeyPatch):
    modes: list[str] = []
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)

    def waited_at() -> list[str]:
        with host_waits(torch.device("cuda")) as places:
            warnings.warn("Synchronization debug mode is a prototype feature", stacklevel=1)
            for _ in range(2):
                warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
            warnings.warn("something else", stacklevel=1)
        return places

    with pytest.warns(UserWarning, match="something else"):
        places = waited_at()
    assert modes == ["warn", "default"]
    assert len(places) == 2
    assert places[0].startswith("test_bench.py:")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_waits_of_the_host_are_found():
    device = torch.device("cuda")
    numbers = torch.ones(3, device=device)
    with host_waits(device) as places:
        numbers.sum()
        numbers.sum().item()
    assert len(places) == 1
    assert places[0].startswith("test_bench.py:")
