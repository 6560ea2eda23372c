"""The options of `croc bench` beside a recipe's own. Nothing here imports torch."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from croc.config import CrocConfig, require, require_least


@dataclass(frozen=True)
class BenchConfig:
    """What to measure, and where to write the results."""

    steps: int = 30
    """Number of timed steps."""
    warmup: int = 5
    """Untimed warm-up steps before them; the first ones compile."""
    to: str | None = None
    """Folder for bench.json and bench.png; by default bench/RECIPE-DATE-TIME."""
    vary: Literal["none", "batch", "tokens", "k-start", "heads", "model"] = "none"
    """What to vary, with the rest of the recipe fixed: tokens by the number of patches per side of
    a view, heads by clustering the output tokens (1) or the projections of every head."""
    values: tuple[str, ...] = ()
    """Values to measure; by default a few around the recipe's own."""

    def __post_init__(self) -> None:
        require_least(self, "bench", 1, "steps", "warmup")
        require(
            self.to is None or (self.to != "" and "\0" not in self.to), "--bench.to: not a path"
        )
        require(self.vary != "none" or not self.values, "--bench.values needs --bench.vary")


@dataclass(frozen=True)
class BenchOptions(CrocConfig):
    """Time the training step of a recipe, stage by stage."""

    bench: BenchConfig = field(default_factory=BenchConfig)

    @property
    def recipe(self) -> CrocConfig:
        """Without the bench's own options."""
        return CrocConfig(**_sections(self))


def with_bench(config: CrocConfig) -> BenchOptions:
    return BenchOptions(**_sections(config))


def _sections(config: CrocConfig) -> dict[str, Any]:
    return {each.name: getattr(config, each.name) for each in dataclasses.fields(CrocConfig)}
