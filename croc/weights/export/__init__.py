"""`croc export`: a run's backbone as a file or a folder that loads without this project."""

from croc.weights.export.command import Export, export

__all__ = ["Export", "export"]
