"""What a method owes: a loss to train by, and answers for samplers to work with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from partita.devices import readable
from partita.errors import require
from partita.methods.contracts import OWED, Model, TextMethod
from partita.moved import name_of_before
from partita.registry import Registry

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        return name_of_before(__name__, name)


FAMILIES = tuple(OWED)
"""Who shares samplers with whom."""


class MethodRegistry(Registry[type]):
    """Methods by name. What one lacks is said when it is registered, not after training."""

    def register(self, name: str) -> Callable[[type], type]:
        """Decorator for a class that is a `TextMethod` and has `build` and a known family."""
        add = super().register(name)

        def checked(method: type) -> type:
            for needed in ("build", "loss", "family"):
                require(hasattr(method, needed), f"method {name!r}", f"has no {needed}")
            family, known = getattr(method, "family"), f"known: {', '.join(FAMILIES)}"  # noqa: B009
            require(family in FAMILIES, f"method {name!r}", f"unknown family {family!r}", known)
            for base in (TextMethod, OWED[family]):
                problem = f"is no {base.__name__}, which the family {family!r} needs"
                remedy = f"derive it from {base.__module__}.{base.__name__}"
                require(issubclass(method, base), f"method {name!r}", problem, remedy)
            lacks = ", ".join(sorted(getattr(method, "__abstractmethods__", ())))
            require(not lacks, f"method {name!r}", f"has no {lacks}")
            return add(method)

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


def is_flexible(method: object) -> bool:
    """Whether a method (or its class) is one of texts that have any length, and ends of their own.

    Such a text is read, scored and written as a whole: no part of it stands for it.
    """
    return getattr(method, "family", None) == "flexible"


def check_tokens(tokens: Tensor, model: Model, valid: Tensor | None = None) -> None:
    """Refuse what no method can learn from or score: wrong shapes, wrong ids, masks in the data."""
    require(isinstance(tokens, Tensor), "tokens", f"must be a tensor, got {type(tokens).__name__}")
    require(tokens.ndim == 2, "tokens", f"must be [sequences, length], got {list(tokens.shape)}")
    require(tokens.dtype == torch.int64, "tokens", f"must be int64, got {tokens.dtype}")
    require(tokens.numel() > 0, "tokens", "is empty")
    require(
        tokens.shape[1] <= model.length,
        "tokens",
        f"sequences of {tokens.shape[1]} are longer than the model's {model.length}",
        "cut them, or build a longer network",
    )
    if valid is not None:
        require(
            isinstance(valid, Tensor) and valid.dtype == torch.bool,
            "valid",
            "must be a tensor of booleans",
        )
        require(
            valid.shape == tokens.shape,
            "valid",
            f"has shape {list(valid.shape)}, the tokens have {list(tokens.shape)}",
        )
    if not readable(tokens):
        return
    real = tokens if valid is None else tokens[valid]
    require(real.numel() > 0, "valid", "marks no token as real")
    check_ids(real, model, "tokens")


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
