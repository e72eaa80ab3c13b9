"""Decode an image file to pixels, and resize pixels, by Pillow."""

from __future__ import annotations

import io
import warnings
from types import ModuleType
from typing import Any

import numpy as np
from jaxtyping import UInt8
from numpy.typing import NDArray

from partita.errors import InputError, require
from partita.files.reading import package

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".pgm")
# What Pillow may take a file for: some of its other formats run programs.
_PNG_END = b"\0\0\0\0IEND\xae\x42\x60\x82"  # size, name and sum of its last part
_FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "PPM")
LARGEST_FILE = 1 << 26  # bytes of a packed image; no photograph takes more
_GRAY = ("1", "L")
_COLOR = ("RGB", "P", "CMYK", "YCbCr", "RGBA", "LA", "PA")

Pixels = UInt8[np.ndarray, "channels _ _"]
Picture = Any  # an image of Pillow, which need not be installed


def pillow(module: str = "Image") -> ModuleType:
    """A module of Pillow."""
    return package(f"PIL.{module}", "an image", "images")


def decode(data: bytes, name: str, size: int | None, color: bool | None) -> Pixels:
    """The pixels of a file; `name` is what an error calls it.

    With a `size` the shorter side becomes that long and the middle of the longer one is kept.
    Without `color` the file decides whether there are one or three channels.
    """
    image = pillow()
    try:
        with warnings.catch_warnings():
            # A small file that unpacks to gigabytes is an attack, which Pillow only warns of.
            warnings.simplefilter("error", image.DecompressionBombWarning)
            with image.open(io.BytesIO(data), formats=_FORMATS) as checked:
                checked.verify()  # the sums of a PNG's parts, which loading does not look at
                if checked.format == "PNG" and _PNG_END not in data:  # but for the last one
                    raise ValueError("its end is damaged or missing")
            with image.open(io.BytesIO(data), formats=_FORMATS) as opened:
                opened.load()
                upright = pillow("ImageOps").exif_transpose(opened)
        return _array(resized(_flat(upright, name, color), size))
    except InputError:
        raise
    except Exception as error:  # a damaged file raises nearly anything
        # What Pillow says of an unknown beginning holds an address in memory.
        unknown = isinstance(error, image.UnidentifiedImageError)
        why = "it begins as no image does" if unknown else " ".join(str(error).split())
        raise InputError("path", f"{name} is damaged or no image: {why:.200}") from error


def resized(picture: Picture, size: int | None) -> Picture:
    """A picture with its shorter side that long, cropped around its center to a square."""
    if size is None or picture.size == (size, size):
        return picture
    width, height = picture.size
    shorter = min(width, height)
    left, top = (width - shorter) / 2, (height - shorter) / 2
    box = (left, top, left + shorter, top + shorter)
    # Cropping first is the same square, and resizes less.
    return picture.resize((size, size), pillow().Resampling.BICUBIC, box=box)


def resize_pixels(pixels: Pixels, size: int) -> Pixels:
    """The same for pixels that come from elsewhere."""
    image = pillow()
    plane = pixels[0] if len(pixels) == 1 else np.moveaxis(pixels, 0, -1)
    return _array(resized(image.fromarray(plane), size))


def _flat(picture: Picture, name: str, color: bool | None) -> Picture:
    """A picture in gray or RGB; one with transparent parts is refused."""
    known = picture.mode in (*_GRAY, *_COLOR)
    problem = f"{name} has pixels of the kind {picture.mode!r}"
    require(known, "path", problem, "convert it to 8 bits of grey or colour first")
    if picture.mode in ("LA", "PA", "RGBA") or "transparency" in picture.info:
        lowest, _ = picture.convert("RGBA").getchannel("A").getextrema()
        remedy = "lay it over a background first"
        require(lowest == 255, "path", f"{name} has transparent places", remedy)
    if color is None:
        color = picture.mode not in (*_GRAY, "LA")
    return picture.convert("RGB" if color else "L")


def _array(picture: Picture) -> Pixels:
    plane: NDArray[np.uint8] = np.array(picture, dtype=np.uint8)
    return plane[None] if plane.ndim == 2 else np.ascontiguousarray(np.moveaxis(plane, -1, 0))
