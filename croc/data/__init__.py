"""Photographs: where they come from, how they are decoded, and how they become batches."""

from croc.data.decode import UndecodableImage, decode_image, place_on_canvas
from croc.data.loader import FailedFiles, batch_indices, epoch_order, make_loader, steps_per_epoch
from croc.data.pack import PackedSource
from croc.data.shards import ShardSource
from croc.data.sources import ConcatSource, FolderSource, ImageSource, ScenesSource, open_source

__all__ = [
    "ConcatSource",
    "FailedFiles",
    "FolderSource",
    "ImageSource",
    "PackedSource",
    "ScenesSource",
    "ShardSource",
    "UndecodableImage",
    "batch_indices",
    "decode_image",
    "epoch_order",
    "make_loader",
    "open_source",
    "place_on_canvas",
    "steps_per_epoch",
]
