"""Hostile images and sets of images, whose checks hold."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zlib
from random import Random
from typing import Any

import numpy as np

from harm.damage import damaged
from harm.odd_models import Call

LARGE = (0, 1, 2**15, 2**31 - 1, 2**31, 2**32 - 1)


def idx(random: Random, data: bytes) -> bytes:
    """Another head: sizes that are not those of the bytes."""
    packed_before = data[:2] == b"\x1f\x8b"
    raw = gzip.decompress(data) if packed_before else data
    sizes = struct.pack(">I", random.choice(LARGE)) * random.choice([1, 2, 3, 255])
    head = bytes([0, 0, random.choice([8, 8, 8, 9, 13]), random.choice([0, 1, 3, len(sizes) // 4])])
    raw = random.choice([head + sizes + raw[16:], head + raw[4:], raw + bytes(1 << 20)])
    return gzip.compress(raw, mtime=0) if packed_before else raw


def tar(random: Random, data: bytes) -> bytes:
    """A tar with odd members: names that lead out of it, links, devices, absurd sizes."""
    stream = io.BytesIO()
    kinds = [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE]
    names = ["../harm.png", "/harm.png", "a/b/c/d/e/f.png", "train/cat/\udc80.png", "x" * 300]
    names += ["train/cat/0.png", "train/cat/.hidden.png", "cat\\dog.png", "train/new/0.PNG"]
    with tarfile.open(fileobj=io.BytesIO(data)) as source:
        members = [(member, _inside(source, member)) for member in source]
    chosen = random.randrange(len(members))
    member, inside = members[chosen]
    how = random.choice(["name", "kind", "inside", "twice"])
    if how == "name":
        member.name = random.choice(names)
    elif how == "kind":
        member.type, member.linkname = random.choice(kinds), random.choice(names)
    elif how == "inside":
        inside = damaged(random, inside)[0]
    else:
        members.append(members[chosen])
    member.size = len(inside) if member.isfile() else 0
    members[chosen] = member, inside
    with tarfile.open(fileobj=stream, mode="w", format=random.choice([1, 2])) as archive:
        for member, inside in members:
            archive.addfile(member, io.BytesIO(inside))
    return stream.getvalue()


def _inside(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    held = archive.extractfile(member)
    return b"" if held is None else held.read()


def png(random: Random, data: bytes) -> bytes:
    """A part of a PNG with other content whose sum is right."""
    at, parts = 8, []
    while at + 12 <= len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        parts.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + size]))
        at += 12 + size
    chosen = random.randrange(len(parts))
    kind, inside = parts[chosen]
    if kind == b"IHDR":
        inside = struct.pack(">II", *random.choices(LARGE, k=2)) + inside[8:]
    else:
        inside = damaged(random, inside)[0]
    parts[chosen] = kind, inside
    if random.random() < 0.2:
        parts.insert(1, random.choice([(b"eXIf", random.randbytes(40)), (b"zTXt", bytes(50))]))
    written = (k + i + struct.pack(">I", zlib.crc32(k + i)) for k, i in parts)
    return data[:8] + b"".join(struct.pack(">I", len(w) - 8) + w for w in written)


def arrays(random: Random, data: bytes) -> bytes:
    """A file of numpy's whose arrays have other types, shapes or values."""
    with np.load(io.BytesIO(data)) as stored:
        held: dict[str, Any] = dict(stored)
    name = random.choice([*held, "more"])
    old = held.get(name, np.zeros(3))
    held[name] = random.choice(
        [
            old.astype(random.choice(["f4", "c16", "u8", "S3", "?", "m8[s]"])),
            old[..., None],
            old.ravel()[:0],
            np.full_like(old, random.choice([-1, 2**31 - 1, 99])),
            np.array([{"a": 1}, Call()], dtype=object),
        ]
    )
    stream = io.BytesIO()
    np.savez(stream, **held)
    return stream.getvalue()
