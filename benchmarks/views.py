"""How fast the views are made on a GPU: python -m benchmarks.views --definition

The kernels beside the definition, eager, compiled and compiled with TF32, the drawing of random
parameters, and how far the pixels are from the definition's, in 255ths.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from triton.testing import do_bench

from benchmarks.common import run
from croc.config import ViewsConfig
from croc.io import hardware
from croc.kernels import use_kernels
from croc.kernels import views as on_chip
from croc.method.photometric import (
    IMAGENET_STD,
    PARAMETERS,
    Photometric,
    blur_radius_px,
    draw_photometric,
    interleave,
)
from croc.method.types import Canvases, Views
from croc.method.views import VIEWS, Crops, draw_crops, make_views

PATCH_PX = 16


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--canvas", type=int, default=384, help="side, in pixels")
    parser.add_argument("--view", type=int, default=224, help="side, in pixels")
    parser.add_argument("--definition", action="store_true", help="time the definition, too")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.error("this times kernels, and there is no GPU here")
    canvases = synthetic_canvases(options.images, options.canvas)
    print(hardware(canvases.pixels.device)["gpu"], f"{options.images} images")
    for name, step in steps(canvases, ViewsConfig(size_px=options.view), options.definition):
        print(f"{do_bench(step, warmup=10, rep=60, return_mode='median'):8.3f} ms  {name}")


def synthetic_canvases(images: int, side: int) -> Canvases:
    """Smooth noise with a fine grain; the width is three quarters of the height or more."""
    generator = torch.Generator("cuda").manual_seed(0)

    def noise(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, device="cuda")

    coarse = noise(images, 3, side // 8, side // 8)
    smooth = F.interpolate(coarse, size=(side, side), mode="bilinear")
    sizes = torch.full((images, 2), side, device="cuda")
    sizes[:, 1] = side - (noise(images) * side / 4).long()
    pixels = (235 * smooth + 20 * noise(images, 3, side, side)).byte()
    return Canvases(pixels, sizes, sample_keys=torch.arange(images, device="cuda"))


@torch.no_grad()
def steps(
    canvases: Canvases, config: ViewsConfig, definition: bool
) -> Iterator[tuple[str, Callable[[], object]]]:
    def make(dtype: torch.dtype = torch.bfloat16) -> Views:
        return make_views(canvases, config, PATCH_PX, dtype)

    exact = without_kernels(lambda: make(torch.float32))().pixels
    for dtype in (torch.float32, torch.bfloat16):
        print(f"{'':13}{dtype}: {distance(make(dtype).pixels, exact)}")

    crops, colors = draw(canvases, config)
    tensors = canvases.pixels, crops.boxes, crops.flips, [getattr(colors, x) for x in PARAMETERS]
    last = config.size_px, blur_radius_px(config), torch.bfloat16
    yield "kernels", lambda: on_chip.launch(*tensors, *last)
    compiled_draw = torch.compile(draw)
    yield "draws, compiled", lambda: compiled_draw(canvases, config)
    compiled = torch.compile(make_views, fullgraph=True)
    yield "views, compiled", lambda: compiled(canvases, config, PATCH_PX, torch.bfloat16)
    yield "views, eager", make
    if definition:
        yield "definition, eager", without_kernels(make)
        plain = without_kernels(lambda: compiled(canvases, config, PATCH_PX, torch.bfloat16))
        yield "definition, compiled", plain
        torch.set_float32_matmul_precision("high")
        yield "definition, compiled, TF32", plain


def draw(canvases: Canvases, config: ViewsConfig) -> tuple[Crops, Photometric]:
    colors = [draw_photometric(canvases.sample_keys, view, config) for view in range(VIEWS)]
    return draw_crops(canvases.sizes, canvases.sample_keys, config), interleave(colors)


def without_kernels(make: Callable[[], Views]) -> Callable[[], Views]:
    def plain() -> Views:
        use_kernels(False)
        views = make()
        use_kernels(True)
        return views

    return plain


def distance(pixels: Tensor, exact: Tensor) -> str:
    """Solarization turns a rounding at its threshold into a step: those pixels are counted."""
    std = torch.tensor(IMAGENET_STD, device=exact.device)[:, None, None]
    error = 255 * std * (pixels - exact).abs()
    other = error > 2
    return (
        f"error in 255ths: mean {error[~other].mean():.4f}, largest {error[~other].max():.2f}; "
        f"{other.float().mean():.1e} of the values differ by more than 2"
    )


if __name__ == "__main__":
    run(main)
