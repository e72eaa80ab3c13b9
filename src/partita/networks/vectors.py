"""The transformer for sequences of vectors: noisy embeddings in, logits out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from partita.contracts.layouts import DENSE, Layout, PackedLayout
from partita.contracts.shapes import LogProbs
from partita.errors import require_int
from partita.networks.base import AnyNetwork
from partita.networks.blocks import Block, initialize
from partita.networks.layers import Rotary
from partita.networks.options import TransformerConfig, refuse_options
from partita.networks.trunk import Trunk


class VectorNetwork(AnyNetwork, ABC):
    """Maps vectors (and a scalar and a label) to logits at every position."""

    if TYPE_CHECKING:

        @property
        def dimensions(self) -> int:
            """Number of components of a vector."""

    @abstractmethod
    def __call__(
        self,
        x: Float[Tensor, "B L D"],
        *,
        scalar: Float[Tensor, "B"] | None = None,
        label: Int[Tensor, "B"] | None = None,
        layout: Layout = DENSE,
    ) -> LogProbs:
        """Logits at every position."""


class VectorTransformer(Trunk, VectorNetwork):
    """A transformer whose inputs are vectors of `dimensions` numbers instead of tokens."""

    dimensions: int

    def __init__(self, config: TransformerConfig, dimensions: int) -> None:
        line = "reads vectors on a line"
        refuse_options(config, "this network", grid=line, registers=line)
        require_int(dimensions, "dimensions")
        super().__init__(config)
        self.dimensions = dimensions
        self.embed = nn.Linear(dimensions, config.width)  # type: ignore[assignment]
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        initialize(self.blocks, config.depth)
        self._add_head(config.width)
        nn.init.normal_(self.embed.weight, std=dimensions**-0.5)  # as the inputs have variance 1

    def forward(
        self,
        x: Float[Tensor, "B L D"],
        *,
        scalar: Float[Tensor, "B"] | None = None,
        label: Int[Tensor, "B"] | None = None,
        layout: Layout = DENSE,
    ) -> LogProbs:
        """Logits at every position."""
        if isinstance(layout, PackedLayout):
            layout.check(x[..., 0].long())
        vectors = self.condition(scalar, label, x.shape[0])
        condition = None if vectors is None else vectors[:, None]
        positions = torch.arange(x.shape[1], device=x.device)
        head_width = self.config.width // self.config.heads
        rotary = Rotary.at(positions, head_width, self.config.rotary_base)
        hidden = self.embed(x)
        for block in self.blocks:
            hidden = self._run(block, hidden, rotary, layout, condition)
        return self._project(hidden, condition)
