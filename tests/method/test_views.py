"""Crops and patch centres against torchvision's RandomResizedCrop and resized_crop."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.transforms import InterpolationMode, RandomResizedCrop
from torchvision.transforms.v2 import functional as tv

from croc.config import ViewsConfig
from croc.method.photometric import IMAGENET_MEAN, IMAGENET_STD
from croc.method.randomness import sample_key
from croc.method.types import Canvases
from croc.method.views import Crops, crop, draw_crops, make_views, patch_centres

BICUBIC = InterpolationMode.BICUBIC
BILINEAR = InterpolationMode.BILINEAR
PLAIN = ViewsConfig(
    size_px=32, jitter=0.0, grayscale=0.0, blur=(0.0, 0.0), solarise=(0.0, 0.0), flip=0.0
)


def random_canvases(batch: int, side: int = 48, seed: int = 0) -> Canvases:
    generator = torch.Generator().manual_seed(seed)
    return Canvases(
        pixels=torch.randint(0, 256, (batch, 3, side, side), generator=generator).byte(),
        sizes=torch.randint(side // 2, side + 1, (batch, 2), generator=generator),
        keys=torch.tensor([sample_key(seed, 0, i) for i in range(batch)]),
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


@pytest.mark.parametrize("view_px", [16, 40, 64, 97])
def test_crop_equals_torchvision(view_px):
    boxes = [
        [[0, 0, 64, 64], [5, 9, 31, 40], [60, 0, 4, 64]],
        [[63, 63, 1, 1], [0, 33, 64, 31], [17, 20, 40, 40]],
    ]
    flips = [[False, True, True], [False, False, True]]
    check_crop(random_canvases(3, 64).pixels, boxes, flips, view_px)


@st.composite
def box_on_a_canvas(draw, side=40):
    width, height = draw(st.integers(1, side)), draw(st.integers(1, side))
    return [draw(st.integers(0, side - width)), draw(st.integers(0, side - height)), width, height]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    boxes=st.lists(box_on_a_canvas(), min_size=2, max_size=2),
    flips=st.lists(st.booleans(), min_size=2, max_size=2),
    view_px=st.integers(1, 70),
)
def test_crop_of_any_box_equals_torchvision(boxes, flips, view_px):
    pixels = random_canvases(1, 40).pixels
    check_crop(pixels, [[box] for box in boxes], [[flip] for flip in flips], view_px)


def test_crop_does_not_look_outside_its_box():
    pixels = random_canvases(1, 40).pixels
    crops = Crops(boxes=torch.tensor([[[8.0, 10.0, 20.0, 16.0]]]), flips=torch.tensor([[False]]))
    changed = torch.full_like(pixels, 255)
    changed[:, :, 10:26, 8:28] = pixels[:, :, 10:26, 8:28]
    assert torch.equal(crop(pixels, crops, 12), crop(changed, crops, 12))


@pytest.mark.parametrize("size", [(300, 400), (64, 64), (21, 160), (7, 5)])
def test_boxes_are_whole_and_inside(size):
    boxes = draw_crops(
        torch.tensor([size]).expand(3000, 2), torch.arange(3000), ViewsConfig()
    ).boxes
    corner, extent = boxes.split(2, dim=-1)
    assert torch.equal(boxes, boxes.round())
    assert corner.min() >= 0
    assert extent.min() >= 1
    assert ((corner + extent) <= torch.tensor(size).flip(0)).all()


def test_boxes_keep_to_scale_and_ratio():
    config = ViewsConfig(scale=(0.3, 0.6), ratio=(0.8, 1.5))
    boxes = draw_crops(torch.tensor([[300, 400]]).expand(4000, 2), torch.arange(4000), config).boxes
    _, _, width, height = boxes.unbind(dim=-1)
    share, ratio = width * height / (300 * 400), width / height
    assert 0.297 < share.min() < 0.31
    assert 0.59 < share.max() < 0.603
    assert 0.79 < ratio.min() < 0.81
    assert 1.45 < ratio.max() < 1.51


def kolmogorov_smirnov(first: torch.Tensor, second: torch.Tensor) -> float:
    """Largest difference between the two samples' distribution functions."""
    values = torch.cat([first, second]).sort().values
    below = [
        torch.searchsorted(s.sort().values, values, right=True) / len(s) for s in (first, second)
    ]
    return (below[0] - below[1]).abs().max().item()


