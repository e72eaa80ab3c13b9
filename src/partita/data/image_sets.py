"""Prepare sets of images as rows of tokens, as `prepare` does for text.

Each image is a document of as many tokens as every other, and has its class. The folder is like
that of a prepared text; a tokenizer's tensors, if it has some, are in `tokenizer.safetensors`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from safetensors.torch import save

from partita.data.image_tokenizers import ImageTokenizer, PixelTokenizer
from partita.data.images import ImageOptions, Images, read_images
from partita.data.images.sources import DIGITS
from partita.data.manifest import FORMAT
from partita.data.prepared import PrepareCallback, Prepared, tokens_in
from partita.data.whole_rows import write_rows
from partita.errors import require
from partita.files.reading import content_hash, files_under, reading, refuse_changes, stamps

PIXELS = "pixels"
BATCH = 256  # images that are encoded at a time


@dataclass(frozen=True)
class ImageSet:
    """Which images, and how they are read."""

    path: str
    options: ImageOptions
    valid: float = 0.05
    """Share of the images set aside for validation, evenly spread."""

    def check(self) -> None:
        """Refuse a set that does not exist."""
        there = self.path == DIGITS or Path(self.path).exists()
        hint = f"name a folder of images by class, MNIST's files, a tar of images, or {DIGITS}"
        require(there, "data.path", f"{self.path} does not exist", hint)

    def identity(self) -> str:
        """A hash of everything that the pixels depend on."""
        # Under the name that the option had first, so that tokens in caches are found again.
        was = {"color": "colour"}
        options = {was.get(name, name): value for name, value in vars(self.options).items()}
        digest = hashlib.sha256(json.dumps([options, self.valid]).encode())
        self.check()
        if self.path == DIGITS:
            digest.update(DIGITS.encode())
        for path in self.files():
            digest.update(str(path.relative_to(self.path)).encode(errors="surrogateescape"))
            digest.update(content_hash(path))
        return digest.hexdigest()

    def files(self) -> list[Path]:
        """All files that belong to the set; the digits have none."""
        if self.path == DIGITS:
            return []
        place = Path(self.path)
        with reading(place):
            if place.is_dir():
                return files_under(place)
            return [place] if place.is_file() else []


def make_image_tokenizer(name: str, levels: int | None, images: Images) -> ImageTokenizer:
    """The tokenizer that a recipe names, for images like these."""
    if name != PIXELS:
        from partita.data.saved_tokenizers import load_image_tokenizer

        return load_image_tokenizer(name)
    _, channels, rows, columns = images.pixels.shape
    return PixelTokenizer(levels or images.levels, channels, (rows, columns))


def prepare_images(
    images: ImageSet,
    cache: Path,
    name: str,
    levels: int | None,
    tokenizer: ImageTokenizer | None = None,
    callback: PrepareCallback | None = None,
) -> Prepared:
    """The images as tokens, as `prepare` does it: from the cache if nothing changed."""
    callback, before = callback or PrepareCallback(), stamps(images.files())
    read: list[Images] = []
    made = tokenizer
    if made is None:  # it may depend on the images
        read.append(read_images(images.path, images.options))
        made = make_image_tokenizer(name, levels, read[0])
    described = json.dumps([FORMAT, made.describe()]).encode() + save(made.tensors())
    identity = hashlib.sha256(images.identity().encode() + described).hexdigest()[:20]
    callback.on_name(identity)

    def make(partial: Path) -> None:
        data = read[0] if read else read_images(images.path, images.options)
        _write(data, made, partial, images)
        refuse_changes(before, images.files())

    return tokens_in(cache / identity, make, callback)


def _write(images: Images, tokenizer: ImageTokenizer, folder: Path, source: ImageSet) -> None:
    names = list(images.classes) or [str(n) for n in range(int(images.labels.max()) + 1)]

    def rows() -> Iterator[tuple[NDArray[Any], str]]:
        for first in range(0, len(images), BATCH):
            part = images.select(torch.arange(first, min(first + BATCH, len(images))))
            for row, label in zip(tokenizer.encode(part), part.labels.tolist(), strict=True):
                yield row.numpy(), names[label]

    facts = {"path": source.path, "valid": source.valid}
    write_rows(folder, tokenizer, rows(), classes=names, valid=source.valid, facts=facts)
