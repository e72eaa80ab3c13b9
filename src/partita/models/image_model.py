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

GREY = 128  # of what is hidden


@MODELS.register("images")
class ImageModel(TrainedModel):
    """A method over the tokens of an image tokenizer."""

    tokenizer: ImageTokenizer
    data = "images"
    instead = "partita sample, infill and eval know images"

    def sample(
        self,
        count: int = 1,
        *,
        label: str | int | Int64[Tensor, "N"] | None = None,
        **options: Any,
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
        """Pictures of which some places of the token grid are known, and the rest is drawn."""
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
        """The bound of pictures, given their classes if the model knows classes.

        It is one for each token: of each pixel's channel, where tokens are pixels.
        """
        labels = self.labels_of(images)
        return nelbo(
            self.method,  # type: ignore[arg-type]
            self.tokenizer.encode(images).to(self.device),
            label=None if labels is None else labels.to(self.device),
            replicates=replicates,
            seed=seed,
            progress=progress,
        )

    def labels_of(self, images: Images) -> Int64[Tensor, "N"] | None:
        """The model's numbers of the classes of images, by their names; None if it knows none."""
        if not self.recipe.network.classes:
            return None
        names = images.classes or tuple(map(str, range(int(images.labels.max()) + 1)))
        numbers = [self.label_number(name) for name in names]
        return torch.tensor(numbers)[images.labels]

    def decode(self, tokens: Int64[Tensor, "N L"]) -> Pixels:
        """Rows of tokens as pictures."""
        return self.tokenizer.decode(tokens.cpu())

    def draft(self, step: Step) -> Pixels:
        """What a sampler has so far; what is still hidden is grey."""
        tokens, hidden = step.state.tokens, ~step.state.revealed
        pixels = self.decode(tokens.where(~hidden, 0))
        return pixels.masked_fill(self.covered(hidden, pixels.shape[2]).cpu(), GREY)

    def covered(self, hidden: Bool[Tensor, "N L"], height: int) -> Bool[Tensor, "N 1 H W"]:
        """The pixels that some hidden tokens stand for, in images so high."""
        rows, columns = self.tokenizer.grid
        channels = getattr(self.tokenizer, "channels", 1)  # of a pixel, which stand side by side
        places = hidden.view(-1, 1, rows, columns // channels, channels).any(-1)
        scale = height // rows  # along each side, of the square that a code stands for
        return places.repeat_interleave(scale, 2).repeat_interleave(scale, 3)

    def _labels(self, label: str | int | Tensor | None) -> int | Tensor | None:
        if isinstance(label, Tensor):
            return label.to(torch.int64)
        return self.label_number(label)
