"""Which round comes next, and on which worker."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass

from harm import children
from harm.areas import GROUPS, Area, Round, run_round
from harm.record import Record
from harm.stage import Stage

_SILENCE = 60.0  # seconds between lines about how far it is


@dataclass(frozen=True)
class Plan:
    """What is tried, for how long, and how much of it at least."""

    areas: Sequence[Area]
    seconds: float
    fewest: dict[str, int]
    """The least number of kills, and of cases of other groups."""
    workers: int = 1
    rounds: int | None = None
    """Of each area, at most."""

    def lacking(self, record: Record) -> set[str]:
        """The groups of which there were too few."""
        key = {"kills": "kills"}
        return {
            group
            for group, least in self.fewest.items()
            if record.total(key.get(group, "cases"), group) < least
        }


def run_all(plan: Plan, stage: Stage, record: Record) -> None:
    """Rounds until the time is over and nothing is lacking."""
    began = time.monotonic() - record.seconds
    told = 0.0
    running: dict[Future[Round], Area] = {}
    context = multiprocessing.get_context("fork")
    # Whoever kills the parent leaves no worker behind that waits for jobs forever.
    end = children.die_with_parent
    with ProcessPoolExecutor(plan.workers, mp_context=context, initializer=end) as pool:
        while True:
            clock = time.monotonic() - began
            over = clock >= plan.seconds
            open_groups = plan.lacking(record) if over else set(GROUPS)
            while len(running) < plan.workers:
                area = _next(plan, record, running.values(), open_groups)
                if area is None:
                    break
                scratch = stage.folder / f"case-{area.name.replace('/', '-')}"
                first = record.next(area)
                job = pool.submit(run_round, area.name, stage, record.seed, first, scratch)
                running[job] = area
            if not running:
                break
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for job in done:
                running.pop(job)
                record.add(job.result(), time.monotonic() - began)
            if clock - told >= _SILENCE:
                told = clock
                _tell(record)
    record.write()


def _next(plan: Plan, record: Record, busy: object, groups: set[str]) -> Area | None:
    """The area that is furthest behind its share of the time; one round of each at a time."""
    names = {area.name for area in busy}  # type: ignore[attr-defined]
    free = [a for a in plan.areas if a.name not in names and a.group in groups]
    if plan.rounds is not None:
        free = [a for a in free if record.next(a) < plan.rounds * a.size]
    if not free:
        return None
    number = {group: sum(a.group == group for a in plan.areas) for group in GROUPS}
    spent = {group: record.spent(f"{group}/") for group in GROUPS}

    def behind(area: Area) -> tuple[float, float]:
        share = GROUPS[area.group]
        return spent[area.group] / share, record.spent(f"{area.name}/") * number[area.group]

    return min(free, key=behind)


def _tell(record: Record) -> None:
    print(
        f"{record.seconds:,.0f} s: {record.total('kills'):,} kills, "
        f"{record.total('cases'):,} cases, {record.found:,} faults",
        flush=True,
    )
