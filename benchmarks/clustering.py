"""How fast the clustering is on a GPU: python -m benchmarks.clustering --variants 4:255 8:128

The kernel with some warps and registers a thread, beside the definition, the drawing of seeds and
the pooling of centroids; and how far the results are from the definition's in float64.
With --scaling FILE.png instead: how the whole grows with the batch, the tokens, K_start and heads.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from benchmarks.command import run
from benchmarks.surroundings import hardware, versions
from croc.config import ClusterConfig
from croc.kernels import use_kernels
from croc.lab.bench.curves import Curve, Point, draw_curves, say
from croc.lab.bench.served import KERNEL, clustering_by
from croc.method.clustering import draw_seeds
from croc.method.clustering.centroids import pool
from croc.method.clustering.cluster import choose, split
from croc.method.clustering.paper import paper_steps
from croc.method.croc import locate
from croc.method.types import Clusters, Tokens, Views

VARIANTS = ("4:255", "8:255", "8:128")
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


@dataclass(frozen=True)
class Sizes:
    """Of a batch; by default those of the paper's ViT-S/16."""

    images: int = 256
    heads: int = 6
    grid: int = 14
    """Patches along a side of a view."""
    width: int = 64
    """Of a head."""
    k_start: int = 12
    dtype: str = "bfloat16"


@dataclass(frozen=True)
class Batch:
    """What the teacher hands over, in the strides of its last block."""

    tokens: Tokens
    views: Views
    keys: Tensor
    config: ClusterConfig

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """As the kernel takes them."""
        saliency = self.tokens.attention / len(self.tokens.attention)
        return self.tokens.heads, self.views.positions, saliency

    @property
    def joined(self) -> tuple[Tensor, Tensor, Tensor]:
        """As the definition takes them; tokens are copied."""
        tokens, positions, saliency = self.parts
        return (
            rearrange(tokens, "m b h n d -> b h (m n) d"),
            rearrange(positions, "m b n c -> b (m n) c"),
            rearrange(saliency, "m b h n -> b h (m n)"),
        )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--images", type=int, default=Sizes.images)
    parser.add_argument("--heads", type=int, default=Sizes.heads)
    parser.add_argument("--grid", type=int, default=Sizes.grid, help="patches on a view's side")
    parser.add_argument("--width", type=int, default=Sizes.width, help="of a head")
    parser.add_argument("--k-start", type=int, default=Sizes.k_start)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default=Sizes.dtype)
    parser.add_argument("--variants", nargs="*", default=VARIANTS, help="warps:registers a thread")
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
    for what, step in steps(made_up(sizes, device), options.variants, options.compiled):
        try:
            print(f"{median_ms(step, device):8.3f} ms  {what}")
        except Exception as error:  # a variant that does not fit must not hide the others
            print(f"     none     {what}: {type(error).__name__} {str(error)[:80]}")


def made_up(sizes: Sizes, device: torch.device) -> Batch:
    """Tokens near a few directions by their place, so that K varies; peaked attention."""
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
    keys = torch.arange(B, device=device)
    return Batch(tokens, views, keys, ClusterConfig(k_start=sizes.k_start))


