"""A trained model of images: labels in, pictures out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from partita.contracts.estimate import Estimate
from partita.data.image_tokenizers import ImageTokenizer, Pixels
from partita.data.images import Images
from partita.errors import require
from partita.likelihood.bounds import nelbo
from partita.models.trained import MODELS, TrainedModel
from partita.samplers import Prompt
from partita.samplers.base import Step

GRAY = 128  # the byte of hidden pixels


@MODELS.register("images")
class ImageModel(TrainedModel):
    """A method over the tokens of an image tokenizer."""

    tokenizer: ImageTokenizer
    data = "images"
    instead = "partita sample, infill and eval know images"

    def sample(
        self, count: int = 1, *, label: str | int | Int64[Tensor, "N"] | None = None, **options: Any
    ) -> Pixels:
        """Pictures that the model draws: of one class, of a class for each, or of any.

        `options` go to `partita.sample`, for example `guidance=2.0, steps=16`; the recipe's
        `sampling` section fills in the rest.
        """
        chosen = self.drawing(options) | {"label": self._labels(label)}
        return self.decode(self.drawn(count, length=self.length, **chosen))

    def infill(  # type: ignore[override] # a text is refused, as it is no picture
        self,
        images: Images | Pixels,
        known: Bool[Tensor, "rows columns"],
        *,
        label: str | int | Int64[Tensor, "N"] | None = None,
        **options: Any,
    ) -> Pixels:
        """Fill in pictures: `known` are the positions of the token grid to keep."""
        tokens = self.tokenizer.encode(images)
        fits = tuple(known.shape) == self.tokenizer.grid
        problem = f"has shape {list(known.shape)}, the tokens {list(self.tokenizer.grid)}"
        require(fits, "known", problem, "say of each token whether it is known")
        prompt = Prompt(tokens, known.flatten().expand_as(tokens)).to(self.device)
        chosen = self.drawing(options) | {"label": self._labels(label)}
        return self.decode(self.drawn(prompt=prompt, **chosen))

    def bits_per_dimension(
        self,
        images: Images,
        *,
        replicates: int = 4,
        seed: int = 0,
        progress: Callable[[float], None] | None = None,
    ) -> Estimate:
        """An upper bound of the bits per token, given the classes if the model knows classes.

        Where tokens are pixels, these are bits per pixel and channel.
        """
        labels, tokens = self.labels_of(images), self.tokenizer.encode(images).to(self.device)
        label = None if labels is None else labels.to(self.device)
        how: dict[str, Any] = {"replicates": replicates, "seed": seed, "progress": progress}
        return nelbo(self.method, tokens, label=label, **how)  # type: ignore[arg-type]

    def labels_of(self, images: Images) -> Int64[Tensor, "N"] | None:
        """The model's class numbers of images, by the classes' names; None if it has no classes."""
        if not self.recipe.network.classes:
            return None
        names = images.classes or tuple(map(str, range(int(images.labels.max()) + 1)))
        numbers = [self.label_number(name) for name in names]
        return torch.tensor(numbers)[images.labels]

    def decode(self, tokens: Int64[Tensor, "N L"]) -> Pixels:
        """Rows of tokens as pictures."""
        return self.tokenizer.decode(tokens.cpu())

    def draft(self, step: Step) -> Pixels:
        """The images of a sampler's step; hidden pixels are gray."""
        tokens, hidden = step.state.tokens, ~step.state.revealed
        pixels = self.decode(tokens.where(~hidden, 0))
        return pixels.masked_fill(self.covered(hidden, pixels.shape[2]).cpu(), GRAY)

    def covered(self, hidden: Bool[Tensor, "N L"], height: int) -> Bool[Tensor, "N 1 H W"]:
        """The pixels that hidden tokens stand for, in images of this height."""
        rows, columns = self.tokenizer.grid
        channels = getattr(self.tokenizer, "channels", 1)  # of a pixel, which stand side by side
        positions = hidden.view(-1, 1, rows, columns // channels, channels).any(-1)
        scale = height // rows  # along each side, of the square that a code stands for
        return positions.repeat_interleave(scale, 2).repeat_interleave(scale, 3)

    def _labels(self, label: str | int | Tensor | None) -> int | Tensor | None:
        return label.long() if isinstance(label, Tensor) else self.label_number(label)
