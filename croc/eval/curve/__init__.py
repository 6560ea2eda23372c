"""`croc evaluate curve`: the scores of a run's checkpoints against the images that it had seen."""
