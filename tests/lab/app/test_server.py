"""Hosts, origins, headers, values and uploads: every refusal is short JSON."""

import io
from typing import Any

from PIL import Image

from tests.lab.app.serving import BOXES, NO_ORIGIN, Answer, Served, encoded

BAD: list[dict[str, Any]] = [
    *({"model": value} for value in (2, None, "0")),
    *({"k_start": value} for value in (1, [12], "many")),
    *({"sharpness": value} for value in (0, "sharp", float("nan"))),
    *({"position_weight": value} for value in (-0.1, "-inf", {})),
    *({"boxes": value} for value in (None, [], BOXES[:1], [*BOXES, BOXES[0]])),
    {"picture": "scene-99"},
]


def refused(answer: Answer, status: int = 400) -> None:
    assert answer.status == status
    assert answer.headers["content-type"] == "application/json"
    assert 0 < len(answer.json["error"]) < 120


def test_bad_queries_are_refused(served: Served) -> None:
    for changes in BAD:
        refused(served.ask("similarity", **changes))
    for body in (b"", b"{", b"[]", b"null", b"7", b"\xff\xfe", b"{}"):
        refused(served.request("POST", "/api/trace", body))
    for name in ("scene-99", "../../etc/passwd", "..%2f..%2fetc%2fpasswd"):
        refused(served.request("GET", f"/api/pictures/{name}"), 404)
    for path in ("local.py", "..%2flocal.py", "../explorer.py", "%00", ""):
        refused(served.request("GET", f"/files/{path}"), 404)
    refused(served.request("GET", "/api/clusters"), 405)
    refused(served.request("DELETE", "/api/pictures/scene-0"), 405)
    assert served.is_alive()


def test_other_hosts_and_origins_are_refused(served: Served) -> None:
    """DNS rebinding: another name that resolves to 127.0.0.1 is in the Host header."""
    for host in (
        *("evil.example", f"evil.example:{served.port}", "", "localhost:", "localhost.", "[::2]"),
        *(f"127.0.0.1.evil.example:{served.port}", f"127.0.0.1:{served.port}@evil.example"),
        *("evil.example:80@localhost:80", "localhost\tevil.example", "127.0.0.2"),
    ):
        refused(served.request("GET", "/", headers={"Host": host}), 421)
        refused(served.request("POST", "/api/clusters", b"{}", {"Host": host}), 421)
    for origin in (
        *(NO_ORIGIN, "null", "http://evil.example", f"https://127.0.0.1:{served.port}"),
        *("http://127.0.0.1", f"http://localhost:{served.port}", f"{served.url}.evil.example"),
    ):
        refused(served.request("POST", "/api/pictures", b"", {"Origin": origin}), 403)
        refused(served.request("OPTIONS", "/api/clusters", headers={"Origin": origin}), 403)
    tunnels = ("localhost:9000", "127.0.0.1", "[::1]:9000")  # ssh -L 9000:localhost:PORT
    for host in (f"localhost:{served.port}", *tunnels):
        here = {"Host": host, "Origin": f"http://{host}"}
        assert served.request("GET", "/", headers=here).status == 200
        refused(served.request("POST", "/api/clusters", b"{}", here), 400)  # only not a query


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


def test_large_picture_is_reduced_and_turned_upright(served: Served) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # a phone held upright
    picture = served.upload(encoded("JPEG", 2000, 1000, exif=exif), "a photograph.x").json
    shown = {name: picture[name] for name in ("width", "height", "name")}
    assert shown == {"width": 384, "height": 768, "name": "a photograph.x"}
    assert served.ask("clusters", picture=picture["id"]).status == 200
    body = served.request("GET", f"/api/pictures/{picture['id']}").body
    with Image.open(io.BytesIO(body)) as image:
        assert (image.format, image.size) == ("JPEG", (384, 768))


BAD_FILES = {
    b"": 415,
    b'<svg xmlns="http://www.w3.org/2000/svg"><script>1</script></svg>': 415,
    b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 100 100\n": 415,
    b"\x89PNG\r\n\x1a\n": 415,
    encoded()[:5_000]: 415,
    encoded("JPEG")[:300]: 415,
    encoded("PNG", 12_000, 40): 422,  # too narrow once it is reduced
}


def test_bad_files_are_refused(served: Served) -> None:
    for data, status in BAD_FILES.items():
        refused(served.upload(data), status)
    assert served.is_alive()
