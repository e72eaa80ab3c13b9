"""Images on the command line: drawn by `sample`, filled in by `infill`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int64, UInt8
from rich.console import Console
from torch import Tensor

from partita.errors import require
from partita.evaluation.pictures import grid_png, unmasking_gif
from partita.hub.image_model import ImageModel
from partita.samplers import Step

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


def report(console: Console, facts: Mapping[str, Any], as_json: bool) -> None:
    """What was written, and where."""
    if as_json:
        print(json.dumps(dict(facts)))
        return
    for name in ("out", "gif"):
        if facts.get(name):
            console.print(f"{facts[name]}: {facts['images']} images", soft_wrap=True)
