"""Images on the command line: drawn by `sample`, filled in by `infill`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from partita.commands.terminal import Terminal, print_json
from partita.data.images import ImageOptions, read_images
from partita.data.images.decoding import decode
from partita.data.images.pictures import grid_png, unmasking_gif
from partita.errors import naming, require
from partita.files.reading import reading
from partita.models.image_model import GREY, ImageModel
from partita.samplers import Step

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
FILLED = "filled.png"
EACH = "each"  # in place of a label: all of them
PICTURE = "samples.png"
FRAMES = 40  # of an animation, at most


def draw(
    model: ImageModel,
    count: int,
    label: str | None,
    options: Mapping[str, Any],
    *,
    out: str | None,
    gif: str | None,
) -> dict[str, Any]:
    """Draw images into a picture, and into a film if one is wanted; what was written."""
    labels, columns = _labels(model, label, count)
    total, film = count if labels is None else len(labels), Film(model)
    told = dict(options) | ({"callback": film} if gif else {})
    pixels = model.sample(total, label=labels, **told)
    place = Path(out or PICTURE)
    grid_png(pixels, columns, place)
    if gif:
        unmasking_gif(film.frames(), gif, columns=columns)
    return {"out": str(place), "gif": gif, "images": total}


def _labels(
    model: ImageModel, label: str | None, count: int
) -> tuple[Int64[Tensor, "N"] | None, int]:
    """A label for each image, and how many images stand side by side."""
    if label == EACH:
        classes = len(model.classes)
        require(classes > 0, "label", "the model knows no classes", "leave it out")
        return torch.arange(classes).repeat(count), classes
    number = model.label_number(label)
    labels = None if number is None else torch.full((count,), number)
    return labels, math.ceil(math.sqrt(count))


def fill_in(
    model: ImageModel,
    picture: str,
    part: str,
    count: int,
    options: Mapping[str, Any],
    *,
    out: str | None,
) -> dict[str, Any]:
    """Draw a part of a picture anew, `count` times; what was written."""
    original = _picture(model, picture)
    rows, columns = model.tokenizer.grid
    channels = getattr(model.tokenizer, "channels", 1)  # of a pixel, which stand side by side
    hidden = torch.zeros(rows, columns // channels, dtype=torch.bool)
    hidden[PARTS[part](*hidden.shape)] = True
    hidden = hidden.repeat_interleave(channels, 1)
    with naming({"images": "text"}):
        filled = model.infill(original.expand(count, -1, -1, -1), ~hidden, **options)
    covered = model.covered(hidden.flatten()[None], original.shape[2])
    shown = original.masked_fill(covered, GREY)
    place = Path(out or FILLED)
    pictures = torch.cat([original, shown, filled])
    grid_png(pictures, math.ceil(math.sqrt(len(pictures))), place)
    return {"out": str(place), "images": count}


def _picture(model: ImageModel, name: str) -> UInt8[Tensor, "1 C H W"]:
    """A picture of a file, or, by its number, of the test images of the model's set."""
    data = model.recipe.data
    if name.isdecimal():
        how = ImageOptions(split="test", size=data.size, colour=data.colour)
        with naming({"path": "text", "split": "text"}):
            images = read_images(data.path, how)
        last = len(images) - 1
        require(int(name) <= last, "text", f"there is no test image {name}", f"0 to {last} exist")
        return images.bytes()[int(name)][None]
    with reading(Path(name), "text"):
        content = Path(name).read_bytes()
    with naming({"path": "text"}):
        pixels = decode(content, name, data.size, data.colour)
    return torch.from_numpy(pixels)[None]


class Film:
    """A callback that remembers how images come to be."""

    def __init__(self, model: ImageModel) -> None:
        self.model, self.steps = model, list[Step]()

    def __call__(self, step: Step) -> None:
        self.steps.append(step)

    def frames(self) -> list[UInt8[Tensor, "N C H W"]]:
        """Some of the steps as pictures, the first and the last among them."""
        every = max(1, math.ceil(len(self.steps) / FRAMES))
        kept = self.steps[::-1][::every][::-1]
        return [self.model.draft(step) for step in kept]


def report(console: Terminal, facts: Mapping[str, Any], as_json: bool) -> None:
    """What was written, and where."""
    if as_json:
        print_json(dict(facts))
        return
    for name in ("out", "gif"):
        if facts.get(name):
            count = "1 image" if facts["images"] == 1 else f"{facts['images']} images"
            console.print(f"{facts[name]}: {count}", soft_wrap=True)
