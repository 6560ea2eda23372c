"""What `croc bench` takes beside a recipe's own options. Nothing here imports torch."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from croc.config import CrocConfig, require, require_least


@dataclass(frozen=True)
class BenchConfig:
    """What is measured, and where it is written."""

    steps: int = 30
    """Timed steps."""
    warmup: int = 5
    """Steps before them, the compiling ones among them."""
    to: str | None = None
    """Folder for bench.json and bench.png; by default bench/RECIPE-DATE-TIME."""
    vary: Literal["none", "batch", "tokens", "k-start", "heads", "model"] = "none"
    """What is varied, all else being the recipe's: tokens by the patches along a side of a view,
    heads by clustering the last tokens (1) or the projections of every head."""
    values: tuple[str, ...] = ()
    """Over which values; by default some around the recipe's own."""

    def __post_init__(self) -> None:
        require_least(self, "bench", 1, "steps", "warmup")
        require(self.to is None or ("\0" not in self.to and self.to != ""), "--bench.to is no path")
        require(
            self.vary != "none" or not self.values,
            "--bench.values needs --bench.vary to say of what they are values",
        )


@dataclass(frozen=True)
class BenchOptions(CrocConfig):
    """The training step of a recipe, timed part by part."""

    bench: BenchConfig = field(default_factory=BenchConfig)

    @property
    def recipe(self) -> CrocConfig:
        """Without what is the bench's own."""
        return CrocConfig(**_sections(self))


def with_bench(config: CrocConfig) -> BenchOptions:
    return BenchOptions(**_sections(config))


def _sections(config: CrocConfig) -> dict[str, Any]:
    return {each.name: getattr(config, each.name) for each in dataclasses.fields(CrocConfig)}
