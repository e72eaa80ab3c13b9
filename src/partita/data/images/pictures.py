"""Grids of images as PNG, and their unmasking as GIF."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.nn import functional as F

from partita.data.image_tokenizers import Pixels
from partita.data.images.decoding import Picture, pillow
from partita.errors import require, require_int
from partita.files.atomic import check_file, whole_file

GAP = 1  # pixels between two images, before they are enlarged
PAPER = 255
_LARGEST = 1 << 28  # bytes of a picture


def tiled(pixels: Pixels, columns: int) -> UInt8[Tensor, "C R S"]:
    """Images side by side, row by row, with a line of white around each."""
    require_int(columns, "columns")
    require(len(pixels) > 0, "pixels", "there are no images")
    channels = pixels.shape[1]
    require(channels in (1, 3), "pixels", f"have {channels} channels", "pictures have 1 or 3")
    columns = min(columns, len(pixels))
    rows = -(-len(pixels) // columns)
    framed = F.pad(pixels.cpu(), (0, GAP, 0, GAP), value=PAPER)
    height, width = framed.shape[2:]
    grid = torch.full((rows * columns, channels, height, width), PAPER, dtype=torch.uint8)
    grid[: len(framed)] = framed
    grid = grid.view(rows, columns, channels, height, width).permute(2, 0, 3, 1, 4)
    picture = grid.reshape(channels, rows * height, columns * width)
    return F.pad(picture, (GAP, 0, GAP, 0), value=PAPER)


def _picture(pixels: Pixels, columns: int, scale: int) -> Picture:
    require_int(scale, "scale", 1, 64)
    flat = tiled(pixels, columns)
    size = flat.numel() * scale * scale
    require(size <= _LARGEST, "scale", f"the picture would take {size} bytes", "show fewer images")
    plane = flat[0] if len(flat) == 1 else flat.permute(1, 2, 0)
    picture = pillow().fromarray(plane.contiguous().numpy())
    width, height = picture.size
    return picture.resize((width * scale, height * scale), pillow().Resampling.NEAREST)


def grid_png(pixels: Pixels, columns: int, path: str | Path, scale: int = 4) -> None:
    """Write images as one PNG, `columns` in a row, each pixel `scale` pixels wide."""
    picture = _picture(pixels, columns, scale)
    with _placed(path) as partial:
        picture.save(partial, format="PNG")


def unmasking_gif(
    frames: Sequence[Pixels],
    path: str | Path,
    *,
    columns: int = 8,
    scale: int = 4,
    milliseconds: int = 80,
    hold: int = 2000,
) -> None:
    """Write an animation: each frame has the same images at one step, and the last one stays.

    The caller decides how masked pixels look: gray is usual.
    """
    require(len(frames) > 0, "frames", "there are none")
    shapes = {tuple(frame.shape) for frame in frames}
    require(len(shapes) == 1, "frames", f"have several shapes: {sorted(shapes)}")
    require_int(milliseconds, "milliseconds", 20, 60_000)
    require_int(hold, "hold", 20, 60_000)
    first, *rest = [_picture(frame, columns, scale) for frame in frames]
    durations = [milliseconds] * len(rest) + [hold] if rest else hold
    moving = {"save_all": True, "append_images": rest, "duration": durations, "loop": 0}
    with _placed(path) as partial:
        first.save(partial, format="GIF", **moving)


@contextmanager
def _placed(path: str | Path) -> Iterator[Path]:
    place = Path(path)
    check_file(place, "path")
    place.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(place) as partial:
        yield partial
