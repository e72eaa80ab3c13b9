"""Images with labels, from files, folders and archives: see `read_images`."""

from __future__ import annotations

from partita.data.images.base import Images, as_bytes, quantise
from partita.data.images.codes import Codes, read_codes, write_codes
from partita.data.images.idx import mnist, read_idx
from partita.data.images.sources import ImageOptions, digits, read_images

__all__ = [
    "Codes",
    "ImageOptions",
    "Images",
    "as_bytes",
    "digits",
    "mnist",
    "quantise",
    "read_codes",
    "read_idx",
    "read_images",
    "write_codes",
]
