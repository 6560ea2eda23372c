"""`croc export --push USER/NAME` and hf:USER/NAME, against a stand-in for the hub.

huggingface_hub reads its settings when it is imported, so one process with settings of its own
executes all commands: it prints the exit code, the output and the variables of each.
"""

import base64
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
from croc.weights.backbones import fingerprint
from tests.weights.conftest import make_file

TOKEN, READ_ONLY = "hf_write", "hf_read"
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
    blobs: dict[str, bytes]

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
        is_mine = self.token in (TOKEN, READ_ONLY)
        return known if known and (is_mine or not known["private"]) else None

    def do_GET(self) -> None:
        api = re.fullmatch(
            r"/api/models/(\w+/[\w-]+)(?:/(?:revision|tree)/(\w+))?(?:\?.*)?", self.path
        )
        file = re.fullmatch(r"/(\w+/[\w-]+)/resolve/([\w%]+)/(.+)", self.path)
        name = (api or file or [None, "none"])[1]
        repository = self.repository(name)
        if repository is None:
            return self.refuse(404 if self.token else 401, "RepoNotFound")
        revision = (api or file)[2] or "main"
        if revision not in ("main", repository["commit"]):
            return self.refuse(404, "RevisionNotFound")
        if api and "/tree/" in self.path:
            names = repository["files"]
            return self.answer(
                200, [{"type": "file", "path": x, "size": 1, "oid": "0" * 40} for x in names]
            )
        if api:
            siblings = [{"rfilename": path} for path in repository["files"]]
            return self.answer(200, {"id": name, "sha": repository["commit"], "siblings": siblings})
        commit = {"X_Repo_Commit": repository["commit"]}
        if file[3] not in repository["files"]:
            return self.answer(404, X_Error_Code="EntryNotFound", **commit)
        content = repository["files"][file[3]]
        digest = hashlib.sha256(content).hexdigest()
        return self.answer(200, content, ETag=f'"{digest}"', **commit)

    do_HEAD = do_GET  # noqa: N815

    def read(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"]))

    def do_PUT(self) -> None:
        self.blobs[self.path.rpartition("/")[2]] = self.read()
        self.answer(200)

    def do_POST(self) -> None:
        text = self.read()
        if self.path == "/api/validate-yaml":
            return self.answer(200, {"errors": [], "warnings": []})
        if self.token not in (TOKEN, READ_ONLY):
            return self.refuse(401, "Invalid")
        if self.token == READ_ONLY:
            return self.refuse(403, "Forbidden")
        if self.path == "/api/repos/create":
            request = json.loads(text)
            name = f"{request['organization']}/{request['name']}"
            if request["organization"] != "me":
                return self.refuse(403, "Forbidden")
            is_private = request.get("visibility") == "private" or bool(request.get("private"))
            new = {"private": is_private, "commit": "0" * 40, "files": {}}
            code = 409 if name in self.repositories else 200
            self.repositories.setdefault(name, new)
            return self.answer(code, {"url": f"http://{self.headers['Host']}/{name}"})
        if self.path.endswith(".git/info/lfs/objects/batch"):
            upload = f"http://{self.headers['Host']}/upload/"
            objects = [
                {**file, "actions": {"upload": {"href": upload + file["oid"]}}}
                for file in json.loads(text)["objects"]
            ]
            return self.answer(200, {"transfer": "basic", "objects": objects})
        _, _, _, user, name, action, _ = self.path.split("/")
        known = self.repositories[f"{user}/{name}"]
        if action == "preupload":
            files = [
                {"path": file["path"], "shouldIgnore": False, "uploadMode": mode}
                for file in json.loads(text)["files"]
                for mode in [
                    "lfs" if file["path"].endswith((".safetensors", "onnx")) else "regular"
                ]
            ]
            return self.answer(200, {"files": files})
        for line in map(json.loads, text.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                known["files"][value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                known["files"][value["path"]] = self.blobs[value["oid"]]
        known["commit"] = hashlib.sha1(text).hexdigest()
        page = f"http://{self.headers['Host']}/{user}/{name}"
        answer = {"commitUrl": f"{page}/commit/1", "commitOid": known["commit"], "success": True}
        return self.answer(200, answer)


@pytest.fixture(scope="module")
def hub() -> Iterator[ThreadingHTTPServer]:
    Hub.repositories, Hub.blobs = {}, {}
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


def test_push_and_pull(run: Path, hub: ThreadingHTTPServer, tmp_path: Path):
    """The features of what comes back are those of what went there; the card's code finds it."""
    make_file(tmp_path / "dinov3.safetensors", "vit_small_patch16_dinov3", 8, 32)
    timm = f'timm.create_model("hf-hub:me/timm", pretrained=True).eval().forward_features({IMAGES})'
    codes = {
        "timm": f"import timm\ntokens = {timm}",
        "transformers": "from transformers import AutoModel\n"
        f'tokens = AutoModel.from_pretrained("me/transformers").eval()({IMAGES}).last_hidden_state',
        "file": f'tokens = croc.load_backbone("hf:me/file").vit.forward_features({IMAGES})',
        "features": f'tokens = croc.load_backbone("hf:me/timm").features({IMAGES})',
    }
    source, kinds = "dinov3.safetensors", ("timm", "transformers")
    results = execute(
        tmp_path,
        hub,
        [
            *((TOKEN, ["export", source, "--to", x, "--push", f"me/{x}"]) for x in kinds),
            (TOKEN, ["export", str(run), "--to", "a.safetensors", "--push", "me/file", "--public"]),
            *((TOKEN, result_of(code)) for code in codes.values()),
            (None, ["show", "weights", "hf:me/file/model.safetensors"]),
            (TOKEN, ["export", "hf:me/timm", "--to", "timm"]),
            (TOKEN, ["export", source, "--to", "timm", "--folder", "again", "--push", "me/timm"]),
            (None, set_constant("HF_HUB_OFFLINE", True)),
            (None, result_of(codes["file"])),
        ],
    )
    assert [(code, error) for code, _, error, _ in results if code or error] == []
    outputs = [output for _, output, _, _ in results]
    assert outputs[11] == outputs[5], "what was downloaded opens offline"
    assert {name: repository["private"] for name, repository in Hub.repositories.items()} == {
        "me/timm": True,
        "me/transformers": True,
        "me/file": False,
    }
    for name in kinds:
        folder, remote = tmp_path / f"dinov3-{name}", Hub.repositories[f"me/{name}"]["files"]
        if name == "timm":
            folder = tmp_path / "again"  # the latest
        assert remote == {path.name: path.read_bytes() for path in folder.iterdir()}
    file = Hub.repositories["me/file"]["files"]
    assert file["model.safetensors"] == (tmp_path / "a.safetensors").read_bytes()
    assert file["README.md"] == (tmp_path / "a.md").read_bytes()
    assert b'croc.load_backbone("hf:me/file")' in file["README.md"]
    assert b'"hf-hub:me/timm"' in Hub.repositories["me/timm"]["files"]["README.md"]

    here, images = croc.load_backbone(str(tmp_path / source)), eval(IMAGES)
    ours, trained = (
        backbone.vit.forward_features(images).detach().flatten()
        for backbone in (here, croc.load_backbone(str(tmp_path / "a.safetensors")))
    )
    expected = [ours, ours, trained, here.features(images).flatten()]
    for output, tokens in zip(outputs[3:7], expected):
        assert torch.allclose(torch.tensor(json.loads(output)), tokens, atol=1e-5)
    again = croc.load_backbone(str(tmp_path / "timm-timm" / "model.safetensors"))
    assert fingerprint(again) == fingerprint(here)


def test_what_the_hub_refuses(run: Path, hub: ThreadingHTTPServer, tmp_path: Path):
    """One line, exit code 2, and nothing half-written."""
    make_file(tmp_path / "mine.safetensors", "vit_tiny_patch16_224")
    content = (tmp_path / "mine.safetensors").read_bytes()
    known = {"private": True, "commit": "1" * 40}
    Hub.repositories |= {
        "me/mine": {**known, "files": {"model.safetensors": content}},
        "me/two": {**known, "files": {"a.pth": b"", "b.pth": b""}},
    }
    push = ["export", "mine.safetensors", "--to", "timm", "--push"]
    weights = ["show", "weights"]
    cases: list[tuple[str | None, list[str] | str, str]] = [
        (None, [*push, "me/new"], "--push needs a Hugging Face token with write access"),
        ("hf_wrong", [*push, "me/new"], "failed, and nothing was written here: "),
        (READ_ONLY, [*push, "me/mine"], "your token does not have that permission"),
        (TOKEN, [*push, "you/new"], "your token does not have that permission"),
        (TOKEN, [*push, "mine"], "--push mine: write USER/NAME"),
        (None, [*weights, "hf:me/mine"], "there is no such repository, or it is private"),
        (TOKEN, [*weights, "hf:me/mine@v9"], "has no such revision"),
        (TOKEN, [*weights, "hf:me/mine/b.pth"], "has no such file"),
        (TOKEN, [*weights, "hf:me/two"], "has no such file: name one, hf:USER/NAME/FILE"),
        (TOKEN, [*weights, "hf:mine"], "write hf:USER/NAME"),
        (TOKEN, set_constant("ENDPOINT", "http://127.0.0.1:9"), ""),
        (TOKEN, [*push, "me/new"], "failed, and nothing was written here: [Errno 111]"),
        (TOKEN, set_constant("HF_HUB_OFFLINE", True), ""),
        (TOKEN, [*weights, "hf:me/never"], "cannot be downloaded: the hub cannot be reached"),
    ]
    results = execute(tmp_path, hub, [(token, arguments) for token, arguments, _ in cases])
    for (_, arguments, message), (code, output, error, is_unchanged) in zip(cases, results):
        if isinstance(arguments, list):
            assert (code, output, error.count("\n"), is_unchanged) == (2, "", 1, True), error
            assert message in error, arguments
    assert "me/new" not in Hub.repositories
