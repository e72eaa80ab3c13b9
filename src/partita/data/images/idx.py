"""MNIST, and other data sets in its file format, IDX."""

from __future__ import annotations

import gzip
import math
from io import BufferedIOBase
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from numpy.typing import NDArray
from torch import Tensor

from partita.data.images.base import BYTE_LEVELS, Images
from partita.errors import InputError, require
from partita.files.reading import DamagedError, reading, require_file

LARGEST = 1 << 31  # bytes; the largest of MNIST's kin have a fourth of it
_SPLIT = "larger sets are folders of images by class, or a tar of one"
_AT_ONCE = 1 << 20
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
    return any(path.exists() for name in names for path in _paths(folder, name))


def _names(train: bool) -> tuple[str, str]:
    return f"{_FILES[train]}-images-idx3-ubyte", f"{_FILES[train]}-labels-idx1-ubyte"


def _paths(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / f"{name}.gz", folder / name


def _present(folder: Path, name: str) -> Path:
    path = next((path for path in _paths(folder, name) if path.exists()), None)
    if path is None:
        raise InputError("path", f"{folder} has no {name}(.gz)", "name the folder of MNIST's files")
    return path


def read_idx(path: Path) -> UInt8[Tensor, "..."]:
    """An IDX file: two zero bytes, a type, a number of dimensions, their sizes, the bytes."""
    require_file(path)
    with reading(path), path.open("rb") as raw:
        packed = path.suffix == ".gz"
        stream = gzip.GzipFile(fileobj=raw) if packed else raw
        sizes = _sizes(stream)
        declared = math.prod(sizes)
        if not packed and path.stat().st_size != raw.tell() + declared:
            raise DamagedError(f"{path.stat().st_size} bytes do not fit the sizes {sizes}")
        problem = f"{path} says that it holds {declared:,} bytes, of {LARGEST:,} at most"
        require(declared <= LARGEST, "path", problem, _SPLIT)
        values = np.empty(declared, np.uint8)
        if _fill(values, stream) < declared or stream.read(1):
            raise DamagedError(f"its bytes do not fit the sizes {sizes}")
    return torch.from_numpy(values).view(sizes)


def _sizes(stream: BufferedIOBase) -> list[int]:
    """The head of a file: how many values there are in each dimension."""
    head = stream.read(4)
    if len(head) < 4 or head[:3] != bytes([0, 0, _IDX_BYTES]):
        raise DamagedError("it does not begin as an IDX file of bytes does")
    sizes = stream.read(4 * head[3])
    if len(sizes) < 4 * head[3]:
        raise DamagedError("it ends within its head")
    return [int(size) for size in np.frombuffer(sizes, dtype=">u4")]


def _fill(values: NDArray[np.uint8], stream: BufferedIOBase) -> int:
    """Read until an array is full or the stream ends; how much was read."""
    filled = 0
    while count := stream.readinto(values.data[filled : filled + _AT_ONCE]):
        filled += count
    return filled
