"""Online clustering of the joined tokens by optimal transport."""

from croc.method.clustering.paper import cluster, draw_seeds, sinkhorn

__all__ = ["cluster", "draw_seeds", "sinkhorn"]
