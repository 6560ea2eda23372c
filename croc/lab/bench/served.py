"""Which of the two ways of clustering serves: their costs are different curves."""

from jaxtyping import Float
from torch import Tensor

from croc.config import ClusterConfig
from croc.kernels import serve

KERNEL = "kernel"
DEFINITION = "definition"


def clustering_by(tokens: Float[Tensor, "M B H N d"], config: ClusterConfig) -> str:
    """The kernel, or the definition where the kernel cannot take the tokens."""
    if not serve(tokens):
        return DEFINITION
    from croc.kernels.clustering import fits

    return KERNEL if fits(tokens, config) else DEFINITION
