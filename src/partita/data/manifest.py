"""The manifest of a folder of tokens, which is not trusted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from partita.errors import InputError, require
from partita.files.reading import reading

FORMAT = 1
MANIFEST = "manifest.json"
DOCUMENTS = "documents.bin"
LABELS = "labels.bin"
_DTYPES = ("uint8", "uint16", "uint32")
_KINDS: dict[str, type] = {
    "tokens": int,
    "documents": int,
    "shard_tokens": int,
    "dtype": str,
    "classes": list,
    "checksums": dict,
    "provenance": dict,
}

Manifest = dict[str, Any]


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder of shards, with every entry of the right kind."""
    path = folder / MANIFEST
    require(path.is_file(), "shards", f"{folder} holds no complete shards ({MANIFEST} missing)")
    try:
        with reading(path, "shards"):
            manifest: Manifest = {"classes": []} | json.loads(path.read_bytes())
        version = manifest["format"]
        damage = _damage(manifest) if version == FORMAT else None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError("shards", f"{path} is damaged: {error}", "prepare again") from error
    require(version == FORMAT, "shards", f"{path} has format {version}, this is {FORMAT}")
    require(damage is None, "shards", f"{path} is damaged: {damage}", "prepare again")
    return manifest


def _damage(manifest: Manifest) -> str | None:
    for key, kind in _KINDS.items():
        if not isinstance(manifest[key], kind) or (kind is int and manifest[key] < 0):
            return f"its {key} are {manifest[key]!r:.99}"
    if manifest["dtype"] not in _DTYPES or manifest["shard_tokens"] == 0:
        return "its tokens have no size"
    # The names of a made-up number of shards would fill the memory.
    if _shards(manifest) > len(manifest["checksums"]):
        return f"it has {manifest['tokens']} tokens in {len(manifest['checksums'])} files"
    named = manifest["checksums"].keys() == sizes(manifest).keys()
    return None if named else "its checksums are not those of its files"


def _shards(manifest: Manifest) -> int:
    """How many files hold the tokens; there is one even if there are none."""
    return max(-(-int(manifest["tokens"]) // int(manifest["shard_tokens"])), 1)


def sizes(manifest: Manifest) -> dict[str, int]:
    """Names of all files beside the manifest, and how many bytes they have."""
    total, each = manifest["tokens"], manifest["shard_tokens"]
    item, documents = np.dtype(manifest["dtype"]).itemsize, manifest["documents"]
    shards = range(_shards(manifest))
    found = {shard_name(n): item * min(each, total - n * each) for n in shards}
    found[DOCUMENTS] = np.dtype(np.uint64).itemsize * documents
    if manifest["classes"]:
        found[LABELS] = np.dtype(np.uint32).itemsize * documents
    return found


def recorded(folder: Path, manifest: Manifest) -> dict[Path, str]:
    """The files of a folder of shards with their checksums."""
    return {folder / name: str(checksum) for name, checksum in manifest["checksums"].items()}


def shard_name(number: int) -> str:
    """The name of a file of tokens."""
    return f"tokens-{number:05}.bin"


def smallest_dtype(vocab_size: int) -> np.dtype[Any]:
    """The smallest unsigned integer for ids below `vocab_size`."""
    require(vocab_size <= 1 << 32, "vocab_size", f"{vocab_size} ids do not fit 32 bits")
    return next(k for k in map(np.dtype, _DTYPES) if vocab_size - 1 <= np.iinfo(k).max)
