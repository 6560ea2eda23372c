"""How fast the clustering is on a GPU: python -m benchmarks.clustering --variants 4:255 8:128

The kernel with some warps and registers a thread, beside the definition, the drawing of seeds and
the pooling of centroids; and how far the results are from the definition's in float64.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor
from triton.testing import do_bench

from benchmarks.surroundings import hardware
from croc.clustering import cluster, draw_seeds
from croc.clustering import kernel as on_chip
from croc.clustering.centroids import pool
from croc.clustering.cluster import choose, split
from croc.clustering.paper import paper_steps
from croc.config import ClusterConfig
from croc.types import Clusters

VARIANTS = ("4:255", "8:255", "8:128")


@dataclass(frozen=True)
class Batch:
    """What the teacher hands over, in the strides of its last block."""

    heads: Tensor
    positions: Tensor
    attention: Tensor
    patches: Tensor
    cls: Tensor
    keys: Tensor
    config: ClusterConfig

    @property
    def joined(self) -> tuple[Tensor, Tensor, Tensor]:
        """As `cluster` takes them; tokens are copied."""
        return (
            rearrange(self.heads, "m b h n d -> b h (m n) d"),
            rearrange(self.positions, "m b n c -> b (m n) c"),
            rearrange(self.attention / len(self.heads), "m b h n -> b h (m n)"),
        )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--grid", type=int, default=14, help="patches along a side of a view")
    parser.add_argument("--width", type=int, default=64, help="of a head")
    parser.add_argument("--k-start", type=int, default=12)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--variants", nargs="*", default=VARIANTS, help="warps:registers a thread")
    parser.add_argument("--compiled", action="store_true", help="the definition compiled, too")
    options = parser.parse_args(arguments)
    module: Any = import_module("croc.clustering.cluster")
    module.KERNEL = True
    batch = made_up(options)
    print(hardware(batch.heads.device)["gpu"], f"{options.images} images", batch.heads.dtype)
    for what, step in steps(batch, options):
        try:
            print(f"{do_bench(step, warmup=10, rep=60, return_mode='median'):8.3f} ms  {what}")
        except Exception as error:  # a variant that does not fit must not hide the others
            print(f"     none     {what}: {type(error).__name__} {str(error)[:80]}")


def made_up(options: argparse.Namespace) -> Batch:
    """Tokens near a few directions by their place, so that K varies; peaked attention."""
    B, H, d, side = options.images, options.heads, options.width, options.grid
    draw, N = torch.Generator("cuda").manual_seed(0), side**2

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, device="cuda")

    corners, sides = noise(2, B, 1, 2).sigmoid() / 2, noise(2, B, 1, 2).sigmoid() / 2
    line = torch.linspace(0, 1, side, device="cuda")
    positions = corners + sides * torch.cartesian_prod(line, line)
    place = (positions[..., None, :] - noise(B, 1, 5, 2).sigmoid()).norm(dim=-1).argmin(dim=-1)
    directions = noise(B, 5, H, d)[torch.arange(B, device="cuda")[:, None], place]
    qkv = noise(2, B, 1 + N, 3, H, d)
    qkv[:, :, 1:] = 0.5 * qkv[:, :, 1:] + directions[:, :, :, None]
    D = H * d
    return Batch(
        heads=qkv.to(getattr(torch, options.dtype))[:, :, 1:, 2].movedim(3, 2),
        positions=positions,
        attention=(1.5 * noise(2, B, H, N)).softmax(dim=-1),
        patches=noise(2, B, N, D).to(getattr(torch, options.dtype)),
        cls=noise(2, B, D).to(getattr(torch, options.dtype)),
        keys=torch.arange(B, device="cuda"),
        config=ClusterConfig(k_start=options.k_start),
    )


def define(tokens: Tensor, positions: Tensor, saliency: Tensor, seeds: Tensor, config) -> Clusters:
    """`cluster` without the kernel."""
    tokens = tokens if tokens.dtype == torch.float64 else tokens.float()
    found = paper_steps(F.normalize(tokens, dim=-1), positions, saliency, seeds, config)
    return split(*choose(found, config), config, 2)


@torch.no_grad()
def steps(batch: Batch, options: argparse.Namespace) -> Iterator[tuple[str, Callable[[], object]]]:
    config, joined = batch.config, batch.joined
    seeds = draw_seeds(joined[2], config.k_start, batch.keys)
    tokens, positions, saliency = (x.double() for x in joined)
    exact = define(tokens, positions, saliency, seeds, config)
    inputs = batch.heads, batch.positions, batch.attention
    for variant in options.variants:
        launch = kernel_variant(inputs, seeds, config, variant)
        yield f"kernel, warps:registers {variant}", launch
        print(f"{'':13}{distance(Clusters(*launch()), exact)}")

    plain = define(*joined, seeds, config)
    print(f"{'':13}the definition in float32: {distance(plain, exact)}")
    draw = torch.compile(draw_seeds)
    yield "seeds, compiled", lambda: draw(joined[2], config.k_start, batch.keys)
    found = on_chip.cluster_views(*inputs, seeds, config)
    pooled = torch.compile(pool)
    yield "pooling, compiled", lambda: pooled(batch.patches, found.assignments, batch.cls, config)

    def locate() -> Tensor:
        clusters = cluster(*batch.joined, config, keys=batch.keys)
        return pool(batch.patches, clusters.assignments, batch.cls, config)

    yield "joining, seeds, kernel and pooling, compiled", torch.compile(locate, fullgraph=True)
    yield "definition, eager", lambda: define(*joined, seeds, config)
    if options.compiled:
        compiled = torch.compile(define)
        yield "definition, compiled", lambda: compiled(*joined, seeds, config)


def kernel_variant(
    inputs: tuple[Tensor, Tensor, Tensor], seeds: Tensor, config: ClusterConfig, variant: str
) -> Callable[[], tuple[Tensor, ...]]:
    warps, registers = (int(number) for number in variant.split(":"))
    given = on_chip.settings(config)
    return lambda: on_chip.launch(*inputs, seeds, *given, num_warps=warps, maxnreg=registers)


def distance(found: Clusters, exact: Clusters) -> str:
    """Pairs of image and head in which a decision fell otherwise, and the error in the rest."""
    error = (found.assignments - exact.assignments).abs().amax(dim=(0, 3, 4))
    other = (found.count != exact.count) | (error > 0.01)
    return (
        f"{other.float().mean():.3%} of pairs differ, else error {error[~other].max():.1e}, "
        f"cost {(found.cost - exact.cost)[~other].abs().max():.1e}, "
        f"mean K {found.count.float().mean():.2f}"
    )


if __name__ == "__main__":
    main()
