"""MNIST, and what comes in the same files: IDX."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from partita.data.images.base import BYTE_LEVELS, Images
from partita.data.reading import DamagedError, reading
from partita.errors import InputError, require

_IDX_BYTES = 0x08  # the code of unsigned bytes; MNIST has no other
_FILES = {True: "train", False: "t10k"}


def mnist(folder: str | Path, *, train: bool = True) -> Images:
    """MNIST's 60,000 or (for `train=False`) 10,000 digits of 28 x 28 pixels.

    The folder holds the original files, packed (.gz) or not.
    """
    images, labels = (read_idx(_present(Path(folder), name)) for name in _names(train))
    fits = images.ndim == 3 and labels.shape == images.shape[:1] and len(images) > 0
    problem = f"{folder} holds {list(images.shape)} pixels and {list(labels.shape)} labels"
    require(fits, "path", problem, "use the four files of MNIST")
    classes = tuple(map(str, range(int(labels.max()) + 1)))
    return Images(images[:, None], labels.long(), BYTE_LEVELS, classes)


def holds_idx(folder: Path) -> bool:
    """Whether a folder has any of MNIST's files."""
    names = (*_names(True), *_names(False))
    return any(path.exists() for name in names for path in _places(folder, name))


def _names(train: bool) -> tuple[str, str]:
    return f"{_FILES[train]}-images-idx3-ubyte", f"{_FILES[train]}-labels-idx1-ubyte"


def _places(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / f"{name}.gz", folder / name


def _present(folder: Path, name: str) -> Path:
    for path in _places(folder, name):
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
