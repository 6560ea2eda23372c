"""Maps as pictures: tiles of gray in one PNG, some kilobytes for all clusters of all heads."""

import base64
import io

import torch
from einops import rearrange
from jaxtyping import Float
from PIL import Image
from torch import Tensor

# A row of the released variant's assignments may be all zero.
LEAST = 1e-12


def cluster_tiles(assignments: Float[Tensor, "L M N K"], rows: int) -> str:
    """A row of tiles for each of L layers (heads or steps) and view, a column for each cluster.

    Each patch's shares sum to 1, so that 8 bits are enough in both variants.
    """
    shares = assignments / assignments.sum(dim=-1, keepdim=True).clamp_min(LEAST)
    return to_png(rearrange(shares, "l m (r c) k -> (l m r) (k c)", r=rows))


def to_png(values: Float[Tensor, "h w"]) -> str:
    """Values in 0 … 1 as a gray PNG, in a data URL."""
    gray = (values * 255).round().clamp(0, 255).to(torch.uint8).numpy()
    file = io.BytesIO()
    Image.fromarray(gray).save(file, "PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")
