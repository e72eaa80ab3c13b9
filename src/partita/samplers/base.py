"""What all samplers share: the context of a run, callbacks, and the registry of samplers."""

from __future__ import annotations

import inspect
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
from partita.errors import require
from partita.methods.contracts import FAMILIES, Denoiser, Model
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
    """Whether it is the default of its family; exactly one sampler of a family is."""


SAMPLERS: Registry[Sampler] = Registry("sampler")
TAKEN = {
    *("count", "prompt", "length", "sampler", "seed", "first", "label", "callback", "executor"),
    *("temperature", "top_k", "top_p", "guidance", "guidance_schedule", "speed"),
}
"""Arguments of `sample` itself: an option of a sampler cannot have such a name."""


def default_sampler(family: str) -> str:
    """The name of the default sampler of a family of methods."""
    (name,) = (n for n in SAMPLERS if SAMPLERS[n].family == family and SAMPLERS[n].default)
    return name


F = TypeVar("F", bound=Callable[..., Any])


def sampler(
    name: str, family: str, *, planned: bool = False, default: bool = False
) -> Callable[[F], F]:
    """Decorator that registers a function (context, state, *, options) as a sampler."""
    FAMILIES[family]  # an unknown name is an error that lists the known ones

    def add(function: F) -> F:
        _check_signature(name, function)
        taken = default and any(
            SAMPLERS[n].default and SAMPLERS[n].family == family for n in SAMPLERS
        )
        problem = f"{name!r} cannot be the default of {family} models, which have one"
        require(not taken, "sampler", problem, "leave out default=True")
        SAMPLERS.register(name)(Sampler(family, function, planned, default))
        return function

    return add


def _check_signature(name: str, function: Callable[..., Any]) -> None:
    """Refuse options that could not be given, or would have to be."""
    given = inspect.signature(function).parameters.values()
    before = [p.name for p in given if p.kind not in (p.KEYWORD_ONLY, p.VAR_KEYWORD)]
    problem = f"{name!r} takes {', '.join(before) or 'nothing'} before its options"
    remedy = "it takes a context and a state; write a * between them and the options"
    require(len(before) == 2, "sampler", problem, remedy)
    for option in (p for p in given if p.kind is p.KEYWORD_ONLY):
        problem = f"the option {option.name} of {name!r} has no default"
        require(option.default is not option.empty, "sampler", problem, "give it one")
        problem = f"the option {option.name} of {name!r} has the name of an argument of sample"
        require(option.name not in TAKEN, "sampler", problem, "choose another name")


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
