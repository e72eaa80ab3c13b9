"""The score of a text under a model: how many bits it costs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from partita.contracts.estimate import Estimate


@dataclass(frozen=True)
class Score:
    """The bound of a text: of all of it, per token, and per character.

    An empty text has bits under a model that decides where texts end, but none per token or per
    character: those are not a number.
    """

    bits: float
    bits_error: float
    bound: Estimate
    characters: int

    @property
    def bits_per_character(self) -> float:
        return self.bits / (self.characters or math.nan)

    @property
    def bits_per_character_error(self) -> float:
        return self.bits_error / (self.characters or math.nan)