@pytest.mark.parametrize(("height", "width"), [(240, 320), (100, 190)])
def test_boxes_follow_torchvisions_law(height, width):
    count = 4000
    config = ViewsConfig()
    torch.manual_seed(0)
    image = torch.empty(3, height, width, device="meta")
    theirs = torch.tensor(
        [
            RandomResizedCrop.get_params(image, list(config.scale), list(config.ratio))
            for _ in range(count)
        ]
    ).float()
    top, left, h, w = theirs.unbind(dim=1)
    crops = draw_crops(
        torch.tensor([[height, width]]).expand(count, 2), torch.arange(count), config
    )
    for boxes in crops.boxes:
        x, y, ours_w, ours_h = boxes.unbind(dim=1)
        pairs = [(w * h, ours_w * ours_h), (w / h, ours_w / ours_h), (left, x), (top, y)]
        for expected, ours in pairs:
            # The critical value for one in a thousand.
            assert kolmogorov_smirnov(expected, ours) < 1.95 * (2 / count) ** 0.5


@pytest.mark.parametrize("size", [(1, 400), (400, 1), (1, 1), (30, 100), (100, 31), (50, 50)])
def test_fallback_equals_torchvisions(size):
    # At twice its own area no box fits, so both fall back.
    config = ViewsConfig()
    object.__setattr__(config, "scale", (2.0, 2.0))
    crops = draw_crops(torch.tensor([size]).expand(4, 2), torch.arange(4), config)
    top, left, h, w = RandomResizedCrop.get_params(
        torch.empty(3, *size), [2.0, 2.0], [3 / 4, 4 / 3]
    )
    assert torch.equal(crops.boxes, torch.tensor([left, top, w, h]).float().expand(2, 4, 4))


@pytest.mark.parametrize("size", [(1, 400), (400, 1), (1, 1)])
def test_extreme_images_still_give_views(size):
    canvases = Canvases(
        pixels=random_canvases(4, 400).pixels,
        sizes=torch.tensor([size]).expand(4, 2),
        keys=torch.arange(4),
    )
    views = make_views(canvases, ViewsConfig(size_px=16), patch_px=8)
    assert views.pixels.isfinite().all()
    assert views.positions.min() >= 0
    assert views.positions.max() <= 1


def test_flips_happen_at_their_rate():
    flips = draw_crops(torch.full((20_000, 2), 64), torch.arange(20_000), ViewsConfig()).flips
    assert flips.float().mean(dim=1).tolist() == pytest.approx([0.5, 0.5], abs=0.015)
    assert (flips[0] == flips[1]).float().mean().item() == pytest.approx(0.5, abs=0.015)


@pytest.mark.parametrize("flip", [False, True])
def test_patch_centres_equal_a_cropped_coordinate_image(flip):
    height, width, view_px, patch_px = 90, 120, 64, 16
    y, x = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
    coordinates = torch.stack([x, y]) / width
    boxes = torch.tensor([[[7.0, 11.0, 80.0, 70.0]], [[30.0, 5.0, 41.0, 50.0]]])
    flips = torch.full((2, 1), flip)
    ours = patch_centres(boxes, flips, torch.tensor([[height, width]]), view_px, patch_px)
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


def test_patch_centres_of_the_whole_image_are_a_grid():
    boxes = torch.tensor([0.0, 0.0, 40.0, 20.0]).expand(2, 1, 4)
    flips = torch.tensor([[False], [True]])
    centres = patch_centres(boxes, flips, torch.tensor([[20, 40]]), 32, 16)
    expected = torch.tensor([[0.25, 0.125], [0.75, 0.125], [0.25, 0.375], [0.75, 0.375]])
    torch.testing.assert_close(centres[0, 0], expected)
    torch.testing.assert_close(centres[1, 0], expected[[1, 0, 3, 2]])


