"""Photographs, and the views that are made of them."""

from dataclasses import dataclass

from croc.config.checks import require, require_least, require_share


@dataclass(frozen=True)
class DataConfig:
    """Where the photographs are."""

    root: tuple[str, ...] = ()
    """Folder(s) of images at any depth, tar shard(s) such as 'coco-{000..009}.tar' or
    'pipe:COMMAND', a folder made by `croc data pack`, or the word scenes."""
    subfolders: tuple[str, ...] = ()
    """Where the root has these folders, only they are read (COCO: train2017)."""
    canvas_px: int = 640
    """Longer side to which an image is reduced when it is decoded; smaller ones stay. At 640 no
    crop of a 640 × 480 photograph is enlarged to 224 px: the smallest is 240 px wide."""
    workers: int | None = None
    """Decoding processes for each training process; by default the cores shared out, 16 at most."""
    scenes: int = 1024
    """Number of synthetic scenes, for the root scenes."""
    max_failed_share: float = 0.01
    """A run stops when a larger share of the files cannot be decoded."""

    def __post_init__(self) -> None:
        require_least(self, "data", 16, "canvas_px")
        require_least(self, "data", 1, "scenes")
        require_least(self, "data", 0, "workers")
        require_share("--data.max-failed-share", self.max_failed_share)


@dataclass(frozen=True)
class ViewsConfig:
    """The two crops of an image; pairs give a value for each view."""

    size_px: int = 224
    """Side of a view."""
    early_px: int | None = None
    """Side of a view in the first epochs, if another: small views train faster. Their blur is
    narrower by as much."""
    early_epochs: int = 0
    """Epochs with views of early_px."""
    scale: tuple[float, float] = (0.25, 1.0)
    """Smallest and largest share of the image's area in a crop."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Narrowest and widest crop, width over height."""
    flip: float = 0.5
    """Probability of a horizontal flip."""
    jitter: float = 0.8
    """Probability of the colour jitter."""
    brightness: float = 0.4
    """Jitter: brightness factor in 1 ± this."""
    contrast: float = 0.4
    """Jitter: contrast factor in 1 ± this."""
    saturation: float = 0.2
    """Jitter: saturation factor in 1 ± this."""
    hue: float = 0.1
    """Jitter: hue shift within ± this, in turns."""
    grayscale: float = 0.2
    """Probability of grayscale."""
    blur: tuple[float, float] = (1.0, 0.1)
    """Probability of Gaussian blur."""
    blur_sigma: tuple[float, float] = (0.1, 2.0)
    """Smallest and largest standard deviation of the blur, in pixels."""
    solarise: tuple[float, float] = (0.0, 0.2)
    """Probability of solarisation."""

    def __post_init__(self) -> None:
        require_least(self, "views", 1, "size_px", "early_px")
        require_least(self, "views", 0, "early_epochs")
        require(
            (self.early_px is None) == (self.early_epochs == 0),
            "--views.early-px and --views.early-epochs belong together: give both or none",
        )
        require(
            0 < self.scale[0] <= self.scale[1] <= 1,
            f"--views.scale must rise within 0 … 1: {self.scale}",
        )
        require(0 < self.ratio[0] <= self.ratio[1], f"--views.ratio must rise: {self.ratio}")
        require(
            0 < self.blur_sigma[0] <= self.blur_sigma[1],
            f"--views.blur-sigma must rise and be positive: {self.blur_sigma}",
        )
        require(0 <= self.hue <= 0.5, f"--views.hue must be in 0 … 0.5: {self.hue}")
        for name in ("flip", "jitter", "brightness", "contrast", "saturation", "grayscale"):
            require_share(f"--views.{name}", getattr(self, name))
        require_share("--views.blur", *self.blur)
        require_share("--views.solarise", *self.solarise)
