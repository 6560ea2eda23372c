"""From a request's body to bytes: never more than allowed, whatever its headers say.

A form is read in memory, part by part, by python-multipart itself: a request may hold one file and
nothing else, and no temporary file is made of it.
"""

from dataclasses import dataclass, field

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from croc.lab.app.pictures import MOST_BYTES
from croc.lab.app.refusal import Refusal

MOST_JSON_BYTES = 1 << 16
MULTIPART_BYTES = 1 << 16
"""What boundaries and headers may add to the file."""
MOST_HEADER_BYTES = 4096
LONGEST_BOUNDARY = 70  # by RFC 2046
FIELD = b"photograph"


async def read_body(request: Request, most: int) -> bytes:
    """The whole body; refused as soon as it is known to be too long."""
    claimed = request.headers.get("content-length", "0")
    if not claimed.isdecimal() or int(claimed[:20]) > most:
        raise _too_large(most)
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > most:
                raise _too_large(most)
    except ClientDisconnect:
        raise Refusal("The request broke off.") from None
    return bytes(body)


async def read_upload(request: Request) -> tuple[bytes, str]:
    """The one file of a form, and the name that it claims."""
    kind, options = parse_options_header(request.headers.get("content-type"))
    if kind != b"multipart/form-data":
        raise Refusal("Send one picture as multipart/form-data.", 415)
    body = await read_body(request, MOST_BYTES + MULTIPART_BYTES)
    try:
        return _read_form(body, options.get(b"boundary", b""))
    except (FormParserError, ValueError, LookupError):  # odd boundaries, headers and names
        raise Refusal("The form is broken.") from None


@dataclass
class _Form:
    """What has been read of a form with one part."""

    parts: int = 0
    ended: bool = False
    name: bytearray = field(default_factory=bytearray)
    """Of the header that is being read."""
    value: bytearray = field(default_factory=bytearray)
    headers: dict[bytes, bytes] = field(default_factory=dict)
    data: bytearray = field(default_factory=bytearray)

    def begin(self) -> None:
        self.parts += 1
        if self.parts > 1:
            raise Refusal("Send one picture at a time.")

    def read_name(self, data: bytes, start: int, end: int) -> None:
        self.name += data[start:end]
        self._check()

    def read_value(self, data: bytes, start: int, end: int) -> None:
        self.value += data[start:end]
        self._check()

    def end_header(self) -> None:
        self.headers[bytes(self.name).lower()] = bytes(self.value)
        self.name.clear()
        self.value.clear()
        self._check()

    def read_data(self, data: bytes, start: int, end: int) -> None:
        self.data += data[start:end]

    def end(self) -> None:
        self.ended = True

    def _check(self) -> None:
        held = sum(len(name) + len(value) for name, value in self.headers.items())
        if held + len(self.name) + len(self.value) > MOST_HEADER_BYTES:
            raise Refusal("The form is broken.")


def _read_form(body: bytes, boundary: bytes) -> tuple[bytes, str]:
    if not 0 < len(boundary) <= LONGEST_BOUNDARY:
        raise Refusal("The form is broken.")
    form = _Form()
    parser = MultipartParser(
        boundary,
        {
            "on_part_begin": form.begin,
            "on_header_field": form.read_name,
            "on_header_value": form.read_value,
            "on_header_end": form.end_header,
            "on_part_data": form.read_data,
            "on_end": form.end,
        },
    )
    parser.write(body)
    _, options = parse_options_header(form.headers.get(b"content-disposition"))
    if options.get(b"name") != FIELD or b"filename" not in options:
        raise Refusal("No picture was sent.")
    if not form.ended:
        raise Refusal("The form broke off.")
    return bytes(form.data), options[b"filename"].decode("utf-8", "replace")


def _too_large(most: int) -> Refusal:
    return Refusal(f"That is too large: {most / (1 << 20):.3g} MB at most.", 413)
