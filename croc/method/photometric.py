"""Photometric augmentation on the device: jitter, grayscale, blur, solarize.

Every operation takes a batch of float images in 0 … 1 and a parameter for each image, and does
what torchvision's functional of the same name does to one image. An image to which an operation
does not apply is unchanged, bit for bit.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn.functional import pad

from croc.config import ViewsConfig
from croc.method.randomness import uniform

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
SOLARIZE_THRESHOLD = 128 / 255
BLUR_RADIUS_SIGMAS = 4

BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
"""The jitter's operations, as numbered in `Photometric.order`."""


@dataclass(frozen=True)
class Photometric:
    """The parameters of each image."""

    jitter: Bool[Tensor, "B"]
    order: Int64[Tensor, "B 4"]
    """The jitter's operations, first to last."""
    factors: Float[Tensor, "B 3"]
    """Factors of brightness, contrast and saturation; 1 changes nothing."""
    hue: Float[Tensor, "B"]
    """Shift of the hue, in turns."""
    grayscale: Bool[Tensor, "B"]
    blur: Bool[Tensor, "B"]
    sigma: Float[Tensor, "B"]
    """Standard deviation of the blur, in pixels."""
    solarize: Bool[Tensor, "B"]


def draw_photometric(keys: Int64[Tensor, "B"], view: int, config: ViewsConfig) -> Photometric:
    """The parameters of one view of each image, from the images' keys."""
    numbers = uniform(keys, f"photometric {view}", 13)
    chances, order, strengths, hue, sigma = numbers.split([4, 4, 3, 1, 1], dim=1)
    spreads = (config.brightness, config.contrast, config.saturation)
    low, high = config.blur_sigma
    return Photometric(
        jitter=chances[:, 0] < config.jitter,
        order=order.argsort(dim=1),
        factors=torch.stack(
            [1 + spread * (2 * strengths[:, i] - 1) for i, spread in enumerate(spreads)], dim=1
        ),
        hue=config.hue * (2 * hue[:, 0] - 1),
        grayscale=chances[:, 1] < config.grayscale,
        blur=chances[:, 2] < config.blur[view],
        sigma=low + (high - low) * sigma[:, 0],
        solarize=chances[:, 3] < config.solarize[view],
    )


PARAMETERS = tuple(field.name for field in fields(Photometric))


def interleave(views: list[Photometric]) -> Photometric:
    """The parameters of all views of the first image, then of the second, and so on."""
    return Photometric(
        **{
            name: torch.stack([getattr(view, name) for view in views], dim=1).flatten(0, 1)
            for name in PARAMETERS
        }
    )


def blur_radius_px(config: ViewsConfig) -> int:
    """Radius of the widest blur: 8 pixels for the paper's σ of 2."""
    return math.ceil(BLUR_RADIUS_SIGMAS * config.blur_sigma[1])


def apply_photometric(
    images: Float[Tensor, "B 3 h w"], parameters: Photometric, radius_px: int = 8
) -> Float[Tensor, "B 3 h w"]:
    """Jitter, grayscale, blur, solarize; `radius_px` truncates the kernel of the blur."""
    with torch.autocast(images.device.type, enabled=False):
        images = jitter(images.float(), parameters)
        images = torch.where(_per_image(parameters.grayscale), grayscale(images), images)
        blurred = gaussian_blur(images, parameters.sigma, radius_px)
        images = torch.where(_per_image(parameters.blur), blurred, images)
        return solarize(images, parameters.solarize)


def _per_image(values: Tensor) -> Tensor:
    return values[:, None, None, None]


def jitter(images: Float[Tensor, "B 3 h w"], parameters: Photometric) -> Float[Tensor, "B 3 h w"]:
    """Apply the four operations in each image's own order.

    Brightness, contrast and saturation are the same operation, a blend, with different targets. So
    three blends, the hue shift and three more blends cover every order; blends that an image does
    not need have the factor 1.
    """
    order = parameters.order
    factors = pad(parameters.factors, (0, 1), value=1.0).gather(1, order)
    factors = torch.where(parameters.jitter[:, None], factors, 1.0)
    hue_past = (order == HUE).cumsum(dim=1) > 0
    before, after = torch.where(hue_past, 1.0, factors), torch.where(hue_past, factors, 1.0)
    for slot in (0, 1, 2):
        images = blend(images, order[:, slot], before[:, slot])
    images = torch.where(_per_image(parameters.jitter), adjust_hue(images, parameters.hue), images)
    for slot in (1, 2, 3):
        images = blend(images, order[:, slot], after[:, slot])
    return images


def blend(
    images: Float[Tensor, "B 3 h w"], operation: Int64[Tensor, "B"], factor: Float[Tensor, "B"]
) -> Float[Tensor, "B 3 h w"]:
    """factor · image + (1 - factor) · target: black for brightness, the mean gray for contrast,
    the gray image for saturation."""
    gray = grayscale(images)
    rest = 1 - factor
    mean = gray.mean(dim=(1, 2, 3)) * (rest * (operation == CONTRAST))
    target = gray.mul_(_per_image(rest * (operation == SATURATION))).add_(_per_image(mean))
    return images.mul(_per_image(factor)).add_(target).clamp_(0, 1)


