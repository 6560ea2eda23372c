"""How fast the clustering is on a GPU: python -m benchmarks.clustering --variants 4:255 8:128

The kernel with some warps and registers per thread, beside the definition, the drawing of seeds
and the pooling of centroids; and how far the results are from the definition's in float64.
`croc bench RECIPE` times the clustering within a step.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor
from triton.testing import do_bench

from benchmarks.common import run
from croc.config import ClusterConfig
from croc.io import hardware
from croc.method.clustering.join_split import pool, select_k, split
from croc.method.clustering.paper import draw_seeds, paper_steps
from croc.method.croc import cluster_tokens
from croc.method.types import Clusters, Tokens, Views


@dataclass(frozen=True)
class Sizes:
    """The sizes of a batch; by default those of the paper's ViT-S/16. `grid` is the number of
    patches along a side of a view, `width` that of a head."""

    images: int = 256
    heads: int = 6
    grid: int = 14
    width: int = 64
    k_start: int = 12
    dtype: str = "bfloat16"


@torch.no_grad()
def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name, default in asdict(Sizes()).items():
        flag = f"--{name.replace('_', '-')}"
        choices = ("bfloat16", "float32") if name == "dtype" else None
        parser.add_argument(flag, type=type(default), default=default, choices=choices)
    variants = ("4:255", "8:255", "8:128")
    parser.add_argument("--variants", nargs="*", default=variants, help="warps:registers")
    parser.add_argument("--compiled", action="store_true", help="the definition compiled, too")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.error("this times kernels, and there is no GPU here")
    sizes = Sizes(**{name: getattr(options, name) for name in asdict(Sizes())})
    device = torch.device("cuda")
    print(hardware(device)["gpu"], sizes)
    for name, step in steps(sizes, device, options.variants, options.compiled):
        try:
            print(f"{do_bench(step, warmup=10, rep=60, return_mode='median'):8.3f} ms  {name}")
        except Exception as error:  # a variant that does not fit must not hide the others
            print(f"     none     {name}: {type(error).__name__} {str(error)[:80]}")


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


def define(tokens: Tensor, positions: Tensor, saliency: Tensor, seeds: Tensor, config) -> Clusters:
    """`cluster` without the kernel."""
    tokens = tokens if tokens.dtype == torch.float64 else tokens.float()
    steps = paper_steps(F.normalize(tokens, dim=-1), positions, saliency, seeds, config)
    return split(*select_k(steps, config), config, 2)


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
    pooled = torch.compile(pool, dynamic=False)
    assignments = kernel.cluster_views(*parts, seeds, config).assignments
    yield "pooling, compiled", lambda: pooled(tokens.patches, assignments, tokens.cls, config)
    find = torch.compile(cluster_tokens, dynamic=False)

    def in_training() -> Tensor:
        clusters = find(tokens, views, keys, config)
        return pooled(tokens.patches, clusters.assignments, tokens.cls, config)

    yield "joining, seeds, kernel and pooling, compiled", in_training
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


if __name__ == "__main__":
    run(main)
