"""Images as a kind of data: rows of tokens that all have the length of an image.

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

from partita.data.any_tokenizer import AnyTokenizer
from partita.data.image_tokenizers import ImageTokenizer, PixelTokenizer
from partita.data.images import ImageOptions, Images, read_images
from partita.data.images.sources import DIGITS
from partita.data.kinds import KINDS, DataKind, DataSettings, TokenizerSettings
from partita.data.manifest import FORMAT
from partita.data.prepared import PrepareCallback, Prepared, tokens_in
from partita.data.whole_rows import write_rows
from partita.errors import InputError, naming, require
from partita.files.reading import content_hash, files_under, reading, refuse_changes, stamps

PIXELS = "pixels"
BATCH = 256  # images that are encoded at a time
_NAMES = {name: f"data.{name}" for name in ("size", "color", "path", "valid")}


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


class ImageData(DataKind):
    """Sets of images, each image with its class."""

    name, each, rows = "images", "image", "whole"
    labels_are_learned = False  # pictures may be drawn without a label

    def claims(self, tokenizer: str) -> bool:
        """Pixels, or the folder of a trained tokenizer: those of text are files."""
        return tokenizer == PIXELS or Path(tokenizer).is_dir()

    def remedy(self, path: str) -> str | None:
        known = path == DIGITS and not Path(path).exists()
        return "give pixels, or the folder of a tokenizer that partita vq made" if known else None

    def check(self, data: DataSettings, tokenizer: TokenizerSettings) -> None:  # noqa: ARG002
        image_set(data).check()

    def check_options(self, data: DataSettings, tokenizer: TokenizerSettings) -> None:  # noqa: ARG002
        problem = "is for text; the classes of images are their folders"
        require(data.label is None, "data.label", problem, "leave it out")
        require(data.rows == self.rows, "data.rows", "images are whole rows", "leave it out")

    def prepare(
        self,
        data: DataSettings,
        tokenizer: TokenizerSettings,
        given: AnyTokenizer | None = None,
        callback: PrepareCallback | None = None,
    ) -> Prepared:
        return prepare_images(
            image_set(data),
            Path(data.cache),
            tokenizer.name,
            tokenizer.levels,
            None if given is None else _of_images(given),
            callback,
        )

    def check_network(self, tokenizer: AnyTokenizer, length: int, grid: int) -> None:
        rows, columns = _of_images(tokenizer).grid
        problem = f"is {length}, but an image has {rows} x {columns} tokens"
        remedy = f"give --network.length {rows * columns} --network.grid {columns}"
        require(length == rows * columns, "network.length", problem, remedy)
        problem = f"is {grid}, but an image has {columns} columns of tokens"
        require(grid in (0, columns), "network.grid", problem, f"give {columns}")


def image_set(data: DataSettings, split: str = "train") -> ImageSet:
    """The images that a recipe names, and how they are read."""
    require(bool(data.path), "data.path", "no images are given", "name a set: partita train SET")
    with naming(_NAMES):
        options = ImageOptions(split=split, size=data.size, color=data.color)
        return ImageSet(data.path, options, data.validation_fraction)


def _of_images(tokenizer: AnyTokenizer) -> ImageTokenizer:
    if not isinstance(tokenizer, ImageTokenizer):
        raise InputError("model", f"is one of {tokenizer.data}, and this needs one of images")
    return tokenizer


IMAGES = KINDS.register(ImageData.name)(ImageData())
