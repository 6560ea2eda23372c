"""Bad input: one line that says what to do, exit code 2, and nothing trained or overwritten."""

from pathlib import Path

import pytest

from croc.cli import main
from tests.sweep.commands import LAMBDA, sweep

BAD = [
    ((), "say what is compared"),
    ((*LAMBDA, "1", "--sweep.settings", "a="), "say what is compared"),
    (("--sweep.vary", "cluster.tokens"), "--sweep.vary and --sweep.values go together"),
    (("--sweep.values", "1"), "--sweep.vary and --sweep.values go together"),
    ((*LAMBDA, "1", "--sweep.seds", "1"), "perhaps you meant --sweep.seeds"),
    (("--sweep.vary", "cluster.tokns", "--sweep.values", "keys"), "meant --cluster.tokens"),
    (("--sweep.vary", "cluster.tokens", "--sweep.values", "keyz"), "invalid choice 'keyz'"),
    ((*LAMBDA, "0", "many"), "setting 'many'"),
    ((*LAMBDA, "0", "-1"), "must be at least 0"),
    ((*LAMBDA, "4", "4.0"), "'4' and '4.0' are the same"),
    ((*LAMBDA, "4", "4"), "--sweep.values names 4 twice"),
    ((*LAMBDA, "4", "--sweep.seeds", "1", "1"), "--sweep.seeds names 1 twice"),
    ((*LAMBDA, "4", "--sweep.seeds", "-1"), "--run.seed must be in"),
    ((*LAMBDA, "4", "--sweep.seeds"), "--sweep.seeds names none"),
    (("--sweep.vary", "cluster.k-start", "--sweep.values", "4", "33"), "more than the 32 tokens"),
    (("--sweep.vary", "run.seed", "--sweep.values", "1"), "leave out --run.seed: --sweep.seeds"),
    ((*LAMBDA, "1", "--run.folder", "x"), "leave out --run.folder: --sweep.to"),
    ((*LAMBDA, "1", "--run.devices", "2"), "once a GPU"),
    ((*LAMBDA, "1", "--optim.batch", "4096"), "--optim.batch 24"),
    ((*LAMBDA, "1", "--data.root", "no/such/folder"), "no/such/folder"),
    ((*LAMBDA, "1", "--init", "no/such/run"), "--init no/such/run"),
    (("--sweep.settings", "a"), "'NAME=OPTIONS'"),
    (("--sweep.settings", "a='"), "cannot be taken apart"),
    (("--sweep.settings", "a=", "a=--loss.alpha 2"), "two settings are called 'a'"),
    (("--sweep.settings", "K 6=", "K-6=--loss.alpha 2"), "would share a folder"),
    (("--sweep.settings", "a=@dino"), "there is no recipe 'dino'"),
    (("--sweep.settings", "a=@dino-demo"), "setting 'a': Unrecognized options"),
    ((*LAMBDA, "1", "--sweep.data", "folder:no/such"), "no/such"),
    ((*LAMBDA, "1", "--sweep.data", "photos:x"), "photos"),
    ((*LAMBDA, "1", "--sweep.data", "davis17:x"), "linear cannot be scored on davis17:x"),
    ((*LAMBDA, "1", "--sweep.data"), "--sweep.data names none"),
    ((*LAMBDA, "1", "--sweep.data", "scenes:4", "scenes:4"), "--sweep.data names scenes:4 twice"),
    ((*LAMBDA, "1", "--sweep.hold-out", "2"), "--sweep.hold-out must be a share"),
    ((*LAMBDA, "1", "--linear.image-px", "33"), "32 or 40 px would"),
    ((*LAMBDA, "1", "--linear.stepps", "33"), "--linear.steps"),
    ((*LAMBDA, "1", "--sweep.to", "/proc/nowhere/sweep"), "/proc"),
]


@pytest.mark.parametrize(("more", "expected"), BAD, ids=[" ".join(more) for more, _ in BAD])
def test_bad_input_is_one_line(
    more: tuple[str, ...],
    expected: str,
    tmp_path: Path,
    trained: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    assert sweep(Path("sweep"), *more) == 2
    said = capsys.readouterr()
    assert expected in said.err
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert trained == []
    assert list(tmp_path.iterdir()) == []


def test_another_sweep_is_never_overwritten(
    tmp_path: Path, trained: list[str], capsys: pytest.CaptureFixture[str]
):
    asked = (*LAMBDA, "1", "--sweep.no-untrained")
    assert sweep(tmp_path / "a", *asked) == 0
    before = (tmp_path / "a/sweep.json").read_bytes()
    others = {
        "seeds was [0], now [0, 1]": ("--sweep.seeds", "0", "1"),
        "settings was ['1'], now ['1', '2']": (*LAMBDA, "1", "2"),
        "configs.1.loss.alpha was 1.0, now 0.5": ("--loss.alpha", "0.5"),
        "hold_out was 0.0, now 0.25": ("--sweep.hold-out", "0.25"),
        "linear on scenes:4.steps was 5, now 6": ("--linear.steps", "6"),
        "evaluations was": ("--sweep.data", "scenes:8"),
    }
    for expected, more in others.items():
        capsys.readouterr()
        assert sweep(tmp_path / "a", *asked, *more) == 2
        said = capsys.readouterr().err
        assert expected in said
        assert "choose another --sweep.to" in said
        assert said.count("\n") == 1
    assert (tmp_path / "a/sweep.json").read_bytes() == before
    # How it is carried out may change.
    assert sweep(tmp_path / "a", *asked, "--run.log-every-steps", "2") == 0
    assert len(trained) == 1


def test_a_folder_with_other_things_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "thesis.tex").write_text("years of work")
    assert sweep(tmp_path, *LAMBDA, "1") == 2
    assert "holds no sweep" in capsys.readouterr().err
    (tmp_path / "sweep.json").write_text("[1]")
    assert sweep(tmp_path, *LAMBDA, "1") == 2
    assert "is no sweep's" in capsys.readouterr().err
    assert (tmp_path / "sweep.json").read_text() == "[1]"


def test_help(capsys: pytest.CaptureFixture[str]):
    assert main(["sweep"]) == 0
    assert "coco-vits16" in capsys.readouterr().out
    for recipe, flag in (("coco-vits16", "--cluster.k-start"), ("mae-coco-vits16", "--decoder.m")):
        with pytest.raises(SystemExit):
            main(["sweep", recipe, "--help"])
        said = capsys.readouterr().out
        assert "--sweep.vary" in said
        assert flag in said
    assert main(["sweep", "coco"]) == 2
    assert "there is no recipe 'coco'" in capsys.readouterr().err
