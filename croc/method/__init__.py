"""The method: views, tokens, clusters, losses, and one step of training."""
