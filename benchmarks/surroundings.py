"""What a figure was measured on and with: the same here as in `croc bench`."""

from croc.bench.surroundings import hardware, versions

__all__ = ["hardware", "versions"]
