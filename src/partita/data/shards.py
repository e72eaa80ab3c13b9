"""Tokens on disk: memory-mapped shards, written atomically in bounded memory.

A folder of shards holds

    tokens-00000.bin, ...   the tokens, in the smallest unsigned integer that holds every id
    documents.bin           where each document ends (uint64, counted in tokens from the start)
    labels.bin              the class of each document (uint32), if documents have any
    manifest.json           sizes, checksums, provenance

It is written under another name and renamed when everything, the manifest last, is on disk. A
folder without a manifest is no folder of shards.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Int64
from numpy.typing import NDArray
from torch import Tensor

from partita.data import manifest as manifests
from partita.data.checking import check_contents, size_of
from partita.errors import require
from partita.files.atomic import whole_folder

SHARD_TOKENS = 1 << 27  # 128 Mi tokens: 256 MiB for vocabularies up to 65,536


class TokenSource(ABC):
    """Tokens that are read by range: shards on disk, or a tensor in memory."""

    if TYPE_CHECKING:

        @property
        def ends(self) -> NDArray[np.int64]:
            """Where each document ends, counted in tokens."""

    @abstractmethod
    def __len__(self) -> int:
        """Tokens of all documents."""

    @abstractmethod
    def read(self, start: int, stop: int) -> Int64[Tensor, "N"]:
        """Tokens start..stop."""


class ShardWriter:
    """Writes tokens piece by piece. Used as a context: an error leaves nothing behind."""

    def __init__(
        self, folder: Path, vocab_size: int, provenance: dict[str, Any], shard: int = SHARD_TOKENS
    ) -> None:
        self.folder, self.shard = folder, shard
        self.dtype = manifests.smallest_dtype(vocab_size)
        self.provenance = provenance | {"vocab_size": vocab_size}
        self.tokens = 0
        self.ends = array("Q")
        self.labels: list[str] = []
        self.classes: list[str] = []
        """The names of all classes; the caller sets them before the end."""
        self.checksums: dict[str, str] = {}
        self._context = self._writing()

    def __enter__(self) -> ShardWriter:
        return self._context.__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        return self._context.__exit__(*error)

    @contextmanager
    def _writing(self) -> Iterator[ShardWriter]:
        with whole_folder(self.folder) as self.partial:
            self._open_next()
            try:
                yield self
                self._finish()
            finally:
                with suppress(OSError):  # on a full disk the last bytes are lost a second time
                    self._stream.close()

    def _open_next(self) -> None:
        self._name = manifests.shard_name(len(self.checksums))
        self._stream = (self.partial / self._name).open("wb")
        self._hash = hashlib.sha256()
        self._filled = 0

    def _close_shard(self) -> None:
        self._stream.close()
        self.checksums[self._name] = self._hash.hexdigest()

    def write(self, ids: NDArray[Any] | list[int]) -> None:
        """Append tokens to the open document."""
        array = np.asarray(ids, dtype=self.dtype)
        while array.size:
            if self._filled == self.shard:
                self._close_shard()
                self._open_next()
            room = self.shard - self._filled
            part, array = array[:room], array[room:]
            self._stream.write(part.tobytes())
            self._hash.update(part.tobytes())
            self._filled += part.size
            self.tokens += part.size

    def end_document(self, label: str | None = None) -> None:
        """The open document ends here. All documents have a class, or none has."""
        if self.tokens > (self.ends[-1] if self.ends else 0):
            self.ends.append(self.tokens)
            if label is not None:
                self.labels.append(label)

    def _finish(self) -> None:
        self.end_document()
        self._close_shard()
        self._add(manifests.DOCUMENTS, self.ends.tobytes())
        if self.classes:
            number = {name: index for index, name in enumerate(self.classes)}
            labels = np.asarray([number[name] for name in self.labels], dtype=np.uint32)
            self._add(manifests.LABELS, labels.tobytes())
        manifest = {
            "format": manifests.FORMAT,
            "dtype": self.dtype.name,
            "tokens": self.tokens,
            "documents": len(self.ends),
            "shard_tokens": self.shard,
            "classes": self.classes,
            "checksums": self.checksums,
            "provenance": self.provenance,
        }
        (self.partial / manifests.MANIFEST).write_text(json.dumps(manifest, indent=1))

    def _add(self, name: str, data: bytes) -> None:
        (self.partial / name).write_bytes(data)
        self.checksums[name] = hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class Shards(TokenSource):
    """Tokens on disk, read as if they were one long sequence."""

    folder: Path
    manifest: dict[str, Any]
    arrays: list[NDArray[Any]]
    ends: NDArray[Any]
    labels: NDArray[Any] | None = None
    """The class of each document, if documents have one."""

    @staticmethod
    def open(folder: Path, verify: bool = True) -> Shards:
        """Map a folder's tokens into memory. All sizes are checked; with `verify`, every byte."""
        manifest = manifests.read_manifest(folder)
        for name, size in manifests.sizes(manifest).items():
            path, found = folder / name, size_of(folder / name)
            problem = f"{path} has {found:,} bytes, its manifest says {size:,}"
            require(found == size, "shards", problem, "prepare again")
        if verify:
            check_contents(manifests.recorded(folder, manifest))
        names = sorted(name for name in manifest["checksums"] if name.startswith("tokens-"))
        arrays = [_map(folder / name, np.dtype(manifest["dtype"])) for name in names]
        ends = np.fromfile(folder / manifests.DOCUMENTS, dtype=np.uint64).astype(np.int64)
        last = int(ends[-1]) if len(ends) else 0
        problem = f"{folder} has {manifest['tokens']:,} tokens, the last document ends at {last:,}"
        require(last == manifest["tokens"], "shards", problem, "prepare again")
        if not manifest["classes"]:
            return Shards(folder, manifest, arrays, ends)
        labels = np.fromfile(folder / manifests.LABELS, dtype=np.uint32).astype(np.int64)
        return Shards(folder, manifest, arrays, ends, labels)

    @property
    def classes(self) -> list[str]:
        """The names of the classes; none if documents have no class."""
        return list(self.manifest["classes"])

    def __len__(self) -> int:
        return int(self.manifest["tokens"])

    def read(self, start: int, stop: int) -> Int64[Tensor, "N"]:
        """Tokens start..stop, across shards."""
        size = int(self.manifest["shard_tokens"])
        parts = []
        for index in range(start // size, max(start, stop - 1) // size + 1):
            low, high = max(start - index * size, 0), stop - index * size
            parts.append(self.arrays[index][low : min(high, size)].astype(np.int64))
        return torch.from_numpy(np.concatenate(parts))


def labels_at(source: object, starts: list[int]) -> Int64[Tensor, "N"] | None:
    """The classes of the documents in which some tokens stand; None if documents have none."""
    if not isinstance(source, Shards) or source.labels is None:
        return None
    document = np.searchsorted(source.ends, starts, side="right")
    return torch.from_numpy(source.labels[document])


def _map(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.memmap(path, dtype=dtype, mode="r") if path.stat().st_size else np.empty(0, dtype)
