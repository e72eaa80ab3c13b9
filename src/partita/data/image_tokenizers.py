"""Image tokenizers: pixels to rows of ids and back. The mask id is not theirs: it is `vocab_size`.

Pixels are bytes: a tokenizer takes `Images`, which know their levels, or bytes, and gives bytes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from partita.data.any_tokenizer import TOKENIZERS, AnyTokenizer, from_files
from partita.data.images.base import Images, as_bytes, byte_pixels, check_levels, quantise
from partita.errors import InputError, require, require_int

LARGEST_SIDE = 1 << 12
Pixels = UInt8[Tensor, "N C H W"]


class ImageTokenizer(AnyTokenizer):
    """The base class of image tokenizers."""

    data = "images"

    if TYPE_CHECKING:

        @property
        def grid(self) -> tuple[int, int]:
            """Rows and columns of tokens; a row of tokens is the grid in raster order."""

    @abstractmethod
    def encode(self, images: Images | Pixels) -> Int64[Tensor, "N L"]:
        """Images to ids."""

    @abstractmethod
    def decode(self, tokens: Int64[Tensor, "N L"]) -> Pixels:
        """Ids to bytes."""


@TOKENIZERS.register("pixels")
class PixelTokenizer(ImageTokenizer):
    """One token per pixel and channel: its level.

    Pixels come in raster order, and the channels of a pixel one after the other (r, g, b, r, g,
    b, ...), so that the grid has `channels` times as many columns as the image. With 256 levels
    nothing is lost; with fewer, `decode` gives the middle of each level's bytes.
    """

    def __init__(self, levels: int, channels: int, size: int | tuple[int, int]) -> None:
        check_levels(levels)
        require_int(channels, "channels", 1, 4)
        self.levels, self.channels = levels, channels
        self.size = check_size(size)

    @property
    def vocab_size(self) -> int:
        return self.levels

    @property
    def grid(self) -> tuple[int, int]:
        return self.size[0], self.size[1] * self.channels

    def encode(self, images: Images | Pixels) -> Int64[Tensor, "N L"]:
        pixels = byte_pixels(images, (self.channels, *self.size))
        return quantise(pixels, self.levels).permute(0, 2, 3, 1).flatten(1).long()

    def decode(self, tokens: Int64[Tensor, "N L"]) -> Pixels:
        check_tokens(tokens, self)
        pixels = tokens.to(torch.uint8).reshape(-1, *self.size, self.channels)
        return as_bytes(pixels.permute(0, 3, 1, 2).contiguous(), self.levels)

    def describe(self) -> dict[str, Any]:
        size = list(self.size)
        return {"kind": "pixels", "levels": self.levels, "channels": self.channels, "size": size}

    @staticmethod
    def restore(description: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> PixelTokenizer:
        require(not tensors, "tokenizer", "pixels have no tensors, but there are some")
        given = dict(description)
        size = stored_size(given.pop("size", None))
        levels, channels = stored_int(given, "levels"), stored_int(given, "channels")
        refuse_rest(given)
        return PixelTokenizer(levels, channels, size)


def from_description(description: object, tensors: Mapping[str, Tensor]) -> ImageTokenizer:
    """The tokenizer of images that `describe` and `tensors` described; anything else is refused."""
    made = from_files(description, tensors)
    if not isinstance(made, ImageTokenizer):
        raise InputError("tokenizer", f"is one of {made.data}, and this needs one of images")
    return made


def check_size(size: int | tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of an image; one number is a square."""
    rows, columns = (size, size) if isinstance(size, int) else size
    require_int(rows, "size", 1, LARGEST_SIDE)
    require_int(columns, "size", 1, LARGEST_SIDE)
    return rows, columns


def stored_int(given: dict[str, Any], key: str) -> int:
    """A whole number as JSON has it, taken out of a description."""
    value = given.pop(key, None)
    require(type(value) is int, "tokenizer", f"its {key} must be a whole number, got {value!r:.99}")
    return int(value)


def stored_size(size: object) -> tuple[int, int]:
    """Rows and columns as JSON has them."""
    if not (isinstance(size, list) and [type(n) for n in size] == [int, int]):
        raise InputError("tokenizer", f"its size must be two whole numbers, got {size!r:.200}")
    return size[0], size[1]


def refuse_rest(rest: Mapping[str, Any]) -> None:
    """Refuse a description with unknown keys."""
    for key in rest:
        raise InputError("tokenizer", f"its description has an unknown key {key!r:.200}")


def check_tokens(tokens: Int64[Tensor, "N L"], tokenizer: ImageTokenizer) -> None:
    """Refuse rows of another length, and ids that are no tokens, such as masks."""
    rows, columns = tokenizer.grid
    problem = f"rows have {tokens.shape[1]} tokens, an image {rows} x {columns}"
    require(tokens.shape[1] == rows * columns, "tokens", problem)
    if not tokens.numel():
        return
    low, high = int(tokens.min()), int(tokens.max())
    fits = 0 <= low <= high < tokenizer.vocab_size
    remedy = f"there are {tokenizer.vocab_size}, from 0 on; fill in what is masked first"
    require(fits, "tokens", f"the ids are {low} to {high}", remedy)
