"""How a case may end, and the counts of many cases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

SOUND = ("refused", "equal", "other", "ran")
FAULTS = ("silent", "unclear", "leftover", "lost", "uncaught", "hung", "memory", "code")
_LONGEST = 6000  # characters of what is kept of a traceback


@dataclass(frozen=True)
class Outcome:
    """How one case ended."""

    kind: str
    detail: str = ""
    """What was done, and what came of it: for faults alone."""
    kills: int = 0

    def __post_init__(self) -> None:
        if self.kind not in (*SOUND, *FAULTS):
            raise ValueError(f"unknown kind of outcome {self.kind!r}")

    @property
    def is_fault(self) -> bool:
        """Whether this must not be."""
        return self.kind in FAULTS

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"kind": self.kind, "detail": self.detail[-_LONGEST:], "kills": self.kills}


def tally(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """How many cases ended in which way, and how many kills there were."""
    every = list(outcomes)
    counts = Counter(outcome.kind for outcome in every)
    kills = {"kills": sum(outcome.kills for outcome in every)}
    return {"cases": len(every), **kills, **dict(sorted(counts.items()))}


def added(tallies: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Several tallies as one."""
    total: Counter[str] = Counter()
    for one in tallies:
        total.update(one)
    return dict(total)
