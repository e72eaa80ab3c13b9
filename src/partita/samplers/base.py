"""What samplers share: one run's session, its callback, and the registry of samplers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from partita.categorical import PLAIN, Decoding, sample_categorical
from partita.fast import KERNELS
from partita.fast.sampling import has_program
from partita.methods.contracts import Denoiser
from partita.randomness import Noise, Purpose
from partita.registry import Registry
from partita.samplers.canvas import Canvas

M = TypeVar("M")

SPEEDS = ("auto", "plain", "captured", "compiled")
"""How planned samplers run: step by step, as a captured program, or as one of compiled blocks."""

WORTH_CAPTURING = 16  # steps, for fewer of which a capture takes longer than it saves


@dataclass(frozen=True)
class Sampler:
    """A sampler function and the family of methods that it fits."""

    family: str
    run: Callable[..., Tensor]
    planned: bool = False
    """Whether it knows when each position is revealed before it looks at the model."""


SAMPLERS: Registry[Sampler] = Registry("sampler")

F = TypeVar("F", bound=Callable[..., Any])


def sampler(name: str, family: str, *, planned: bool = False) -> Callable[[F], F]:
    """Decorator that registers a function (session, canvas, options) as a sampler."""

    def add(function: F) -> F:
        SAMPLERS.register(name)(Sampler(family, function, planned))
        return function

    return add


@dataclass(frozen=True)
class Step:
    """What a callback sees after each step: a copy of the canvas, and what was just revealed."""

    index: int
    total: int | None
    canvas: Canvas
    rows: Int64[Tensor, "N"]
    positions: Int64[Tensor, "N"]


Callback = Callable[[Step], None]


@dataclass
class Session(Generic[M]):
    """A model with everything that stays the same during one run of a sampler."""

    model: M
    noise: Noise
    decoding: Decoding = PLAIN
    label: Int64[Tensor, "B"] | None = None
    callback: Callback | None = None
    speed: str = "auto"
    """One of SPEEDS."""

    def captures(self, steps: int) -> bool:
        """Whether planned steps shall run as a captured program, and can."""
        if self.speed == "plain" or not has_program(self.model):
            return False
        worth = self.noise.samples.is_cuda and KERNELS and steps >= WORTH_CAPTURING
        return worth if self.speed == "auto" else True

    def ask(
        self: Session[Denoiser],
        canvas: Canvas,
        rows: Int64[Tensor, "N"],
        positions: Int64[Tensor, "N"],
        visible: Float[Tensor, "B"],
    ) -> Float[Tensor, "N V"]:
        """Log-probabilities at some positions. Sequences that nobody asks about are left out.

        `visible` is the share alpha of tokens that the process has revealed by now. A model that
        reads the time is told the time at which its own schedule has that alpha, whatever
        schedule the sampler follows.
        """
        active, row_of_active = torch.unique(rows, return_inverse=True)
        with torch.no_grad():
            return self.model.predict(
                canvas.tokens[active],
                canvas.revealed[active],
                row_of_active,
                positions,
                self.model.schedule.inverse(visible[active]) if self.model.timed else None,
                None if self.label is None else self.label[active],
            )

    def draw(
        self,
        log_probs: Float[Tensor, "N V"],
        step: int,
        rows: Int64[Tensor, "N"],
        positions: Int64[Tensor, "N"],
    ) -> Int64[Tensor, "N"]:
        """One token per queried position, with that sample's own noise."""
        u = self.noise.uniform_at(Purpose.TOKEN, step, rows, positions)
        return sample_categorical(log_probs, u, self.decoding)

    def report(
        self, index: int, total: int | None, canvas: Canvas, rows: Tensor, positions: Tensor
    ) -> None:
        """Tell the callback what was just revealed."""
        if self.callback is not None:
            self.callback(Step(index, total, canvas.copy(), rows, positions))