def test_make_views_crops_where_its_boxes_say():
    canvases = random_canvases(4)
    views = make_views(canvases, PLAIN, patch_px=8)
    crops = draw_crops(canvases.sizes, canvases.keys, PLAIN)
    assert views.pixels.shape == (2, 4, 3, 32, 32)
    assert views.pixels.is_contiguous()
    assert views.positions.shape == (2, 4, 16, 2)
    for view in range(2):
        for i in range(4):
            image = reference_crop(canvases.pixels[i], crops.boxes[view, i], False, 32)
            expected = tv.normalize(image, list(IMAGENET_MEAN), list(IMAGENET_STD))
            torch.testing.assert_close(views.pixels[view, i], expected, rtol=0, atol=2e-4)


def test_full_crops_of_both_views_have_the_same_positions():
    config = ViewsConfig(size_px=32, scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=0.0)
    canvases = random_canvases(3)
    square = Canvases(canvases.pixels, torch.full((3, 2), 48), canvases.keys)
    positions = make_views(square, config, patch_px=8).positions
    y, x = torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")
    expected = ((torch.stack([x, y], dim=-1) + 0.5) / 4).view(16, 2)
    torch.testing.assert_close(positions, expected.expand(2, 3, 16, 2))


def test_views_follow_the_sample_not_the_batch():
    config, canvases = ViewsConfig(size_px=32), random_canvases(8)
    whole = make_views(canvases, config, patch_px=8)
    chosen = torch.tensor([5, 2])
    part = Canvases(canvases.pixels[chosen], canvases.sizes[chosen], canvases.keys[chosen])
    views = make_views(part, config, patch_px=8)
    assert torch.equal(views.positions, whole.positions[:, chosen])
    torch.testing.assert_close(views.pixels, whole.pixels[:, chosen], rtol=0, atol=1e-5)


def test_two_views_and_two_epochs_differ():
    config, canvases = ViewsConfig(size_px=32), random_canvases(8)
    views = make_views(canvases, config, patch_px=8)
    later = Canvases(canvases.pixels, canvases.sizes, canvases.keys + 1)
    assert (views.positions[0] != views.positions[1]).flatten(1).any(dim=1).all()
    assert (views.positions != make_views(later, config, 8).positions).flatten(2).any(dim=2).all()


def test_views_are_float32_under_autocast():
    config, canvases = ViewsConfig(size_px=32), random_canvases(4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        views = make_views(canvases, config, patch_px=8)
    assert views.pixels.dtype == views.positions.dtype == torch.float32
    assert torch.equal(views.pixels, make_views(canvases, config, patch_px=8).pixels)


def test_pixels_come_in_the_type_asked_for():
    config, canvases = ViewsConfig(size_px=32), random_canvases(4)
    views = make_views(canvases, config, patch_px=8, dtype=torch.bfloat16)
    assert torch.equal(views.pixels, make_views(canvases, config, patch_px=8).pixels.bfloat16())
    assert views.positions.dtype == torch.float32


@pytest.mark.compiled
def test_compiled_views_equal_eager_ones():
    # Without the step of solarisation, in which a rounding could show.
    config, canvases = ViewsConfig(size_px=32, solarise=(0.0, 0.0)), random_canvases(6)
    compiled = torch.compile(make_views, fullgraph=True)(canvases, config, 8)
    eager = make_views(canvases, config, 8)
    torch.testing.assert_close(compiled.positions, eager.positions, rtol=0, atol=1e-6)
    torch.testing.assert_close(compiled.pixels, eager.pixels, rtol=0, atol=1e-4)


@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_views_never_wait_for_the_gpu():
    config, host = ViewsConfig(size_px=32), random_canvases(6)
    canvases = Canvases(host.pixels.cuda(), host.sizes.cuda(), host.keys.cuda())
    make_views(canvases, config, 8)
    torch.cuda.set_sync_debug_mode("error")
    try:
        views = make_views(canvases, config, 8)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    expected = make_views(host, config, 8)
    torch.testing.assert_close(views.positions.cpu(), expected.positions)
    differs = (views.pixels.cpu() - expected.pixels).abs() > 0.01
    assert differs.float().mean() < 1e-3, "more than a rounding at the threshold of solarisation"
