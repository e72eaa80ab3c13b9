"""Counter-based random numbers: every draw has an address, and no state is consumed.

Every draw is a function of (seed, sample, stream, purpose, step, position), so the noise of a
sample does not depend on its batch, on padding or on what else was drawn, and nothing has to be
saved to resume. The bits come from Philox-4x32-10 (Salmon et al., "Parallel random numbers: as
easy as 1, 2, 3", 2011), a counter-based generator whose 128-bit counter is that address.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
import torch
from jaxtyping import Float64, Int64
from numpy.typing import NDArray
from torch import Tensor

from partita.errors import require
from partita.kernels import KERNELS
from partita.kernels.philox import MULTIPLIERS, ROUNDS, WEYL

_MASK32 = 0xFFFFFFFF
_STREAM_BITS = 24


class Purpose(IntEnum):
    """What a draw decides. Each purpose has numbers of its own."""

    ORDER = 0  # when or in which order positions are revealed
    TOKEN = 1  # which token a position receives
    CONFIDENCE = 2  # noise added to confidences
    TIME = 3  # training and evaluation times
    MASK = 4  # training and evaluation masks
    DATA = 5  # the order of training examples
    STATE = 6  # the Gaussian noise of a reverse process
    INSERT = 7  # how many masks a gap receives, and when tokens disappear
    LABEL = 10  # which labels training drops
    CODES = 8  # which vectors the unused codes of a codebook are moved to
    SHIFT = 9  # how an image is moved before a classifier sees it


def _multiply(a: Tensor, constant: int) -> tuple[Tensor, Tensor]:
    """High and low 32 bits of a 32 x 32-bit product, in halves that cannot overflow int64."""
    low_part = (a & 0xFFFF) * constant
    high_part = (a >> 16) * constant + (low_part >> 16)
    return (high_part >> 16) & _MASK32, ((high_part & 0xFFFF) << 16) | (low_part & 0xFFFF)


def philox(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox-4x32-10: four 32-bit words (held in int64) for each counter."""
    a, b, c, d = counter
    key_a, key_b = key
    for _ in range(ROUNDS):
        high_a, low_a = _multiply(a, MULTIPLIERS[0])
        high_c, low_c = _multiply(c, MULTIPLIERS[1])
        a, b, c, d = high_c ^ b ^ key_a, low_c, high_a ^ d ^ key_b, low_a
        key_a, key_b = (key_a + WEYL[0]) & _MASK32, (key_b + WEYL[1]) & _MASK32
    return a, b, c, d


@dataclass(frozen=True)
class Noise:
    """A counter-based random number generator: `seed` is the run's, `samples` number the rows."""

    seed: int
    samples: Int64[Tensor, "B"]
    stream: int = 0
    since: Int64[Tensor, ""] | None = None
    """A step in the device's memory that is added to every step; 0 unless given.

    A CUDA graph that is captured once and replayed for every step reads the step from it."""

    def __post_init__(self) -> None:
        require(0 <= self.seed < 2**64, "seed", f"must lie in [0, 2^64), got {self.seed}")
        fits = 0 <= self.stream < 2**_STREAM_BITS
        require(fits, "stream", f"must fit 24 bits, got {self.stream}")

    @staticmethod
    def for_batch(
        seed: int, size: int, first: int = 0, device: torch.device | str = "cpu"
    ) -> Noise:
        """The noise of `size` consecutive samples, the first of them numbered `first`."""
        return Noise(seed, torch.arange(first, first + size, dtype=torch.int64, device=device))

    def fork(self, stream: int) -> Noise:
        """Independent noise for the same samples, for example for another block of text."""
        return replace(self, stream=stream)

    def select(self, rows: Int64[Tensor, "R"]) -> Noise:
        """The noise of some of the samples."""
        return replace(self, samples=self.samples[rows])

    def shared(self, purpose: Purpose, step: int) -> Float64[Tensor, ""]:
        """One uniform that all samples share, for example the shift of a batch's times."""
        no_sample = torch.full((1,), _MASK32, device=self.samples.device)
        return self._uniform(purpose, step, no_sample, torch.zeros_like(no_sample))[0]

    def uniform(
        self, purpose: Purpose, step: int, positions: Int64[Tensor, "#B K"]
    ) -> Float64[Tensor, "B K"]:
        """53-bit uniforms in [0, 1), one for each sample and position."""
        samples = self.samples[:, None].expand(-1, positions.shape[1])
        return self._uniform(purpose, step, samples, positions.expand_as(samples))

    def uniforms(self, purpose: Purpose, step: int, length: int) -> Float64[Tensor, "B {length}"]:
        """53-bit uniforms in [0, 1) for positions 0 to length - 1 of each sample."""
        return self.uniform(purpose, step, torch.arange(length, device=self.samples.device)[None])

    def uniform_at(
        self, purpose: Purpose, step: int, rows: Int64[Tensor, "N"], positions: Int64[Tensor, "N"]
    ) -> Float64[Tensor, "N"]:
        """53-bit uniforms in [0, 1) for the listed (row, position) pairs alone."""
        return self._uniform(purpose, step, self.samples[rows], positions)

    def normal(
        self, purpose: Purpose, step: int, positions: Int64[Tensor, "#B K"]
    ) -> Float64[Tensor, "B K"]:
        """Standard normals, one for each sample and position."""
        return standard_normal(self.uniform(purpose, step, positions))

    def _uniform(self, purpose: Purpose, step: int, samples: Tensor, positions: Tensor) -> Tensor:
        purpose_and_stream = (int(purpose) << _STREAM_BITS) | self.stream
        key = self.seed & _MASK32, self.seed >> 32
        if positions.is_cuda and KERNELS:
            from partita.kernels.uniforms import philox_uniforms

            address = positions, samples, step & _MASK32, purpose_and_stream
            return philox_uniforms(*address, key, self.since)
        steps = torch.full_like(positions, step)
        counter = (
            positions & _MASK32,
            (steps if self.since is None else steps + self.since) & _MASK32,
            samples & _MASK32,
            torch.full_like(positions, purpose_and_stream),
        )
        high, low, _, _ = philox(counter, key)
        return ((high << 21) | (low >> 11)).to(torch.float64) * 2.0**-53


