"""How fast the clustering is on a GPU: python -m benchmarks.clustering --variants 4:255 8:128

The kernel with some warps and registers per thread, beside the definition, the drawing of seeds
and the pooling of centroids; and how far the results are from the definition's in float64.
With --scaling FILE.png instead: how the whole grows with the batch, the tokens, K_start and heads.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from benchmarks.common import run, write_json
from croc.config import ClusterConfig
from croc.io import gpu_versions, hardware
from croc.kernels import use_kernels
from croc.lab.bench import clustering_by
from croc.method.clustering import draw_seeds
from croc.method.clustering.paper import choose, paper_steps, pool, split
from croc.method.croc import cluster_tokens
from croc.method.types import Clusters, Tokens, Views

CURVES = {
    "images": (32, 64, 128, 256, 512),
    "grid": (7, 10, 14, 16, 20, 24, 28),
    "k_start": (4, 8, 12, 24, 32),
    "heads": (1, 3, 6, 12, 16),
}
QUANTITIES = {
    "images": "images in a batch",
    "grid": "tokens of an image's two views",
    "k_start": "K_start",
    "heads": "heads",
}
STYLES: dict[str, dict[str, Any]] = {
    "kernel": {"color": "#0072B2", "marker": "o", "ls": "-"},
    "definition": {"color": "#D55E00", "marker": "s", "ls": ":", "mfc": "white"},
}


@dataclass(frozen=True)
class Sizes:
    """Of a batch; by default those of the paper's ViT-S/16. `grid` is the patches along a side of
    a view, `width` that of a head."""

    images: int = 256
    heads: int = 6
    grid: int = 14
    width: int = 64
    k_start: int = 12
    dtype: str = "bfloat16"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name, default in asdict(Sizes()).items():
        flag = f"--{name.replace('_', '-')}"
        choices = ("bfloat16", "float32") if name == "dtype" else None
        parser.add_argument(flag, type=type(default), default=default, choices=choices)
    variants = ("4:255", "8:255", "8:128")
    parser.add_argument("--variants", nargs="*", default=variants, help="warps:registers")
    parser.add_argument("--compiled", action="store_true", help="the definition compiled, too")
    parser.add_argument("--scaling", metavar="FILE.png", help="draw how it grows; JSON beside it")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.error("this times kernels, and there is no GPU here")
    sizes = Sizes(**{name: getattr(options, name) for name in asdict(Sizes())})
    device = torch.device("cuda")
    print(hardware(device)["gpu"], sizes)
    if options.scaling:
        write_scaling(Path(options.scaling), measure_curves(CURVES, sizes, device), sizes, device)
        return
    for what, step in steps(sizes, device, options.variants, options.compiled):
        try:
            print(f"{median_ms(step, device):8.3f} ms  {what}")
        except Exception as error:  # a variant that does not fit must not hide the others
            print(f"     none     {what}: {type(error).__name__} {str(error)[:80]}")


def synthetic_batch(sizes: Sizes, device: torch.device) -> tuple[Tokens, Views, Tensor]:
    """The teacher's tokens in the strides of its last block, near a few directions by their place,
    so that K varies; peaked attention; and the samples' keys."""
    B, H, d, side = sizes.images, sizes.heads, sizes.width, sizes.grid
    draw, N, dtype = torch.Generator(device).manual_seed(0), side**2, getattr(torch, sizes.dtype)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, device=device)

    corners, sides = noise(2, B, 1, 2).sigmoid() / 2, noise(2, B, 1, 2).sigmoid() / 2
    line = torch.linspace(0, 1, side, device=device)
    positions = corners + sides * torch.cartesian_prod(line, line)
    place = (positions[..., None, :] - noise(B, 1, 5, 2).sigmoid()).norm(dim=-1).argmin(dim=-1)
    directions = noise(B, 5, H, d)[torch.arange(B, device=device)[:, None], place]
    qkv = noise(2, B, 1 + N, 3, H, d)
    qkv[:, :, 1:] = 0.5 * qkv[:, :, 1:] + directions[:, :, :, None]
    values = qkv.to(dtype)[:, :, :, 2].movedim(3, 2)
    tokens = Tokens(
        cls=noise(2, B, H * d).to(dtype),
        patches=noise(2, B, N, H * d).to(dtype),
        heads=values[:, :, :, 1:],
        cls_heads=values[:, :, :, 0],
        attention=(1.5 * noise(2, B, H, N)).softmax(dim=-1),
    )
    views = Views(pixels=noise(2, B, 3, 1, 1), positions=positions)
    return tokens, views, torch.arange(B, device=device)


