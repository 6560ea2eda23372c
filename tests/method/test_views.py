"""Keyed draws; crops and patch centers against RandomResizedCrop and resized_crop."""

import math
import random

import pytest
import torch
from scipy.stats import ks_2samp
from torchvision.transforms import InterpolationMode, RandomResizedCrop
from torchvision.transforms.v2 import functional as tv

from croc.config import ViewsConfig
from croc.method.photometric import IMAGENET_MEAN, IMAGENET_STD
from croc.method.randomness import derive, sample_key, uniform
from croc.method.types import Canvases
from croc.method.views import Crops, crop, draw_crops, make_views, patch_centers
from tests.kernels.interpreter import forbid_synchronization

BICUBIC = InterpolationMode.BICUBIC
BILINEAR = InterpolationMode.BILINEAR
PLAIN = ViewsConfig(
    size_px=32, jitter=0.0, grayscale=0.0, blur=(0.0, 0.0), solarize=(0.0, 0.0), flip=0.0
)


def random_canvases(batch: int, side: int = 48, seed: int = 0) -> Canvases:
    generator = torch.Generator().manual_seed(seed)
    return Canvases(
        pixels=torch.randint(0, 256, (batch, 3, side, side), generator=generator).byte(),
        sizes=torch.randint(side // 2, side + 1, (batch, 2), generator=generator),
        sample_keys=torch.tensor([sample_key(seed, 0, i) for i in range(batch)]),
    )


def reference_crop(pixels, box, flip, view_px):
    x, y, width, height = (int(value) for value in box)
    view = tv.resized_crop(
        pixels.float() / 255, y, x, height, width, [view_px, view_px], BICUBIC, antialias=True
    )
    return (tv.horizontal_flip(view) if flip else view).clamp(0, 1)


def check_crop(pixels, boxes, flips, view_px):
    crops = Crops(boxes=torch.tensor(boxes).float(), flips=torch.tensor(flips))
    ours = crop(pixels, crops, view_px)
    assert ours.shape == (len(boxes), len(pixels), 3, view_px, view_px)
    for view, row in enumerate(boxes):
        for i, box in enumerate(row):
            expected = reference_crop(pixels[i], box, flips[view][i], view_px)
            torch.testing.assert_close(ours[view, i], expected, rtol=0, atol=2e-5)


def test_crop_of_any_box_equals_torchvision():
    draw = random.Random(0)
    for _ in range(40):
        boxes = []
        for _ in range(2):
            width, height = draw.randint(1, 40), draw.randint(1, 40)
            corner = draw.randint(0, 40 - width), draw.randint(0, 40 - height)
            boxes.append([[*corner, width, height]])
        flips = [[draw.random() < 0.5], [draw.random() < 0.5]]
        check_crop(random_canvases(1, 40).pixels, boxes, flips, draw.randint(1, 70))


@pytest.mark.parametrize("size", [(300, 400), (21, 160), (7, 5)])
def test_boxes_are_integers_inside_the_image_and_half_of_the_views_are_flipped(size):
    crops = draw_crops(torch.tensor([size]).expand(20_000, 2), torch.arange(20_000), ViewsConfig())
    boxes, flips = crops.boxes, crops.flips
    assert flips.float().mean(dim=1).tolist() == pytest.approx([0.5, 0.5], abs=0.015)
    assert (flips[0] == flips[1]).float().mean().item() == pytest.approx(0.5, abs=0.015)
    corner, extent = boxes.split(2, dim=-1)
    assert torch.equal(boxes, boxes.round())
    assert corner.min() >= 0
    assert extent.min() >= 1
    assert ((corner + extent) <= torch.tensor(size).flip(0)).all()


def test_boxes_have_torchvisions_distribution():
    count, height, width, config = 4000, 100, 190, ViewsConfig(scale=(0.3, 0.9), ratio=(0.8, 1.5))
    torch.manual_seed(0)
    image = torch.empty(3, height, width, device="meta")
    arguments = image, list(config.scale), list(config.ratio)
    drawn = [RandomResizedCrop.get_params(*arguments) for _ in range(count)]
    top, left, h, w = torch.tensor(drawn).float().unbind(dim=1)
    sizes = torch.tensor([[height, width]]).expand(count, 2)
    crops = draw_crops(sizes, torch.arange(count), config)
    for boxes in crops.boxes:
        x, y, ours_w, ours_h = boxes.unbind(dim=1)
        pairs = [(w * h, ours_w * ours_h), (w / h, ours_w / ours_h), (left, x), (top, y)]
        for expected, ours in pairs:
            assert ks_2samp(expected, ours)[1] > 1e-3  # the p-value


@pytest.mark.parametrize("size", [(1, 400), (1, 1), (30, 100), (100, 31), (50, 50)])
def test_fallback_equals_torchvision(size):
    # No box of twice the image's area fits, so both fall back.
    config = ViewsConfig()
    object.__setattr__(config, "scale", (2.0, 2.0))
    crops = draw_crops(torch.tensor([size]).expand(4, 2), torch.arange(4), config)
    top, left, h, w = RandomResizedCrop.get_params(
        torch.empty(3, *size), [2.0, 2.0], [3 / 4, 4 / 3]
    )
    assert torch.equal(crops.boxes, torch.tensor([left, top, w, h]).float().expand(2, 4, 4))


@pytest.mark.parametrize("flip", [False, True])
def test_patch_centers_equal_those_of_a_cropped_coordinate_image(flip):
    height, width, view_px, patch_px = 90, 120, 64, 16
    y, x = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
    coordinates = torch.stack([x, y]) / width
    boxes = torch.tensor([[[7.0, 11.0, 80.0, 70.0]], [[30.0, 5.0, 41.0, 50.0]]])
    flips = torch.full((2, 1), flip)
    ours = patch_centers(boxes, flips, torch.tensor([[height, width]]), view_px, patch_px)
    inner = slice(1, -1)
    for view in range(2):
        left, top, w, h = boxes[view, 0].int().tolist()
        plane = tv.resized_crop(
            coordinates, top, left, h, w, [view_px, view_px], BILINEAR, antialias=True
        )
        plane = tv.horizontal_flip(plane) if flip else plane
        expected = torch.nn.functional.avg_pool2d(plane, patch_px)[:, inner, inner]
        grid = ours[view, 0].view(4, 4, 2).permute(2, 0, 1)[:, inner, inner]
        # A fortieth of a pixel: the antialiased weights are not quite symmetric.
        torch.testing.assert_close(grid, expected, rtol=0, atol=0.025 / width)


def test_make_views_crops_its_boxes():
    canvases = random_canvases(4)
    views = make_views(canvases, PLAIN, patch_px=8)
    crops = draw_crops(canvases.sizes, canvases.sample_keys, PLAIN)
    assert views.pixels.shape == (2, 4, 3, 32, 32)
    assert views.pixels.is_contiguous()
    assert views.positions.shape == (2, 4, 16, 2)
    for view in range(2):
        for i in range(4):
            image = reference_crop(canvases.pixels[i], crops.boxes[view, i], False, 32)
            expected = tv.normalize(image, list(IMAGENET_MEAN), list(IMAGENET_STD))
            torch.testing.assert_close(views.pixels[view, i], expected, rtol=0, atol=2e-4)


def test_views_are_keyed_by_sample():
    config, canvases = ViewsConfig(size_px=32), random_canvases(8)
    whole = make_views(canvases, config, patch_px=8)
    chosen = torch.tensor([5, 2])
    part = Canvases(canvases.pixels[chosen], canvases.sizes[chosen], canvases.sample_keys[chosen])
    views = make_views(part, config, patch_px=8)
    assert torch.equal(views.positions, whole.positions[:, chosen])
    torch.testing.assert_close(views.pixels, whole.pixels[:, chosen], rtol=0, atol=1e-5)
    later = Canvases(canvases.pixels, canvases.sizes, canvases.sample_keys + 1)
    assert (whole.positions[0] != whole.positions[1]).flatten(1).any(dim=1).all()
    assert (whole.positions != make_views(later, config, 8).positions).flatten(2).any(dim=2).all()


def test_early_views_are_smaller_with_less_blur():
    views = ViewsConfig(size_px=224, early_px=112, early_epochs=3, blur_sigma=(0.2, 2.0))
    assert [views.at_epoch(epoch).size_px for epoch in range(5)] == [112, 112, 112, 224, 224]
    assert views.at_epoch(0).blur_sigma == pytest.approx((0.1, 1.0))
    assert views.at_epoch(3) is views


def test_dtype_is_independent_of_autocast():
    config, canvases = ViewsConfig(size_px=32), random_canvases(4)
    plain = make_views(canvases, config, patch_px=8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        views = make_views(canvases, config, patch_px=8)
    assert views.pixels.dtype == views.positions.dtype == torch.float32
    assert torch.equal(views.pixels, plain.pixels)
    rounded = make_views(canvases, config, patch_px=8, dtype=torch.bfloat16)
    assert torch.equal(rounded.pixels, plain.pixels.bfloat16())
    assert rounded.positions.dtype == torch.float32


@pytest.mark.compiled
def test_compiled_views_equal_eager_ones():
    # Without solarization, whose threshold amplifies rounding.
    config, canvases = ViewsConfig(size_px=32, solarize=(0.0, 0.0)), random_canvases(6)
    compiled = torch.compile(make_views, fullgraph=True)(canvases, config, 8)
    eager = make_views(canvases, config, 8)
    torch.testing.assert_close(compiled.positions, eager.positions, rtol=0, atol=1e-6)
    torch.testing.assert_close(compiled.pixels, eager.pixels, rtol=0, atol=1e-4)


@pytest.mark.cuda
def test_views_never_synchronize_with_the_gpu():
    config, host = ViewsConfig(size_px=32), random_canvases(6)
    canvases = Canvases(host.pixels.cuda(), host.sizes.cuda(), host.sample_keys.cuda())
    make_views(canvases, config, 8)
    with forbid_synchronization():
        views = make_views(canvases, config, 8)
    expected = make_views(host, config, 8)
    torch.testing.assert_close(views.positions.cpu(), expected.positions)
    differs = (views.pixels.cpu() - expected.pixels).abs() > 0.01
    assert differs.float().mean() < 1e-3, "more than rounding at the threshold of solarization"


def splitmix64(state: int) -> int:
    """Steele and others' generator, written from their definition: the state's next output."""
    state = (state + 0x9E3779B97F4A7C15) % 2**64
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) % 2**64
    return state ^ (state >> 31)


def sample_keys(count: int = 64) -> torch.Tensor:
    return torch.tensor([sample_key(0, 0, index) for index in range(count)])


def test_draws_are_splitmix64_of_the_derived_key():
    base = int(derive(sample_keys(1), "test")[0]) % 2**64
    expected, state = [], base
    for _ in range(6):
        expected.append(((splitmix64(state) >> 41) + 0.5) / 2**23)
        state = (state + 0x9E3779B97F4A7C15) % 2**64
    assert uniform(sample_keys(1), "test", 2, 3).flatten().tolist() == expected


def test_sample_keys_differ_in_each_part():
    parts = [(s, e, i) for s in range(4) for e in range(10) for i in range(50)]
    made = {sample_key(*part) for part in parts}
    assert len(made) == len(parts)
    assert all(-(2**63) <= key < 2**63 for key in made)


def test_draws_depend_only_on_key_and_purpose():
    together = uniform(sample_keys(), "crop", 100)
    assert torch.equal(together[13:14], uniform(sample_keys()[13:14], "crop", 100))
    assert not torch.isin(together, uniform(sample_keys(), "color", 100)).float().mean() > 0.01


def test_draws_are_uniform_and_inside_the_open_interval():
    draws = uniform(sample_keys(2000), "test", 50).double()
    assert draws.min() > 0
    assert draws.max() < 1
    histogram = torch.histc(draws, bins=20, min=0, max=1) / draws.numel()
    assert (histogram - 0.05).abs().max() < 6 * math.sqrt(0.05 / draws.numel())
    neighbors = torch.corrcoef(torch.stack([draws[:, :-1].flatten(), draws[:, 1:].flatten()]))
    assert neighbors[0, 1].abs() < 0.015
