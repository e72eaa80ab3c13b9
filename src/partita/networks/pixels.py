"""The base class of networks of pixels, which reshape rows of tokens to whole images.

Tokens are the levels of an image row by row, with the channels of a pixel adjacent.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from partita.contracts.layouts import DENSE, DenseLayout, Layout, Queries
from partita.errors import require
from partita.networks.base import Network
from partita.networks.kind_options import PixelOptions
from partita.networks.options import TransformerConfig, TransformerOptions, refuse_options
from partita.networks.trunk import Trunk


class ImageShape(NamedTuple):
    """The sizes of an image."""

    height: int
    width: int
    channels: int

    @staticmethod
    def of(network: TransformerOptions, channels: int = 1) -> ImageShape:
        """The image shape that follows from a network's length, grid and channels."""
        columns = network.grid
        remedy = "give the width of the image times network.options.channels"
        require(columns > 0, "network.grid", "is 0, but an image has columns", remedy)
        problem = f"{columns} tokens are no row of pixels with {channels} channels each"
        require(columns % channels == 0, "network.grid", problem, remedy)
        return ImageShape(network.length // columns, columns // channels, channels)


class PixelTrunk(Trunk, Network):
    """Maps tokens to logits through a whole image; a subclass defines `_read`."""

    Options: ClassVar[type[PixelOptions]] = PixelOptions
    options: PixelOptions
    fusible = False

    def __init__(self, config: TransformerConfig) -> None:
        reason = "reads places in two directions"
        refuse_options(config, "a network of pixels", registers=reason)
        super().__init__(config)
        self.shape = ImageShape.of(config, self.options.channels)

    def forward(
        self,
        tokens: Int[Tensor, "B L"],
        *,
        queries: Queries | None = None,
        scalar: Float[Tensor, "B"] | None = None,
        label: Int[Tensor, "B"] | None = None,
        layout: Layout = DENSE,
    ) -> Float[Tensor, "*out V"]:
        """Logits at every token, or only at the queried ones."""
        self._check_images(tokens, layout)
        condition = self.condition(scalar, label, tokens.shape[0])
        numbers = self._read(tokens.reshape(-1, *self.shape), condition)
        if queries is not None:
            numbers = numbers[queries.rows, queries.positions]
        return self._logits(numbers)

    @abstractmethod
    def _read(
        self, image: Int[Tensor, "B H W C"], condition: Float[Tensor, "B D"] | None
    ) -> Float[Tensor, "B L P"]:
        """The head's outputs for every token."""

    def _check_images(self, tokens: Tensor, layout: Layout) -> None:
        length = self.config.length
        problem = f"of shape {list(tokens.shape)} are no images of {length} tokens"
        require(tokens.ndim == 2 and tokens.shape[1] == length, "tokens", problem)
        plain = isinstance(layout, DenseLayout) and layout.mask is None and not layout.causal
        problem = "this network reads whole images, in which every token may read every other"
        require(plain, "layout", problem, "leave padding and documents to network.kind transformer")
