"""The batched photometric operations against torchvision's, one image at a time."""

from dataclasses import replace
from itertools import permutations

import pytest
import torch
from torchvision.transforms.v2 import functional as tv

from croc.config import ViewsConfig
from croc.method.photometric import (
    BRIGHTNESS,
    CONTRAST,
    HUE,
    IMAGENET_MEAN,
    IMAGENET_STD,
    SATURATION,
    Photometric,
    adjust_hue,
    apply_photometric,
    blend,
    blur_radius_px,
    draw_photometric,
    gaussian_blur,
    grayscale,
    jitter,
    normalise,
    solarise,
)

REFERENCE = {
    BRIGHTNESS: tv.adjust_brightness,
    CONTRAST: tv.adjust_contrast,
    SATURATION: tv.adjust_saturation,
    HUE: tv.adjust_hue,
}


def random_images(batch: int, height: int = 20, width: int = 24, seed: int = 0) -> torch.Tensor:
    """Noise, with gray, black, white and primary pixels, where hue and ties are delicate."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(batch, 3, height, width, generator=generator)
    images[:, :, 0] = images[:, :1, 0]
    images[:, :, 1, : width // 2] = 0
    images[:, :, 1, width // 2 :] = 1
    images[:, :, 2] = (images[:, :, 2] > 0.5).float()
    return images


def uniform_between(low: float, high: float, *shape: int, seed: int = 1) -> torch.Tensor:
    return low + (high - low) * torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def identity(batch: int) -> Photometric:
    """Parameters of a chain in which nothing applies, though every strength is drawn."""
    no = torch.zeros(batch, dtype=torch.bool)
    return Photometric(
        jitter=no,
        order=torch.arange(4).expand(batch, 4),
        factors=uniform_between(0.5, 1.5, batch, 3),
        hue=uniform_between(-0.1, 0.1, batch, seed=2),
        grayscale=no,
        blur=no,
        sigma=uniform_between(0.1, 2.0, batch, seed=3),
        solarise=no,
    )


def reference_jitter(image: torch.Tensor, parameters: Photometric, i: int) -> torch.Tensor:
    strengths = [*parameters.factors[i].tolist(), parameters.hue[i].item()]
    for operation in parameters.order[i].tolist():
        image = REFERENCE[operation](image, strengths[operation])
    return image


@pytest.mark.parametrize("operation", [BRIGHTNESS, CONTRAST, SATURATION])
def test_blend_equals_torchvision(operation):
    images, factors = random_images(8), uniform_between(0.0, 2.0, 8)
    blended = blend(images, torch.full((8,), operation), factors)
    for image, factor, ours in zip(images, factors.tolist(), blended):
        torch.testing.assert_close(ours, REFERENCE[operation](image, factor), rtol=0, atol=1e-6)


def test_blend_gives_each_image_its_own_operation():
    images, factors = random_images(3), uniform_between(0.5, 1.5, 3)
    blended = blend(images, torch.tensor([SATURATION, BRIGHTNESS, CONTRAST]), factors)
    for i, operation in enumerate((SATURATION, BRIGHTNESS, CONTRAST)):
        expected = REFERENCE[operation](images[i], factors[i].item())
        torch.testing.assert_close(blended[i], expected, rtol=0, atol=1e-6)


def test_hue_equals_torchvision():
    images, turns = random_images(12), torch.linspace(-0.5, 0.5, 12)
    for image, turn, ours in zip(images, turns.tolist(), adjust_hue(images, turns)):
        torch.testing.assert_close(ours, tv.adjust_hue(image, turn), rtol=0, atol=1e-5)
        assert ours.min() >= 0
        assert ours.max() <= 1


def test_grayscale_equals_torchvision():
    images = random_images(4)
    torch.testing.assert_close(grayscale(images), tv.rgb_to_grayscale(images), rtol=0, atol=1e-7)


@pytest.mark.parametrize(("height", "width"), [(20, 24), (64, 64), (9, 30), (12, 10)])
def test_blur_equals_torchvision(height, width):
    images, sigma = random_images(6, height, width), torch.linspace(0.1, 2.0, 6)
    blurred = gaussian_blur(images, sigma)
    for image, value, ours in zip(images, sigma.tolist(), blurred):
        expected = tv.gaussian_blur(image, kernel_size=[17, 17], sigma=[value, value])
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_blur_of_a_small_view_shrinks_its_radius(size):
    images = random_images(1, size + 8, size + 8)[..., :size, :size]
    kernel_size = [2 * size - 1] * 2
    expected = tv.gaussian_blur(images, kernel_size=kernel_size, sigma=[1.5, 1.5])
    ours = gaussian_blur(images, torch.tensor([1.5]))
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5)


def test_blur_of_one_pixel_is_that_pixel():
    image = torch.full((1, 3, 1, 1), 0.3)
    torch.testing.assert_close(gaussian_blur(image, torch.tensor([2.0])), image)


def test_wider_blur_gets_a_wider_kernel():
    assert blur_radius_px(ViewsConfig()) == 8
    assert blur_radius_px(ViewsConfig(blur_sigma=(0.1, 3.0))) == 12
    images = random_images(1, 40, 40)
    expected = tv.gaussian_blur(images, kernel_size=[25, 25], sigma=[3.0, 3.0])
    torch.testing.assert_close(gaussian_blur(images, torch.tensor([3.0]), 12), expected)


def test_solarise_equals_torchvision_on_the_chosen_images():
    images = random_images(4)
    images[:, :, 3] = 128 / 255
    ours = solarise(images, torch.tensor([True, False, True, False]))
    assert torch.equal(ours[::2], tv.solarize(images[::2], threshold=128 / 255))
    assert torch.equal(ours[1::2], images[1::2])


def test_normalise_equals_torchvision():
    images = random_images(4)
    expected = tv.normalize(images, list(IMAGENET_MEAN), list(IMAGENET_STD))
    torch.testing.assert_close(normalise(images), expected, rtol=0, atol=1e-6)


def test_jitter_equals_torchvision_in_every_order():
    orders = torch.tensor(list(permutations(range(4))))
    parameters = replace(identity(24), order=orders, jitter=torch.ones(24, dtype=torch.bool))
    images = random_images(24)
    jittered = jitter(images, parameters)
    for i, image in enumerate(images):
        expected = reference_jitter(image, parameters, i)
        torch.testing.assert_close(jittered[i], expected, rtol=0, atol=2e-5)


def test_chain_equals_torchvision_in_sequence():
    config = ViewsConfig(blur=(0.5, 0.5), solarise=(0.5, 0.5), grayscale=0.5, jitter=0.5)
    parameters = draw_photometric(torch.arange(48), 1, config)
    # Smooth images: solarisation must not turn a rounding at its threshold into a step.
    images = tv.gaussian_blur(random_images(48, 32, 32), kernel_size=[9, 9], sigma=[2.0, 2.0])
    ours = apply_photometric(images, parameters)
    seen = set()
    for i, image in enumerate(images):
        seen.add((bool(parameters.jitter[i]), bool(parameters.grayscale[i])))
        if parameters.jitter[i]:
            image = reference_jitter(image, parameters, i)
        if parameters.grayscale[i]:
            image = tv.rgb_to_grayscale(image, num_output_channels=3)
        if parameters.blur[i]:
            image = tv.gaussian_blur(image, [17, 17], [parameters.sigma[i].item()] * 2)
        near_threshold = (image - 128 / 255).abs() < 1e-5
        if parameters.solarise[i]:
            image = tv.solarize(image, threshold=128 / 255)
        wrong = ((ours[i] - image).abs() > 5e-5) & ~near_threshold
        assert not wrong.any(), f"image {i}"
    assert len(seen) == 4


def test_chain_leaves_an_image_untouched_where_nothing_applies():
    images = random_images(5)
    assert torch.equal(apply_photometric(images, identity(5)), images)


def test_chain_ignores_the_memory_layout():
    images, parameters = random_images(6), draw_photometric(torch.arange(6), 1, ViewsConfig())
    permuted = images.transpose(1, 2).contiguous().transpose(1, 2)
    expected = apply_photometric(images, parameters)
    torch.testing.assert_close(apply_photometric(permuted, parameters), expected)
    assert torch.equal(images, random_images(6)), "the input was changed in place"


def test_chain_stays_in_float32_under_autocast():
    images, parameters = random_images(6), draw_photometric(torch.arange(6), 0, ViewsConfig())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = apply_photometric(images, parameters)
    assert torch.equal(ours, apply_photometric(images, parameters))


def test_draws_are_keyed_by_sample_and_view():
    config, keys = ViewsConfig(), torch.arange(100, 132)
    whole = draw_photometric(keys, 0, config)
    part = draw_photometric(keys[8:16], 0, config)
    other = draw_photometric(keys, 1, config)
    assert torch.equal(whole.factors[8:16], part.factors)
    assert torch.equal(whole.order[8:16], part.order)
    assert torch.equal(whole.sigma[8:16], part.sigma)
    assert not torch.isclose(whole.factors, other.factors).any()


@pytest.mark.parametrize("view", [0, 1])
def test_operations_apply_at_their_rates(view):
    config, count = ViewsConfig(), 20_000
    drawn = draw_photometric(torch.arange(count), view, config)
    rates = {
        "jitter": config.jitter,
        "grayscale": config.grayscale,
        "blur": config.blur[view],
        "solarise": config.solarise[view],
    }
    for name, rate in rates.items():
        margin = 4 * (rate * (1 - rate) / count) ** 0.5
        assert getattr(drawn, name).float().mean().item() == pytest.approx(rate, abs=margin), name


def test_strengths_fill_their_ranges():
    drawn = draw_photometric(torch.arange(20_000), 0, ViewsConfig())
    ranges = [
        (drawn.factors[:, 0], 0.6, 1.4),
        (drawn.factors[:, 1], 0.6, 1.4),
        (drawn.factors[:, 2], 0.8, 1.2),
        (drawn.hue, -0.1, 0.1),
        (drawn.sigma, 0.1, 2.0),
    ]
    for values, low, high in ranges:
        width = high - low
        assert low - 1e-6 <= values.min() <= low + 0.002 * width
        assert high - 0.002 * width <= values.max() <= high + 1e-6
        assert values.mean().item() == pytest.approx((low + high) / 2, abs=0.01 * width)


def test_every_order_is_equally_likely():
    count = 24_000
    order = draw_photometric(torch.arange(count), 1, ViewsConfig()).order
    assert torch.equal(order.sort(dim=1).values, torch.arange(4).expand(count, 4))
    _, tally = (order * torch.tensor([64, 16, 4, 1])).sum(dim=1).unique(return_counts=True)
    assert len(tally) == 24
    chi_square = ((tally - count / 24) ** 2 / (count / 24)).sum().item()
    assert chi_square < 50, "23 degrees of freedom: 50 is passed once in a thousand"
