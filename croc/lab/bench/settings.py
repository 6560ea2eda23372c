"""The settings that a bench goes through: the recipe's, or variations of it by one quantity."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from croc.config import CrocConfig
from croc.errors import UserError
from croc.lab.bench.options import BenchConfig
from croc.method.backbone import Backbone
from croc.method.clustering.cluster import check_k_start
from croc.method.views import VIEWS

MODELS = tuple(f"vit_{size}_patch16_224" for size in ("tiny", "small", "base"))


@dataclass(frozen=True)
class Sizes:
    """What the network makes of a configuration."""

    batch: int
    tokens: int
    """Of all views of an image."""
    side: int
    """Patches along a side of a view."""
    patch_px: int
    k_start: int
    heads: int
    """That are clustered."""
    attention_heads: int
    model: str


@dataclass(frozen=True)
class Setting:
    """One configuration to be measured."""

    label: str
    value: int | str
    """Of what is varied."""
    config: CrocConfig
    sizes: Sizes


def plan(config: CrocConfig, bench: BenchConfig) -> list[Setting]:
    """All settings, each checked, so that none fails when hours have passed."""
    base = sizes_of(config)
    if bench.vary == "none":
        return [Setting(f"batch {base.batch}", base.batch, config, base)]
    variation = VARIATIONS[bench.vary]
    values = dict.fromkeys(bench.values or variation.defaults(base))
    settings = list(_varied(config, base, bench.vary, tuple(values)))
    return sorted(settings, key=_order) if bench.vary != "model" else settings


def sizes_of(config: CrocConfig) -> Sizes:
    """As the method would, it refuses views, patches and K_start that do not go together."""
    backbone = Backbone(config.model, config.views.size_px)
    side = config.views.size_px // backbone.patch_px
    tokens = VIEWS * side**2
    check_k_start(config.cluster.k_start, tokens)
    last: Any = backbone.vit.blocks[-1]
    return Sizes(
        batch=config.optim.batch,
        tokens=tokens,
        side=side,
        patch_px=backbone.patch_px,
        k_start=config.cluster.k_start,
        heads=1 if config.cluster.tokens == "last" else last.attn.num_heads,
        attention_heads=last.attn.num_heads,
        model=config.model.name,
    )


@dataclass(frozen=True)
class Variation:
    """How the configuration follows one quantity."""

    defaults: Callable[[Sizes], Sequence[str]]
    change: Callable[[CrocConfig, Sizes, str], CrocConfig]
    value: Callable[[Sizes], int | str]
    label: Callable[[Sizes], str]


def _varied(
    config: CrocConfig, base: Sizes, what: str, values: tuple[str, ...]
) -> Iterator[Setting]:
    variation = VARIATIONS[what]
    for value in values:
        changed = variation.change(config, base, value)
        sizes = sizes_of(changed)
        yield Setting(variation.label(sizes), variation.value(sizes), changed, sizes)


def _order(setting: Setting) -> int:
    assert not isinstance(setting.value, str)
    return setting.value


def _number(value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise UserError(f"--bench.values takes whole numbers from 1 on here: {value}")
    return int(value)


def _with_batch(config: CrocConfig, base: Sizes, value: str) -> CrocConfig:
    return replace(config, optim=replace(config.optim, batch=_number(value)))


def _with_side(config: CrocConfig, base: Sizes, value: str) -> CrocConfig:
    return replace(config, views=replace(config.views, size_px=base.patch_px * _number(value)))


def _with_k_start(config: CrocConfig, base: Sizes, value: str) -> CrocConfig:
    return replace(config, cluster=replace(config.cluster, k_start=_number(value)))


def _with_heads(config: CrocConfig, base: Sizes, value: str) -> CrocConfig:
    """At one width of the network there is no other honest choice than these two."""
    if _number(value) == 1:
        return replace(config, cluster=replace(config.cluster, tokens="last"))
    if _number(value) != base.attention_heads:
        raise UserError(
            f"--bench.values for heads are 1 (the last tokens) and {base.attention_heads} "
            f"({base.model}'s own), not {value}; for others vary model, or see "
            "benchmarks/clustering.py"
        )
    tokens = "values" if config.cluster.tokens == "last" else config.cluster.tokens
    return replace(config, cluster=replace(config.cluster, tokens=tokens))


def _with_model(config: CrocConfig, base: Sizes, value: str) -> CrocConfig:
    return replace(config, model=replace(config.model, name=value))


def _scaled(number: int, *factors: float | int) -> list[str]:
    return [str(max(1, round(number * factor))) for factor in factors]


def _usual_k_starts(base: Sizes) -> list[str]:
    return [str(k) for k in (4, 8, 12, 16, 24, 32) if k <= base.tokens]


VARIATIONS = {
    "batch": Variation(
        defaults=lambda base: _scaled(base.batch, 0.25, 0.5, 1, 2),
        change=_with_batch,
        value=lambda sizes: sizes.batch,
        label=lambda sizes: f"{sizes.batch}",
    ),
    "tokens": Variation(
        defaults=lambda base: _scaled(base.side, 0.5, 0.7, 1, 1.4, 2),
        change=_with_side,
        value=lambda sizes: sizes.tokens,
        label=lambda sizes: f"{VIEWS} × {sizes.side}²",
    ),
    "k-start": Variation(
        defaults=_usual_k_starts,
        change=_with_k_start,
        value=lambda sizes: sizes.k_start,
        label=lambda sizes: f"{sizes.k_start}",
    ),
    "heads": Variation(
        defaults=lambda base: ("1", str(base.attention_heads)),
        change=_with_heads,
        value=lambda sizes: sizes.heads,
        label=lambda sizes: f"{sizes.heads}",
    ),
    "model": Variation(
        defaults=lambda base: MODELS,
        change=_with_model,
        value=lambda sizes: sizes.model,
        label=lambda sizes: sizes.model,
    ),
}
