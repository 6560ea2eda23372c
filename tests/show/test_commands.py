"""croc show as a user types it: pictures written, and bad input in one line."""

from pathlib import Path

import pytest
from PIL import Image

from croc.cli import main
from croc.photographs import own_photographs


def test_pictures_are_written(
    run: Path, photograph: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    asked = [
        ("clusters", "--heads", "0", "2"),
        ("clusters", "--whole", "--image-px", "48"),
        ("merging", "--seed", "3", "--heads", "1"),
        ("features", "--patch", "3", "4", "--together", "--heads", "1"),
    ]
    for number, (kind, *options) in enumerate(asked):
        to = tmp_path / f"{number}.png"
        assert main(["show", kind, photograph, "--run", str(run), "--to", str(to), *options]) == 0
        assert capsys.readouterr().out == f"{to}\n"
        with Image.open(to) as picture:
            assert min(picture.size) > 200


def test_features_of_our_own_photographs(run: Path, tmp_path: Path):
    assert {Path(name).stem for name in own_photographs()} == {"cat", "coffee"}
    asked = ["show", "features", "--run", str(run), "--image-px", "64"]
    for named, to in (((), "own.png"), (own_photographs(), "named.png")):
        assert main([*asked[:2], *named, *asked[2:], "--to", str(tmp_path / to)]) == 0
    with Image.open(tmp_path / "own.png") as own, Image.open(tmp_path / "named.png") as named:
        assert own.tobytes() == named.tobytes()


BAD = [
    (("clusters", "PHOTO", "--heads", "3"), "--heads 3: the network has heads 0 to 2"),
    (("clusters", "PHOTO", "--heads", "-1"), "--heads -1: the network has heads 0 to 2"),
    (("clusters", "PHOTO", "--image-px", "64"), "--image-px is for --whole"),
    (("clusters", "PHOTO", "--whole", "--image-px", "8"), "1 patches for 5 clusters"),
    (("clusters", "PHOTO", "--whole", "--image-px", "9999"), "--image-px 9999: from 8"),
    (("clusters", "FOLDER"), "is a folder"),
    (("clusters", "no.jpg"), "no.jpg cannot be read"),
    (("merging",), "takes one photograph"),
    (("merging", "PHOTO", "PHOTO"), "takes one photograph"),
    (("merging", "PHOTO", "--heads", "7"), "--heads 7"),
    (("merging", "FOLDER"), "is a folder"),
    (("merging", "no.jpg"), "no.jpg cannot be read"),
    (("features", "FOLDER"), "is a folder"),
    (("features", "no.jpg"), "no.jpg cannot be read"),
    (("features", "PHOTO", "--patch", "60", "3"), "--patch 60 3 lies outside"),
    (("features", "PHOTO", "--patch", "1"), "patch"),
    (("features", "PHOTO", "--heads", "3"), "--heads 3"),
    (("features", "PHOTO", "--to", "picture"), "give it an ending"),
    (("features", "PHOTO", "--image-px", "4"), "--image-px 4: from 8"),
]


@pytest.mark.parametrize(("arguments", "said"), BAD, ids=[" ".join(a) for a, _ in BAD])
def test_bad_input_is_one_line(
    arguments: tuple[str, ...],
    said: str,
    run: Path,
    photograph: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    names = {"PHOTO": photograph, "FOLDER": str(tmp_path)}
    given = [names.get(argument, argument) for argument in arguments]
    assert main(["show", *given, "--run", str(run)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert said in lines[0]


def test_whose_they_are_must_be_said(photograph: str, capsys: pytest.CaptureFixture[str]):
    for kind, noun in (("merging", "clusters"), ("features", "features")):
        assert main(["show", kind, photograph]) == 2
        assert f"say whose {noun}" in capsys.readouterr().err
        assert main(["show", kind, photograph, "--run", "no/such/run"]) == 2
        assert "holds no run" in capsys.readouterr().err


def test_other_methods_have_features_but_no_clusters(
    mae_run: Path, photograph: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    to = str(tmp_path / "x.png")
    assert main(["show", "features", photograph, "--run", str(mae_run), "--to", to]) == 0
    for kind in ("clusters", "merging"):
        assert main(["show", kind, photograph, "--run", str(mae_run), "--to", to]) == 2
        assert "know no clusters" in capsys.readouterr().err


def test_exported_weights_are_shown_too(
    run: Path,
    photograph: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(run), "--to", "mine.safetensors"]) == 0
    for kind in ("merging", "features"):
        capsys.readouterr()
        arguments = [photograph, "--weights", "mine.safetensors", "--heads", "0"]
        assert main(["show", kind, *arguments]) == 0
        assert capsys.readouterr().out == f"mine-{kind}.png\n"
        assert Path(f"mine-{kind}.png").is_file()
