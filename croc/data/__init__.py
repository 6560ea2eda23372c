"""Training images: sources, decoding and batches."""

from croc.data.decode import UndecodableImage, decode_image, place_on_canvas
from croc.data.loader import epoch_order, make_loader
from croc.data.pack import PackedSource
from croc.data.sources import FolderSource, ImageSource, ScenesSource, ShardSource, open_source

__all__ = [
    "FolderSource",
    "ImageSource",
    "PackedSource",
    "ScenesSource",
    "ShardSource",
    "UndecodableImage",
    "decode_image",
    "epoch_order",
    "make_loader",
    "open_source",
    "place_on_canvas",
]