def grayscale(images: Float[Tensor, "B 3 h w"]) -> Float[Tensor, "B 1 h w"]:
    """Luma, with torchvision's weights."""
    red, green, blue = images.split(1, dim=1)
    return red.mul(0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114)


def adjust_hue(
    images: Float[Tensor, "B 3 h w"], turns: Float[Tensor, "B"]
) -> Float[Tensor, "B 3 h w"]:
    """Rotate the hue, keeping value and saturation.

    With the hue counted in sixths of a turn, each channel is the pixel's largest value, less
    its range times a trapezoid of the hue, so HSV is never written out.
    """
    red, green, blue = images.unbind(dim=1)
    largest = images.amax(dim=1)
    spread = largest - images.amin(dim=1)
    sixths = torch.where(
        largest == red,
        _sector(green, blue, spread, 0),
        torch.where(
            largest == green, _sector(blue, red, spread, 2), _sector(red, green, spread, 4)
        ),
    )
    sixths = sixths.add_(6 * turns[:, None, None]).remainder_(6)
    lacks = (
        sixths.sub(3).abs_().neg_().add_(2),
        sixths.sub(2).abs_().sub_(1),
        sixths.sub_(4).abs_().sub_(1),
    )
    channels = [largest - lack.clamp_(0, 1).mul_(spread) for lack in lacks]
    return torch.stack(channels, dim=1)


def _sector(
    ahead: Float[Tensor, "B h w"],
    behind: Float[Tensor, "B h w"],
    spread: Float[Tensor, "B h w"],
    start: int,
) -> Float[Tensor, "B h w"]:
    """The hue of pixels with the same largest channel; `ahead` and `behind` are the other two."""
    # A gray pixel has no hue; any value works, since its spread is zero.
    return (ahead - behind).div_(spread.clamp_min(1e-12)).add_(start)


def gaussian_blur(
    images: Float[Tensor, "B 3 h w"], sigma: Float[Tensor, "B"], radius_px: int = 8
) -> Float[Tensor, "B 3 h w"]:
    """Gaussian blur, reflected at the borders, as a matrix product along each axis."""
    batch, channels, height, width = images.shape
    along_x = _blur_matrix(sigma, width, radius_px)
    along_y = along_x if height == width else _blur_matrix(sigma, height, radius_px)
    # Rows outermost, so that each product takes all channels at once.
    rows = images.transpose(1, 2).reshape(batch, height * channels, width)
    rows = torch.bmm(rows, along_x.mT).view(batch, height, channels * width)
    return torch.bmm(along_y, rows).view(batch, height, channels, width).transpose(1, 2)


def _blur_matrix(
    sigma: Float[Tensor, "B"], size: int, radius_px: int
) -> Float[Tensor, "B {size} {size}"]:
    """Row i contains the weights of the pixels j of a line by their distance from i, directly and
    reflected at each end of the line; the end pixels are not repeated."""
    radius = min(radius_px, size - 1)
    taps = torch.arange(radius + 1, device=sigma.device)
    kernel = torch.exp(-0.5 * (taps / sigma[:, None]).square())
    kernel = kernel / (2 * kernel.sum(dim=1, keepdim=True) - 1)
    taps = taps[:, None, None]
    here = torch.arange(size, device=sigma.device)[:, None]
    there, last = here.mT, size - 1
    reached = ((here - there).abs() == taps).float()
    reached += (here + there == taps) & (there > 0)
    reached += (2 * last - here - there == taps) & (there < last)
    return (kernel @ reached.flatten(1)).unflatten(1, (size, size))


def solarize(
    images: Float[Tensor, "B 3 h w"], apply: Bool[Tensor, "B"]
) -> Float[Tensor, "B 3 h w"]:
    """Invert the bright pixels of the chosen images."""
    return torch.where(_per_image(apply) & (images >= SOLARIZE_THRESHOLD), 1 - images, images)


def normalize(
    images: Float[Tensor, "*batch 3 h w"],
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
) -> Float[Tensor, "*batch 3 h w"]:
    """Subtract the mean of each channel and divide by its standard deviation."""
    constants = zip(images.unbind(dim=-3), mean, std, strict=True)
    # Channel by channel with plain numbers, since a tensor would be copied to the device.
    return torch.stack([(channel - center).div_(scale) for channel, center, scale in constants], -3)


def unnormalize(images: Float[Tensor, "*batch 3 h w"]) -> Float[Tensor, "*batch 3 h w"]:
    """Back to colors in 0 … 1."""
    constants = zip(images.unbind(dim=-3), IMAGENET_MEAN, IMAGENET_STD, strict=True)
    return torch.stack([channel * std + mean for channel, mean, std in constants], -3).clamp(0, 1)
