"""Tokens on disk: memory-mapped shards, written in bounded memory and complete or not there.

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
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from numpy.typing import NDArray
from torch import Tensor

from partita.data.token_source import TokenSource
from partita.errors import InputError, require

MANIFEST = "manifest.json"
FORMAT = 1
SHARD_TOKENS = 1 << 27  # 128 Mi tokens: 256 MiB for vocabularies up to 65,536


def _dtype(vocab_size: int) -> np.dtype[Any]:
    """The smallest unsigned integer for ids below `vocab_size`."""
    for kind in (np.uint8, np.uint16, np.uint32):
        if vocab_size - 1 <= np.iinfo(kind).max:
            return np.dtype(kind)
    raise InputError("vocab_size", f"{vocab_size} ids do not fit 32 bits")


class ShardWriter:
    """Writes tokens piece by piece. Used as a context: an error leaves nothing behind."""

    def __init__(
        self, folder: Path, vocab_size: int, provenance: dict[str, Any], shard: int = SHARD_TOKENS
    ) -> None:
        self.folder, self.shard = folder, shard
        self.partial = folder.with_name(f"{folder.name}.partial-{os.getpid()}")
        self.dtype = _dtype(vocab_size)
        self.provenance = provenance | {"vocab_size": vocab_size}
        self.tokens = 0
        self.ends: list[int] = []
        self.labels: list[str] = []
        self.classes: list[str] = []
        """The names of all classes; whoever writes sets them before the end."""
        self.checksums: dict[str, str] = {}

    def __enter__(self) -> ShardWriter:
        self.partial.mkdir(parents=True)
        self._open_next()
        return self

    def _open_next(self) -> None:
        self._name = f"tokens-{len(self.checksums):05}.bin"
        self._stream = (self.partial / self._name).open("wb")
        self._hash = hashlib.sha256()
        self._filled = 0

    def _close_shard(self) -> None:
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._stream.close()
        self.checksums[self._name] = self._hash.hexdigest()

    def write(self, ids: NDArray[Any] | list[int]) -> None:
        """Append tokens to the open document."""
        array = np.asarray(ids, dtype=self.dtype)
        while array.size:
            room = self.shard - self._filled
            if room == 0:
                self._close_shard()
                self._open_next()
                continue
            part, array = array[:room], array[room:]
            data = part.tobytes()
            self._stream.write(data)
            self._hash.update(data)
            self._filled += part.size
            self.tokens += part.size

    def end_document(self, label: str | None = None) -> None:
        """The open document ends here. All documents have a class, or none has."""
        if self.tokens > (self.ends[-1] if self.ends else 0):
            self.ends.append(self.tokens)
            if label is not None:
                self.labels.append(label)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._stream.close()
            shutil.rmtree(self.partial, ignore_errors=True)
            return
        self.end_document()
        self._close_shard()
        self._add("documents.bin", np.asarray(self.ends, dtype=np.uint64).tobytes())
        if self.classes:
            number = {name: index for index, name in enumerate(self.classes)}
            labels = np.asarray([number[name] for name in self.labels], dtype=np.uint32)
            self._add("labels.bin", labels.tobytes())
        manifest = {
            "format": FORMAT,
            "dtype": self.dtype.name,
            "tokens": self.tokens,
            "documents": len(self.ends),
            "shard_tokens": self.shard,
            "classes": self.classes,
            "checksums": self.checksums,
            "provenance": self.provenance,
        }
        (self.partial / MANIFEST).write_text(json.dumps(manifest, indent=1))
        if self.folder.exists():
            shutil.rmtree(self.folder)
        self.partial.rename(self.folder)

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
    def open(folder: Path, verify: bool = False) -> Shards:
        """Map a folder's tokens into memory; with `verify`, check every byte first."""
        path = folder / MANIFEST
        require(path.is_file(), "shards", f"{folder} holds no complete shards ({MANIFEST} missing)")
        try:
            manifest = json.loads(path.read_text())
            version, sums = manifest["format"], manifest["checksums"]
            dtype = np.dtype(manifest["dtype"])
        except (ValueError, KeyError, TypeError) as error:
            raise InputError("shards", f"{path} is damaged: {error}", "prepare again") from error
        require(version == FORMAT, "shards", f"{path} has format {version}, this is {FORMAT}")
        for name, checksum in sums.items():
            _check(folder / name, checksum, verify)
        names = sorted(name for name in sums if name.startswith("tokens-"))
        arrays = [_map(folder / name, dtype) for name in names]
        ends = np.fromfile(folder / "documents.bin", dtype=np.uint64).astype(np.int64)
        found = sum(array.size for array in arrays)
        require(
            found == manifest["tokens"],
            "shards",
            f"{folder} holds {found} tokens, its manifest says {manifest['tokens']}",
            "prepare again",
        )
        return Shards(folder, manifest, arrays, ends, _labels(folder, manifest, len(ends)))

    @property
    def classes(self) -> list[str]:
        """The names of the classes; none if documents have no class."""
        return list(self.manifest.get("classes", []))

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


def _labels(folder: Path, manifest: dict[str, Any], documents: int) -> NDArray[Any] | None:
    if not manifest.get("classes"):
        return None
    labels = np.fromfile(folder / "labels.bin", dtype=np.uint32).astype(np.int64)
    problem = f"{folder} has classes for {len(labels)} of {documents} documents"
    require(len(labels) == documents, "shards", problem, "prepare again")
    return labels


def labels_at(source: object, starts: list[int]) -> Int64[Tensor, "N"] | None:
    """The classes of the documents in which some tokens stand; None if documents have none."""
    if not isinstance(source, Shards) or source.labels is None:
        return None
    document = np.searchsorted(source.ends, starts, side="right")
    return torch.from_numpy(source.labels[document])


def _map(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    if path.stat().st_size == 0:
        return np.empty(0, dtype)
    return np.memmap(path, dtype=dtype, mode="r")


def _check(path: Path, checksum: str, verify: bool) -> None:
    require(path.is_file(), "shards", f"{path} is missing", "prepare again")
    if not verify:
        return
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    require(digest.hexdigest() == checksum, "shards", f"{path} was changed", "prepare again")
