"""Vector quantizers: vectors to codes and back, with straight-through gradients.

ema   a codebook that follows the mean of the vectors assigned to each code (van den Oord et al.,
      2017, appendix A.1); unused codes are moved to vectors of the batch
fsq   no codebook: each coordinate is squashed and rounded to a few levels (Mentzer et al., 2023)
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from partita.errors import require, require_int
from partita.moved import offer_old_names
from partita.randomness import Noise, Purpose

LARGEST_CODEBOOK = 1 << 20
_TABLE = 1 << 24  # most numbers of a table of vectors by codes that is computed at once


class Quantized(NamedTuple):
    """Quantized vectors, with their codes and the commitment loss."""

    values: Float[Tensor, "N D"]
    """The codes' vectors; their gradient is passed on to the input vectors."""
    codes: Int64[Tensor, "N"]
    commitment: Float[Tensor, ""]
    """Mean squared distance of the vectors from their codes, a loss for the encoder."""


class Quantizer(nn.Module):
    """The base class of quantizers, with `size` codes of `dimension` numbers each."""

    size: int
    dimension: int

    @abstractmethod
    def forward(self, vectors: Float[Tensor, "N D"]) -> Quantized: ...

    @abstractmethod
    def embed(self, codes: Int64[Tensor, "N"]) -> Float[Tensor, "N D"]:
        """The vectors of the given codes."""

    def revive(self, vectors: Float[Tensor, "N D"], seed: int, step: int) -> int:  # noqa: ARG002
        """Before a training step, move unused codes to input vectors; returns their number."""
        return 0

    def follow(self, vectors: Float[Tensor, "N D"], codes: Int64[Tensor, "N"]) -> None:
        """After a training step, move codes towards the vectors assigned to them."""


class EMAQuantizer(Quantizer):
    """Nearest neighbors in a codebook that is learned by moving averages, not by gradients.

    At first all codes are unused, so the first batch places all of them.
    """

    codebook: Tensor
    uses: Tensor

    def __init__(
        self, size: int, dimension: int, decay: float = 0.99, unused: float = 0.03
    ) -> None:
        """A code is unused if its uses are below `unused` times the mean number of uses."""
        super().__init__()
        require_int(size, "codes", 2, LARGEST_CODEBOOK)
        require_int(dimension, "dimension", 1, 1 << 12)
        self.size, self.dimension = size, dimension
        self.decay, self.unused = decay, unused
        self.register_buffer("codebook", torch.zeros(size, dimension))
        self.register_buffer("uses", torch.zeros(size))

    def nearest(self, vectors: Float[Tensor, "N D"]) -> Int64[Tensor, "N"]:
        """The code nearest to each vector."""
        # |v - c|^2 without |v|^2, which is the same for all codes.
        norms = self.codebook.square().sum(1)
        parts = torch.split(vectors, max(1, _TABLE // self.size))
        return torch.cat([(norms - 2 * part @ self.codebook.T).argmin(1) for part in parts])

    def forward(self, vectors: Float[Tensor, "N D"]) -> Quantized:
        codes = self.nearest(vectors.detach())
        values = self.embed(codes)
        commitment = F.mse_loss(vectors, values)
        return Quantized(vectors + (values - vectors).detach(), codes, commitment)

    def embed(self, codes: Int64[Tensor, "N"]) -> Float[Tensor, "N D"]:
        return F.embedding(codes, self.codebook)

    @torch.no_grad()
    def revive(self, vectors: Float[Tensor, "N D"], seed: int, step: int) -> int:
        mean = len(vectors) / self.size
        (dead,) = torch.nonzero(self.uses < self.unused * mean, as_tuple=True)
        if len(dead):
            position = torch.zeros(1, 1, dtype=torch.int64, device=dead.device)
            draws = Noise(seed, dead).uniform(Purpose.CODES, step, position)[:, 0]
            self.codebook[dead] = vectors.detach()[(draws * len(vectors)).long()]
            self.uses[dead] = mean  # so that they do not count as unused again at once
        return len(dead)

    @torch.no_grad()
    def follow(self, vectors: Float[Tensor, "N D"], codes: Int64[Tensor, "N"]) -> None:
        counts, sums = torch.zeros_like(self.uses), torch.zeros_like(self.codebook)
        most = max(1, _TABLE // self.size)
        parts = torch.split(vectors.detach(), most), torch.split(codes, most)
        for part, chosen in zip(*parts, strict=True):
            # A matrix product adds in a fixed order on every device, index_add does not.
            one_hot = F.one_hot(chosen, self.size).to(part.dtype)
            counts += one_hot.sum(0)
            sums += one_hot.T @ part
        uses = self.decay * self.uses + (1 - self.decay) * counts
        total = self.decay * self.uses[:, None] * self.codebook + (1 - self.decay) * sums
        self.codebook.copy_(total / uses.clamp(min=1e-12)[:, None])
        self.uses.copy_(uses)


class FSQuantizer(Quantizer):
    """Finite scalar quantization: coordinate i takes levels[i] evenly spaced values from -1 to 1.

    tanh maps a number to (-1, 1), and it is rounded to the nearest value. All combinations are
    codes, numbered with the first coordinate varying fastest.
    """

    def __init__(self, levels: tuple[int, ...]) -> None:
        super().__init__()
        require(bool(levels), "levels", "is empty", "(8, 6, 5) makes 240 codes")
        for number in levels:
            require_int(number, "levels", 2, LARGEST_CODEBOOK)
        self.levels, self.dimension = levels, len(levels)
        self.size = math.prod(levels)
        require_int(self.size, "levels", 2, LARGEST_CODEBOOK)
        self.strides = tuple(math.prod(levels[:i]) for i in range(len(levels)))

    def forward(self, vectors: Float[Tensor, "N D"]) -> Quantized:
        most = vectors.new_tensor(self.levels) - 1
        squashed = torch.tanh(vectors)
        index = ((squashed + 1) / 2 * most).round()
        values = squashed + (2 * index / most - 1 - squashed).detach()
        strides = torch.tensor(self.strides, device=vectors.device)
        codes = (index.long() * strides).sum(1)
        return Quantized(values, codes, vectors.new_zeros(()))

    def embed(self, codes: Int64[Tensor, "N"]) -> Float[Tensor, "N D"]:
        levels = torch.tensor(self.levels, device=codes.device)
        strides = torch.tensor(self.strides, device=codes.device)
        index = codes[:, None] // strides % levels
        return (2 * index.float() / (levels - 1) - 1).float()


offer_old_names(__name__)
