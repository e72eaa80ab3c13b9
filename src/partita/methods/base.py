"""What a method owes: a loss to train by, and answers for samplers to work with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor

from partita.contracts.batch import Batch
from partita.devices import readable
from partita.errors import require
from partita.methods.contracts import FAMILIES, Model, TextMethod
from partita.moved import name_of_before
from partita.registry import Registry

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        return name_of_before(__name__, name)


M = TypeVar("M", bound=type)


class MethodRegistry(Registry[type[TextMethod]]):
    """Methods by name. What one lacks is said when it is registered, not after training."""

    def register(self, name: str) -> Callable[[M], M]:
        """Decorator for a class that is a `TextMethod` and has `build` and a known family."""
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
"""What a recipe can name."""


@dataclass(frozen=True)
class About:
    """What a method is, for those who choose one; `partita methods` prints it."""

    paper: str
    """Title (authors, year)."""
    equation: str
    """Where the paper has the loss."""
    loss: str
    """What is minimised, in words."""
    data: str = "tokens"
    """What it models: tokens, or something else too."""
    choices: Mapping[str, str] = field(default_factory=dict)
    """What a recipe can choose, by its key under `method`, and what there is to choose from."""


def check_batch(batch: Batch, model: Model) -> Batch:
    """The batch, unless no method can learn from it: wrong sizes, wrong ids, masks in the data."""
    given = type(batch).__name__
    problem, remedy = f"must be a Batch, got {given}", "give partita.Batch.of(tokens)"
    require(isinstance(batch, Batch), "batch", problem, remedy)
    require(
        batch.tokens.shape[1] <= model.length,
        "tokens",
        f"sequences of {batch.tokens.shape[1]} are longer than the model's {model.length}",
        "cut them, or build a longer network",
    )
    if not readable(batch.tokens):
        return batch
    real = batch.tokens if batch.is_token is None else batch.tokens[batch.is_token]
    require(real.numel() > 0, "is_token", "marks no token as real")
    check_ids(real, model, "tokens")
    return batch


def check_ids(real: Tensor, model: Model, argument: str) -> None:
    """Refuse ids that are no token of the model's: out of range, or the mask."""
    if real.numel() == 0:
        return
    low, high = int(real.min()), int(real.max())
    require(
        low >= 0 and high < model.vocab_size,
        argument,
        f"ids must lie in 0..{model.vocab_size - 1}, got {low}..{high}",
    )
    require(
        not bool((real == model.mask_id).any()),
        argument,
        f"holds the mask token ({model.mask_id}) as if it were a real one",
        "mark it as unknown instead" if argument == "prompt" else "",
    )
