"""The views' kernels against the reference: small in Triton's interpreter, full size on a GPU.
Errors are in units of 1/255, the resolution of an image file.
"""

from dataclasses import replace
from itertools import permutations

import pytest
import torch
from torch import Tensor

from croc.config import ViewsConfig
from croc.method.photometric import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    SOLARIZE_THRESHOLD,
    Photometric,
    apply_photometric,
    blur_radius_px,
    draw_photometric,
    interleave,
    solarize,
)
from croc.method.types import Canvases
from croc.method.views import Crops, crop, draw_crops, make_views
from tests.kernels.interpreter import forbid_synchronization, interpreted
from tests.method.test_photometric import identity, uniform_between
from tests.method.test_views import random_canvases

# Rounding of the crop's weights, rows and result to float16.
CROP_BOUND = 0.4
CHAIN_BOUND, CHAIN_MEAN_BOUND = 1.0, 0.05
PLAIN = {"jitter": 0.0, "grayscale": 0.0, "blur": (0.0, 0.0), "solarize": (0.0, 0.0)}


def augment(
    pixels: Tensor, crops: Crops, colors: Photometric, view_px: int, radius_px: int = 8
) -> Tensor:
    """The output of the kernels, rescaled to 0 … 1."""
    from croc.kernels import views as kernel

    drawn = crops.boxes, crops.flips, colors
    result = kernel.augment(pixels, *drawn, view_px, radius_px, dtype=torch.float32)
    assert result.dtype == torch.float32
    assert result.is_contiguous()
    std, mean = (
        torch.tensor(x, device=pixels.device)[:, None, None] for x in (IMAGENET_STD, IMAGENET_MEAN)
    )
    return result.float() * std + mean


def errors(
    pixels: Tensor, crops: Crops, colors: Photometric, view_px: int, radius_px: int = 8
) -> Tensor:
    """Errors except for pixels at the threshold of solarization."""
    images = crop(pixels, crops, view_px).transpose(0, 1)
    never = torch.zeros_like(colors.solarize)
    exact = apply_photometric(images.flatten(0, 1), replace(colors, solarize=never), radius_px)
    near = (exact - SOLARIZE_THRESHOLD).abs() < CHAIN_BOUND / 255
    near &= colors.solarize[:, None, None, None]
    exact, near = (
        x.unflatten(0, images.shape[:2]).transpose(0, 1)
        for x in (solarize(exact, colors.solarize), near)
    )
    result = augment(pixels, crops, colors, view_px, radius_px)
    assert result.shape == exact.shape
    return 255 * (result - exact).abs().masked_fill(near, 0)


def whole_images(batch: int, side: int) -> Crops:
    """Both views are the whole canvas."""
    boxes = torch.tensor([0.0, 0.0, side, side]).expand(2, batch, 4)
    return Crops(boxes, torch.zeros(2, batch, dtype=torch.bool))


def all_true(images: int) -> Tensor:
    return torch.ones(images, dtype=torch.bool)


# --- in the interpreter ---------------------------------------------------------------------


