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
    SATURATION,
    Photometric,
    apply_photometric,
    blur_radius_px,
    draw_photometric,
    gaussian_blur,
    jitter,
)

REFERENCE = {
    BRIGHTNESS: tv.adjust_brightness,
    CONTRAST: tv.adjust_contrast,
    SATURATION: tv.adjust_saturation,
    HUE: tv.adjust_hue,
}


def random_images(batch: int, height: int = 20, width: int = 24, seed: int = 0) -> torch.Tensor:
    """Noise with gray, black, white and primary pixels, the edge cases of hue."""
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
    """Parameters with random strengths, of which no operation is applied."""
    no = torch.zeros(batch, dtype=torch.bool)
    return Photometric(
        jitter=no,
        order=torch.arange(4).expand(batch, 4),
        factors=uniform_between(0.5, 1.5, batch, 3),
        hue=uniform_between(-0.1, 0.1, batch, seed=2),
        grayscale=no,
        blur=no,
        sigma=uniform_between(0.1, 2.0, batch, seed=3),
        solarize=no,
    )


def reference_jitter(image: torch.Tensor, parameters: Photometric, i: int) -> torch.Tensor:
    strengths = [*parameters.factors[i].tolist(), parameters.hue[i].item()]
    for operation in parameters.order[i].tolist():
        image = REFERENCE[operation](image, strengths[operation])
    return image


@pytest.mark.parametrize("size", [1, 5, 64])
def test_blur_equals_torchvision(size):
    """The kernel grows with sigma and is cropped for small views."""
    assert blur_radius_px(ViewsConfig()) == 8
    assert blur_radius_px(ViewsConfig(blur_sigma=(0.1, 3.0))) == 12
    for radius, sigma in ((8, 0.1), (8, 2.0), (12, 3.0)):
        images = random_images(1, 64, 64)[..., :size, :size]
        kernel = [2 * min(radius, size - 1) + 1] * 2
        expected = tv.gaussian_blur(images, kernel_size=kernel, sigma=[sigma, sigma])
        ours = gaussian_blur(images, torch.tensor([sigma]), radius)
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5)


def test_jitter_equals_torchvision_in_every_order():
    orders = torch.tensor(list(permutations(range(4))))
    parameters = replace(
        identity(24),
        order=orders,
        jitter=torch.ones(24, dtype=torch.bool),
        factors=uniform_between(0.0, 2.0, 24, 3),
        hue=torch.linspace(-0.5, 0.5, 24),
    )
    images = random_images(24)
    jittered = jitter(images, parameters)
    for i, image in enumerate(images):
        expected = reference_jitter(image, parameters, i)
        torch.testing.assert_close(jittered[i], expected, rtol=0, atol=2e-5)


def test_chain_equals_torchvision_in_sequence():
    config = ViewsConfig(blur=(0.5, 0.5), solarize=(0.5, 0.5), grayscale=0.5, jitter=0.5)
    parameters = draw_photometric(torch.arange(48), 1, config)
    # Smooth images, so that few pixels are at the threshold of solarization.
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
        if parameters.solarize[i]:
            image = tv.solarize(image, threshold=128 / 255)
        wrong = ((ours[i] - image).abs() > 5e-5) & ~near_threshold
        assert not wrong.any(), f"image {i}"
    assert len(seen) == 4


def test_chain_is_independent_of_memory_layout_and_autocast():
    images, parameters = random_images(6), draw_photometric(torch.arange(6), 1, ViewsConfig())
    permuted = images.transpose(1, 2).contiguous().transpose(1, 2)
    expected = apply_photometric(images, parameters)
    torch.testing.assert_close(apply_photometric(permuted, parameters), expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(apply_photometric(images, parameters), expected)
    assert torch.equal(apply_photometric(images, identity(6)), images)
    assert torch.equal(images, random_images(6)), "the input was changed in place"


@pytest.mark.parametrize("view", [0, 1])
def test_draws_are_keyed_and_have_the_right_distributions(view):
    config, keys, count = ViewsConfig(), torch.arange(24_000), 24_000
    drawn = draw_photometric(keys, view, config)
    part, other = (draw_photometric(keys[8:16], v, config) for v in (view, 1 - view))
    for name in ("factors", "order", "sigma"):
        assert torch.equal(getattr(drawn, name)[8:16], getattr(part, name))
    assert not torch.isclose(part.factors, other.factors).any()
    rates = {"jitter": config.jitter, "grayscale": config.grayscale}
    rates |= {"blur": config.blur[view], "solarize": config.solarize[view]}
    for name, rate in rates.items():
        margin = 4 * (rate * (1 - rate) / count) ** 0.5
        assert getattr(drawn, name).float().mean().item() == pytest.approx(rate, abs=margin), name
    for values, low, high in (
        (drawn.factors[:, 0], 0.6, 1.4),
        (drawn.factors[:, 1], 0.6, 1.4),
        (drawn.factors[:, 2], 0.8, 1.2),
        (drawn.hue, -0.1, 0.1),
        (drawn.sigma, 0.1, 2.0),
    ):
        width = high - low
        assert low - 1e-6 <= values.min() <= low + 0.002 * width
        assert high - 0.002 * width <= values.max() <= high + 1e-6
        assert values.mean().item() == pytest.approx((low + high) / 2, abs=0.01 * width)
    assert torch.equal(drawn.order.sort(dim=1).values, torch.arange(4).expand(count, 4))
    _, tally = (drawn.order * torch.tensor([64, 16, 4, 1])).sum(dim=1).unique(return_counts=True)
    assert len(tally) == 24
    chi_square = ((tally - count / 24) ** 2 / (count / 24)).sum().item()
    assert chi_square < 50, "23 degrees of freedom: 50 is passed once in a thousand"