def standard_normal(u: Float64[Tensor, "*shape"]) -> Float64[Tensor, "*shape"]:
    """The inverse normal distribution function at the middle of each 53-bit uniform's cell.

    Both tails are taken as lower ones, where float64 is dense: the normals are exactly symmetric,
    never infinite, and reach as far as 53 bits do (8.3 standard deviations).
    """
    lower = u < 0.5
    cell = torch.where(lower, u, 1 - u - 2.0**-53)  # exact, as is the half cell that is added
    quantile = torch.special.ndtri(cell + 2.0**-54)
    return torch.where(lower, quantile, -quantile)


_FEISTEL_ROUNDS = 6
# The finalizer of SplitMix64 (Steele, Lea and Flood, 2014): every bit of the input moves every bit.
_SPLITMIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_GOLDEN = 0x9E3779B97F4A7C15


def permuted(
    indices: Int64[Tensor, "N"], size: int, seed: int, epochs: Int64[Tensor, "N"]
) -> Int64[Tensor, "N"]:
    """Where the indices 0..size-1 go under a random permutation that each epoch has of its own.

    A Feistel network is a bijection of the numbers below 4^w whatever its round function is; a
    result that is not below `size` is sent through again until it is ("cycle walking"), which
    leaves a bijection of 0..size-1. So any position of any epoch's order is known without a table.
    """
    require(size >= 1, "size", f"must be at least 1, got {size}")
    half = np.uint64(max(1, (max(size - 1, 1).bit_length() + 1) // 2))
    keys = _mixed(_mixed(np.uint64(seed) ^ epochs.cpu().numpy().astype(np.uint64)))
    result = indices.cpu().numpy().astype(np.uint64)
    outside = np.ones(result.shape, dtype=bool)
    while outside.any():
        result[outside] = _feistel(result[outside], half, keys[outside])
        outside = result >= size
    return torch.from_numpy(result.astype(np.int64)).to(indices.device)


def _mixed(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A hash of 64-bit numbers; products wrap around."""
    value = value + np.uint64(_GOLDEN)
    for shift, factor in _SPLITMIX:
        value = (value ^ (value >> np.uint64(shift))) * np.uint64(factor)
    return value ^ (value >> np.uint64(31))


def _feistel(
    value: NDArray[np.uint64], half: np.uint64, keys: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """(left, right) -> (right, left xor f(right)), several times, on two halves of some bits."""
    low_bits = (np.uint64(1) << half) - np.uint64(1)
    left, right = value >> half, value & low_bits
    for turn in range(_FEISTEL_ROUNDS):
        hashed = _mixed(keys ^ _mixed(right + np.uint64(turn << 32)))
        left, right = right, left ^ (hashed & low_bits)
    return (left << half) | right
