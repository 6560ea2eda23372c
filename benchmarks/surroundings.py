"""What a figure was measured on and with: the same here as in `croc bench`."""

from croc.lab.bench.surroundings import hardware, versions

__all__ = ["hardware", "versions"]
