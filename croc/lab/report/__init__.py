"""`croc show report`: runs as one page to look at, with curves, clusters, scores and settings."""

FILE = "report.html"
