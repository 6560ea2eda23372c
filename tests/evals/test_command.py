"""`croc evaluate` from flags to results.jsonl and pictures; bad input leaves nothing behind."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from croc.checkpoint import checkpoints
from croc.cli import main
from croc.evals.command import DEFAULTS
from croc.evals.protocols import protocols_of
from croc.evals.results import read_results
from croc.train import pretrain
from tests.evals.trees import davis, gray_png, label_map, photograph, write
from tests.tiny import tiny_config

SMALL = {
    "linear": ("--linear.image-px", "32", "--linear.steps", "5", "--linear.train-px", "16"),
    "kmeans": ("--kmeans.image-px", "32", "--kmeans.label-px", "16", "--kmeans.seeds", "2"),
    "incontext": ("--incontext.image-px", "32", "--incontext.label-px", "16"),
    "video": ("--video.short-px", "64"),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    return pretrain(tiny_config(folder, stop_after_steps=2), "tiny")


def call(protocol: str, weights: Path | str, data: str, to: Path, *more: str) -> int:
    options = ("--weights", str(weights), "--data", data, "--to", str(to), "--workers", "0")
    return main(["evaluate", protocol, *options, *SMALL.get(protocol, ()), *more])


@pytest.mark.parametrize("protocol", list(SMALL))
def test_a_result_is_printed_written_and_drawn(
    protocol: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    data = "scenes:2" if protocol == "video" else "scenes:8"
    assert call(protocol, run, data, tmp_path) == 0
    (line,) = read_results(tmp_path)
    said = capsys.readouterr()
    assert f"{next(iter(line['scores'].values())):.1f}" in said.out
    assert "done in" in said.err
    assert line["protocol"] == protocol
    assert line["backbone"] == "tiny@2"
    assert line["data"] == data
    assert len(line["weights_hash"]) == 16
    assert {"croc", "python", "torch", "timm"} <= set(line["versions"])
    assert line["machine"] == {"device": "cpu", "precision": "float32"}
    assert (
        set(line["count"])
        == {
            "linear": {"train", "val"},
            "kmeans": {"val"},
            "incontext": {"train", "val"},
            "video": {"videos"},
        }[protocol]
    )
    with Image.open(tmp_path / line["picture"]) as picture:
        assert np.asarray(picture.convert("L")).std() > 10
    assert len(line["classes"]) == (2 if protocol == "video" else 13)


def test_results_grow_and_repeat(run: Path, tmp_path: Path):
    for seed in ("0", "0", "1"):
        assert call("linear", run, "scenes:8", tmp_path, "--linear.seed", seed) == 0
    one, again, other = read_results(tmp_path)
    assert one["scores"] == again["scores"] != other["scores"]
    assert one["config"]["seed"] == 0
    assert one["config"]["steps"] == 5
    assert one["picture"] == again["picture"] != other["picture"]


def test_the_whole_configuration_is_kept(run: Path, tmp_path: Path):
    call("kmeans", run, "scenes:8", tmp_path, "--kmeans.clusters", "20")
    (line,) = read_results(tmp_path)
    assert line["config"] == {
        "reading": "tokens",
        "image_px": 32,
        "label_px": 16,
        "blocks": 1,
        "clusters": 20,
        "pca": 50,
        "seeds": 2,
        "restarts": 5,
    }


def test_all_runs_what_the_data_allow(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    for name, flags in SMALL.items():
        values = dict(zip([f[2:].split(".")[1].replace("-", "_") for f in flags[::2]], flags[1::2]))
        shrink(monkeypatch, name, {key: int(value) for key, value in values.items()})
    folder = segmentation_tree(tmp_path / "photographs")
    assert call("all", run, "scenes:4", tmp_path / "out", "--data", "scenes:4", folder) == 0
    lines = read_results(tmp_path / "out")
    assert [(line["protocol"], line["data"]) for line in lines] == [
        *((name, "scenes:4") for name in ("linear", "kmeans", "incontext", "video")),
        *((name, folder) for name in ("linear", "kmeans", "incontext")),
    ]
    table = capsys.readouterr().out
    assert all(name in table for name in SMALL)


def shrink(monkeypatch: pytest.MonkeyPatch, name: str, values: dict[str, int]) -> None:
    from dataclasses import replace

    real = DEFAULTS[name]
    if name == "kmeans":
        values = {**values, "pca": 20}
    monkeypatch.setitem(DEFAULTS, name, lambda kind: replace(real(kind), **values))


def segmentation_tree(root: Path, **changed: bytes) -> str:
    members = {
        f"{kind}/{split}/{number}.{suffix}": content
        for split in ("train", "val")
        for number in range(4)
        for kind, suffix, content in (
            ("images", "jpg", photograph(number)),
            ("labels", "png", gray_png(label_map(0, 1, 2, 255))),
        )
    }
    members["classes.txt"] = b"one\ntwo\nthree\n"
    members |= {name.replace("_", "/", 2): data for name, data in changed.items()}
    write(root, members)
    return f"folder:{root}"


def test_which_protocols_which_data_allow():
    assert protocols_of("davis17:x") == ("video",)
    assert protocols_of("voc12:x") == ("linear", "kmeans", "incontext")
    assert protocols_of("scenes:3") == ("linear", "kmeans", "incontext", "video")


def refused(capsys: pytest.CaptureFixture[str], to: Path, code: int) -> str:
    said = capsys.readouterr()
    assert code == 2
    assert said.out == ""
    last = said.err.splitlines()[-1]  # stages that had ended before have a line each
    assert last.startswith("croc: ")
    assert said.err.count("croc: ") == 1
    assert not to.exists()
    return last


@pytest.mark.parametrize(
    ("protocol", "weights", "data", "more", "said"),
    [
        ("linear", "RUN", "davis16:x", (), "linear cannot be scored on davis16:x"),
        ("video", "RUN", "voc12:x", (), "video cannot be scored on voc12:x"),
        ("linear", "RUN", "voc13:x", (), "no data set is called voc13:x"),
        ("linear", "RUN", "voc12:nowhere", (), "nowhere"),
        ("linear", "RUN", "voc12", (), "say where voc12 lies"),
        ("linear", "RUN", "scenes:0", (), "is no number of scenes"),
        ("linear", "nowhere", "scenes:4", (), "no such run or file"),
        ("linear", "random:vit_smal_patch16_224", "scenes:4", (), "vit_small_patch16"),
        ("linear", "RUN", "scenes:4", ("--linear.blocks", "9"), "has 2 blocks, not 9"),
        ("linear", "RUN", "scenes:4", ("--linear.rates", "0"), "--linear.rates must be"),
        ("linear", "RUN", "scenes:4", ("--linear.rate", "1"), "--linear.rate"),
        ("linear", "RUN", "scenes:4", ("--linear.epochs", "2"), "give one of them"),
        ("linear", "RUN", "scenes:4", ("--linear.image-px", "50"), "48 or 56 px would"),
        ("video", "RUN", "scenes:1", ("--video.short-px", "50"), "48 or 56 px would"),
        ("video", "RUN", "nosuch:x", (), "no data set is called nosuch:x"),
        ("linear", "random:vit_tiny_patch16_224@w.pth", "scenes:4", (), "takes no file"),
        ("linear", "random:vit_tiny_patch16_224.nonsense", "scenes:4", (), "has no weights"),
        ("linear", "timm:vit_tiny_patch16_224@.", "scenes:4", (), "is a folder"),
        ("linear", "random:vgg11", "scenes:4", (), "no feature map of any size"),
        ("linear", "random:swin_tiny_patch4_window7_224", "scenes:4", (), "no feature map"),
        ("linear", "RUN", "scenes:4", ("--workers", "-1"), "--workers must be 0 or more"),
        ("kmeans", "RUN", "scenes:4", ("--kmeans.pca", "193"), "backbone's width of 192"),
        ("kmeans", "RUN", "scenes:4", ("--kmeans.clusters", "5"), "fewer than the 13 classes"),
        ("incontext", "RUN", "scenes:4", ("--incontext.memory", "0"), "--incontext.memory"),
        ("video", "RUN", "scenes:1", ("--video.best", "0"), "--video.best must be 1 or more"),
    ],
)
def test_bad_flags(
    protocol: str,
    weights: str,
    data: str,
    more: tuple[str, ...],
    said: str,
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    to = tmp_path / "out"
    code = call(protocol, run if weights == "RUN" else weights, data, to, *more)
    assert said in refused(capsys, to, code)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_no_gpu(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    code = call("linear", run, "scenes:4", tmp_path / "out", "--device", "cuda")
    assert "pass --device cpu" in refused(capsys, tmp_path / "out", code)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("labels_val_2.png", gray_png(label_map(0, 7)), "holds the label 7"),
        ("labels_val_2.png", gray_png(label_map(0, size=(3, 3))), "labels/val/2.png"),
        ("labels_train_1.png", b"no picture", "labels/train/1.png"),
        ("images_val_0.jpg", b"", "images/val/0.jpg"),
        ("images_val_9.jpg", photograph(9), "labels/val/9.png"),
        ("images_val_2.jpeg", photograph(9), "holds 2.jpeg and 2.jpg: which one is meant?"),
        ("classes.txt", "Straße\nWeg\n".encode("latin-1"), "classes.txt is no text in UTF-8"),
        ("classes.txt", b"a\nb\na\n", "names 'a' twice"),
        ("classes.txt", b"\n".join(b"%d" % i for i in range(256)), "256 classes, 255 are the most"),
        ("images_val_0.jpg", b"RIFF    WEBPVP8 ", "no picture of these kinds"),
    ],
)
@pytest.mark.parametrize("workers", ["0", "1"])
def test_bad_data(
    name: str,
    content: bytes,
    said: str,
    workers: str,
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    data = segmentation_tree(tmp_path / "tree", **{name: content})
    code = call("linear", run, data, tmp_path / "out", "--workers", workers)
    assert said in refused(capsys, tmp_path / "out", code)


@pytest.mark.parametrize("protocol", ["linear", "kmeans", "incontext"])
@pytest.mark.parametrize("split", ["train", "val"])
def test_nothing_is_labelled(
    protocol: str, split: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    if (protocol, split) == ("kmeans", "train"):
        return  # it never reads that part
    void = {f"labels_{split}_{number}.png": gray_png(label_map(255)) for number in range(4)}
    data = segmentation_tree(tmp_path / "tree", **void)
    more = ("--kmeans.pca", "5") if protocol == "kmeans" else ()
    code = call(protocol, run, data, tmp_path / "out", *more)
    assert "labelled" in refused(capsys, tmp_path / "out", code)


def test_names_in_any_script_and_with_signs(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """What would be markup to rich or mathematics to matplotlib is shown as it is."""
    names = "[/b] a$_$b\n[red] :ok:\n道路\n"
    data = segmentation_tree(tmp_path / "ok", **{"classes.txt": names.encode()})
    assert call("linear", run, data, tmp_path / "out") == 0
    (line,) = read_results(tmp_path / "out")
    assert list(line["classes"]) == names.splitlines()
    assert line["picture"]
    said = capsys.readouterr()
    assert all(name in said.out.replace("\n", " ") for name in ("[/b] a$_$b", "[red] :ok:", "道路"))
    assert "Warning" not in said.err


def test_capital_suffixes(run: Path, tmp_path: Path):
    data = segmentation_tree(tmp_path / "tree")
    for path in list((tmp_path / "tree").glob("*/*/*")):
        path.rename(path.with_suffix(path.suffix.upper()))
    assert call("linear", run, data, tmp_path / "out") == 0


def test_epochs_or_steps_as_one_asks(run: Path, tmp_path: Path):
    data = segmentation_tree(tmp_path / "tree")
    options = ("--weights", str(run), "--data", data, "--to", str(tmp_path), "--workers", "0")
    small = ("--linear.image-px", "32", "--linear.batch", "2")
    for more in (("--linear.epochs", "3"), ("--linear.steps=4",)):
        assert main(["evaluate", "linear", *options, *small, *more]) == 0
    by_epochs, by_steps = (line["config"] for line in read_results(tmp_path))
    assert (by_epochs["epochs"], by_epochs["steps"]) == (3, None)
    assert (by_steps["epochs"], by_steps["steps"]) == (None, 4)


def test_all_takes_the_nearest_size_that_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shrink(monkeypatch, "linear", {"steps": 2})
    shrink(monkeypatch, "kmeans", {"seeds": 1})
    shrink(monkeypatch, "video", {"short_px": 64})
    weights = "random:vit_small_patch14_reg4_dinov2"
    assert call("all", weights, "scenes:1", tmp_path, "--data", "scenes:1") == 0
    sizes = {line["protocol"]: line["config"] for line in read_results(tmp_path)}
    assert sizes["linear"]["image_px"] == 98
    assert sizes["video"]["short_px"] == 70


def test_all_needs_data(capsys: pytest.CaptureFixture[str]):
    assert main(["evaluate", "all", "--weights", "x", "--data"]) == 2
    assert "say which data" in capsys.readouterr().err


def test_masks_without_truth(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """As in DAVIS' test-dev: nothing can be scored, so no result is written."""
    unknown = {name for name in davis() if "Annotations" in name and "00000" not in name}
    assert unknown
    root = write(tmp_path / "davis", {k: v for k, v in davis().items() if k not in unknown})
    masks = tmp_path / "masks"
    code = call("video", run, f"davis17:{root}", tmp_path / "out", "--masks", str(masks))
    assert code == 0
    assert f"written: {masks}" in capsys.readouterr().out
    assert list(masks.glob("*/00001.png"))
    assert not (tmp_path / "out").exists()


