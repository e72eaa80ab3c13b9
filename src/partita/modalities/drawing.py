"""For the verbs of images: parts to hide, pictures from files, films of sampling."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import torch
from jaxtyping import Bool, UInt8
from torch import Tensor

from partita.data.images import ImageOptions, read_images
from partita.data.images.decoding import decode
from partita.errors import naming, require
from partita.files.reading import reading
from partita.models.image_model import ImageModel
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
