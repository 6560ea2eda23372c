"""CrOC: dense visual features from unlabelled scene photographs, by online clustering."""

__version__ = "0.1.0"
