"""Hosts, origins, headers, values and uploads: every refusal is short JSON."""

import contextlib
import io
import struct
import tracemalloc
import zlib
from typing import Any

import pytest
from PIL import Image

from croc.lab.app.server import MAX_UPLOADS
from tests.data.pictures import png_chunk
from tests.lab.app.serving import BOXES, NO_ORIGIN, Answer, Served, encoded

BAD: list[dict[str, Any]] = [
    *({"model": value} for value in (2, None, "0")),
    *({"k_start": value} for value in (1, 25, [12], 10**400, float("nan"))),
    *({"sharpness": value} for value in (0.5, 200.5, "sharp", float("inf"))),
    *({"position_weight": value} for value in (-0.1, 8.1, "-inf", {})),
    *({"boxes": value} for value in (None, [], BOXES[:1], [*BOXES, BOXES[0]], {"0": BOXES[0]})),
    *({"boxes": [BOXES[0], value]} for value in ([0, 0, 100], [0, 0, 15, 100], [300, 0, 100, 100])),
    {"boxes": [BOXES[0], [-1, 0, 100, 100]]},
]


def refused(answer: Answer, status: int = 400) -> None:
    assert answer.status == status
    assert answer.headers["content-type"] == "application/json"
    assert 0 < len(answer.json["error"]) < 120


def test_bad_queries_are_refused(served: Served) -> None:
    for changes in BAD:
        refused(served.ask("similarity", **changes))
    refused(served.ask("clusters", more="x" * 70_000), 413)
    deep = (b"[" * 60_000, b'{"a":' * 10_000)
    for body in (b"", b"{", b"[]", b"null", b"7", b"\xff\xfe", b"{}", *deep):
        refused(served.request("POST", "/api/trace", body))
    for name in ("scene-99", "../../etc/passwd", "..%2f..%2fetc%2fpasswd"):
        refused(served.ask("clusters", picture=name), 404)
        refused(served.request("GET", f"/api/pictures/{name}"), 404)
    for path in ("server.py", "..%2fserver.py", "../page.py", "%00", ""):
        refused(served.request("GET", f"/files/{path}"), 404)
    refused(served.request("GET", "/api/clusters"), 405)
    refused(served.request("DELETE", "/api/pictures/scene-0"), 405)
    assert served.is_alive()


def test_other_hosts_and_origins_are_refused(served: Served) -> None:
    """DNS rebinding: another name that resolves to 127.0.0.1 is in the Host header."""
    for host in (
        *("evil.example", f"evil.example:{served.port}", "127.0.0.1", "localhost", "", "[::1]"),
        *(f"127.0.0.1:{served.port + 1}", f"127.0.0.1.evil.example:{served.port}"),
        f"127.0.0.1:{served.port}@evil.example",
    ):
        refused(served.request("GET", "/", headers={"Host": host}), 421)
        refused(served.request("POST", "/api/clusters", b"{}", {"Host": host}), 421)
    for origin in (
        *(NO_ORIGIN, "null", "http://evil.example", f"https://127.0.0.1:{served.port}"),
        *("http://127.0.0.1", f"http://localhost:{served.port}", f"{served.url}.evil.example"),
    ):
        refused(served.request("POST", "/api/pictures", b"", {"Origin": origin}), 403)
        refused(served.request("OPTIONS", "/api/clusters", headers={"Origin": origin}), 403)
    here = {"Host": f"localhost:{served.port}", "Origin": f"http://localhost:{served.port}"}
    assert served.request("GET", "/", headers=here).status == 200
    refused(served.request("POST", "/api/clusters", b"{}", here), 400)  # allowed, but not a query


def test_headers_isolate_the_page(served: Served) -> None:
    kinds = {"/": "text/html", "/files/app.css": "text/css", "/files/theme.js": "text/javascript"}
    kinds |= {"/files/icon.svg": "image/svg+xml", "/api/pictures/scene-0": "image/jpeg"}
    for path, kind in (kinds | {"/nothing": "application/json"}).items():
        headers = served.request("GET", path, headers={"Origin": "http://evil.example"}).headers
        assert headers["content-type"].startswith(kind)
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "script-src 'self';" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["x-frame-options"] == "DENY"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert not any(name.startswith("access-control") for name in headers)
        assert "server" not in headers


SMALL_BOXES = [[0, 0, 60, 60], [40, 10, 80, 70]]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_pictures_are_clustered(served: Served, kind: str) -> None:
    picture = served.upload(encoded(kind), "a photograph.x").json
    assert (picture["width"], picture["height"], picture["name"]) == (120, 80, "a photograph.x")
    assert served.ask("clusters", picture=picture["id"], boxes=SMALL_BOXES).status == 200
    body = served.request("GET", f"/api/pictures/{picture['id']}").body
    with Image.open(io.BytesIO(body)) as shown:
        assert (shown.format, shown.size) == ("JPEG", (120, 80))


def test_large_picture_is_reduced_and_turned_upright(served: Served) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # a phone held upright
    answer = served.upload(encoded("JPEG", 2000, 1000, exif=exif)).json
    assert (answer["width"], answer["height"]) == (384, 768)


def png(width: int, height: int, *more: bytes) -> bytes:
    """A PNG whose header claims a size, whatever follows."""
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(more) + png_chunk(b"IEND", b"")


BAD_FILES = {
    b"": 415,
    b'<svg xmlns="http://www.w3.org/2000/svg"><script>1</script></svg>': 415,
    b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 100 100\n": 415,
    b"\x89PNG\r\n\x1a\n": 415,
    encoded()[:5_000]: 415,
    encoded("JPEG")[:300]: 415,
    png(100, 100, png_chunk(b"IDAT", b"rubbish")): 415,
    png(100, 100, png_chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(100_000_000), 9))): 415,
    png(51_000, 1_000): 413,
    png(65_535, 65_535): 413,
    png(0, 0): 415,
    encoded("PNG", 12_000, 40): 422,  # too narrow once it is reduced
}


def test_bad_files_are_refused(served: Served) -> None:
    for data, status in BAD_FILES.items():
        refused(served.upload(data), status)
    assert served.is_alive()


def test_large_uploads_are_refused(served: Served) -> None:
    """A bomb before it is decoded, a long file once it is seen."""
    bomb = png(12_000, 6_000, png_chunk(b"IDAT", zlib.compress(bytes(12_001 * 6_000), 9)))
    tracemalloc.start()
    try:
        refused(served.upload(bomb), 413)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the rest was not read
        refused(served.request("POST", "/api/pictures", iter([bytes(1 << 20)] * 40)), 413)
    assert served.is_alive()


def test_names_are_only_shown_and_the_last_uploads_kept(served: Served) -> None:
    names = ["../../etc/passwd", "<img src=x onerror=alert(1)>", "a" * 500]
    shown = {name: name[:80] for name in names}
    shown |= {"a\u202egpj.exe\n\x00b": "agpj.exeb", " \n ": "photograph", "": "photograph"}
    for name, expected in shown.items():
        answer = served.upload(encoded(), name).json
        assert answer["name"] == expected
        assert answer["id"].isalnum()
    uploads = [served.upload(encoded()).json["id"] for _ in range(MAX_UPLOADS + 2)]
    statuses = [served.ask("clusters", picture=id, boxes=SMALL_BOXES).status for id in uploads]
    assert statuses == [404] * 2 + [200] * MAX_UPLOADS
    assert served.is_alive()  # the scenes are always there
