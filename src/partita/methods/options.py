"""The section `method` of a recipe, and the method that it describes."""

from __future__ import annotations

from dataclasses import dataclass, field

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

    def __post_init__(self) -> None:
        with naming(self._names()):
            _ = METHODS[self.name]
            if self.law is not None:
                _ = LAWS[self.law]
            problem, remedy = "rate takes functions, which only Python has", "use the method's own"
            require(self.law != "rate", "law", problem, remedy)

    def build(self, network: TransformerOptions, tokens: int) -> nn.Module:
        """The method over a new network for so many real tokens."""
        choices = {key: value for key, value in vars(self).items() if key != "name" and value}
        try:
            with naming(self._names()):
                method: nn.Module = METHODS[self.name].build(network, tokens, **choices)  # type: ignore[attr-defined]
        except InputError:
            raise
        except (RuntimeError, ArithmeticError, TypeError, ValueError, MemoryError) as error:
            why = str(error).partition("\n")[0]  # torch goes on for pages
            raise InputError(
                "network", f"no network can be made of it: {why}", "choose smaller sizes"
            ) from error
        return method

    def _names(self) -> dict[str, str]:
        """The method's arguments as keys of the recipe."""
        law = {key: f"method.law_options.{key}" for key in self.law_options}
        options = "schedule_options"
        schedule = {f"schedule.{key}": f"method.{options}.{key}" for key in self.schedule_options}
        keys = {key: f"method.{key}" for key in ("schedule", "law", "conditioning")}
        return {**law, **schedule, **keys, "method": "method.name"}
