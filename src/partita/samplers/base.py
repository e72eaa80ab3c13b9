"""What all samplers share: the context of a run, callbacks, and the registry of samplers."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from partita.categorical import PLAIN, Decoding, sample_categorical
from partita.contracts.shapes import Indices, Labels
from partita.methods.contracts import Denoiser, Model
from partita.moved import offer_old_names
from partita.randomness import Noise, Purpose
from partita.registry import Registry
from partita.samplers.state import SamplerState

M = TypeVar("M")


@dataclass(frozen=True)
class Sampler:
    """A sampler function and the family of methods that it fits."""

    family: str
    run: Callable[..., Tensor]
    planned: bool = False
    """Whether it fixes when each position is revealed before it calls the model."""
    default: bool = False
    """Whether it is the default of its family."""


SAMPLERS: Registry[Sampler] = Registry("sampler")


def default_sampler(family: str) -> str:
    """The name of the default sampler of a family of methods."""
    (name,) = (n for n in SAMPLERS if SAMPLERS[n].family == family and SAMPLERS[n].default)
    return name


F = TypeVar("F", bound=Callable[..., Any])


def sampler(
    name: str, family: str, *, planned: bool = False, default: bool = False
) -> Callable[[F], F]:
    """Decorator that registers a function (context, state, options) as a sampler."""

    def add(function: F) -> F:
        SAMPLERS.register(name)(Sampler(family, function, planned, default))
        return function

    return add


@dataclass(frozen=True)
class Step:
    """What a callback receives after each step: a copy of the state, and what was just revealed."""

    index: int
    total: int | None
    state: SamplerState
    rows: Indices
    positions: Indices

    @property
    def canvas(self) -> SamplerState:
        """The old name of `state`, for one version."""
        warnings.warn("Step.canvas is Step.state now", DeprecationWarning, stacklevel=2)
        return self.state


Callback = Callable[[Step], None]


class Executor(ABC):
    """Runs the steps of planned samplers in another way than the plain loop does."""

    @abstractmethod
    def check(self, name: str, model: Model, state: SamplerState) -> None:
        """Raise an InputError if it cannot run this sampler, model or state."""

    @abstractmethod
    def takes(self, context: SamplingContext[Any], steps: int) -> bool:
        """Whether it runs a plan of `steps` steps; otherwise the plain loop does."""

    @abstractmethod
    def reveal(
        self,
        context: SamplingContext[Any],
        state: SamplerState,
        plan: Int64[Tensor, "B L"],
        visible: Float64[Tensor, "B L"],
        steps: int,
    ) -> Int64[Tensor, "B L"]:
        """Do what `planned.reveal_as_planned` does: the same tokens for the same noise."""


@dataclass
class SamplingContext(Generic[M]):
    """A model, its noise and the settings that stay the same during one run of a sampler."""

    model: M
    noise: Noise
    decoding: Decoding = PLAIN
    label: Labels | None = None
    callback: Callback | None = None
    executor: Executor | None = None
    """What runs planned samplers; None for the plain loop, step by step."""

    def ask(
        self: SamplingContext[Denoiser],
        state: SamplerState,
        rows: Indices,
        positions: Indices,
        visible: Float[Tensor, "B"],
    ) -> Float[Tensor, "N V"]:
        """Query the model: log-probabilities at some positions. Other sequences are not computed.

        `visible` is alpha, the share of tokens that the process has revealed by now. A model that
        is conditioned on the time gets the time at which its own schedule has that alpha,
        whatever schedule the sampler follows.
        """
        active, row_of_active = torch.unique(rows, return_inverse=True)
        with torch.no_grad():
            return self.model.predict(
                state.tokens[active],
                state.revealed[active],
                row_of_active,
                positions,
                self.model.schedule.inverse(visible[active]) if self.model.timed else None,
                None if self.label is None else self.label[active],
            )

    def draw(
        self, log_probs: Float[Tensor, "N V"], step: int, rows: Indices, positions: Indices
    ) -> Int64[Tensor, "N"]:
        """Draw one token per queried position, with that sample's own noise."""
        u = self.noise.uniform_at(Purpose.TOKEN, step, rows, positions)
        return sample_categorical(log_probs, u, self.decoding)

    def report(
        self, index: int, total: int | None, state: SamplerState, rows: Tensor, positions: Tensor
    ) -> None:
        """Call the callback, if there is one, with what was just revealed."""
        if self.callback is not None:
            self.callback(Step(index, total, state.copy(), rows, positions))


offer_old_names(__name__)
