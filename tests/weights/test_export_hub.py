"""`croc export --push USER/NAME` and hf:USER/NAME, with a stand-in for what huggingface_hub calls.

The stand-in keeps a folder for each repository, and raises what the library raises.
"""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub.errors import (
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

import croc
from croc.cli import main
from croc.weights import hub
from croc.weights.open import fingerprint
from tests.weights.conftest import make_file


def refusal(kind: type[HfHubHTTPError], status: int = 404) -> HfHubHTTPError:
    response: Any = SimpleNamespace(status_code=status, headers={}, request=None)
    return kind("refused", response=response)


class Hub:
    """Repositories of one user, `me`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.private: dict[str, bool] = {}
        self.status = 0
        """Of the refusal of whatever is written; 0 for none."""

    def create_repo(self, name: str, *, private: bool, exist_ok: bool) -> str:
        assert exist_ok
        if self.status:
            raise refusal(HfHubHTTPError, self.status)
        self.private.setdefault(name, private)
        return f"http://hub/{name}"

    def create_commit(self, name: str, additions: list[Any], *, commit_message: str) -> None:
        for each in additions:
            path = self.folder / name / each.path_in_repo
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(each.path_or_fileobj, path)

    def list_repo_files(self, name: str, *, revision: str | None) -> list[str]:
        return sorted(path.name for path in (self.folder / name).iterdir())

    def download(self, name: str, file: str, *, revision: str | None) -> str:
        if name == "me/offline":
            raise LocalEntryNotFoundError("not in the cache")
        if not (self.folder / name).is_dir():
            raise refusal(RepositoryNotFoundError)
        if revision not in (None, "main"):
            raise refusal(RevisionNotFoundError)
        if not (self.folder / name / file).is_file():
            raise refusal(RemoteEntryNotFoundError)
        return str(self.folder / name / file)


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    remote = Hub(tmp_path / "hub")
    monkeypatch.setattr(hub, "HfApi", lambda: remote)
    monkeypatch.setattr(hub, "hf_hub_download", remote.download)
    monkeypatch.setattr(hub, "get_token", lambda: "hf_write")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return remote


def test_push_and_pull(run: Path, remote: Hub, capsys: pytest.CaptureFixture[str]):
    """What comes back is what went there; a single file has its usual name."""
    source = str(make_file(Path("dinov3.safetensors"), "vit_small_patch16_dinov3", 8, 32))
    for kind in ("timm", "transformers"):
        assert main(["export", source, "--to", kind, "--push", f"me/{kind}"]) == 0
        assert capsys.readouterr().out.split() == [f"dinov3-{kind}", f"http://hub/me/{kind}"]
        for path in Path(f"dinov3-{kind}").iterdir():
            assert (remote.folder / "me" / kind / path.name).read_bytes() == path.read_bytes()
    file = ["export", str(run), "--to", "a.safetensors", "--push", "me/file", "--public"]
    assert main(file) == 0
    assert remote.private == {"me/timm": True, "me/transformers": True, "me/file": False}
    pushed = remote.folder / "me" / "file"
    assert (pushed / "model.safetensors").read_bytes() == Path("a.safetensors").read_bytes()
    card = (pushed / "README.md").read_text()
    assert card == Path("a.md").read_text()
    assert card.startswith("---\nlicense: other\n")
    assert 'croc.load_backbone("hf:me/file")' in card
    assert '"hf-hub:me/timm"' in (remote.folder / "me/timm/README.md").read_text()
    capsys.readouterr()
    assert main(["show", "weights", "hf:me/file/model.safetensors"]) == 0
    assert "images_seen: 16" in capsys.readouterr().out.splitlines()
    assert main(["export", "hf:me/timm", "--to", "safetensors"]) == 0
    back = [croc.load_backbone(name) for name in ("hf:me/timm", "hf:me/timm@main", source)]
    assert len({fingerprint(each) for each in back}) == 1
    again = croc.load_backbone("timm-safetensors/model.safetensors")
    assert fingerprint(again) == fingerprint(back[0])


def test_what_the_hub_refuses(
    remote: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """One line, exit code 2, and nothing half-written."""
    make_file(Path("mine.safetensors"), "vit_tiny_patch16_224")
    for name in ("one/model.safetensors", "two/a.pth", "two/b.pth", "onnx/model.onnx"):
        (remote.folder / "me" / name).parent.mkdir(parents=True, exist_ok=True)
        (remote.folder / "me" / name).touch()
    push, weights = "export mine.safetensors --to timm --push", "show weights"

    def check(command: str, message: str) -> None:
        before = sorted(Path().rglob("*"))
        assert main(command.split()) == 2
        printed = capsys.readouterr()
        assert message in printed.err
        assert (printed.out, printed.err.count("\n")) == ("", 1)
        assert sorted(Path().rglob("*")) == before

    for command, message in (
        (f"{push} mine", "--push mine: write USER/NAME"),
        (f"{weights} hf:me/nowhere", "there is no such repository, or it is private"),
        (f"{weights} hf:me/one@v9", "has no such revision"),
        (f"{weights} hf:me/one/b.pth", "has no such file"),
        (f"{weights} hf:me/two", "holds a.pth, b.pth: name one, hf:me/two/FILE"),
        (f"{weights} hf:me/onnx", "holds no file of weights"),
        (f"{weights} hf:mine", "write hf:USER/NAME"),
        (f"{weights} hf:me/offline", "cannot be downloaded: the hub cannot be reached"),
    ):
        check(command, message)
    for status, message in ((401, "your token is not valid"), (403, "have that permission")):
        remote.status = status
        check(f"{push} me/new", message)

    def offline(*_: object, **__: object) -> None:
        raise OfflineModeIsEnabled

    monkeypatch.setattr(remote, "create_repo", offline)
    check(f"{push} me/new", "failed, and nothing was written here: HF_HUB_OFFLINE is set")
    monkeypatch.setattr(hub, "get_token", lambda: None)
    check(f"{push} me/new", "--push needs a token of the hub with write access")
