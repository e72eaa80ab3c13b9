"""Images: what the command line does with models of images."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Int64, UInt8
from rich.table import Table
from torch import Tensor

from partita.data.image_data import IMAGES
from partita.data.images import ImageOptions, read_images
from partita.data.images.decoding import decode
from partita.data.images.pictures import grid_png, unmasking_gif
from partita.errors import naming, require, require_known
from partita.files.atomic import check_file
from partita.files.reading import reading
from partita.modalities.base import (
    Drawn,
    Evaluation,
    Infilling,
    Modality,
    OwnOptions,
    Sampling,
    Work,
)
from partita.models.image_model import GRAY, ImageModel
from partita.samplers import Step

EACH = "each"  # in place of a label: all of them
PICTURE = "samples.png"
FILLED = "filled.png"


@dataclass(frozen=True, kw_only=True)
class ImageSampling(OwnOptions):
    """Options of `sample` for images."""

    out: str | None = None
    """Images: the PNG file to draw them in, in a square (one column for each label of `each`);
    samples.png unless given."""
    gif: str | None = None
    """Images: a GIF file that shows how they come out of their masks."""

    def __post_init__(self) -> None:
        check_file(self.out, "--out", ".png")
        check_file(self.gif, "--gif", ".gif")


@dataclass(frozen=True, kw_only=True)
class ImageInfilling(OwnOptions):
    """Options of `infill` for images."""

    hide: str | None = None
    """Images: the part that is drawn anew: left, right, top, bottom or middle."""
    out: str | None = None
    """Images: the PNG file to draw them in; filled.png unless given."""

    def __post_init__(self) -> None:
        if self.hide is not None:
            require_known(self.hide, "--hide", PARTS)
        check_file(self.out, "--out", ".png")


@dataclass(frozen=True, kw_only=True)
class ImageEvaluation(OwnOptions):
    """Options of `eval` for images."""

    classifier: str | None = None
    """Images: folder of the classifier that judges them; if there is none, it is trained on the
    training images and saved there."""


class ImageModality(Modality[ImageModel]):
    """Images: sampling, infilling and evaluation."""

    data, model = IMAGES, ImageModel
    try_flags = "--out samples.png"
    sample_options, infill_options = ImageSampling, ImageInfilling
    eval_options = ImageEvaluation

    def sample(self, model: ImageModel, asked: Sampling, own: ImageSampling) -> Drawn:
        labels, columns = _labels(model, asked.label, asked.count)
        total, film = asked.count if labels is None else len(labels), Film(model)
        how = {**asked.how, **({"callback": film} if own.gif else {})}
        pixels = model.sample(total, label=labels, **how)
        place = Path(own.out or PICTURE)
        grid_png(pixels, columns, place)
        if own.gif:
            unmasking_gif(film.frames(), own.gif, columns=columns)
        return _written({"out": str(place), "gif": own.gif, "images": total})

    def infill(self, model: ImageModel, asked: Infilling, own: ImageInfilling) -> Drawn:
        """Draw a part of a picture anew; the picture and its known part are shown first."""
        part, count = own.hide or "", asked.count
        require(bool(part), "hide", "must be given", f"say which part: {', '.join(PARTS)}")
        original, hidden = read_picture(model, asked.given), hidden_part(model, part)
        pictures = original.expand(count, -1, -1, -1)
        with naming({"images": "text"}):
            filled = model.infill(pictures, ~hidden, label=asked.label, **asked.how)
        covered = model.covered(hidden.flatten()[None], original.shape[2])
        shown = torch.cat([original, original.masked_fill(covered, GRAY), filled])
        place = Path(own.out or FILLED)
        grid_png(shown, math.ceil(math.sqrt(len(shown))), place)
        return _written({"out": str(place), "images": count})

    def evaluation(self, model: ImageModel, asked: Evaluation, own: ImageEvaluation) -> Work:
        from partita.modalities.image_evaluation import prepared  # loaded on use

        return prepared(model, asked, own)

    def table(self, results: Mapping[str, Any]) -> Table:
        from partita.modalities.image_evaluation import table

        return table(results)


def _labels(
    model: ImageModel, label: str | int | None, count: int
) -> tuple[Int64[Tensor, "N"] | None, int]:
    """A label for each image, and how many images stand side by side."""
    if label == EACH:
        classes = len(model.classes)
        require(classes > 0, "label", "the model knows no classes", "leave it out")
        return torch.arange(classes).repeat(count), classes
    number = model.label_number(label)
    labels = None if number is None else torch.full((count,), number)
    return labels, math.ceil(math.sqrt(count))


def _written(facts: dict[str, Any]) -> Drawn:
    """What was written, and where."""
    count = "1 image" if facts["images"] == 1 else f"{facts['images']} images"
    files = [facts[name] for name in ("out", "gif") if facts.get(name)]
    return Drawn(facts, lines=[f"{file}: {count}" for file in files])


# Parts to hide, pictures from files, films of sampling -------------------------------------------

Cut = Callable[[int, int], tuple[slice, slice]]
ALL = slice(None)
PARTS: dict[str, Cut] = {
    "left": lambda _, columns: (ALL, slice(columns // 2)),
    "right": lambda _, columns: (ALL, slice(columns // 2, None)),
    "top": lambda rows, _: (slice(rows // 2), ALL),
    "bottom": lambda rows, _: (slice(rows // 2, None), ALL),
    "middle": lambda rows, columns: (
        slice(rows // 4, rows - rows // 4),
        slice(columns // 4, columns - columns // 4),
    ),
}
"""Parts of a grid that can be hidden."""
FRAMES = 40  # of an animation, at most


def hidden_part(model: ImageModel, part: str) -> Bool[Tensor, "rows columns"]:
    """Which tokens of a model's grid stand for a part of a picture."""
    rows, columns = model.tokenizer.grid
    channels = getattr(model.tokenizer, "channels", 1)  # of a pixel, which stand side by side
    hidden = torch.zeros(rows, columns // channels, dtype=torch.bool)
    hidden[PARTS[part](*hidden.shape)] = True
    return hidden.repeat_interleave(channels, 1)


def read_picture(model: ImageModel, name: str) -> UInt8[Tensor, "1 C H W"]:
    """A picture from a file, or, by its number, from the test images of the model's data."""
    data = model.recipe.data
    if name.isdecimal():
        how = ImageOptions(split="test", size=data.size, color=data.color)
        with naming({"path": "text", "split": "text"}):
            images = read_images(data.path, how)
        last = len(images) - 1
        require(int(name) <= last, "text", f"there is no test image {name}", f"0 to {last} exist")
        return images.bytes()[int(name)][None]
    with reading(Path(name), "text"):
        content = Path(name).read_bytes()
    with naming({"path": "text"}):
        pixels = decode(content, name, data.size, data.color)
    return torch.from_numpy(pixels)[None]


class Film:
    """A callback that keeps the steps of a sampler."""

    def __init__(self, model: ImageModel) -> None:
        self.model, self.steps = model, list[Step]()

    def __call__(self, step: Step) -> None:
        self.steps.append(step)

    def frames(self) -> list[UInt8[Tensor, "N C H W"]]:
        """Some of the steps as pictures, the first and the last among them."""
        every = max(1, math.ceil(len(self.steps) / FRAMES))
        kept = self.steps[::-1][::every][::-1]
        return [self.model.draft(step) for step in kept]
