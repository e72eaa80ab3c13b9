"""What the small trainers of image networks share: options, the order of images, a rate, a seed."""

from __future__ import annotations

import math
from collections.abc import Iterator
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
from partita.randomness import permuted

_WARMUP = 0.05  # share of a run over which the rate rises
_CLIP = 1.0


@dataclass(frozen=True)
class StepOptions:
    """How long and how fast."""

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

    def reports_at(self, step: int) -> bool:
        """Whether a report follows this step, counted from 0."""
        return (step + 1) % self.log_every == 0 or step + 1 == self.steps


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """First weights that are the seed's alone; the generators of the caller go on undisturbed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def rows_of_step(count: int, options: StepOptions, step: int) -> Int64[Tensor, "B"]:
    """Which images a step sees: all of them once in every epoch, each epoch in its own order."""
    size = options.batch_size
    numbers = torch.arange(step * size, (step + 1) * size)
    return permuted(numbers % count, count, options.seed, numbers // count)


class Optimiser:
    """AdamW with clipped gradients and a learning rate that follows the run."""

    def __init__(self, modules: list[nn.Module], options: StepOptions) -> None:
        self.parameters = [p for module in modules for p in module.parameters()]
        self.options = options
        self.adamw = torch.optim.AdamW(
            self.parameters,
            lr=options.learning_rate,
            betas=(0.9, 0.99),
            weight_decay=options.weight_decay,
        )

    def step(self, loss: Tensor, step: int) -> None:
        """One step down the loss, which is refused if it is no number."""
        if self.options.reports_at(step):  # reading a loss waits for the device
            check_finite(float(loss.detach()), step)
        self.adamw.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.parameters, _CLIP)
        share = (step + 1) / (self.options.steps + 1)
        rate = learning_rate(self.options.learning_rate, "cosine", _WARMUP, share)
        for group in self.adamw.param_groups:
            group["lr"] = rate
        self.adamw.step()


def check_finite(loss: float, step: int) -> None:
    """Refuse to go on with a run that is broken."""
    if not math.isfinite(loss):
        raise InputError("training", f"the loss is {loss} at step {step}", "lower learning_rate")


def require_images(count: int) -> None:
    """There must be something to train on."""
    require(count > 0, "images", "there are none", "read some with read_images")
