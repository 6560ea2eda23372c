"""`croc show report`: one HTML page per run or comparison: curves, clusters, scores, settings."""