@torch.no_grad()
def median_ms(step: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        from triton.testing import do_bench

        taken: Any = do_bench(step, warmup=10, rep=60, return_mode="median")
        return taken
    step()
    taken = []
    for _ in range(3):
        begun = time.perf_counter()
        step()
        taken.append(1e3 * (time.perf_counter() - begun))
    return statistics.median(taken)


def define(tokens: Tensor, positions: Tensor, saliency: Tensor, seeds: Tensor, config) -> Clusters:
    """`cluster` without the kernel."""
    tokens = tokens if tokens.dtype == torch.float64 else tokens.float()
    found = paper_steps(F.normalize(tokens, dim=-1), positions, saliency, seeds, config)
    return split(*choose(found, config), config, 2)


@torch.no_grad()
def steps(
    batch: Batch, variants: Sequence[str], compiled: bool
) -> Iterator[tuple[str, Callable[[], object]]]:
    from croc.kernels import clustering as kernel

    config, joined = batch.config, batch.joined
    seeds = draw_seeds(joined[2], config.k_start, batch.keys)
    tokens, positions, saliency = (x.double() for x in joined)
    exact = define(tokens, positions, saliency, seeds, config)
    for variant in variants:
        launch = kernel_variant(batch, seeds, variant)
        yield f"kernel, warps:registers {variant}", launch
        print(f"{'':13}{distance(Clusters(*launch()), exact)}")

    plain = define(*joined, seeds, config)
    print(f"{'':13}the definition in float32: {distance(plain, exact)}")
    draw = torch.compile(draw_seeds)
    yield "seeds, compiled", lambda: draw(joined[2], config.k_start, batch.keys)
    found = kernel.cluster_views(*batch.parts, seeds, config)
    pooled, given = torch.compile(pool), batch.tokens
    yield (
        "pooling, compiled",
        lambda: pooled(given.patches, found.assignments, given.cls, config),
    )
    yield "joining, seeds, kernel and pooling, compiled", training_step(batch, compiles=True)
    yield "definition, eager", lambda: define(*joined, seeds, config)
    if compiled:
        whole = torch.compile(define)
        yield "definition, compiled", lambda: whole(*joined, seeds, config)


def kernel_variant(batch: Batch, seeds: Tensor, variant: str) -> Callable[[], tuple[Tensor, ...]]:
    from croc.kernels import clustering as kernel

    warps, registers = (int(number) for number in variant.split(":"))
    given = (*batch.parts, seeds, *kernel.settings(batch.config))
    return lambda: kernel.launch(*given, num_warps=warps, maxnreg=registers)


def distance(found: Clusters, exact: Clusters) -> str:
    """Pairs of image and head in which a decision fell otherwise, and the error in the rest."""
    error = (found.assignments - exact.assignments).abs().amax(dim=(0, 3, 4))
    other = (found.count != exact.count) | (error > 0.01)
    return (
        f"{other.float().mean():.3%} of pairs differ, else error {error[~other].max():.1e}, "
        f"cost {(found.cost - exact.cost)[~other].abs().max():.1e}, "
        f"mean K {found.count.float().mean():.2f}"
    )


def training_step(batch: Batch, compiles: bool) -> Callable[[], Tensor]:
    """The clustering as a training step does it: saliency, seeds, joining, clusters, centroids."""
    find, gather = locate, pool
    if compiles:
        find, gather = torch.compile(locate, dynamic=False), torch.compile(pool, dynamic=False)
    tokens = batch.tokens

    def step() -> Tensor:
        found = find(tokens, batch.views, batch.keys, batch.config)
        return gather(tokens.patches, found.assignments, tokens.cls, batch.config)

    return step


def measure_curves(
    curves: dict[str, tuple[int, ...]], base: Sizes, device: torch.device
) -> list[Curve]:
    """Where the kernel cannot serve all of a curve, the definition is measured on it, too."""
    known: dict[tuple[Sizes, str], float] = {}
    found = []
    for quantity, values in curves.items():
        settings = {value: replace(base, **{quantity: value}) for value in values}
        by = {value: _served(sizes, device) for value, sizes in settings.items()}
        points = []
        for way in dict.fromkeys(by.values()):
            for value, sizes in settings.items():
                if way == KERNEL and by[value] != KERNEL:
                    continue
                if (sizes, way) not in known:
                    known[sizes, way] = _clustering_ms(sizes, way, device)
                at = 2 * value**2 if quantity == "grid" else value
                points.append(Point(at, known[sizes, way], way))
                print(f"{points[-1].ms:10.3f} ms  {way:11}{QUANTITIES[quantity]}: {at}", flush=True)
        found.append(Curve(QUANTITIES[quantity], tuple(points)))
    return found


def _served(sizes: Sizes, device: torch.device) -> str:
    shape = (2, 1, sizes.heads, sizes.grid**2, sizes.width)
    tokens = torch.empty(shape, dtype=getattr(torch, sizes.dtype), device=device)
    return clustering_by(tokens, ClusterConfig(k_start=sizes.k_start))


def _clustering_ms(sizes: Sizes, by: str, device: torch.device) -> float:
    """Compiled with the kernel; eager by the definition, which takes a minute to compile."""
    torch.compiler.reset()
    use_kernels(by == KERNEL)
    try:
        return median_ms(training_step(made_up(sizes, device), compiles=by == KERNEL), device)
    finally:
        use_kernels(True)


def write_scaling(path: Path, curves: list[Curve], base: Sizes, device: torch.device) -> None:
    """The picture, and all of its numbers in a JSON file beside it."""
    page = {
        "date": datetime.now(UTC).date().isoformat(),
        "hardware": hardware(device),
        "versions": versions(),
        "base": asdict(base),
        "curves": [curve.describe() for curve in curves],
    }
    for curve in curves:
        for way in curve.ways:
            print(f"{curve.quantity}, {way}: {say(curve.line(way))}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").write_text(json.dumps(page, indent=1, ensure_ascii=False) + "\n")
    where = f"{hardware(device)['gpu']}, torch {versions()['torch']}"
    sizes = f"{base.images} images, 2 × {base.grid}² tokens, K_start {base.k_start}"
    title = f"Clustering with seeds and pooling, {where}; else {sizes}, {base.heads} heads"
    draw_curves(curves, title, path)


if __name__ == "__main__":
    run(main)
