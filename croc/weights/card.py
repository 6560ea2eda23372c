"""The model card of exported weights."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from croc.method.photometric import IMAGENET_MEAN, IMAGENET_STD
from croc.results import deviation_of
from croc.tables import DATA_TITLES, one_line, plain_markdown
from croc.weights.record import RunRecord, without_folder

METHODS = {"croc": "CrOC", "dino": "DINO", "mae": "MAE"}
HUB_LICENSES = (
    *("mit", "apache-2.0", "bsd-2-clause", "bsd-3-clause", "gpl-3.0", "lgpl-3.0", "agpl-3.0"),
    *("mpl-2.0", "cc0-1.0", "cc-by-4.0", "cc-by-sa-4.0", "cc-by-nc-4.0", "cc-by-nc-sa-4.0"),
)
"""Common ones that model hubs know by name."""


def hub_license(license: str) -> str | None:
    """The identifier at the start of a license note, if hubs know it."""
    first = re.split(r"[\s;,]", license.strip().lower(), maxsplit=1)[0]
    return first if first in HUB_LICENSES else None


def make_card(
    name: str,
    record: RunRecord,
    scores: Sequence[dict[str, Any]] = (),
    kind: str | None = None,
    push: str | None = None,
    **facts: str | int | None,
) -> str:
    """Markdown, with text from outside escaped. `facts` are architecture, dtype, numbers, prefix
    (the number of tokens before the patches), folder and model_class (for transformers).

    The card of a folder has code that loads this `kind` of folder; if it is pushed to USER/NAME,
    the code loads it from there. Both start with the YAML for model hubs.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["cell"] = lambda text: plain_markdown(one_line(str(text)))
    environment.filters["quoted"] = lambda text: json.dumps(text, ensure_ascii=False)
    return environment.get_template("card.md.jinja").render(
        name=name,
        record=record,
        scores=list(map(_score_row, scores)),
        kind=kind,
        push=push,
        library=_library(kind) if kind or push else None,
        hub_license=hub_license(record.license),
        init=(record.config.get("model") or {}).get("init"),
        method=METHODS.get(record.method, record.method),
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        config=json.dumps(record.config, indent=2),
        **facts,
    )


def _library(kind: str | None) -> str:
    return kind if kind in ("transformers", "onnx") else "timm" if kind else "croc"


def _score_row(line: dict[str, Any]) -> tuple[str, ...]:
    """Protocol, data, score, weights and settings of a line of results.jsonl."""
    kind, _, path = line["data"].partition(":")
    data = DATA_TITLES.get(kind) or without_folder(path)
    if line.get("hold_out"):
        data += f", {100 * line['hold_out']:g}% of its training split"
    for part, noun in (("videos", "videos"), ("val", "images")):
        if part in line.get("count", {}):  # there are smaller copies of datasets
            data += f", {line['count'][part]:,} {noun}"
    metric, value = next(iter(line["scores"].items()))
    spread = deviation_of(line["scores"], metric)
    score = f"{metric} {value:.1f}" + (f" ± {spread:.1f}" if spread is not None else "")
    settings = {**line["config"], "precision": line["machine"]["precision"]}
    weights = "these" if line["as_here"] else "before rounding"
    return (
        line["protocol"],
        data,
        score,
        weights,
        ", ".join(f"{name} {value}" for name, value in settings.items()),
    )