def test_a_picture_that_fails_costs_no_scores(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def fail(*_: object) -> None:
        raise ValueError("no ink")

    monkeypatch.setattr("croc.evals.evaluate.segmentation_figure", fail)
    assert call("linear", run, "scenes:4", tmp_path) == 0
    assert read_results(tmp_path)[0]["picture"] is None
    assert "could not be drawn: no ink" in capsys.readouterr().err


def test_what_was_finished_is_printed_when_a_later_one_fails(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    shrink(monkeypatch, "linear", {"steps": 2, "image_px": 32})
    shrink(monkeypatch, "kmeans", {"image_px": 32})
    bad = segmentation_tree(tmp_path / "t", **{"labels_val_2.png": gray_png(label_map(0, 7))})
    assert call("all", run, "x", tmp_path / "out", "--data", "scenes:4", bad) == 2
    said = capsys.readouterr()
    assert "scenes:4" in said.out
    assert "holds the label 7" in said.err
    assert {line["data"] for line in read_results(tmp_path / "out")} == {"scenes:4"}


def test_an_empty_split(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    data = segmentation_tree(tmp_path / "tree")
    for path in (tmp_path / "tree").glob("*/val/*"):
        path.unlink()
    code = call("linear", run, data, tmp_path / "out")
    assert "images/val" in refused(capsys, tmp_path / "out", code)


def test_spoiled_weights(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    config = (run / "config.json").read_text()
    whole = checkpoints(run)[-1].read_bytes()
    wide: dict[str, Any] = json.loads(config)
    wide["model"]["name"] = "vit_small_patch16_224"
    for name, page, content, said in (
        ("cut", config, whole[: len(whole) // 2], "cannot be read"),
        ("empty", config, b"", "cannot be read"),
        ("wide", json.dumps(wide), whole, "does not fit"),
    ):
        folder = write(tmp_path / name, {"checkpoints/step-00000002.pt": content})
        (folder / "config.json").write_text(page)
        code = call("linear", folder, "scenes:4", tmp_path / "out")
        assert said in refused(capsys, tmp_path / "out", code)


def test_results_go_to_a_folder(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "file").write_text("mine")
    assert call("linear", run, "scenes:4", tmp_path / "file" / "below") == 2
    assert call("linear", run, "scenes:4", tmp_path / "file") == 2
    assert "is a file, name a folder" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "mine"
