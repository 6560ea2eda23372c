"""A folder with weights, configuration and card, in the layout of another library."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

from safetensors.torch import save

from croc.errors import UserError
from croc.weights.card import front_matter, make_card
from croc.weights.export.command import Export
from croc.weights.export.onnx_graph import check_onnx, make_graph, onnx_config
from croc.weights.export.snippets import snippet
from croc.weights.export.source import Rounded, Source, open_source, round_weights
from croc.weights.export.timm_layout import plain_vit, timm_config
from croc.weights.export.transformers_layout import (
    check_is_vit_model,
    image_processor_config,
    vit_model_config,
    vit_model_weights,
)
from croc.weights.export.writing import new_folder
from croc.weights.page import metadata_of

Writer = Callable[[Path], None]
LIBRARIES = {"torchhub": "timm", "safetensors": "timm"}
"""Of the card's front matter, where it is not the kind itself."""


def export_folder(asked: Export) -> Path:
    """Where it lies; all that can be refused is refused before a folder is made."""
    dtype = _dtype(asked)
    if asked.to == "onnx":
        check_onnx()
    _check_free(asked.folder)
    source = open_source(asked.run, asked.licence)
    name = _check_name(source.name if asked.name is None else asked.name)
    folder = _check_free(asked.folder or f"{name}-{asked.to}")
    rounded = round_weights(source, dtype, asked.scores)
    write = MAKERS[asked.to](source, rounded)
    use = snippet(asked.to, folder.name, source.page)
    card = front_matter(LIBRARIES.get(asked.to, asked.to), rounded.facts)
    card += make_card(name, rounded.facts, use)
    with new_folder(folder) as place:
        write(place)
        (place / "README.md").write_text(card, encoding="utf-8")
    return folder


def _dtype(asked: Export) -> Literal["bfloat16", "float32"]:
    if asked.to == "onnx" and asked.dtype == "bfloat16":
        raise UserError("--dtype bfloat16: graphs of ONNX are written in float32, leave it out")
    return asked.dtype or "float32"


def _check_free(folder: str | None) -> Path:
    path = Path(folder or "")
    if folder is not None and (path.exists() or path.is_symlink()):
        raise UserError(f"--folder {folder}: it exists, and nothing is overwritten")
    return path


def _check_name(name: str) -> str:
    if not name.strip() or not name.isprintable() or set(name) & set("/\\") or name[0] == ".":
        raise UserError(f"--name {name!r}: give a name that a folder can have")
    return name


def _make_timm(source: Source, rounded: Rounded) -> Writer:
    """Also for torchhub and safetensors: croc itself reads such a file, by its metadata."""
    files = {
        "model.safetensors": save(rounded.weights, metadata_of(source.page)),
        "config.json": _json(timm_config(source.page, source.backbone.vit.embed_dim)),
    }
    return partial(_write, files)


def _make_torchhub(source: Source, rounded: Rounded) -> Writer:
    def write(folder: Path) -> None:
        _make_timm(source, rounded)(folder)
        _write({"hubconf.py": Path(__file__).with_name("hubconf.py").read_bytes()}, folder)

    return write


def _make_transformers(source: Source, rounded: Rounded) -> Writer:
    vit = plain_vit(source.page, rounded.weights)
    check_is_vit_model(vit, source.page.model)
    files = {
        "model.safetensors": save(vit_model_weights(rounded.weights), {"format": "pt"}),
        "config.json": _json(vit_model_config(vit, source.page, rounded.facts.dtype)),
        "preprocessor_config.json": _json(image_processor_config(source.page)),
    }
    return partial(_write, files)


def _make_onnx(source: Source, rounded: Rounded) -> Writer:
    vit = plain_vit(source.page, rounded.weights)
    graph = make_graph(vit)

    def write(folder: Path) -> None:
        graph.save(folder / "model.onnx")  # weights of more than 2 GB go into a file beside it
        _write({"config.json": _json(onnx_config(source.page, vit.embed_dim))}, folder)

    return write


def _json(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


def _write(files: dict[str, bytes], folder: Path) -> None:
    for name, content in files.items():
        (folder / name).write_bytes(content)


MAKERS: dict[str, Callable[[Source, Rounded], Writer]] = {
    "timm": _make_timm,
    "transformers": _make_transformers,
    "torchhub": _make_torchhub,
    "onnx": _make_onnx,
    "safetensors": _make_timm,
}
