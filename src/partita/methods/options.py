"""The section `method` of a recipe, and the method that it describes."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from partita.errors import InputError, naming, require
from partita.methods import METHODS
from partita.methods.corruption import LAWS
from partita.networks.options import TransformerOptions


@dataclass(frozen=True)
class MethodOptions:
    """Method: which paper, and its choices. What is left out is as the paper has it."""

    name: str = "mdlm"
    """The method; `partita methods` lists them."""
    schedule: str | None = None
    """The schedule alpha(t), for example linear or cosine."""
    schedule_options: dict[str, float] = field(default_factory=dict)
    """Options of the schedule, for example {exponent: 2} of polynomial."""
    law: str | None = None
    """How tokens are hidden and weighed: subset, continuous, discrete, unweighted."""
    law_options: dict[str, int] = field(default_factory=dict)
    """Options of the law, for example {steps: 64} of discrete."""
    conditioning: str | None = None
    """What the network is told: none, time, or sigma."""
    options: dict[str, Any] = field(default_factory=dict)
    """More choices of the method, for example {transition: uniform, steps: 100} of d3pm."""

    def __post_init__(self) -> None:
        with naming(self._names()):
            _ = METHODS[self.name]
            if self.law is not None:
                _ = LAWS[self.law]
            problem, remedy = "rate takes functions, which only Python has", "use the method's own"
            require(self.law != "rate", "law", problem, remedy)

    def build(self, network: TransformerOptions, tokens: int) -> nn.Module:
        """The method over a new network for so many real tokens."""
        self._check_options()
        choices = {
            key: value
            for key, value in vars(self).items()
            if key not in ("name", "options") and value
        }
        try:
            with naming(self._names()):
                method: nn.Module = METHODS[self.name].build(  # type: ignore[attr-defined]
                    network, tokens, **choices, **self.options
                )
        except InputError:
            raise
        except (RuntimeError, ArithmeticError, TypeError, ValueError, MemoryError) as error:
            why = str(error).partition("\n")[0]  # torch goes on for pages
            raise InputError(
                "network", f"no network can be made of it: {why}", "choose smaller sizes"
            ) from error
        return method

    def _check_options(self) -> None:
        """Refuse what the method does not take, and what has a key of its own."""
        build = METHODS[self.name].build  # type: ignore[attr-defined]
        known = [
            parameter.name
            for parameter in inspect.signature(build).parameters.values()
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY and parameter.name not in vars(self)
        ]
        for key in self.options:
            takes = f"it takes: {', '.join(known) or 'none'}"
            problem = f"is not an option of {self.name}"
            require(key in known, f"method.options.{key}", problem, takes)

    def _names(self) -> dict[str, str]:
        """The method's arguments as keys of the recipe."""
        law = {key: f"method.law_options.{key}" for key in self.law_options}
        options = "schedule_options"
        schedule = {f"schedule.{key}": f"method.{options}.{key}" for key in self.schedule_options}
        keys = {key: f"method.{key}" for key in ("schedule", "law", "conditioning")}
        more = {key: f"method.options.{key}" for key in self.options}
        return {**law, **schedule, **keys, **more, "method": "method.name"}