@torch.no_grad()
def median_ms(step: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        from triton.testing import do_bench

        taken: Any = do_bench(step, warmup=10, rep=60, return_mode="median")
        return taken
    moments = [time.perf_counter()]
    for _ in range(4):
        step()
        moments.append(time.perf_counter())
    return 1e3 * statistics.median(np.diff(moments)[1:])


def define(tokens: Tensor, positions: Tensor, saliency: Tensor, seeds: Tensor, config) -> Clusters:
    """`cluster` without the kernel."""
    tokens = tokens if tokens.dtype == torch.float64 else tokens.float()
    steps = paper_steps(F.normalize(tokens, dim=-1), positions, saliency, seeds, config)
    return split(*choose(steps, config), config, 2)


@torch.no_grad()
def steps(
    sizes: Sizes, device: torch.device, variants: Sequence[str], compiled: bool
) -> Iterator[tuple[str, Callable[[], object]]]:
    from croc.kernels import clustering as kernel

    config = ClusterConfig(k_start=sizes.k_start)
    tokens, views, keys = synthetic_batch(sizes, device)
    parts = tokens.heads, views.positions, tokens.attention / 2
    joined = (
        rearrange(parts[0], "m b h n d -> b h (m n) d"),
        rearrange(parts[1], "m b n c -> b (m n) c"),
        rearrange(parts[2], "m b h n -> b h (m n)"),
    )
    seeds = draw_seeds(joined[2], config.k_start, keys)
    in_float64 = joined[0].double(), joined[1].double(), joined[2].double()
    exact = define(*in_float64, seeds, config)
    for variant in variants:
        warps, registers = map(int, variant.split(":"))
        options = {"num_warps": warps, "maxnreg": registers}

        def launch(options=options) -> tuple[Tensor, ...]:
            return kernel.launch(*parts, seeds, *kernel.settings(config), **options)

        yield f"kernel, warps:registers {variant}", launch
        print(f"{'':13}{distance(Clusters(*launch()), exact)}")

    plain = define(*joined, seeds, config)
    print(f"{'':13}the definition in float32: {distance(plain, exact)}")
    draw = torch.compile(draw_seeds)
    yield "seeds, compiled", lambda: draw(joined[2], config.k_start, keys)
    assignments, pooled = (
        kernel.cluster_views(*parts, seeds, config).assignments,
        torch.compile(pool),
    )
    yield "pooling, compiled", lambda: pooled(tokens.patches, assignments, tokens.cls, config)
    yield "joining, seeds, kernel and pooling, compiled", training_step(sizes, device, True)
    yield "definition, eager", lambda: define(*joined, seeds, config)
    if compiled:
        whole = torch.compile(define)
        yield "definition, compiled", lambda: whole(*joined, seeds, config)


def distance(clusters: Clusters, exact: Clusters) -> str:
    """Pairs of image and head in which a decision differs, and the error in the rest."""
    error = (clusters.assignments - exact.assignments).abs().amax(dim=(0, 3, 4))
    other = (clusters.count != exact.count) | (error > 0.01)
    return (
        f"{other.float().mean():.3%} of pairs differ, else error {error[~other].max():.1e}, "
        f"cost {(clusters.cost - exact.cost)[~other].abs().max():.1e}, "
        f"mean K {clusters.count.float().mean():.2f}"
    )


def training_step(sizes: Sizes, device: torch.device, compiled: bool) -> Callable[[], Tensor]:
    """The clustering as a training step does it: saliency, seeds, joining, clusters, centroids."""
    config, (tokens, views, keys) = (
        ClusterConfig(k_start=sizes.k_start),
        synthetic_batch(sizes, device),
    )
    find, gather = cluster_tokens, pool
    if compiled:
        find, gather = (
            torch.compile(cluster_tokens, dynamic=False),
            torch.compile(pool, dynamic=False),
        )

    def step() -> Tensor:
        assignments = find(tokens, views, keys, config).assignments
        return gather(tokens.patches, assignments, tokens.cls, config)

    return step


def fit_line(x: Sequence[float | int], y: Sequence[float | int]) -> dict[str, float] | None:
    """Least squares; `worst` is the largest |y − line| / y. None for fewer than three points."""
    if len(set(x)) < 3:
        return None
    across, up = np.asarray(x, float), np.asarray(y, float)
    slope, intercept = np.polyfit(across, up, 1)
    off = up - (slope * across + intercept)
    spread = ((up - up.mean()) ** 2).sum()
    r2 = 1.0 if spread == 0 else 1 - (off**2).sum() / spread
    line = {"slope": slope, "intercept": intercept, "r2": r2, "worst": (abs(off) / up).max()}
    return {name: float(value) for name, value in line.items()}


def describe_line(line: dict[str, float] | None) -> str:
    if line is None:
        return "too few points for a line"
    return f"R² {line['r2']:.4f}, off by {line['worst']:.1%} at most"


def measure_curves(
    curves: dict[str, tuple[int, ...]], base: Sizes, device: torch.device
) -> list[dict[str, Any]]:
    """Time against one quantity at a time. Where the kernel cannot do all of a curve, the
    definition is measured on all of it too."""
    known: dict[tuple[Sizes, str], float] = {}
    measured: list[dict[str, Any]] = []
    for quantity, values in curves.items():
        settings = [replace(base, **{quantity: value}) for value in values]
        served = [_served(sizes, device) for sizes in settings]
        points: list[dict[str, Any]] = []
        lines: dict[str, dict[str, float] | None] = {}
        for way in dict.fromkeys(served):
            for value, sizes, by in zip(values, settings, served):
                if way == "kernel" and by != "kernel":
                    continue
                if (sizes, way) not in known:
                    known[sizes, way] = _clustering_ms(sizes, way, device)
                x, ms = 2 * value**2 if quantity == "grid" else value, known[sizes, way]
                points.append({"value": x, "ms": ms, "by": way})
                print(f"{ms:10.3f} ms  {way:11}{QUANTITIES[quantity]}: {x}", flush=True)
            lines[way] = fit_line(*_points_of(points, way))
        measured.append({"quantity": QUANTITIES[quantity], "points": points, "lines": lines})
    return measured


def _points_of(points: list[dict[str, Any]], way: str) -> tuple[list[int], list[float]]:
    chosen = [point for point in points if point["by"] == way]
    return [point["value"] for point in chosen], [point["ms"] for point in chosen]


def _served(sizes: Sizes, device: torch.device) -> str:
    shape = (2, 1, sizes.heads, sizes.grid**2, sizes.width)
    tokens = torch.empty(shape, dtype=getattr(torch, sizes.dtype), device=device)
    return clustering_by(tokens, ClusterConfig(k_start=sizes.k_start))


def _clustering_ms(sizes: Sizes, by: str, device: torch.device) -> float:
    """Compiled with the kernel; eager by the definition, which takes a minute to compile."""
    torch.compiler.reset()
    use_kernels(by == "kernel")
    try:
        return median_ms(training_step(sizes, device, by == "kernel"), device)
    finally:
        use_kernels(True)


def write_scaling(
    path: Path, curves: list[dict[str, Any]], base: Sizes, device: torch.device
) -> None:
    """The picture, and all of its numbers in a JSON file beside it."""
    write_json(path.with_suffix(".json"), device, base=asdict(base), curves=curves)
    rows = (len(curves) + 1) // 2
    figure = Figure(figsize=(10, 3.7 * rows + 0.3), dpi=120, layout="constrained")
    for axes, curve in zip(figure.subplots(rows, 2, squeeze=False).flat, curves):
        draw_curve(axes, curve)
        for way, line in curve["lines"].items():
            print(f"{curve['quantity']}, {way}: {describe_line(line)}")
    title = (
        f"Clustering with seeds and pooling, {hardware(device)['gpu']}, torch "
        f"{gpu_versions()['torch']}; else {base.images} images, 2 × {base.grid}² tokens, "
        f"K_start {base.k_start}, {base.heads} heads"
    )
    figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    figure.savefig(path)


def draw_curve(axes: Axes, curve: dict[str, Any]) -> None:
    """On logarithmic scales if both ways are shown: their times are far apart."""
    for way, line in curve["lines"].items():
        x, y = _points_of(curve["points"], way)
        axes.plot(x, y, **STYLES[way], lw=1.3, ms=5, label=way)
        if line:
            across = np.linspace(x[0], x[-1], 200)
            up = line["slope"] * across + line["intercept"]
            shown = up > 0.5 * min(y)
            label = f"line: {describe_line(line)}"
            axes.plot(across[shown], up[shown], "--", color="#777777", lw=1.2, label=label)
    axes.set_title(curve["quantity"], fontsize=9, loc="left")
    axes.set_ylabel("ms", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    if len(curve["lines"]) > 1:
        ticks = sorted({point["value"] for point in curve["points"]})
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_ylabel("ms, both scales logarithmic", fontsize=8)
        axes.set_ylim(top=6 * max(point["ms"] for point in curve["points"]))
    else:
        axes.set_xlim(left=0)
        axes.set_ylim(0, 1.25 * max(point["ms"] for point in curve["points"]))
    axes.legend(fontsize=8, frameon=False, loc="upper left")


if __name__ == "__main__":
    run(main)
