"""Read images by name or path: digits, MNIST's files, folders by class, tars of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from torch import Tensor

from partita.data.images import decoding, folders
from partita.data.images.base import BYTE_LEVELS, Images, check_levels
from partita.data.images.idx import holds_idx, mnist
from partita.errors import InputError, require, require_int
from partita.files.reading import package, reading
from partita.memory import machine_memory
from partita.moved import old_fields
from partita.randomness import permuted

DIGITS = "digits"
HELD_OUT = 297  # of the 1,797 digits
_SPLIT_SEED = 2024  # fixed: test images must be the same everywhere
_LARGEST_SIDE = 1 << 12
_KNOWN = f"{DIGITS}, a folder of MNIST's files, of CLASS/NAME.png, or a .tar(.gz, .xz) of one"


@old_fields(colour="color")
@dataclass(frozen=True)
class ImageOptions:
    """Which images of a data set to read, and in which form."""

    split: str = "train"
    """train or test. A folder of classes without such parts is all for training."""
    size: int | None = None
    """Rows and columns: the shorter side is resized to it, the middle of the longer one kept."""
    color: bool | None = None
    """Three channels, or one; as the files have it unless given."""
    levels: int | None = None
    """Values of a pixel, fewer than the 256 of a byte; as the data has it unless given."""

    def __post_init__(self) -> None:
        known = f"known: {', '.join(folders.SPLITS)}"
        require(self.split in folders.SPLITS, "split", f"unknown name {self.split!r}", known)
        if self.size is not None:
            require_int(self.size, "size", 1, _LARGEST_SIDE)
        if self.levels is not None:
            check_levels(self.levels)
        chosen = self.color is None or isinstance(self.color, bool)
        require(chosen, "color", f"must be true or false, got {self.color!r}")


def digits() -> Images:
    """scikit-learn's 1,797 digits of 8 x 8 pixels, which are on every machine that has it."""
    datasets = package("sklearn.datasets", "the set of digits", "images")
    pixels, labels = datasets.load_digits(return_X_y=True)
    grid = torch.from_numpy(pixels).to(torch.uint8).view(-1, 1, 8, 8)
    return Images(grid, torch.from_numpy(labels).long(), 17, tuple("0123456789"))


def read_images(path: str | Path, options: ImageOptions | None = None) -> Images:
    """The images of a data set, all in memory, in an order that depends on names alone.

    `path` is "digits", a folder with MNIST's IDX files, a folder of images by class (also with
    `train` and `test` above them), or a tar of such a folder.
    """
    options = options or ImageOptions()
    images = _read(path, options)
    return images if options.levels is None else images.quantised(options.levels)


def _read(path: str | Path, options: ImageOptions) -> Images:
    train, place = options.split == "train", Path(path)
    if str(path) == DIGITS:
        every = digits()
        numbers = torch.arange(len(every))
        order = permuted(numbers, len(every), _SPLIT_SEED, torch.zeros_like(numbers))
        return _adapted(every.select(order[HELD_OUT:] if train else order[:HELD_OUT]), options)
    with reading(place):
        require(place.exists(), "path", f"{place} does not exist", f"known: {_KNOWN}")
        is_folder = place.is_dir()
    if is_folder and holds_idx(place):
        return _adapted(mnist(place, train=train), options)
    usable = is_folder or folders.is_archive(place)
    require(usable, "path", f"{place} is no set of images", f"use {_KNOWN}")
    return _by_class(place, options)


def _adapted(images: Images, options: ImageOptions) -> Images:
    """Gray images of one size, in the channels and the size of the options."""
    height, width = images.pixels.shape[2:]
    size = options.size
    if size is not None and (height, width) != (size, size):
        rows = [decoding.resize_pixels(row, size) for row in images.bytes().numpy()]
        images = replace(images, pixels=torch.from_numpy(np.stack(rows)), levels=BYTE_LEVELS)
    if options.color:
        images = replace(images, pixels=images.pixels.expand(-1, 3, -1, -1).contiguous())
    return images


def _by_class(path: Path, options: ImageOptions) -> Images:
    """One pass over all files; of those in the other split, only names are read."""
    places: dict[str, folders.Place] = {}
    found: dict[str, decoding.Pixels] = {}
    directories: set[str] = set()
    held, most = 0, machine_memory() // 2
    problem = f"more pixels than half of this machine's memory ({most:,} bytes)"
    for name, read in (folders.folder_files if path.is_dir() else folders.archive_files)(path):
        if read is None:
            directories.add(name)
        elif folders.is_image(name):
            require(name not in places, "path", f"{path} holds {name} twice")
            place = places[name] = folders.place_of(name, path)
            if place.split in ("", options.split):
                shown = f"{path}: {name}"
                found[name] = decoding.decode(read(), shown, options.size, options.color)
                held += found[name].nbytes
                require(held <= most, "path", f"{path} holds {problem}", "give a size to shrink to")
    _check_layout(path, list(places.values()), options.split)
    classes = _classes(path, list(places.values()), directories, options.split)
    names = sorted(found)
    labels = torch.tensor([classes.index(places[name].label) for name in names])
    return Images(_stacked(path, names, found), labels, BYTE_LEVELS, classes)


def _check_layout(path: Path, places: list[folders.Place], split: str) -> None:
    kinds = ", ".join(decoding.SUFFIXES)
    require(bool(places), "path", f"{path} holds no images", f"images are files such as {kinds}")
    first = places[0]
    for place in places:
        if place.root != first.root or bool(place.split) != bool(first.split):
            problem = f"{path} is laid out in two ways: {first.name} and {place.name}"
            raise InputError("path", problem, "use CLASS/NAME.png for all, or train/ and test/")
    has = {place.split or "train" for place in places}
    remedy = f"put some into {split}/CLASS/, and those for training into train/CLASS/"
    require(split in has, "split", f"{path} has no images for the split {split!r}", remedy)


def _classes(
    path: Path, places: list[folders.Place], directories: set[str], split: str
) -> tuple[str, ...]:
    """The names of all classes, in the training and the test set; none may be empty."""
    above = {PurePosixPath(place.name).parent.parent for place in places}
    named = {inner.name for inner in map(PurePosixPath, directories) if inner.parent in above}
    classes = sorted(named | {place.label for place in places})
    filled = {place.label for place in places if place.split in ("", split)}
    for label in classes:
        problem = f"the class {label!r} has no images in {path} ({split})"
        require(label in filled, "path", problem, "add some, or remove its folder")
    return tuple(classes)


def _stacked(path: Path, names: list[str], found: dict[str, decoding.Pixels]) -> Tensor:
    """All images as one tensor; each is freed as soon as it is in there."""
    first_name, first = names[0], found[names[0]]
    every = np.empty((len(names), *first.shape), np.uint8)
    for number, name in enumerate(names):
        row = found.pop(name)
        if row.shape != first.shape:
            shapes = f"{first_name} is {_shape(first)}, {name} {_shape(row)}"
            remedy = "give size, to which all are brought, or color, true or false"
            raise InputError("path", f"{path} holds images of several kinds: {shapes}", remedy)
        every[number] = row
    return torch.from_numpy(every)


def _shape(row: decoding.Pixels) -> str:
    channels, height, width = row.shape
    return f"{width} x {height} in {'colour' if channels == 3 else 'grey'}"
