"""What an exported file records about its weights, and the model card beside it."""

import json
import re
import typing
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import typeguard

from croc.config import PretrainConfig, config_page
from croc.data.loader import steps_per_epoch
from croc.errors import UserError
from croc.method.photometric import IMAGENET_MEAN, IMAGENET_STD
from croc.tables import DATA_TITLES, one_line, plain_markdown
from croc.weights.checkpoint import RunWeights
from croc.weights.files import first_line, read_metadata

KEY, FORMAT = "croc", 1
LARGEST_PX = 4_096
METHODS = {"croc": "CrOC", "dino": "DINO", "mae": "MAE"}
HUB_LICENCES = (
    *("mit", "apache-2.0", "bsd-2-clause", "bsd-3-clause", "gpl-3.0", "lgpl-3.0", "agpl-3.0"),
    *("mpl-2.0", "cc0-1.0", "cc-by-4.0", "cc-by-sa-4.0", "cc-by-nc-4.0", "cc-by-nc-sa-4.0"),
)
"""Common ones that model hubs know by name."""
CITATION = """```bibtex
@inproceedings{stegmuller2023croc,
  title     = {{CrOC}: Cross-View Online Clustering for Dense Visual Representation Learning},
  author    = {Stegm{\\"u}ller, Thomas and Lebailly, Tim and Bozorgtabar, Behzad and
               Tuytelaars, Tinne and Thiran, Jean-Philippe},
  booktitle = {Proceedings of the IEEE/CVF Conference on Computer Vision and Pattern Recognition},
  year      = {2023}
}
```
"""
BASELINES = {
    "dino": "DINO is by Caron et al. (*Emerging Properties in Self-Supervised Vision "
    "Transformers*, ICCV 2021); it was trained here as a baseline of:\n\n",
    "mae": "MAE is by He et al. (*Masked Autoencoders Are Scalable Vision Learners*, CVPR 2022); "
    "it was trained here as a baseline of:\n\n",
}
CARD = """\
# {name}

Dense visual features, {learned} without labels by {method}.

| | |
|---|---|
{facts}

## Use

```python
{use}
```

## Scores

{scores}

## Configuration

```json
{config}
```

## Citation

{citation}"""
OWN_USE = """\
import croc

backbone = croc.load_backbone({name})  # or the file's path
features = backbone.features(images)  # B × 3 × h × w, normalised as ImageNet's are"""


@dataclass(frozen=True)
class WeightsRecord:
    """The metadata of an exported file. The first four values suffice to build the network,
    whatever a later version makes of `config`."""

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
    licence: str
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


def make_record(run: RunWeights, licence: str, seconds: float | None) -> WeightsRecord:
    config = config_page(without_paths(run.config), run.recipe)
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
        licence=licence,
        config=config,
    )


def read_record(path: Path) -> WeightsRecord | None:
    """None for a file that `croc export` did not write; unknown keys are ignored."""
    text = read_metadata(path).get(KEY)
    if text is None:
        return None
    try:
        values = json.loads(text)
        hints = typing.get_type_hints(WeightsRecord)
        return WeightsRecord(
            **{name: typeguard.check_type(values[name], kind) for name, kind in hints.items()}
        )
    except (ValueError, TypeError, KeyError, RecursionError, typeguard.TypeCheckError) as error:
        raise UserError(
            f"the metadata of {path} cannot be read ({first_line(error)}): export it again"
        ) from None


def without_paths(config: PretrainConfig) -> PretrainConfig:
    """Folders of the machine that trained are nobody else's business."""
    init = config.model.init
    return replace(
        config,
        data=replace(config.data, root=tuple(map(bare, config.data.root))),
        model=replace(config.model, init=None if init is None else bare(init)),
        run=replace(config.run, folder=None, stop_after_steps=None),
    )


def bare(text: str) -> str:
    """The last part of a path; of timm:NAME@FILE that of the file."""
    name, at, file = text.partition("@") if text.startswith("timm:") else ("", "", text)
    return name + at + (Path(file).name or file)


