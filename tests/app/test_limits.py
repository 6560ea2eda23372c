"""Who may ask and for what: hosts, origins, headers, types, ranges; a refusal is short JSON."""

import json
from typing import Any

import pytest

from tests.app.serving import BOXES, NO_ORIGIN, Answer, Served

ALL = ("clusters", "trace", "similarity")


def refused(answer: Answer, status: int = 400) -> str:
    assert answer.status == status
    assert answer.headers["content-type"] == "application/json"
    message = answer.json["error"]
    assert 0 < len(message) < 120
    return message


BAD: list[dict[str, Any]] = [
    {"model": 2},
    {"model": -1},
    {"model": True},
    {"model": 0.0},
    {"model": None},
    {"model": "0"},
    {"page": ""},
    {"page": 7},
    {"page": "x" * 1000},
    {"seed": -1},
    {"seed": 2**31},
    {"seed": 1e300},
    {"k_start": 1},
    {"k_start": 25},
    {"k_start": 5.5},
    {"k_start": "12"},
    {"k_start": [12]},
    {"k_start": 10**400},
    {"sharpness": 0.5},
    {"sharpness": 200.5},
    {"sharpness": "sharp"},
    {"sharpness": False},
    {"position_weight": -0.1},
    {"position_weight": 8.1},
    {"position_weight": "-inf"},
    {"position_weight": {}},
    {"tokens": "value"},
    {"tokens": None},
    {"tokens": ["values"]},
    {"tokens": {"values": 1}},
    {"boxes": None},
    {"boxes": []},
    {"boxes": BOXES[:1]},
    {"boxes": [*BOXES, BOXES[0]]},
    {"boxes": [BOXES[0], [0, 0, 100]]},
    {"boxes": [BOXES[0], [0, 0, 15, 100]]},
    {"boxes": [BOXES[0], [-1, 0, 100, 100]]},
    {"boxes": [BOXES[0], [300, 0, 100, 100]]},
    {"boxes": [BOXES[0], [0, 0, 100, 385]]},
    {"boxes": [BOXES[0], [0, 0, 100.0, 100]]},
    {"boxes": [BOXES[0], [0, 0, "100", 100]]},
    {"boxes": [BOXES[0], [0, 0, 2**70, 2**70]]},
    {"boxes": {"0": BOXES[0]}},
    {"head": 3},
    {"head": -1},
    {"tokens": "last", "head": 1},
    {"view": 2},
    {"patch": 16},
    {"patch": -1},
    {"patch": 1.5},
]


@pytest.mark.parametrize("changes", BAD, ids=[json.dumps(change)[:40] for change in BAD])
def test_values_out_of_range_are_refused(served: Served, changes: dict[str, Any]) -> None:
    for what in ALL:
        refused(served.ask(what, **changes))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_what_is_no_number_is_refused(served: Served, number: str) -> None:
    page = {"page": "x", "model": 0, "picture": "scene-0", "boxes": BOXES}
    for name in ("sharpness", "position_weight", "k_start"):
        text = json.dumps(page | {name: 0}).replace(f'"{name}": 0', f'"{name}": {number}')
        assert number in text
        refused(served.post("/api/clusters", text.encode()))


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"7", b"\xff\xfe", b"[" * 60_000, b'{"a":' * 10_000, b"{}"],
    ids=repr,
)
def test_what_is_no_question_is_refused(served: Served, body: bytes) -> None:
    for what in ALL:
        refused(served.post(f"/api/{what}", body))


def test_a_long_question_is_refused(served: Served) -> None:
    refused(served.ask("clusters", more="x" * 70_000), 413)
    assert served.lives()


def test_unknown_pictures_and_paths(served: Served) -> None:
    for name in ("scene-99", "../../etc/passwd", "..%2f..%2fetc%2fpasswd", "x" * 60):
        refused(served.ask("clusters", picture=name), 404)
    for path in (
        *("/api/pictures/nothing", "/api/pictures/..%2f..%2fetc%2fpasswd", "/files/server.py"),
        *(
            "/files/..%2fserver.py",
            "/files/%00",
            "/files/",
            "/nothing",
            "/api",
            "/files/../page.py",
        ),
    ):
        refused(served.request("GET", path), 404)
    refused(served.request("GET", "/api/clusters"), 405)
    refused(served.request("DELETE", "/api/pictures/scene-0"), 405)


def test_other_hosts_are_refused(served: Served) -> None:
    """A foreign name that was pointed at 127.0.0.1 says so in its Host."""
    for host in (
        *("evil.example", f"evil.example:{served.port}", "127.0.0.1", "localhost"),
        *(f"127.0.0.1:{served.port + 1}", f"127.0.0.1.evil.example:{served.port}", "", "[::1]"),
        f"127.0.0.1:{served.port}@evil.example",
    ):
        refused(served.request("GET", "/", headers={"Host": host}), 421)
        refused(served.request("POST", "/api/clusters", b"{}", {"Host": host}), 421)
    assert served.request("GET", "/", headers={"Host": f"localhost:{served.port}"}).status == 200


def test_other_origins_may_not_post(served: Served) -> None:
    for origin in (
        *(NO_ORIGIN, "null", "http://evil.example", f"https://127.0.0.1:{served.port}"),
        *("http://127.0.0.1", f"http://localhost:{served.port}", f"{served.url}.evil.example"),
    ):
        refused(served.request("POST", "/api/clusters", b"{}", {"Origin": origin}), 403)
        refused(served.request("POST", "/api/pictures", b"", {"Origin": origin}), 403)
        refused(served.request("OPTIONS", "/api/clusters", headers={"Origin": origin}), 403)
    here = {"Host": f"localhost:{served.port}", "Origin": f"http://localhost:{served.port}"}
    refused(served.request("POST", "/api/clusters", b"{}", here), 400)  # allowed, but no question


def test_headers_keep_the_page_to_itself(served: Served) -> None:
    for path in ("/", "/files/main.js", "/api/start", "/api/pictures/scene-0", "/nothing"):
        headers = served.request("GET", path, headers={"Origin": "http://evil.example"}).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "script-src 'self';" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["x-frame-options"] == "DENY"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert not any(name.startswith("access-control") for name in headers)
        assert "server" not in headers


def test_the_page_has_no_script_of_its_own_and_nothing_from_outside(served: Served) -> None:
    files = served.server.files
    page = files["page.html"].decode()
    assert page.count("<script") == page.count("<script src=") + page.count('<script type="module"')
    assert "style=" not in page
    for name, content in files.items():
        text = content.decode().replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text, name
        assert "https:" not in text, name
        assert "eval(" not in text, name
        assert len(text.splitlines()) < 300, name


def test_files_have_their_types(served: Served) -> None:
    kinds = {"/": "text/html", "/files/app.css": "text/css", "/files/theme.js": "text/javascript"}
    kinds |= {"/files/icon.svg": "image/svg+xml", "/api/pictures/scene-0": "image/jpeg"}
    for path, kind in kinds.items():
        assert served.request("GET", path).headers["content-type"].startswith(kind)
