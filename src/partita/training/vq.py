"""Training of VQ tokenizers: reconstruction, commitment, and optionally an adversarial loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from partita.data.images.base import Images, byte_pixels
from partita.data.vq_tokenizer import VQTokenizer, scaled
from partita.devices import choose_device
from partita.errors import require, require_number
from partita.networks.vq import PatchDiscriminator, VQConfig, VQNetwork, usage
from partita.registry import Registry
from partita.training.image_trainer import (
    ClippedAdamW,
    StepOptions,
    image_steps,
    require_images,
    seeded,
)

HALF_BYTE = 1 / 255  # half the distance of two neighboring bytes on the scale from -1 to 1
RECONSTRUCTIONS: Registry[Callable[[int], nn.Module]] = Registry("reconstruction")
"""Losses of pixels (from -1 to 1) with some channels, averaged over pixels."""


@dataclass(frozen=True)
class VQOptions(StepOptions):
    """Options of training a VQ tokenizer."""

    network: VQConfig = field(default_factory=VQConfig)
    """The network and its quantizer."""
    reconstruction: str = "l2"
    """l2 (squared error), or logistic (bits of pixels, as a discretized logistic distribution)."""
    commitment: float = 0.25
    """Weight of the distance between vectors and their codes (ema alone has one)."""
    adversarial: float = 0.0
    """Weight of a patch discriminator's loss; 0 is none."""
    adversarial_from: float = 0.5
    """Fraction of the run after which the discriminator begins."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = RECONSTRUCTIONS[self.reconstruction]
        require_number(self.commitment, "commitment")
        require_number(self.adversarial, "adversarial")
        require_number(self.adversarial_from, "adversarial_from")
        problem = f"is a share of the run, got {self.adversarial_from}"
        require(self.adversarial_from <= 1, "adversarial_from", problem)


@dataclass(frozen=True)
class VQQuality:
    """Reconstruction error, and usage of the codes."""

    error: float
    """Mean squared error of the pixels, which go from 0 to 1."""
    used: int
    """Number of codes that occur."""
    perplexity: float
    """Exponential of the entropy of the codes' frequencies."""
    size: int
    """Number of codes in the codebook."""


@dataclass(frozen=True)
class VQProgress:
    """Progress for a callback: the newest step, measured on its own batch."""

    step: int
    loss: float
    quality: VQQuality
    revived: int
    """Number of unused codes that were moved since the last report."""


@RECONSTRUCTIONS.register("l2")
def squared_error(channels: int) -> nn.Module:  # noqa: ARG001 - of no channel in particular
    """The mean squared error."""
    return nn.MSELoss()


@RECONSTRUCTIONS.register("logistic")
class DiscretisedLogistic(nn.Module):
    """Nats per pixel if bytes are the rounded values of a logistic distribution around the guess.

    Its width is learned, one for each channel. The probability of a byte is s(a) - s(b) at the ends
    a > b of its cell, with s the sigmoid; this equals s(a) s(-b) (1 - exp(b - a)), of which each
    factor has a stable logarithm. The first and the last byte take all that lies beyond them.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.full((channels, 1, 1), -2.0))

    def forward(
        self, guess: Float[Tensor, "N C H W"], x: Float[Tensor, "N C H W"]
    ) -> Float[Tensor, ""]:
        scale = self.log_scale.exp()
        above, below = (x + HALF_BYTE - guess) / scale, (x - HALF_BYTE - guess) / scale
        first, last = x <= HALF_BYTE - 1, x >= 1 - HALF_BYTE
        upper = F.logsigmoid(above).masked_fill(last, 0)
        lower = F.logsigmoid(-below).masked_fill(first, 0)
        inner = torch.log(-torch.expm1(-2 * HALF_BYTE / scale)).expand_as(x)
        return -(upper + lower + inner.masked_fill(first | last, 0)).mean()


class Adversary:
    """A discriminator trained alongside the network, with hinge losses (Lim and Ye, 2017)."""

    def __init__(self, channels: int, options: VQOptions, device: torch.device) -> None:
        self.discriminator = PatchDiscriminator(channels).to(device)
        self.optimizer = ClippedAdamW([self.discriminator], options)

    def opinion(self, guess: Tensor) -> Tensor:
        """The network's adversarial loss: how fake its images look to the discriminator."""
        score: Tensor = self.discriminator(guess)
        return -score.mean()

    def learn(self, guess: Tensor, x: Tensor, step: int) -> None:
        """One discriminator step: tell real images from reconstructions."""
        real, false = self.discriminator(x), self.discriminator(guess.detach())
        self.optimizer.step(F.relu(1 - real).mean() + F.relu(1 + false).mean(), step)


def train_vq(
    images: Images,
    options: VQOptions | None = None,
    callback: Callable[[VQProgress], None] | None = None,
) -> VQTokenizer:
    """Train a tokenizer on images; on a CPU the same seed gives the same one."""
    options = options or VQOptions()
    require_images(len(images))
    device, pixels = choose_device(options.device), images.bytes()
    _, channels, rows, columns = pixels.shape
    with seeded(options.seed):
        network = VQNetwork(options.network, channels, (rows, columns)).to(device)
        measure = RECONSTRUCTIONS[options.reconstruction](channels).to(device)
        adversary = Adversary(channels, options, device) if options.adversarial else None
    optimizer, quantiser, revived = ClippedAdamW([network, measure], options), network.quantiser, 0
    for step, index in image_steps(len(images), options):
        x = scaled(pixels[index].to(device))
        vectors = network.vectors(x)
        revived += quantiser.revive(vectors, options.seed, step)
        values, codes, commitment = quantiser(vectors)
        guess = network.pixels(values)
        loss = measure(guess, x) + options.commitment * commitment
        judge = adversary if step >= options.adversarial_from * options.steps else None
        if judge is not None:
            loss = loss + options.adversarial * judge.opinion(guess)
        optimizer.step(loss, step)
        quantiser.follow(vectors, codes)
        if judge is not None:
            judge.learn(guess, x, step)
        if callback is not None and options.reports_at(step):
            # The error before pixels are rounded to bytes, on a scale from 0 to 1.
            error = float(F.mse_loss(guess.detach().clamp(-1, 1), x)) / 4
            quality = VQQuality(error, *usage(codes, quantiser.size), quantiser.size)
            callback(VQProgress(step + 1, float(loss.detach()), quality, revived))
            revived = 0
    return VQTokenizer(network)


def measure_vq(tokenizer: VQTokenizer, images: Images) -> VQQuality:
    """The quality of a tokenizer on images; use images that it was not trained on."""
    require_images(len(images))
    pixels = byte_pixels(images, (tokenizer.network.channels, *tokenizer.network.size))
    tokens = tokenizer.encode(pixels)
    difference = (tokenizer.decode(tokens).double() - pixels.double()) / 255
    size = tokenizer.vocab_size
    return VQQuality(float(difference.square().mean()), *usage(tokens, size), size)
