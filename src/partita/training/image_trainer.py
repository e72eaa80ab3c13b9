"""Training of small image networks: VQ tokenizers and classifiers.

It shares the learning rate, the clipped step and the stateless order of rows with the training of
methods. It has no checkpoints, no moving average and no other processes: such a network trains in
minutes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from partita.config.training import learning_rate
from partita.errors import (
    InputError,
    require,
    require_int,
    require_number,
    require_positive,
    require_seed,
)
from partita.optim.optimizers import BETAS, take_step
from partita.randomness import permuted

_WARMUP = 0.05  # fraction of a run over which the learning rate rises
_CLIP = 1.0


@dataclass(frozen=True)
class StepOptions:
    """Options of the training loop."""

    steps: int = 1000
    """Length of the run."""
    batch_size: int = 64
    """Images of a step."""
    learning_rate: float = 1e-3
    """The highest learning rate; it rises over a twentieth of the run and falls as a cosine."""
    weight_decay: float = 0.0
    """Decoupled weight decay."""
    seed: int = 0
    """Seed of the first weights and of every draw."""
    log_every: int = 50
    """Steps between two reports."""
    device: str = "auto"
    """cpu, cuda, or auto."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "log_every"):
            require_int(getattr(self, name), name)
        require_positive(self.learning_rate, "learning_rate")
        require_number(self.weight_decay, "weight_decay")
        require_seed(self.seed, "seed")

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, counted from 0; neither the first nor the last one is 0."""
        return learning_rate(self.learning_rate, "cosine", _WARMUP, (step + 1) / (self.steps + 1))

    def reports_at(self, step: int) -> bool:
        """Whether a report follows this step, counted from 0."""
        return (step + 1) % self.log_every == 0 or step + 1 == self.steps


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch inside the block; the caller's generators are not disturbed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


class ClippedAdamW:
    """AdamW for some modules, whose gradients are clipped together."""

    def __init__(self, modules: Sequence[nn.Module], options: StepOptions) -> None:
        self.parameters = [p for module in modules for p in module.parameters()]
        self.options = options
        decay, rate = options.weight_decay, options.learning_rate
        self.adamw = torch.optim.AdamW(self.parameters, lr=rate, betas=BETAS, weight_decay=decay)

    def step(self, loss: Tensor, step: int) -> None:
        """One optimizer step on the loss; a loss that is not finite is refused."""
        # Reading a loss waits for the device.
        if self.options.reports_at(step) and not math.isfinite(value := float(loss.detach())):
            problem = f"the loss is {value} at step {step}"
            raise InputError("training", problem, "lower learning_rate")
        self.adamw.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        take_step([self.adamw], self.parameters, self.options.rate_at(step), _CLIP)


def image_steps(count: int, options: StepOptions) -> Iterator[tuple[int, Int64[Tensor, "B"]]]:
    """All steps, with the indices of their images, of `count` ones.

    Each image comes once per epoch, and each epoch has an order of its own.
    """
    size = options.batch_size
    for step in range(options.steps):
        numbers = torch.arange(step * size, (step + 1) * size)
        yield step, permuted(numbers % count, count, options.seed, numbers // count)


def require_images(count: int) -> None:
    """Refuse an empty set of images."""
    require(count > 0, "images", "there are none", "read some with read_images")
