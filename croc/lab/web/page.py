"""The frame of a page that is one file: everything is embedded, and nothing else may load or run.

Text goes through `text`, data through `embed_json`; styles and scripts are our own files, and the
page's Content-Security-Policy allows these by their hashes and forbids all others.
"""

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from croc.io import replacing

HERE = Path(__file__).parent
DATA_ID = "page-data"
STYLE = "style.css"
THEME = "theme.js"
"""Runs before the body is drawn, so that no page flashes in the wrong colours."""

THEME_SWITCH = (
    '<button type="button" class="theme-switch" data-theme-switch>Theme: <span>auto</span></button>'
)


def text(value: object) -> str:
    """Anything as HTML text, fit for attributes in double quotes too."""
    return html.escape(clean(str(value)), quote=True)


def clean(value: str) -> str:
    """Without what UTF-8 cannot write: names of files may hold bytes that are no text."""
    return value.encode("utf-8", "replace").decode("utf-8")


def embed_json(data: Any) -> str:
    """JSON that no parser of HTML or JavaScript can take for anything else.

    ASCII, so U+2028 and half surrogates are escaped; with < > & escaped too there is no way to
    write `</script>` or `<!--`.
    """
    page = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for letter in "<>&":
        page = page.replace(letter, f"\\u{ord(letter):04x}")
    return page


def make_page(
    title: str,
    body: str,
    *,
    styles: Sequence[str] = (),
    scripts: Sequence[str] = (),
    data: Any = None,
) -> str:
    """A whole page; `styles` and `scripts` name files of this folder, `body` is trusted HTML."""
    style = "".join(_own_file(name) for name in (STYLE, *styles))
    theme, script = _own_file(THEME), _enclosed(scripts)
    policy = (
        f"default-src 'none'; img-src data:; style-src {_hash(style)}; "
        f"script-src {_hash(theme)} {_hash(script)}; base-uri 'none'; form-action 'none'"
    )
    known = "" if data is None else _data_block(data)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{text(title)}</title>\n<style>{style}</style>\n<script>{theme}</script>\n"
        f"</head>\n<body>\n{body}\n{known}<script>{script}</script>\n</body>\n</html>\n"
    )


def write_page(path: Path, page: str) -> None:
    """Whole or not at all: somebody may have it open."""
    with replacing(path, shared=True) as partial:
        partial.write_text(page, encoding="utf-8", newline="\n")


def _data_block(data: Any) -> str:
    return f'<script type="application/json" id="{DATA_ID}">{embed_json(data)}</script>\n'


def _own_file(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def _enclosed(scripts: Sequence[str]) -> str:
    """All in one function, so that they share names with each other and with nobody else."""
    return '(() => {\n"use strict";\n' + "".join(map(_own_file, scripts)) + "})();\n"


def _hash(content: str) -> str:
    digest = hashlib.sha256(content.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