@interpreted
@pytest.mark.parametrize(("side", "view_px"), [(64, 16), (63, 40), (5, 33), (1, 3)])
def test_crop(side: int, view_px: int) -> None:
    """At all borders, of one pixel, with flips; enlarged and reduced, in one or several tiles."""
    last = side - 1
    boxes = [
        [[0, 0, side, side], [0, last, side, 1], [last // 2, 0, side - last // 2, side]],
        [[last, last, 1, 1], [0, side // 3, side, side - side // 3], [0, 0, 1, side]],
    ]
    crops = Crops(
        torch.tensor(boxes).float(), torch.tensor([[False, True, True], [True, False, True]])
    )
    error = errors(random_canvases(3, side).pixels, crops, identity(6), view_px)
    assert error.max() < CROP_BOUND


@interpreted
def test_accepts_any_strides() -> None:
    pixels, crops = random_canvases(2, 24).pixels, whole_images(2, 24)
    flipped = Crops(crops.boxes, torch.tensor([[True, False], [False, True]]).mT)
    permuted = pixels.permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1)
    expected = augment(pixels, flipped, identity(4), 16)
    assert torch.equal(augment(permuted, flipped, identity(4), 16), expected)


@interpreted
def test_jitter_in_every_order() -> None:
    orders = torch.tensor(list(permutations(range(4))))
    hue = uniform_between(-0.5, 0.5, 24, seed=4)
    colors = replace(identity(24), jitter=all_true(24), order=orders, hue=hue)
    error = errors(random_canvases(12, 24).pixels, whole_images(12, 24), colors, 20)
    assert error.max() < CHAIN_BOUND
    assert error.mean() < CHAIN_MEAN_BOUND


@interpreted
def test_mean_of_several_tiles() -> None:
    """The contrast alone, of a view whose tiles differ in size and brightness."""
    pixels = (random_canvases(1, 64).pixels // 4 + 2 * torch.arange(64)).byte()
    colors = replace(identity(2), jitter=all_true(2), hue=torch.zeros(2))
    colors = replace(colors, factors=torch.tensor([[1.0, 0.2, 1.0], [1.0, 1.7, 1.0]]))
    assert errors(pixels, whole_images(1, 64), colors, 40).max() < CHAIN_BOUND


@interpreted
@pytest.mark.parametrize(("view_px", "radius_px"), [(1, 8), (8, 8), (40, 12)])
def test_blur(view_px: int, radius_px: int) -> None:
    colors = replace(identity(2), blur=all_true(2), sigma=torch.tensor([0.5, radius_px / 4]))
    error = errors(random_canvases(1, 40).pixels, whole_images(1, 40), colors, view_px, radius_px)
    assert error.max() < CROP_BOUND


@interpreted
@pytest.mark.parametrize("name", ["jitter", "grayscale", "blur", "solarize"])
def test_images_without_the_operation_are_unchanged(name: str) -> None:
    pixels, crops = random_canvases(2, 24).pixels, whole_images(2, 24)
    some = torch.tensor([True, False, False, True])
    never = replace(identity(4), sigma=torch.ones(4))
    plain = augment(pixels, crops, never, 20).transpose(0, 1).flatten(0, 1)
    result = augment(pixels, crops, replace(never, **{name: some}), 20)
    same = (result.transpose(0, 1).flatten(0, 1) == plain).flatten(1).all(dim=1)
    assert torch.equal(same, ~some)


@interpreted
def test_whole_chain() -> None:
    config = ViewsConfig(size_px=24, blur=(0.6, 0.4), solarize=(0.4, 0.5), grayscale=0.3)
    error = chain_errors(random_canvases(6, 40), config)
    assert error.max() < CHAIN_BOUND
    assert error.mean() < CHAIN_MEAN_BOUND


def chain_errors(canvases: Canvases, config: ViewsConfig) -> Tensor:
    keys = canvases.sample_keys
    colors = interleave([draw_photometric(keys, view, config) for view in range(2)])
    crops = draw_crops(canvases.sizes, keys, config)
    return errors(canvases.pixels, crops, colors, config.size_px, blur_radius_px(config))


# --- on a GPU -------------------------------------------------------------------------------

FULL = {  # images, canvas side, options of ViewsConfig
    "default": (64, 384, {}),
    "crops alone": (64, 384, PLAIN),
    "enlarged": (16, 100, {}),
    "reduced": (8, 1000, {"size_px": 96}),
    "odd": (16, 333, {"size_px": 225}),
    "large": (4, 640, {"size_px": 518}),
    "one pixel": (3, 1, {"size_px": 1}),
    "one image": (1, 40, {"size_px": 16}),
    "wide blur": (16, 256, {"blur": (1.0, 1.0), "blur_sigma": (2.0, 7.0)}),
    "no blur": (16, 256, {"blur": (0.0, 0.0)}),
    "strong": (16, 256, {"brightness": 0.8, "contrast": 0.8, "saturation": 0.8, "hue": 0.5}),
}


def on_gpu(batch: int, side: int) -> Canvases:
    """Smooth noise, similar to photographs."""
    made = random_canvases(batch, side)
    coarse = torch.rand(batch, 3, side // 8 + 1, side // 8 + 1, device="cuda")
    smooth = torch.nn.functional.interpolate(coarse, size=(side, side), mode="bilinear")
    pixels = (smooth * 235 + made.pixels.cuda() % 20).byte()
    return Canvases(pixels, made.sizes.cuda().clamp_min(1), made.sample_keys.cuda())


@pytest.mark.cuda
@pytest.mark.parametrize("name", FULL)
def test_full_size(name: str) -> None:
    batch, side, options = FULL[name]
    canvases, config = on_gpu(batch, side), ViewsConfig(**options)
    error = chain_errors(canvases, config)
    stretch = 2.5 if name == "strong" else 1.0
    assert error.max() < stretch * (CROP_BOUND if options == PLAIN else CHAIN_BOUND)
    assert error.mean() < stretch * CHAIN_MEAN_BOUND


@pytest.mark.cuda
def test_kernels_are_used_on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    canvases, config = on_gpu(4, 64), ViewsConfig(size_px=32)
    result = make_views(canvases, config, 8)
    monkeypatch.setattr("croc.kernels._enabled", False)
    plain = make_views(canvases, config, 8)
    assert not torch.equal(result.pixels, plain.pixels)
    assert torch.equal(result.positions, plain.positions)
    torch.testing.assert_close(result.pixels, plain.pixels, rtol=0, atol=0.03)


@pytest.mark.cuda
def test_bfloat16_is_rounded_once() -> None:
    canvases, config = on_gpu(16, 256), ViewsConfig()
    exact = make_views(canvases, config, 16).pixels
    rounded = make_views(canvases, config, 16, torch.bfloat16).pixels
    assert torch.equal(rounded, exact.bfloat16())


@pytest.mark.cuda
@pytest.mark.compiled
def test_compiled_is_one_graph_without_synchronization() -> None:
    config = ViewsConfig(solarize=(0.0, 0.0))
    compiled = torch.compile(make_views, fullgraph=True)
    canvases = on_gpu(16, 256)
    compiled(canvases, config, 16)
    with forbid_synchronization():
        result = compiled(canvases, config, 16)
        plain = make_views(canvases, config, 16)
    torch.testing.assert_close(result.positions, plain.positions)
    torch.testing.assert_close(result.pixels, plain.pixels, rtol=0, atol=0.02)
