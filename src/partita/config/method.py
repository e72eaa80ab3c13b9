"""The section `method` of a recipe, and the method that it describes."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import yaml  # type: ignore[import-untyped]
from torch import nn

from partita.config.renames import renamed_keys
from partita.errors import InputError, naming, require
from partita.methods import METHODS
from partita.networks.options import TransformerOptions
from partita.processes.corruption import CORRUPTIONS
from partita.registry import Option, checked_options, options_of


@renamed_keys("method")
@dataclass(frozen=True)
class MethodOptions:
    """Method: which paper, and its options. Defaults are the paper's."""

    name: str = "mdlm"
    """The method; `partita methods` lists them."""
    schedule: str | None = None
    """The schedule alpha(t), for example linear or cosine."""
    schedule_options: dict[str, float] = field(default_factory=dict)
    """Options of the schedule, for example {exponent: 2} for polynomial."""
    corruption: str | None = None
    """How tokens are hidden and weighted: subset, continuous, discrete, clipped, unweighted."""
    corruption_options: dict[str, int] = field(default_factory=dict)
    """Options of the corruption, for example {steps: 64} for discrete, {most: 2} for clipped."""
    conditioning: str | None = None
    """How the network gets the noise level as an input: none, time, or sigma (-log alpha)."""
    options: dict[str, Any] = field(default_factory=dict)
    """More options of the method, for example {transition: uniform, steps: 100} for d3pm."""

    def __post_init__(self) -> None:
        for key in ("schedule_options", "corruption_options", "options"):  # null means no options
            object.__setattr__(self, key, getattr(self, key) or {})
        with naming(self._names()):
            _ = METHODS[self.name]
            if self.corruption is not None:
                _ = CORRUPTIONS[self.corruption]
            problem, remedy = "rate takes functions, which only Python has", "use the method's own"
            require(self.corruption != "rate", "corruption", problem, remedy)

    def build(self, network: TransformerOptions, tokens: int) -> nn.Module:
        """The method over a new network, for ids 0..tokens-1 and the mask."""
        choices = self._choices()
        try:
            with naming(self._names()):
                method: nn.Module = METHODS[self.name].build(  # type: ignore[attr-defined]
                    network, tokens, **choices
                )
        except InputError:
            raise
        except (RuntimeError, ArithmeticError, TypeError, ValueError, MemoryError) as error:
            why = str(error).partition("\n")[0]  # torch goes on for pages
            if "build() missing" in why:
                raise InputError("method.name", why, "see the method's own file") from error
            problem = f"no network can be made of it: {why}"
            raise InputError("network", problem, "choose smaller sizes") from error
        return method

    def _choices(self) -> dict[str, Any]:
        """The given options, as arguments of the method's `build`; unknown ones are refused."""
        known, own = parameters_of(self.name), own_options(self.name)
        keys = [key.name for key in fields(self) if key.name not in ("name", "options")]
        given = {key: getattr(self, key) for key in keys if getattr(self, key)}
        for key in given:
            problem = f"{self.name} has no such choice"
            require(key in known, f"method.{key}", problem, "leave it out")
        options = {key: _loaded(value) for key, value in self.options.items()}
        return given | checked_options("method.options", self.name, own, options)

    def _names(self) -> dict[str, str]:
        """The method's arguments as keys of the recipe."""
        corruption = {key: f"method.corruption_options.{key}" for key in self.corruption_options}
        options = "schedule_options"
        schedule = {f"schedule.{key}": f"method.{options}.{key}" for key in self.schedule_options}
        keys = {key.name: f"method.{key.name}" for key in fields(self) if key.name != "options"}
        own = own_options(self.name) if self.name in METHODS else {}
        more = {key: f"method.options.{key}" for key in own}
        for name, value in self.options.items():  # betas_options.end is betas.end to its owner
            if name.endswith("_options") and isinstance(value, dict):
                owner = name.removesuffix("_options")
                more |= {f"{owner}.{key}": f"method.options.{name}.{key}" for key in value}
        return {**corruption, **schedule, **keys, **more, "method": "method.name"}


def _loaded(value: object) -> object:
    """The values of a dictionary, parsed as YAML: flags with two dots give them as text."""
    if not isinstance(value, dict):
        return value
    return {
        key: yaml.safe_load(held) if isinstance(held, str) else held for key, held in value.items()
    }


def parameters_of(name: str) -> dict[str, Option]:
    """The options of a method: the keywords of its `build`."""
    return options_of(METHODS[name].build, keywords=True)  # type: ignore[attr-defined]


def own_options(name: str) -> dict[str, Option]:
    """The options without a key of their own, which stand in `method.options`."""
    keys = {key.name for key in fields(MethodOptions)}
    return {key: value for key, value in parameters_of(name).items() if key not in keys}
