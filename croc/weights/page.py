"""What a file of `croc export` says of itself, in the metadata of its safetensors.

Its values are checked one by one when they are read; nothing of them is run.
"""

import json
import math
import typing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import typeguard

from croc.config import PretrainConfig
from croc.data.loader import steps_per_epoch
from croc.errors import UserError
from croc.train.run_folder import config_page
from croc.weights.files import first_line, read_metadata
from croc.weights.runs import RunWeights

KEY = "croc"
FORMAT = 1
LONGEST = 1_000_000
LARGEST_PX = 4_096


@dataclass(frozen=True)
class WeightsPage:
    """The first four are enough to build the network, whatever a later version makes of `config`"""

    model: str
    """timm's name."""
    patch_px: int
    depth: int
    image_px: int
    """The images that the position embedding is for; others are resampled to."""
    recipe: str
    method: str
    network: str
    """The teacher, or the student where a method has none."""
    data: list[str]
    """What the data were called, without where they lay."""
    step: int
    images_seen: int
    epochs: float
    seconds: float | None
    """Of training, if the run's metrics tell."""
    licence: str
    config: dict[str, Any]
    """The run's config.json, without paths."""
    format: int = FORMAT

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise ValueError(f"it has format {self.format}, this version reads {FORMAT}")
        if not 1 <= self.patch_px <= self.image_px <= LARGEST_PX or self.depth < 1:
            raise ValueError("its patches, images or blocks are of impossible size")
        if len(self.model) > 100 or not math.isfinite(self.epochs):
            raise ValueError("its values are impossible")


def page_of(run: RunWeights, licence: str, seconds: float | None) -> WeightsPage:
    vit, config = run.backbone.vit, run.config
    page = config_page(without_paths(config), run.recipe)
    return WeightsPage(
        model=config.model.name,
        patch_px=run.backbone.patch_px,
        depth=len(vit.blocks),
        image_px=config.views.size_px,
        recipe=run.recipe,
        method=page["method"],
        network=run.network,
        data=list(map(bare, config.data.root)),
        step=run.step,
        images_seen=run.step * config.optim.batch,
        epochs=run.step / steps_per_epoch(run.images, config.optim.batch),
        seconds=seconds,
        licence=licence,
        config=page,
    )


def without_paths(config: PretrainConfig) -> PretrainConfig:
    """Where things lay on someone's machine is nobody else's affair."""
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


def metadata_of(page: WeightsPage) -> dict[str, str]:
    """ "pt" is what other readers of safetensors look for."""
    return {"format": "pt", KEY: json.dumps(asdict(page))}


def read_page(path: Path) -> WeightsPage | None:
    """None for a file that `croc export` did not write."""
    text = read_metadata(path).get(KEY)
    if text is None:
        return None
    try:
        if len(text) > LONGEST:
            raise ValueError("it is too long")
        return _parse(json.loads(text))
    except (ValueError, TypeError, KeyError, RecursionError, typeguard.TypeCheckError) as error:
        raise UserError(
            f"what {path} says of itself cannot be read ({first_line(error)}): export it again"
        ) from None


def _parse(held: Any) -> WeightsPage:
    """Types are checked; unknown keys are ignored: `context` of earlier files, later additions."""
    hints = typing.get_type_hints(WeightsPage)
    values = {name: typeguard.check_type(held[name], kind) for name, kind in hints.items()}
    return WeightsPage(**values)
