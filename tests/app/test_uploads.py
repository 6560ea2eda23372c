"""Uploads: every kind of picture, and every kind of file that only claims to be one."""

import io
import struct
import tracemalloc
import zlib
from typing import Any

import pytest
from PIL import Image

from croc.lab.app.pictures import MOST_UPLOADS, shown_name
from tests.app.serving import BOUNDARY, BOXES, Served, encoded, make_form
from tests.app.test_limits import refused

FORM = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}


def chunk(kind: bytes, data: bytes) -> bytes:
    sum_ = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", sum_)


def png(width: int, height: int, *more: bytes) -> bytes:
    """A PNG whose header claims a size, whatever follows."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(more) + chunk(b"IEND", b"")


def blank_png(width: int, height: int) -> bytes:
    return png(width, height, chunk(b"IDAT", zlib.compress(bytes((width + 1) * height), 9)))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF", "PPM"])
def test_pictures_are_taken_and_clustered(served: Served, kind: str) -> None:
    answer = served.upload(("a photograph.x", encoded(kind)))
    assert answer.status == 201
    picture = answer.json
    assert (picture["width"], picture["height"], picture["name"]) == (120, 80, "a photograph.x")
    boxes = [[0, 0, 60, 60], [40, 10, 80, 70]]
    assert served.ask("clusters", picture=picture["id"], boxes=boxes).status == 200
    with Image.open(
        io.BytesIO(served.request("GET", f"/api/pictures/{picture['id']}").body)
    ) as shown:
        assert (shown.format, shown.size) == ("JPEG", (120, 80))


def test_a_large_picture_is_reduced_and_turned_upright(served: Served) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # a telephone held upright
    answer = served.upload(("large.jpg", encoded("JPEG", 2000, 1000, exif=exif))).json
    assert (answer["width"], answer["height"]) == (384, 768)


PICTURE = encoded()
HOSTILE: dict[str, tuple[bytes, int]] = {
    "empty": (b"", 400),
    "text": (b"no picture at all", 415),
    "html": (b"<html><script>alert(1)</script>", 415),
    "svg": (b'<svg xmlns="http://www.w3.org/2000/svg"><script>1</script></svg>', 415),
    "pdf": (b"%PDF-1.7\n" + bytes(100), 415),
    "eps": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 100 100\n", 415),
    "zip": (b"PK\x03\x04" + bytes(200), 415),
    "zeros": (bytes(10_000), 415),
    "only a signature": (b"\x89PNG\r\n\x1a\n", 415),
    "truncated png": (PICTURE[: len(PICTURE) // 2], 422),
    "truncated jpeg": (encoded("JPEG")[:300], 415),
    "truncated webp": (encoded("WEBP")[:60], 415),
    "no data": (png(100, 100), 422),
    "rubbish for data": (png(100, 100, chunk(b"IDAT", b"rubbish")), 422),
    "claims 51 megapixels": (png(51_000, 1_000), 413),
    "claims 4 gigapixels": (png(65_535, 65_535), 413),
    "claims all there is": (png(2**31 - 1, 2**31 - 1), 413),
    "claims nothing": (png(0, 0), 415),
    "a bomb": (blank_png(12_000, 6_000), 413),
    "a bomb of text": (
        png(100, 100, chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(100_000_000), 9))),
        415,
    ),
    "a line": (encoded("PNG", 10_000, 2), 422),
    "a dot": (encoded("PNG", 1, 1), 422),
    "narrow when reduced": (encoded("PNG", 12_000, 40), 422),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_picture_is_refused(served: Served, name: str) -> None:
    data, status = HOSTILE[name]
    answer = served.upload((name, data))
    assert answer.status in (status, 422 if status == 415 else status)
    refused(answer, answer.status)
    assert served.lives()


def test_claims_are_refused_before_anything_is_decoded(served: Served) -> None:
    bomb = blank_png(12_000, 6_000)
    tracemalloc.start()
    try:
        refused(served.upload(("bomb.png", bomb)), 413)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


FORMS: dict[str, tuple[dict[str, str], bytes, int]] = {
    "no form": ({"Content-Type": "image/png"}, PICTURE, 415),
    "no type": ({}, PICTURE, 415),
    "json": ({"Content-Type": "application/json"}, b"{}", 415),
    "no boundary": ({"Content-Type": "multipart/form-data"}, b"", 400),
    "an odd charset": (
        {"Content-Type": f"multipart/form-data; charset=nonsense; boundary={BOUNDARY}"},
        make_form(("a", PICTURE)),
        400,
    ),
    "nothing": (FORM, b"", 400),
    "no end": (FORM, make_form(("a.png", PICTURE))[:-20], 400),
    "no file": (FORM, make_form(), 400),
    "another field": (FORM, make_form(("a.png", PICTURE), field="other"), 400),
    "many files": (FORM, make_form(*[("a.png", PICTURE)] * 3), 400),
    "many fields": (
        FORM,
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n'.encode() * 2000
        + make_form(("a.png", PICTURE)),
        400,
    ),
    "long headers": (
        FORM,
        f"--{BOUNDARY}\r\nX-Long: {'x' * 1_000_000}\r\n\r\n1\r\n".encode() + make_form(),
        400,
    ),
    "rubbish": (FORM, bytes(range(256)) * 40, 400),
    "no file name": (
        FORM,
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="photograph"\r\n\r\n1\r\n'.encode()
        + make_form(),
        400,
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_broken_forms_are_refused(served: Served, name: str) -> None:
    headers, body, status = FORMS[name]
    answer = served.request("POST", "/api/pictures", body, headers)
    if name == "an odd charset" and answer.status == 201:
        return  # read all the same
    refused(answer, status)
    assert served.lives()


def test_a_large_file_is_refused_by_what_it_claims(served: Served) -> None:
    """Nothing is sent after the headers: the answer does not wait for it."""
    headers = FORM | {"Content-Length": str(40 << 20)}
    refused(served.request("POST", "/api/pictures", b"--", headers), 413)
    for claimed in ("9" * 30, "-1", "x"):
        answer = served.request("POST", "/api/pictures", b"", FORM | {"Content-Length": claimed})
        assert answer.status in (400, 413)
    assert served.lives()


def test_a_large_file_is_refused_if_it_claims_nothing(served: Served) -> None:
    def chunks() -> Any:
        yield make_form(("a.png", b""))[:-30]
        for _ in range(40):
            yield bytes(1 << 20)

    try:
        answer = served.request("POST", "/api/pictures", chunks(), FORM)
    except (BrokenPipeError, ConnectionResetError):  # the rest was not waited for
        pass
    else:
        refused(answer, 413)
    assert served.lives()


def test_names_are_for_showing_only(served: Served) -> None:
    for name in ("../../etc/passwd", "<img src=x onerror=alert(1)>", "a" * 500):
        answer = served.upload((name, PICTURE))
        assert answer.status == 201
        assert answer.json["name"] == name[:80]
        assert "/" not in answer.json["id"]
    assert shown_name("a\u202egpj.exe\n\x00b") == "agpj.exeb"
    assert shown_name(" \n ") == "photograph"


def test_only_the_last_few_are_held(served: Served) -> None:
    names = [served.upload((f"{n}.png", PICTURE)).json["id"] for n in range(MOST_UPLOADS + 2)]
    boxes = [[0, 0, 60, 60], [40, 10, 80, 70]]
    found = [served.ask("clusters", picture=name, boxes=boxes).status for name in names]
    assert found == [404] * 2 + [200] * MOST_UPLOADS
    assert served.ask("clusters", boxes=BOXES).status == 200  # scenes are always there
