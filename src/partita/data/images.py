"""Images with labels: the digits that come with scikit-learn, and MNIST from its own files."""

from __future__ import annotations

import gzip
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from partita.data.reading import DamagedError, package, reading
from partita.errors import InputError, require

_IDX_BYTES = 0x08  # the code of unsigned bytes; MNIST has no other
_FILES = {True: "train", False: "t10k"}


@dataclass(frozen=True)
class Images:
    """Pixels that take `levels` values from 0 on, and what each image shows."""

    pixels: UInt8[Tensor, "N C H W"]
    labels: Int64[Tensor, "N"]
    levels: int

    def scaled(self) -> Tensor:
        """The pixels as numbers from -1 to 1."""
        return self.pixels.float() * (2 / (self.levels - 1)) - 1


def digits() -> Images:
    """scikit-learn's 1,797 digits of 8 x 8 pixels, which are on every machine that has it."""
    datasets = package("sklearn.datasets", "the set of digits", "images")
    pixels, labels = datasets.load_digits(return_X_y=True)
    grid = torch.from_numpy(pixels).to(torch.uint8).view(-1, 1, 8, 8)
    return Images(grid, torch.from_numpy(labels).long(), 17)


def mnist(folder: str | Path, *, train: bool = True) -> Images:
    """MNIST's 60,000 or (for `train=False`) 10,000 digits of 28 x 28 pixels.

    The folder holds the original files, packed (.gz) or not.
    """
    names = (f"{_FILES[train]}-images-idx3-ubyte", f"{_FILES[train]}-labels-idx1-ubyte")
    images, labels = (read_idx(_present(Path(folder), name)) for name in names)
    fits = images.ndim == 3 and labels.shape == images.shape[:1]
    problem = f"{folder} holds {list(images.shape)} pixels and {list(labels.shape)} labels"
    require(fits, "path", problem, "use the four files of MNIST")
    return Images(images[:, None], labels.long(), 256)


def _present(folder: Path, name: str) -> Path:
    for path in (folder / f"{name}.gz", folder / name):
        if path.exists():
            return path
    problem = f"{folder} has no {name}(.gz)"
    raise InputError("path", problem, "name the folder of MNIST's files")


def read_idx(path: Path) -> UInt8[Tensor, "..."]:
    """An IDX file: two zero bytes, a type, a number of dimensions, their sizes, the bytes."""
    with reading(path):
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        if len(data) < 4 or data[:3] != bytes([0, 0, _IDX_BYTES]):
            raise DamagedError("it does not begin as an IDX file of bytes does")
        start = 4 + 4 * data[3]
        if len(data) < start:
            raise DamagedError("it ends within its head")
        sizes = [int(size) for size in np.frombuffer(data[4:start], dtype=">u4")]
        if len(data) - start != math.prod(sizes):
            raise DamagedError(f"{len(data)} bytes do not fit the sizes {sizes}")
    return torch.from_numpy(np.frombuffer(data, np.uint8, offset=start).copy()).view(sizes)
