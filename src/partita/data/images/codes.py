"""Images as codes that other programs made: one file of numbers, safetensors or npz.

The file holds `codes` [N, H, W] and `labels` [N], whole numbers, and may hold `vocab_size`, one
number: how many codes there are, of which a small data set need not use the last.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch
from jaxtyping import Int64
from numpy.typing import NDArray
from torch import Tensor

from partita.data.tokenizers import LARGEST_VOCABULARY
from partita.errors import InputError, require, require_int
from partita.files.atomic import check_file, write_whole
from partita.files.reading import reading, require_file

SUFFIXES = (".safetensors", ".npz")
LARGEST = 1 << 32  # bytes, unpacked; numbers are widened to 64 bits when they are read
_NAMES = ("codes", "labels", "vocab_size")

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Codes:
    """Images as grids of codes, and the class of each."""

    codes: Int64[Tensor, "N H W"]
    labels: Int64[Tensor, "labels"]
    vocab_size: int

    def __post_init__(self) -> None:
        require_int(self.vocab_size, "vocab_size", 1, LARGEST_VOCABULARY)
        require(self.codes.numel() > 0, "codes", "is empty")
        counts = f"{len(self.codes)} images have {len(self.labels)} labels"
        require(len(self.codes) == len(self.labels), "labels", counts)
        low, high = int(self.codes.min()), int(self.codes.max())
        fits = 0 <= low <= high < self.vocab_size
        remedy = f"a vocabulary of {self.vocab_size} has 0 to its size - 1"
        require(fits, "codes", f"the codes are {low} to {high}", remedy)
        require(int(self.labels.min()) >= 0, "labels", "a label is negative")

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of an image."""
        return self.codes.shape[1], self.codes.shape[2]

    @property
    def tokens(self) -> Int64[Tensor, "N L"]:
        """The codes in raster order."""
        return self.codes.flatten(1)


def write_codes(path: str | Path, codes: Codes) -> None:
    """Write a file atomically; its suffix says of which kind."""
    path = Path(path)
    _check_suffix(path)
    check_file(path, "path")
    arrays: Arrays = {
        "codes": codes.codes.cpu().numpy().astype(np.int32),
        "labels": codes.labels.cpu().numpy(),
        "vocab_size": np.array([codes.vocab_size]),
    }
    if path.suffix == ".npz":
        stream = io.BytesIO()
        np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]
    else:
        stream = io.BytesIO(safetensors.numpy.save(arrays))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, stream.getvalue())


def read_codes(path: str | Path) -> Codes:
    """Codes from a file, which is read as numbers: pickled arrays are refused."""
    path = Path(path)
    _check_suffix(path)
    arrays = _arrays(path)
    for name, dimensions in (("codes", 3), ("labels", 1)):
        require(name in arrays, "path", f"{path} has no {name!r}", f"it has: {', '.join(arrays)}")
        array = arrays[name]
        fits = array.ndim == dimensions and array.dtype.kind in "iu" and array.size > 0
        problem = f"{path}: {name!r} is {array.dtype} {list(array.shape)}"
        require(fits, "path", problem, f"expected whole numbers in {dimensions} dimensions")
        _check_bytes(path, array.size * np.dtype(np.int64).itemsize)
    codes, labels = (torch.from_numpy(arrays[name].astype(np.int64)) for name in _NAMES[:2])
    try:
        return Codes(codes, labels, _size(arrays))
    except InputError as error:
        raise InputError("path", f"{path}: {error}") from error


def _size(arrays: Arrays) -> int:
    stored = arrays.get("vocab_size")
    if stored is None:
        return max(int(arrays["codes"].max()) + 1, 1)
    fits = stored.size == 1 and stored.dtype.kind in "iu"
    require(fits, "vocab_size", f"must be one whole number, is {stored.dtype} {stored.shape}")
    return int(stored.reshape(-1)[0])


def _check_suffix(path: Path) -> None:
    problem = f"{path} is neither of {' and '.join(SUFFIXES)}"
    require(path.suffix in SUFFIXES, "path", problem, "name the file so")


def _check_bytes(path: Path, size: int) -> None:
    problem = f"{path} holds {size:,} bytes of numbers, of {LARGEST:,} at most"
    require(size <= LARGEST, "path", problem, "make several files of it")


def _arrays(path: Path) -> Arrays:
    require_file(path)
    with reading(path):
        size = path.stat().st_size
        _check_bytes(path, size)
        data = path.read_bytes()
    try:
        if path.suffix == ".safetensors":
            return {name: a for name, a in safetensors.numpy.load(data).items() if name in _NAMES}
        with np.load(io.BytesIO(data), allow_pickle=False) as stored:
            wanted = [name for name in stored.files if name in _NAMES]
            # A packed array may be a thousand times as large as its file.
            held = stored.zip.infolist()
            sizes = {entry.filename.removesuffix(".npy"): entry.file_size for entry in held}
            _check_bytes(path, sum(sizes[name] for name in wanted))
            return {name: stored[name] for name in wanted}
    except InputError:
        raise
    except Exception as error:  # a damaged file raises nearly anything
        why = " ".join(str(error).split())
        raise InputError("path", f"{path} is damaged, or no file of codes: {why:.200}") from error