def hub_licence(licence: str) -> str | None:
    """The identifier that a note on a licence starts with, if hubs know it."""
    first = re.split(r"[\s;,]", licence.strip().lower(), maxsplit=1)[0]
    return first if first in HUB_LICENCES else None


def make_card(
    name: str,
    record: WeightsRecord,
    *,
    architecture: str,
    dtype: str,
    numbers: int,
    scores: Sequence[dict[str, Any]] = (),
    use: str | None = None,
    library: str | None = None,
) -> str:
    """Markdown, with text from outside escaped. `use` is Python that loads the weights; with a
    `library`, the card starts with the YAML that model hubs read."""
    mean, std = (f"({', '.join(map(str, values))})" for values in (IMAGENET_MEAN, IMAGENET_STD))
    init = (record.config.get("model") or {}).get("init")
    facts = {
        "architecture": f"{architecture}, timm's {record.model} with {record.depth} blocks and "
        f"patches of {record.patch_px} px, trained at {record.image_px} px",
        "weights": f"backbone of the {record.network}, {numbers:,} numbers in {dtype}, no heads",
        "images": f"RGB in 0 … 1, minus {mean}, over {std}; sides are multiples of "
        f"{record.patch_px} px",
        "recipe": f"{record.recipe}, step {record.step:,}",
        **({"started from": init} if init else {}),
        "data": " + ".join(record.data),
        "images seen": f"{record.images_seen:,} ({record.epochs:.3g} epochs)",
        "training took": "not known" if record.seconds is None else f"{record.seconds:,.0f} s",
        "licence": record.licence,
    }
    card = CARD.format(
        name=plain_markdown(name),
        # Whether the weights that it started from had seen labels is not known.
        learned="trained further" if init else "learned",
        method=plain_markdown(METHODS.get(record.method, record.method)),
        facts="\n".join(f"| {fact} | {_cell(value)} |" for fact, value in facts.items()),
        use=use.strip() if use else OWN_USE.format(name=json.dumps(name)),
        scores=_score_table(scores, dtype),
        config=json.dumps(record.config, indent=2),
        citation=BASELINES.get(record.method, "") + CITATION,
    )
    if library is None:
        return card
    licence = hub_licence(record.licence) or "other\nlicense_name: see-the-card"
    tags = (library, "self-supervised", "dense-features", "vision-transformer", record.method)
    return "\n".join(
        [
            f"---\nlicense: {licence}\nlibrary_name: {library}",
            "pipeline_tag: image-feature-extraction\ntags:",
            *(f"- {json.dumps(tag)}" for tag in tags),
            f"---\n\n{card}",
        ]
    )


def _score_table(scores: Sequence[dict[str, Any]], dtype: str) -> str:
    if not scores:
        return "None were given."
    before = "" if dtype == "float32" else f", which were float32 before they became {dtype}"
    rows = [
        f"In percent, of these weights{before}.",
        "",
        "| protocol | data | score | weights | settings |",
        "|---|---|---|---|---|",
    ]
    for line in scores:
        kind, _, path = line["data"].partition(":")
        data = DATA_TITLES.get(kind) or bare(path)
        if line.get("hold_out"):
            data += f", {100 * line['hold_out']:g}% of its training part"
        for part, unit in (("videos", "videos"), ("val", "images")):
            if part in line.get("count", {}):  # there are smaller copies of data sets
                data += f", {line['count'][part]:,} {unit}"
        metric, value = next(iter(line["scores"].items()))
        spread = line["scores"].get("deviation")
        score = f"{metric} {value:.1f}" + (f" ± {spread:.1f}" if spread is not None else "")
        settings = {**line["config"], "precision": line["machine"]["precision"]}
        weights = "as here" if line["as_here"] else "before rounding"
        shown = ", ".join(f"{name} {value}" for name, value in settings.items())
        cells = (line["protocol"], data, score, weights, shown)
        rows.append(f"| {' | '.join(map(_cell, cells))} |")
    return "\n".join(rows)


def _cell(text: str) -> str:
    return plain_markdown(one_line(text))
