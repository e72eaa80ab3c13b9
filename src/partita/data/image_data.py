"""Images as a kind of data: rows that all have the length of an image."""

from __future__ import annotations

from pathlib import Path

from partita.data.any_tokenizer import AnyTokenizer
from partita.data.image_sets import PIXELS, ImageSet, prepare_images
from partita.data.image_tokenizers import ImageTokenizer
from partita.data.images import ImageOptions
from partita.data.images.sources import DIGITS
from partita.data.kinds import KINDS, DataKind, DataSettings, TokenizerSettings
from partita.data.prepared import PrepareCallback, Prepared
from partita.errors import InputError, naming, require

_NAMES = {name: f"data.{name}" for name in ("size", "color", "path", "valid")}


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
