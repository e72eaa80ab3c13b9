"""The registry of methods, their descriptions, and the checks of what they are given."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import Tensor, nn

from partita.contracts.batch import Batch
from partita.contracts.layouts import DENSE, Layout
from partita.devices import readable
from partita.errors import require, require_known
from partita.methods.contracts import FAMILIES, Model, TextMethod
from partita.moved import offer_old_names
from partita.networks.base import AnyNetwork
from partita.registry import Registry

CONDITIONINGS = ("none", "sigma", "time")

offer_old_names(__name__)


M = TypeVar("M", bound=type)


class MethodRegistry(Registry[type[TextMethod]]):
    """Methods by name. An incomplete method is refused when it is registered."""

    def register(self, name: str) -> Callable[[M], M]:
        """Class decorator; the class must be a `TextMethod` with `build` and a known family."""
        add = super().register(name)

        def checked(method: M) -> M:
            kind: Any = method
            for needed in ("build", "loss", "family"):
                require(hasattr(kind, needed), f"method {name!r}", f"has no {needed}")
            problem, known = f"unknown family {kind.family!r}", f"known: {', '.join(FAMILIES)}"
            require(kind.family in FAMILIES, f"method {name!r}", problem, known)
            for base in (TextMethod, FAMILIES[kind.family]):
                problem = f"is no {base.__name__}, which the family {kind.family!r} needs"
                remedy = f"derive it from {base.__module__}.{base.__name__}"
                require(issubclass(kind, base), f"method {name!r}", problem, remedy)
            lacks = ", ".join(sorted(kind.__abstractmethods__))
            require(not lacks, f"method {name!r}", f"has no {lacks}")
            takes = "tokens" not in inspect.signature(kind.loss).parameters
            remedy = "it is loss(batch, noise, step): batch.tokens, batch.real, batch.label"
            require(takes, f"method {name!r}", "its loss takes tokens, not a batch", remedy)
            add(kind)
            return method

        return checked


METHODS = MethodRegistry("method")
"""The methods that a recipe can name."""


@dataclass(frozen=True)
class About:
    """A short description of a method, printed by `partita methods`."""

    paper: str
    """Title (authors, year)."""
    equation: str
    """The paper's equation of the loss."""
    loss: str
    """What is minimized, in words."""
    data: str = "tokens"
    """What it models: tokens, or also something else."""
    choices: Mapping[str, str] = field(default_factory=dict)
    """The options of a recipe, by key under `method`, and the values of each."""


class NetworkMethod(nn.Module, TextMethod):
    """A method over one network, whose sizes are the method's."""

    network: Any

    @property
    def length(self) -> int:
        """Longest sequence."""
        return int(self.network.config.length)

    @property
    def vocab_size(self) -> int:
        return int(self.network.config.vocab_size)

    def logits(self, tokens: Tensor, layout: Layout, **given: Any) -> Tensor:
        """The network's output; it is given a layout only if there is one."""
        given |= {} if layout is DENSE else {"layout": layout}  # networks may not support layouts
        output: Tensor = self.network(tokens, **given)
        return output


def check_batch(batch: Batch, model: Model) -> Batch:
    """Return the batch; refuse it if its sizes or ids are wrong, or its data has masks."""
    given = type(batch).__name__
    problem, remedy = f"must be a Batch, got {given}", "give partita.Batch.of(tokens)"
    require(isinstance(batch, Batch), "batch", problem, remedy)
    problem = f"sequences of {batch.tokens.shape[1]} are longer than the model's {model.length}"
    remedy = "cut them, or build a longer network"
    require(batch.tokens.shape[1] <= model.length, "tokens", problem, remedy)
    if not readable(batch.tokens):
        return batch
    real = batch.tokens if batch.is_token is None else batch.tokens[batch.is_token]
    require(real.numel() > 0, "is_token", "marks no token as real")
    check_ids(real, model, "tokens")
    return batch


def check_conditioning(conditioning: str, network: AnyNetwork) -> None:
    """Refuse an unknown name, or a network that is not conditioned on the time."""
    require_known(conditioning, "conditioning", CONDITIONINGS)
    problem = f"is {conditioning!r}, but the network does not take the time as an input"
    remedy = "build it with TransformerConfig(time=True), or pass conditioning='none'"
    require(conditioning == "none" or network.config.time, "conditioning", problem, remedy)


def check_ids(real: Tensor, model: Model, argument: str) -> None:
    """Refuse ids that are out of range, or the mask."""
    if real.numel() == 0:
        return
    low, high = int(real.min()), int(real.max())
    problem = f"ids must lie in 0..{model.vocab_size - 1}, got {low}..{high}"
    require(low >= 0 and high < model.vocab_size, argument, problem)
    problem = f"holds the mask token ({model.mask_id}) as if it were a real one"
    remedy = "mark it as unknown instead" if argument == "prompt" else ""
    require(not bool((real == model.mask_id).any()), argument, problem, remedy)
