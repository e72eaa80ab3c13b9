"""The section `sampling` of a recipe: the defaults for drawing samples."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from partita.categorical import Decoding
from partita.errors import naming, require, require_ints
from partita.samplers.base import SAMPLERS

_ELSEWHERE = "blank_tokens callback count flexible length model options prompt self text"
_NO_OPTIONS = tuple(_ELSEWHERE.split())


def check_more(options: dict[str, Any], argument: str) -> None:
    """Refuse arguments of `sample` that are no options of a sampler."""
    for name in _NO_OPTIONS:
        require(name not in options, f"{argument}.{name}", "is no option of a sampler")


@dataclass(frozen=True)
class SamplingOptions:
    """Sampling: how texts are drawn."""

    sampler: str | None = None
    """The sampler; `partita methods NAME` lists those that fit a method, its default first."""
    steps: int | None = None
    """Number of steps, for samplers that have this option."""
    temperature: float = 1.0
    """Divides the logits; 0 takes the most probable token."""
    top_k: int | None = None
    """Keep the k most probable tokens."""
    top_p: float | None = None
    """Keep the most probable tokens until their mass reaches p."""
    options: dict[str, Any] = field(default_factory=dict)
    """More options of the sampler, for example {counts: cosine} for confidence."""

    def __post_init__(self) -> None:
        names = ("sampler", "temperature", "top_k", "top_p")
        with naming({name: f"sampling.{name}" for name in names}):
            Decoding(self.temperature, self.top_k, self.top_p)
            if self.sampler is not None:
                _ = SAMPLERS[self.sampler]
        require_ints(self, "sampling.", steps=1)
        check_more(self.options, "sampling.options")

    def arguments(self) -> dict[str, Any]:
        """The options as keyword arguments of `sample`."""
        steps = {} if self.steps is None else {"steps": self.steps}
        decoding = {key: getattr(self, key) for key in ("temperature", "top_k", "top_p")}
        return {"sampler": self.sampler, **decoding, **steps, **self.options}
