"""Images in memory: pixels of some levels, labels, and the names of classes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from partita.errors import require, require_int

BYTE_LEVELS = 256


@dataclass(frozen=True)
class Images:
    """Images whose pixels are 0 to `levels` - 1, and the class of each."""

    pixels: UInt8[Tensor, "N C H W"]
    labels: Int64[Tensor, "N"]
    levels: int
    classes: tuple[str, ...] = ()
    """The names of the labels 0, 1, ...; empty if they have no names."""

    def __len__(self) -> int:
        return len(self.pixels)

    def scaled(self) -> Tensor:
        """The pixels as numbers from -1 to 1."""
        return self.pixels.float() * (2 / (self.levels - 1)) - 1

    def bytes(self) -> UInt8[Tensor, "N C H W"]:
        """The pixels as bytes, to be shown: each level becomes the middle of its bytes."""
        return as_bytes(self.pixels, self.levels)

    def quantised(self, levels: int) -> Images:
        """The same images with fewer levels."""
        return replace(self, pixels=quantise(self.bytes(), levels), levels=levels)

    def select(self, rows: Int64[Tensor, "R"]) -> Images:
        """Some of the images."""
        return replace(self, pixels=self.pixels[rows], labels=self.labels[rows])


def quantise(pixels: UInt8[Tensor, "*shape"], levels: int) -> UInt8[Tensor, "*shape"]:
    """Quantize bytes to levels: floor(x levels / 256)."""
    check_levels(levels)
    table = torch.arange(BYTE_LEVELS, device=pixels.device) * levels // BYTE_LEVELS
    return table.to(torch.uint8)[pixels.long()]


def as_bytes(pixels: UInt8[Tensor, "*shape"], levels: int) -> UInt8[Tensor, "*shape"]:
    """Levels as bytes: the middle of those bytes that `quantise` sends to the level.

    The middle lies in its own cell, so that quantizing it again gives the level back.
    """
    check_levels(levels)
    lowest = -(-torch.arange(levels + 1, device=pixels.device) * BYTE_LEVELS // levels)
    table = (lowest[:-1] + lowest[1:] - 1) // 2
    largest = int(pixels.max()) if pixels.numel() else 0
    problem = f"the value {largest} is not one of {levels} levels"
    require(largest < levels, "pixels", problem, f"the values are 0 to {levels - 1}")
    return table.to(torch.uint8)[pixels.long()]


def check_levels(levels: int, argument: str = "levels") -> None:
    """Refuse what is no number of levels from 2 to 256."""
    require_int(levels, argument, 2, BYTE_LEVELS)


def byte_pixels(
    images: Images | UInt8[Tensor, "N C H W"], shape: tuple[int, int, int]
) -> UInt8[Tensor, "N C H W"]:
    """The bytes of images, or bytes as they are, of exactly these channels, rows and columns."""
    pixels = images.bytes() if isinstance(images, Images) else images
    found = list(pixels.shape[1:])
    problem = f"of {found} (channels, rows, columns), where {list(shape)} are expected"
    remedy = "read them with the size and colours that this was made for"
    require(found == list(shape), "images", problem, remedy)
    return pixels
