"""hf:USER/NAME, and exported folders on the hub, against a stand-in for it.

huggingface_hub reads its settings when it is imported, so one process with settings of its own
executes all commands: it prints the exit code, the output and the variables of each.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

import croc
from croc.weights.export import Export, export
from croc.weights.open import fingerprint
from tests.weights.conftest import make_file

TOKEN = "hf_token"
IMAGES = "torch.linspace(-2, 2, 3072).view(1, 3, 32, 32)"
DRIVER = """
import contextlib, io, json, os, sys
import torch
import croc
from croc.cli import main

results = []
for token, command in json.load(open("commands.json")):
    os.environ.pop("HF_TOKEN", None)
    if token:
        os.environ["HF_TOKEN"] = token
    out, error, before = io.StringIO(), io.StringIO(), sorted(os.listdir())
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        if isinstance(command, list):
            code = main(command)
        else:
            space, code = {"torch": torch, "croc": croc}, 0
            exec(command, space)
            print(json.dumps(space.get("result")))
    results.append([code, out.getvalue(), error.getvalue(), sorted(os.listdir()) == before])
json.dump(results, open("results.json", "w"))
"""


class Hub(BaseHTTPRequestHandler):
    """One user, `me`, whose repositories have one branch."""

    protocol_version = "HTTP/1.1"
    repositories: dict[str, dict[str, Any]]

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def answer(self, code: int, content: Any = b"", **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(code)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, code: int, reason: str) -> None:
        self.answer(code, {"error": reason}, X_Error_Code=reason)

    @property
    def token(self) -> str:
        return self.headers.get("Authorization", "").removeprefix("Bearer ")

    def repository(self, name: str) -> dict[str, Any] | None:
        """One that this token may read."""
        known = self.repositories.get(name)
        return known if known and (self.token == TOKEN or not known["private"]) else None

    def do_GET(self) -> None:
        api = re.fullmatch(
            r"/api/models/(\w+/[\w-]+)(?:/(?:revision|tree)/(\w+))?(?:\?.*)?", self.path
        )
        file = re.fullmatch(r"/(\w+/[\w-]+)/resolve/([\w%]+)/(.+)", self.path)
        name = (api or file or [None, "none"])[1]
        found = self.repository(name)
        if found is None:
            return self.refuse(404 if self.token else 401, "RepoNotFound")
        revision = (api or file)[2] or "main"
        if revision not in ("main", found["commit"]):
            return self.refuse(404, "RevisionNotFound")
        if api and "/tree/" in self.path:
            names = found["files"]
            return self.answer(
                200, [{"type": "file", "path": x, "size": 1, "oid": "0" * 40} for x in names]
            )
        if api:
            siblings = [{"rfilename": path} for path in found["files"]]
            return self.answer(200, {"id": name, "sha": found["commit"], "siblings": siblings})
        commit = {"X_Repo_Commit": found["commit"]}
        if file[3] not in found["files"]:
            return self.answer(404, X_Error_Code="EntryNotFound", **commit)
        content = found["files"][file[3]]
        digest = hashlib.sha256(content).hexdigest()
        return self.answer(200, content, ETag=f'"{digest}"', **commit)

    do_HEAD = do_GET  # noqa: N815


@pytest.fixture(scope="module")
def hub() -> Iterator[ThreadingHTTPServer]:
    Hub.repositories = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def execute(
    place: Path, hub: ThreadingHTTPServer, commands: list[tuple[str | None, list[str] | str]]
) -> list[list[Any]]:
    """Exit code, output, errors, and whether the folder is as before, of each token's command."""
    endpoint = f"http://127.0.0.1:{hub.server_port}"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(place / "cache"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "NO_PROXY": "*",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    (place / "cache").mkdir()
    (place / "commands.json").write_text(json.dumps(commands))
    command = [sys.executable, "-c", DRIVER]
    done = subprocess.run(
        command, cwd=place, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return json.loads((place / "results.json").read_text())


def set_constant(name: str, value: Any) -> str:
    return f"import huggingface_hub\nhuggingface_hub.constants.{name} = {value!r}"


def result_of(code: str) -> str:
    return f"{code}\nresult = tokens.flatten().tolist()"


def test_downloads(run: Path, hub: ThreadingHTTPServer, tmp_path: Path):
    """What was exported gives the same features from the hub, and then without it."""
    source = tmp_path / "dinov3.safetensors"
    make_file(source, "vit_small_patch16_dinov3", 8, 32)
    for kind in ("timm", "transformers"):
        export(Export(str(source), kind, folder=str(tmp_path / kind)))
        files = {path.name: path.read_bytes() for path in (tmp_path / kind).iterdir()}
        Hub.repositories[f"me/{kind}"] = {"private": True, "commit": "1" * 40, "files": files}
    (file, _) = export(Export(str(run), str(tmp_path / "a.safetensors")))
    files = {"model.safetensors": Path(file).read_bytes()}
    Hub.repositories["me/file"] = {"private": False, "commit": "2" * 40, "files": files}
    timm = f'timm.create_model("hf-hub:me/timm", pretrained=True).eval().forward_features({IMAGES})'
    codes = {
        "timm": f"import timm\ntokens = {timm}",
        "transformers": "from transformers import AutoModel\n"
        f'tokens = AutoModel.from_pretrained("me/transformers").eval()({IMAGES}).last_hidden_state',
        "file": f'tokens = croc.load_backbone("hf:me/file").vit.forward_features({IMAGES})',
        "features": f'tokens = croc.load_backbone("hf:me/timm").features({IMAGES})',
    }
    commands: list[tuple[str | None, list[str] | str]] = [
        *((TOKEN, result_of(code)) for code in codes.values()),
        (None, ["show", "weights", "hf:me/file/model.safetensors"]),
        (TOKEN, ["export", "hf:me/timm", "--to", "timm"]),
        (None, set_constant("HF_HUB_OFFLINE", True)),
        (None, result_of(codes["file"])),
    ]
    results = execute(tmp_path, hub, commands)
    assert [(code, error) for code, _, error, _ in results if code or error] == []
    outputs = [output for _, output, _, _ in results]
    assert outputs[7] == outputs[2], "what was downloaded opens offline"
    assert "images_seen: 24" in outputs[4].splitlines()
    assert outputs[5] == "timm-timm\n"
    here, images = croc.load_backbone(str(source)), eval(IMAGES)
    ours, trained = (
        backbone.vit.forward_features(images).detach().flatten()
        for backbone in (here, croc.load_backbone(str(file)))
    )
    expected = [ours, ours, trained, here.features(images).flatten()]
    for output, tokens in zip(outputs[:4], expected):
        assert torch.allclose(torch.tensor(json.loads(output)), tokens, atol=1e-5)
    again = croc.load_backbone(str(tmp_path / "timm-timm" / "model.safetensors"))
    assert fingerprint(again) == fingerprint(here)


def test_what_the_hub_refuses(hub: ThreadingHTTPServer, tmp_path: Path):
    """One line, exit code 2."""
    known = {"private": True, "commit": "1" * 40}
    Hub.repositories |= {
        "me/mine": {**known, "files": {"model.safetensors": b""}},
        "me/two": {**known, "files": {"a.pth": b"", "b.pth": b""}},
    }
    cases: list[tuple[str | None, str, str]] = [
        (None, "hf:me/mine", "there is no such repository, or it is private"),
        (TOKEN, "hf:me/nowhere", "there is no such repository"),
        (TOKEN, "hf:me/mine@v9", "has no such revision"),
        (TOKEN, "hf:me/mine/b.pth", "has no such file"),
        (TOKEN, "hf:me/two", "has no such file: name one, hf:USER/NAME/FILE"),
        (TOKEN, "hf:mine", "write hf:USER/NAME"),
        (TOKEN, "OFFLINE", ""),
        (TOKEN, "hf:me/never", "cannot be downloaded: the hub cannot be reached"),
    ]
    offline = set_constant("HF_HUB_OFFLINE", True)
    results = execute(
        tmp_path,
        hub,
        [(t, offline if s == "OFFLINE" else ["show", "weights", s]) for t, s, _ in cases],
    )
    for (_, _, message), (code, output, error, _) in zip(cases, results):
        if message:
            assert (code, output, error.count("\n")) == (2, "", 1), error
            assert message in error
