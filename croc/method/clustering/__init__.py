"""Online clustering of the joined tokens by optimal transport."""

from croc.method.clustering.cluster import cluster, draw_seeds
from croc.method.clustering.steps import sinkhorn

__all__ = ["cluster", "draw_seeds", "sinkhorn"]
