"""Online clustering of the joined tokens by optimal transport."""

from croc.method.clustering.join_split import cluster
from croc.method.clustering.paper import draw_seeds, sinkhorn

__all__ = ["cluster", "draw_seeds", "sinkhorn"]
