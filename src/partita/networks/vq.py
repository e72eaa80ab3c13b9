"""A small convolutional encoder and decoder with a vector quantizer: images as grids of codes.

The encoder halves the resolution until one position covers `factor` x `factor` pixels; the
quantizer assigns a code to the vector at each position; the decoder restores the resolution.
Pixels are in [-1, 1].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from partita.errors import require, require_int
from partita.networks.quantizers import EMAQuantizer, FSQuantizer, Quantizer
from partita.registry import Registry

FACTORS = (2, 4, 8)
GROUPS = 8


@dataclass(frozen=True)
class VQConfig:
    """The sizes of a VQ network, without those of its images."""

    factor: int = 2
    """Pixels per code along each side: 2, 4 or 8."""
    width: int = 32
    """Hidden channels, a multiple of 8."""
    depth: int = 1
    """Residual blocks at each resolution."""
    quantiser: str = "ema"
    """ema (a learned codebook), or fsq (finite scalar quantization)."""
    codes: int = 256
    """ema: the size of the codebook."""
    dimension: int = 8
    """ema: numbers in a code's vector."""
    levels: tuple[int, ...] = (4, 4, 4, 4)
    """fsq: how many values each number of a vector takes; their product is the number of codes."""

    def __post_init__(self) -> None:
        problem = f"must be one of {', '.join(map(str, FACTORS))}, got {self.factor!r}"
        require(self.factor in FACTORS, "factor", problem)
        require_int(self.width, "width", GROUPS, 1 << 12)
        problem = f"must be a multiple of {GROUPS}, got {self.width}"
        require(self.width % GROUPS == 0, "width", problem)
        require_int(self.depth, "depth", 1, 64)
        _ = QUANTIZERS[self.quantiser]


QUANTIZERS: Registry[Callable[[VQConfig], Quantizer]] = Registry("quantiser")


@QUANTIZERS.register("ema")
def ema(config: VQConfig) -> Quantizer:
    """A codebook that follows the encoder."""
    return EMAQuantizer(config.codes, config.dimension)


@QUANTIZERS.register("fsq")
def fsq(config: VQConfig) -> Quantizer:
    """A fixed grid of codes."""
    return FSQuantizer(config.levels)


class Residual(nn.Module):
    """x plus norm, SiLU, 3x3 convolution, twice."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm_in, self.norm_out = nn.GroupNorm(GROUPS, width), nn.GroupNorm(GROUPS, width)
        self.convolution_in = nn.Conv2d(width, width, 3, padding=1)
        self.convolution_out = nn.Conv2d(width, width, 3, padding=1)
        nn.init.zeros_(self.convolution_out.weight)  # starts as x alone
        nn.init.zeros_(self.convolution_out.bias)  # type: ignore[arg-type]

    def forward(self, x: Float[Tensor, "N D H W"]) -> Float[Tensor, "N D H W"]:
        branch = self.convolution_in(F.silu(self.norm_in(x)))
        result: Tensor = x + self.convolution_out(F.silu(self.norm_out(branch)))
        return result


class VQNetwork(nn.Module):
    """Encoder, quantizer and decoder for images of one shape."""

    def __init__(self, config: VQConfig, channels: int, size: tuple[int, int]) -> None:
        super().__init__()
        require_int(channels, "channels", 1, 4)
        rows, columns = size
        fits = rows % config.factor == 0 and columns % config.factor == 0
        problem = f"{rows} x {columns} pixels are no multiple of the factor {config.factor}"
        require(fits, "factor", problem, "take a smaller factor, or images of another size")
        self.config, self.channels, self.size = config, channels, size
        self.grid = rows // config.factor, columns // config.factor
        self.quantiser = QUANTIZERS[config.quantiser](config)
        self.encoder = _encoder(config, channels, self.quantiser.dimension)
        self.decoder = _decoder(config, channels, self.quantiser.dimension)

    def vectors(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "M D"]:
        """The encoder's vectors at all positions, image by image in raster order."""
        result: Tensor = self.encoder(x).movedim(1, -1).flatten(0, 2)
        return result

    def pixels(self, values: Float[Tensor, "M D"]) -> Float[Tensor, "N C H W"]:
        """Decode images from the vectors of their codes."""
        grids = values.reshape(-1, *self.grid, values.shape[1]).movedim(-1, 1)
        result: Tensor = self.decoder(grids)
        return result

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C H W"]:
        """Images reconstructed from their codes."""
        return self.pixels(self.quantiser(self.vectors(x)).values)


def _encoder(config: VQConfig, channels: int, dimension: int) -> nn.Sequential:
    width, levels = config.width, round(math.log2(config.factor))
    layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1)]
    for _ in range(levels):
        # Blocks come after each downsampling, as they cost most at full resolution.
        layers += [nn.SiLU(), nn.Conv2d(width, width, 4, stride=2, padding=1)]
        layers += [Residual(width) for _ in range(config.depth)]
    return nn.Sequential(*layers, *_leave(width, dimension, 1))


def _decoder(config: VQConfig, channels: int, dimension: int) -> nn.Sequential:
    width, levels = config.width, round(math.log2(config.factor))
    layers: list[nn.Module] = [nn.Conv2d(dimension, width, 3, padding=1)]
    for _ in range(levels):
        layers += [Residual(width) for _ in range(config.depth)]
        layers += [nn.SiLU(), nn.ConvTranspose2d(width, width, 4, stride=2, padding=1)]
    return nn.Sequential(*layers, *_leave(width, channels, 3))


def _leave(width: int, outputs: int, kernel: int) -> list[nn.Module]:
    convolution = nn.Conv2d(width, outputs, kernel, padding=kernel // 2)
    return [nn.GroupNorm(GROUPS, width), nn.SiLU(), convolution]


class PatchDiscriminator(nn.Module):
    """Scores whether patches of an image look real: one number for each cell of a coarse grid."""

    def __init__(self, channels: int, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, width, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, 2 * width, 4, stride=2, padding=1),
            nn.GroupNorm(GROUPS, 2 * width),
            nn.LeakyReLU(0.2),
            nn.Conv2d(2 * width, 1, 3, padding=1),
        )

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N h w"]:
        result: Tensor = self.layers(x)[:, 0]
        return result


@torch.no_grad()
def usage(codes: Int64[Tensor, "..."], size: int) -> tuple[int, float]:
    """Number of codes that occur, and the perplexity of their frequencies, from 1 to `size`."""
    counts = torch.bincount(codes.flatten(), minlength=size).double()
    shares = counts[counts > 0] / counts.sum()
    return len(shares), float((-(shares * shares.log()).sum()).exp())
