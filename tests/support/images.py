"""Sets of images in files."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile

import numpy as np
import torch
from PIL import Image


def idx(values):
    """A tensor of bytes as an IDX file."""
    sizes = struct.pack(f">{values.ndim}I", *values.shape)
    return bytes([0, 0, 8, values.ndim]) + sizes + values.numpy().tobytes()


def write_mnist(folder, count=5, packed=True, labels=None):
    torch.manual_seed(0)
    pixels = torch.randint(0, 256, (count, 4, 3), dtype=torch.uint8)
    shown = torch.arange(count if labels is None else labels).to(torch.uint8) % 10
    for name, values in (("images-idx3", pixels), ("labels-idx1", shown)):
        data = idx(values)
        path = folder / f"train-{name}-ubyte{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(data) if packed else data)
    return pixels, shown


CLASSES = ("cat", "dog")


def picture(seed, size=(6, 5), colour=True):
    """Random pixels [rows, columns(, 3)]."""
    shape = (size[1], size[0], 3) if colour else (size[1], size[0])
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def packed(array, kind="PNG"):
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, format=kind)
    return stream.getvalue()


def files(splits=("",), count=2):
    """Pixels by name, in the order in which they must be read."""
    names = sorted(f"{s}{c}/{i}.png" for s in splits for c in CLASSES for i in range(count))
    return {name: picture(number) for number, name in enumerate(names)}


def write_folder(folder, contents):
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else packed(content))
    return folder


def write_tar(path, contents, prefix="", extra=()):
    """A tar file in reverse order of names."""
    mode = {".gz": "w:gz", ".xz": "w:xz"}.get(path.suffix, "w")
    with tarfile.open(path, mode) as archive:
        for name, content in reversed(contents.items()):
            member = tarfile.TarInfo(prefix + name)
            data = content if isinstance(content, bytes) else packed(content)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        for member in extra:
            archive.addfile(member)
    return path
