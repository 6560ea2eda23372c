"""What an exported file records about its weights, and its model card."""

import json
import re
import typing
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import jinja2
import typeguard

from croc.config import PretrainConfig, config_dict
from croc.data.loader import steps_per_epoch
from croc.errors import UserError
from croc.method.photometric import IMAGENET_MEAN, IMAGENET_STD
from croc.tables import DATA_TITLES, one_line, plain_markdown
from croc.weights.checkpoint import RunWeights
from croc.weights.files import first_line, read_metadata

KEY, FORMAT = "croc", 1
LARGEST_PX = 4_096
LICENSE = "not stated; the training images have licenses of their own"
METHODS = {"croc": "CrOC", "dino": "DINO", "mae": "MAE"}
HUB_LICENSES = (
    *("mit", "apache-2.0", "bsd-2-clause", "bsd-3-clause", "gpl-3.0", "lgpl-3.0", "agpl-3.0"),
    *("mpl-2.0", "cc0-1.0", "cc-by-4.0", "cc-by-sa-4.0", "cc-by-nc-4.0", "cc-by-nc-sa-4.0"),
)
"""Common ones that model hubs know by name."""


@dataclass(frozen=True)
class WeightsRecord:
    """The metadata of an exported file. The first four values are enough to build the network,
    even if a later version cannot read `config`."""

    model: str
    """timm's name."""
    patch_px: int
    depth: int
    image_px: int
    """The images that the position embedding is for; for others it is resampled."""
    recipe: str
    method: str
    network: str
    """The teacher, or the student if the method has no teacher."""
    data: list[str]
    """The names of the data, without their folders."""
    step: int
    images_seen: int
    epochs: float
    seconds: float | None
    """Of training, if known."""
    license: str
    config: dict[str, Any]
    """The run's config.json, without paths."""
    format: int = FORMAT

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise ValueError(f"it has format {self.format}, this version reads {FORMAT}")
        if not 1 <= self.patch_px <= self.image_px <= LARGEST_PX or self.depth < 1:
            raise ValueError("its patches, images or blocks are of impossible size")

    def metadata(self) -> dict[str, str]:
        """For safetensors; "pt" is what other readers look for."""
        return {"format": "pt", KEY: json.dumps(asdict(self))}


def make_record(run: RunWeights, license: str, seconds: float | None) -> WeightsRecord:
    config = config_dict(without_paths(run.config), run.recipe)
    batch = run.config.optim.batch
    return WeightsRecord(
        model=run.config.model.name,
        patch_px=run.backbone.patch_px,
        depth=len(run.backbone.vit.blocks),
        image_px=run.config.views.size_px,
        recipe=run.recipe,
        method=config["method"],
        network=run.network,
        data=list(config["data"]["root"]),
        step=run.step,
        images_seen=run.step * batch,
        epochs=run.step / steps_per_epoch(run.images, batch),
        seconds=seconds,
        license=license,
        config=config,
    )


def read_record(path: Path) -> WeightsRecord | None:
    """None for a file that `croc export` did not write; unknown keys are ignored."""
    text = read_metadata(path).get(KEY)
    if text is None:
        return None
    try:
        values = json.loads(text)
        values.setdefault("license", values.get("licence"))  # its name in earlier versions
        hints = typing.get_type_hints(WeightsRecord)
        return WeightsRecord(
            **{name: typeguard.check_type(values[name], kind) for name, kind in hints.items()}
        )
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        RecursionError,
        typeguard.TypeCheckError,
    ) as error:
        raise UserError(
            f"the metadata of {path} cannot be read ({first_line(error)}): export it again"
        ) from None


def without_paths(config: PretrainConfig) -> PretrainConfig:
    """Without the paths of the machine that trained, which are private."""
    init = config.model.init
    return replace(
        config,
        data=replace(config.data, root=tuple(map(bare, config.data.root))),
        model=replace(config.model, init=None if init is None else bare(init)),
        run=replace(config.run, folder=None, stop_after_steps=None),
    )


def bare(text: str) -> str:
    """The last part of a path; of timm:NAME@FILE that of the file; hf:USER/NAME as it is."""
    if text.startswith("hf:"):
        return text
    name, at, file = text.partition("@") if text.startswith("timm:") else ("", "", text)
    return name + at + (Path(file).name or file)


def hub_license(license: str) -> str | None:
    """The identifier that a note on a license starts with, if hubs know it."""
    first = re.split(r"[\s;,]", license.strip().lower(), maxsplit=1)[0]
    return first if first in HUB_LICENSES else None


def make_card(
    name: str,
    record: WeightsRecord,
    scores: Sequence[dict[str, Any]] = (),
    kind: str | None = None,
    push: str | None = None,
    **facts: str | int | None,
) -> str:
    """Markdown, with text from outside escaped; `facts` are architecture, dtype, numbers, prefix
    (tokens before the patches), and of a folder its name and transformers' class.

    The card of a folder has code that loads this kind; that of what is pushed to USER/NAME loads it
    from there. Both start with the YAML for model hubs.
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
    data = DATA_TITLES.get(kind) or bare(path)
    if line.get("hold_out"):
        data += f", {100 * line['hold_out']:g}% of its training split"
    for part, unit in (("videos", "videos"), ("val", "images")):
        if part in line.get("count", {}):  # there are smaller copies of datasets
            data += f", {line['count'][part]:,} {unit}"
    metric, value = next(iter(line["scores"].items()))
    spread = line["scores"].get("deviation")
    score = f"{metric} {value:.1f}" + (f" ± {spread:.1f}" if spread is not None else "")
    settings = {**line["config"], "precision": line["machine"]["precision"]}
    shown = ", ".join(f"{name} {value}" for name, value in settings.items())
    return line["protocol"], data, score, "these" if line["as_here"] else "before rounding", shown
