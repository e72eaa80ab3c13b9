"""The zip archives that `torch.save` writes: a pickle, and beside it the numbers of every storage.

    NAME/data.pkl           the pickle
    NAME/data/0, 1, ...     storages, not compressed
    NAME/byteorder          little or big (missing in older files)

Storages are read one part at a time, where the archive says that they lie, and only on demand.
"""

from __future__ import annotations

import struct
import sys
import zipfile
import zlib
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from partita.files.reading import DamagedError
from partita.models.published import pickles
from partita.models.published.pickled_values import View
from partita.models.published.stored import Stored

MAGIC = b"PK\x03\x04"
_HEADER = struct.Struct("<26xHH")  # of an entry; it ends in the lengths of two more fields
_ENCRYPTED = 0x1
_MOST_DIMENSIONS = 8


class Archive:
    """A file of `torch.save`, opened: its pickle as data, its tensors to be read."""

    def __init__(self, path: Path) -> None:
        self.path, self.size = path, path.stat().st_size
        try:
            with zipfile.ZipFile(path) as archive:
                entries = archive.infolist()
        except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error) as error:
            raise DamagedError(f"it is cut short or no zip archive ({error})") from error
        self._entries = {entry.filename: entry for entry in entries}
        if len(self._entries) < len(entries):
            raise DamagedError("two files in it have the same name")
        found = [name for name in self._entries if name.endswith("/data.pkl")]
        if len(found) != 1:
            raise DamagedError("there is no data.pkl in it, so torch.save did not write it")
        self._folder = found[0].removesuffix("data.pkl")
        self._check_order()

    def content(self) -> object:
        """What was saved, with `View` for tensors."""
        return pickles.loads(self._bytes("data.pkl", pickles.LARGEST))

    def stored(self, view: View) -> Stored:
        """A tensor of the archive. It lies inside its storage, and no number is used twice."""
        storage, name = view.storage, f"data/{view.storage.key}"
        if self._entry(name).file_size != storage.elements * storage.dtype.itemsize:
            raise DamagedError(f"{name} has not the size that its tensors have")
        return Stored(view.shape, storage.dtype, partial(self._tensor, view, _span(view)))

    def _tensor(self, view: View, span: int) -> Tensor:
        """The numbers of a tensor that stretches over so many of its storage's."""
        dtype, pairs = view.storage.dtype, zip(view.stride, view.shape, strict=True)
        name, itemsize = f"data/{view.storage.key}", dtype.itemsize
        flat = self._part(name, view.offset * itemsize, span * itemsize)
        # A size of one never steps, whatever its stride says.
        stride = [step if size > 1 else 1 for step, size in pairs]
        viewed = torch.from_numpy(flat).view(dtype).as_strided(view.shape, stride)
        return viewed.clone(memory_format=torch.contiguous_format)

    def _check_order(self) -> None:
        # Numbers are little-endian nearly everywhere; both sides have to be.
        known = f"{self._folder}byteorder" in self._entries
        order = self._bytes("byteorder", 16) if known else b"little"
        if order != b"little" or sys.byteorder != "little":
            raise DamagedError("its numbers have another byte order than this machine's")

    def _entry(self, name: str) -> zipfile.ZipInfo:
        entry = self._entries.get(f"{self._folder}{name}")
        if entry is None:
            raise DamagedError(f"{name:.64} is missing")
        plain = entry.compress_type == zipfile.ZIP_STORED and not entry.flag_bits & _ENCRYPTED
        if not plain or entry.file_size != entry.compress_size:
            raise DamagedError(f"{name} is compressed or encrypted, which torch.save never does")
        return entry

    def _bytes(self, name: str, most: int) -> bytes:
        size = self._entry(name).file_size
        if size > most:
            raise DamagedError(f"{name} has {size} bytes, which no model needs")
        return self._part(name, 0, size).tobytes()

    def _part(self, name: str, start: int, size: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        """Some bytes of an entry, straight from where it lies in the file."""
        entry, data = self._entry(name), np.empty(0, dtype=np.uint8)
        with self.path.open("rb") as file:
            begin = _begin(file, entry) + start
            inside = 0 <= start <= start + size <= entry.file_size
            if inside and start <= begin <= begin + size <= self.size:
                file.seek(begin)
                data = np.fromfile(file, dtype=np.uint8, count=size)
        changed = size == entry.file_size and zlib.crc32(data.data) != entry.CRC
        if data.size < size or changed:
            raise DamagedError(f"{name} was changed or cut short")
        return data


def _begin(file: BinaryIO, entry: zipfile.ZipInfo) -> int:
    """Where the bytes of an entry begin; far before the file if it is not where it should be."""
    file.seek(max(0, entry.header_offset))
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size or not header.startswith(MAGIC):
        return -(1 << 62)
    return int(entry.header_offset + len(header) + sum(_HEADER.unpack(header)))


def _span(view: View) -> int:
    """How many elements of its storage a tensor stretches over; what does not fit is refused."""
    storage, shape, stride = view.storage, view.shape, view.stride
    sound = len(shape) == len(stride) <= _MOST_DIMENSIONS and min((1, *shape)) > 0
    if not sound or view.offset < 0:
        raise DamagedError("a tensor in it has a shape that makes no sense")
    # Sorted by stride, each dimension must step over all that the smaller ones reach; otherwise
    # two elements would be the same number.
    reach = 1
    for step, size in sorted(zip(stride, shape, strict=True)):
        if size > 1 and step < reach:
            raise DamagedError("a tensor in it uses the same number twice")
        reach += (size - 1) * step
    if view.offset + reach > storage.elements:
        raise DamagedError("a tensor in it lies outside of its storage")
    return reach
