"""The training loop: windows of a token stream, an optimiser, a moving average of the weights.

Every draw (windows, times, masks) is addressed by the seed and the step, so the same options give
the same run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from partita.errors import InputError, require, require_int, require_number
from partita.methods.base import Loss
from partita.randomness import Noise, Purpose
from partita.training.ema import MovingAverage
from partita.training.optimisers import OPTIMISERS


@runtime_checkable
class Trainable(Protocol):
    """A method with a loss."""

    @property
    def length(self) -> int:
        """Longest sequence."""
        ...

    def loss(self, tokens: Int64[Tensor, "B L"], noise: Noise, step: int) -> Loss:
        """The loss of a batch."""
        ...


@dataclass(frozen=True)
class TrainingOptions:
    """How long and how fast to learn. Give `steps` or `seconds`."""

    steps: int | None = None
    seconds: float | None = None
    """A wall-clock budget; the learning rate follows the share of it that is used up."""
    batch_size: int = 32
    length: int | None = None
    """Tokens in a window; the model's length unless given."""
    optimiser: str = "adamw"
    learning_rate: float = 1e-3
    warmup: float = 0.05
    """Share of the run over which the learning rate rises from 0; it then falls as a cosine."""
    weight_decay: float = 0.0
    clip: float = 1.0
    ema: float = 0.999
    seed: int = 0

    def __post_init__(self) -> None:
        require(
            (self.steps is None) != (self.seconds is None),
            "steps, seconds",
            "give exactly one of them",
        )
        for name in ("steps", "batch_size", "length"):
            if getattr(self, name) is not None:
                require_int(getattr(self, name), name)
        for name in ("seconds", "learning_rate", "clip"):
            value = getattr(self, name)
            if value is not None:
                require_number(value, name)
                require(value > 0, name, "must be positive, got 0")
        require(0 <= self.warmup < 1, "warmup", f"is a share of the run, got {self.warmup}")
        require(0 <= self.ema < 1, "ema", f"must lie in [0, 1), got {self.ema}")


@dataclass(frozen=True)
class Progress:
    """What a callback sees after each step."""

    step: int
    share: float
    """How much of the run is done, from 0 to 1."""
    loss: float
    """Nats per token of this batch."""
    seconds: float


def rate_factor(share: float, warmup: float) -> float:
    """The learning rate at a share of the run, as a fraction of its peak."""
    if share < warmup:
        return share / warmup
    return 0.5 * (1 + math.cos(math.pi * (share - warmup) / (1 - warmup)))


def window_batch(
    stream: Int64[Tensor, "N"], options: TrainingOptions, length: int, step: int
) -> Int64[Tensor, "B L"]:
    """Random windows of the stream for one step."""
    noise = Noise.for_batch(options.seed, options.batch_size)
    u = noise.uniform(Purpose.DATA, step, torch.zeros(1, 1, dtype=torch.int64))
    starts = (u * (stream.numel() - length + 1)).long()
    return stream[starts + torch.arange(length)]


def _check_stream(stream: Tensor, length: int) -> None:
    require(
        isinstance(stream, Tensor) and stream.ndim == 1 and stream.dtype == torch.int64,
        "stream",
        "must be a one-dimensional int64 tensor of token ids",
        "torch.tensor(tokenizer.encode(text)) is one",
    )
    require(
        stream.numel() >= length,
        "stream",
        f"{stream.numel()} tokens do not fill one window of {length}",
        "give more text or a smaller length",
    )


def fit(
    method: Trainable,
    stream: Int64[Tensor, "N"],
    options: TrainingOptions,
    callback: Callable[[Progress], None] | None = None,
) -> MovingAverage:
    """Train a method in place on a stream of tokens; its averaged weights are in it afterwards."""
    require(
        isinstance(method, nn.Module) and isinstance(method, Trainable),
        "method",
        f"{type(method).__name__} has no loss",
        "wrap a network in a method such as MDLM",
    )
    assert isinstance(method, nn.Module)
    length = method.length if options.length is None else options.length
    _check_stream(stream, length)
    make = OPTIMISERS[options.optimiser]
    optimisers = make(method, options.learning_rate, options.weight_decay)
    average = MovingAverage(method, options.ema)
    device = next(method.parameters()).device
    began, step, share = time.monotonic(), 0, 0.0
    method.train()
    while share < 1:
        rate = options.learning_rate * rate_factor(share, options.warmup)
        tokens = window_batch(stream, options, length, step).to(device)
        noise = Noise.for_batch(options.seed, options.batch_size, device=device)
        objective = method.loss(tokens, noise, step).objective
        loss = float(objective.detach())
        if not math.isfinite(loss):
            raise InputError(
                "training", f"the loss is {loss} at step {step}", "lower learning_rate"
            )
        method.zero_grad(set_to_none=True)
        objective.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(method.parameters(), options.clip)
        for optimiser in optimisers:
            for group in optimiser.param_groups:
                group["lr"] = rate
            optimiser.step()
        average.update(method)
        step += 1
        seconds = time.monotonic() - began
        share = min(1.0, step / options.steps if options.steps else seconds / options.seconds)  # type: ignore[operator]
        if callback:
            callback(Progress(step, share, loss, seconds))
    average.copy_to(method)
    method.eval()
    return average
