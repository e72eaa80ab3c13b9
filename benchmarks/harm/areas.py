"""Everything that is tried, and how a round of it runs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harm.cases import case
from harm.jobs import JOBS, Job
from harm.kills import kill
from harm.mutants import MUTANTS
from harm.outcomes import Outcome, tally
from harm.stage import Stage
from harm.subjects import SUBJECTS, Subject
from harm.watched import watched
from harm.words import WORDS, Words, speak

GROUPS = {"kills": 5.0, "damage": 3.0, "mutants": 3.0}
"""The first part of areas' names, and how the time is shared among them."""
_ROUND = {"kills": 1, "damage": 10, "mutants": 60}


@dataclass(frozen=True)
class Area:
    """Cases of one kind, known by their numbers."""

    of: Subject | Job | Words

    @property
    def name(self) -> str:
        """GROUP/WHAT."""
        return self.of.name

    @property
    def group(self) -> str:
        """The first part of the name."""
        return self.name.partition("/")[0]

    @property
    def size(self) -> int:
        """How many cases a round has."""
        return _ROUND[self.group]

    def prepare(self, stage: Stage) -> None:
        """What has to be there before the first case."""
        stage.prepare(self.of.place, self.of.actions)

    def outcomes(
        self,
        stage: Stage,
        seed: int,
        numbers: Sequence[int],
        scratch: Path,
        keep: Path | None = None,
    ) -> Iterator[tuple[int, Outcome]]:
        """How some cases end; `keep` is where damaged input is left."""
        one = self.of
        if isinstance(one, Job):
            act = kill(one, stage, seed, scratch)
            yield from ((number, act(number)) for number in numbers)
            return
        if isinstance(one, Words):
            act = speak(one, stage, seed, scratch)
        else:
            act = case(one, stage, seed, scratch, keep)
        for first in range(0, len(numbers), one.together):
            yield from watched(numbers[first : first + one.together], act)


@dataclass(frozen=True)
class Round:
    """Some cases of an area that were tried."""

    area: str
    seconds: float
    counts: dict[str, int]
    faults: list[tuple[int, Outcome]]


def run_round(name: str, stage: Stage, seed: int, first: int, scratch: Path) -> Round:
    """A round of an area from some number on."""
    area = AREAS[name]
    began = time.monotonic()
    numbers = range(first, first + area.size)
    found = list(area.outcomes(stage, seed, numbers, scratch))
    return Round(
        area.name,
        time.monotonic() - began,
        tally(outcome for _, outcome in found),
        [(number, outcome) for number, outcome in found if outcome.is_fault],
    )


_EVERYTHING: tuple[Subject | Job | Words, ...] = (*JOBS, *SUBJECTS, *MUTANTS, *WORDS)
AREAS = {one.name: Area(one) for one in _EVERYTHING}
