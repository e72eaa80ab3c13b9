"""Sets of images as rows of tokens, once: what `prepare` is for text.

Each image is a document of as many tokens as every other, and has its class. The folder is as that
of a prepared text, with the tensors of a tokenizer that has some in `tokenizer.safetensors`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Int64
from safetensors.torch import save, save_file
from torch import Tensor

from partita.data.batches import ROWS, Rows
from partita.data.checking import Progress
from partita.data.image_tokenizers import ImageTokenizer, PixelTokenizer
from partita.data.images import ImageOptions, Images, read_images
from partita.data.images.sources import DIGITS
from partita.data.manifest import FORMAT
from partita.data.prepared import TOKENIZER, TOKENIZER_TENSORS, Prepared, tokens_in
from partita.data.shards import ShardWriter
from partita.data.token_source import TokenSource
from partita.errors import require
from partita.files.reading import content_hash, files_under, reading, watch

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
        """Refuse a set that is not there."""
        there = self.path == DIGITS or Path(self.path).exists()
        hint = f"name a folder of images by class, MNIST's files, a tar of images, or {DIGITS}"
        require(there, "data.path", f"{self.path} does not exist", hint)

    def identity(self) -> str:
        """A hash of everything that the pixels depend on."""
        digest = hashlib.sha256(json.dumps([vars(self.options), self.valid]).encode())
        if self.path == DIGITS:
            digest.update(DIGITS.encode())
            return digest.hexdigest()
        self.check()
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


def is_image_tokenizer(name: str) -> bool:
    """Whether a tokenizer's name is that of one for images: pixels, or the folder of a trained one.

    (Tokenizers of text are files, or names on a hub.)
    """
    return name == PIXELS or Path(name).is_dir()


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
    *,
    accept: Callable[[str], None] | None = None,
    examine: Callable[[Prepared], None] | None = None,
    checking: Progress | None = None,
) -> Prepared:
    """The images as tokens, as `prepare` does it: from the cache if nothing changed."""
    refuse_changes = watch(images.files)
    read: list[Images] = []
    made = tokenizer
    if made is None:  # it may depend on the images
        read.append(read_images(images.path, images.options))
        made = make_image_tokenizer(name, levels, read[0])
    identity = hashlib.sha256(images.identity().encode() + _described(made)).hexdigest()[:20]
    if accept is not None:
        accept(identity)

    def make(partial: Path) -> None:
        data = read[0] if read else read_images(images.path, images.options)
        _write(data, made, partial, images)
        refuse_changes()

    return tokens_in(cache / identity, make, examine, checking)


def _described(tokenizer: ImageTokenizer) -> bytes:
    return json.dumps([FORMAT, tokenizer.describe()]).encode() + save(tokenizer.tensors())


def _write(images: Images, tokenizer: ImageTokenizer, folder: Path, source: ImageSet) -> None:
    """Encode some images at a time into two writers."""
    facts = {"path": source.path, "valid": source.valid}
    names = list(images.classes) or [str(n) for n in range(int(images.labels.max()) + 1)]
    with (
        ShardWriter(folder / "train", tokenizer.vocab_size, facts) as train,
        ShardWriter(folder / "valid", tokenizer.vocab_size, facts) as valid,
    ):
        for first in range(0, len(images), BATCH):
            rows = torch.arange(first, min(first + BATCH, len(images)))
            part = images.select(rows)
            tokens = tokenizer.encode(part)
            for row, label in zip(tokens, part.labels.tolist(), strict=True):
                behind = valid.tokens < source.valid * (train.tokens + valid.tokens)
                writer = valid if behind else train
                writer.write(row.numpy())
                writer.end_document(names[label])
        train.classes = valid.classes = names
    (folder / TOKENIZER).write_text(json.dumps(tokenizer.describe()))
    if tensors := tokenizer.tensors():
        save_file(tensors, folder / TOKENIZER_TENSORS)


@ROWS.register("whole")
@dataclass(frozen=True)
class Whole(Rows):
    """Documents that all have the length of a row, as images have."""

    source: TokenSource
    length: int
    document_attention: bool = False

    def __post_init__(self) -> None:
        total, count = len(self.source), len(self.source.ends)
        each = total // max(count, 1)
        fits = total == count * self.length
        problem = f"is {self.length}, but an image has {each} tokens"
        require(fits, "network.length", problem, f"give --network.length {each}")

    def __len__(self) -> int:
        return len(self.source.ends)

    def spans(self, index: Tensor, epoch: Tensor, seed: int) -> list[tuple[int, int]]:  # noqa: ARG002 - images are not cut
        return [(start, self.length) for start in (index * self.length).tolist()]

    def read(self, spans: list[tuple[int, int]]) -> tuple[Int64[Tensor, "N L"], None, None]:
        rows = [self.source.read(start, start + size) for start, size in spans]
        return torch.stack(rows), None, None
