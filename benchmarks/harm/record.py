"""What was found so far, as a file that is written after every round."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from harm.areas import GROUPS, Area, Round
from harm.outcomes import FAULTS, Outcome, added
from partita.errors import require
from partita.files.atomic import write_whole

_SHOWN = ("kills", "cases", "refused", "equal", "other")
COLUMNS = (*_SHOWN, *FAULTS)
_KEPT = 50  # faults that are written out


@dataclass
class Record:
    """Counts of every area, the time that went into them, and the faults."""

    path: Path
    seed: int
    environment: dict[str, str]
    seconds: float = 0.0
    areas: dict[str, dict[str, Any]] = field(default_factory=dict)
    faults: list[dict[str, Any]] = field(default_factory=list)

    @staticmethod
    def open(path: Path, seed: int, environment: dict[str, str]) -> Record:
        """What a file holds that the same program began, or nothing."""
        if not path.exists():
            return Record(path, seed, environment)
        held = json.loads(path.read_text())
        before = {"seed": held["seed"], "commit": held["environment"].get("commit")}
        now = {"seed": seed, "commit": environment.get("commit")}
        problem = f"{path} is of {before}, this is {now}"
        require(before == now, "--out", problem, "remove it, or name another file")
        parts = {key: held[key] for key in ("seconds", "areas", "faults")}
        return Record(path, seed, held["environment"], **parts)

    def next(self, area: Area) -> int:
        """The number of the first case that was not tried yet."""
        return int(self.areas.get(area.name, {}).get("cases", 0))

    def spent(self, name: str) -> float:
        """Seconds that went into areas whose names begin so."""
        return float(sum(a["seconds"] for n, a in self.areas.items() if f"{n}/".startswith(name)))

    def total(self, key: str, group: str = "") -> int:
        """A count over all areas of a group."""
        held = (counts for name, counts in self.areas.items() if name.startswith(group))
        return int(sum(counts.get(key, 0) for counts in held))

    def add(self, found: Round, seconds: float) -> None:
        """Note a round, and how long the program ran by now."""
        before = self.areas.get(found.area, {})
        counts = added([{k: v for k, v in before.items() if k != "seconds"}, found.counts])
        spent = round(before.get("seconds", 0.0) + found.seconds, 1)
        self.areas[found.area] = {**counts, "seconds": spent}
        self.seconds = round(seconds, 1)
        room = max(_KEPT - len(self.faults), 0)
        self.faults += [self._fault(found.area, *fault) for fault in found.faults][:room]
        self.write()

    def _fault(self, area: str, number: int, outcome: Outcome) -> dict[str, Any]:
        return {
            "case": f"{area}:{number}",
            "kind": outcome.kind,
            "detail": outcome.detail,
            "repeat": repeat_words(self.seed, area, number),
        }

    def write(self) -> None:
        """The file, whole or as it was."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        names = sorted(self.areas, key=lambda name: [*map(str, _place(name))])
        totals = {group or "all": self._total(group) for group in ("", *GROUPS)}
        held = {
            "environment": self.environment,
            "seed": self.seed,
            "seconds": self.seconds,
            "areas": {name: self.areas[name] for name in names},
            "totals": totals,
            "faults": self.faults,
        }
        write_whole(self.path, json.dumps(held, indent=1) + "\n")

    def _total(self, group: str) -> dict[str, int]:
        return {key: self.total(key, group) for key in (*_SHOWN, "ran", *FAULTS)}

    @property
    def found(self) -> int:
        """How many faults there were."""
        return sum(self.total(kind) for kind in FAULTS)

    def rows(self) -> dict[str, list[str]]:
        """All counts, area by area, and of all areas together."""
        counted = {name: self.areas[name] for name in sorted(self.areas, key=_place)}
        rows = {}
        for name, counts in {**counted, "all": self._total("")}.items():
            shown = {**counts, "other": counts.get("other", 0) + counts.get("ran", 0)}
            rows[name] = [f"{shown.get(key, 0):,}" for key in COLUMNS]
        return rows

    def table(self) -> Table:
        """The counts for a terminal."""
        table = Table("area", box=None, pad_edge=False)
        for name in COLUMNS:
            table.add_column(name, justify="right")
        for name, counts in self.rows().items():
            if name == "all":
                table.add_section()
            table.add_row(name, *counts)
        return table

    def markdown(self) -> str:
        """The counts for a page; faults are one column."""
        lines = [["area", *_SHOWN, "faults"], ["---", *["---:"] * (len(_SHOWN) + 1)]]
        for name, counts in self.rows().items():
            faults = sum(int(count.replace(",", "")) for count in counts[len(_SHOWN) :])
            lines.append([name, *counts[: len(_SHOWN)], f"{faults:,}"])
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def repeat_words(seed: int, area: str, number: int) -> str:
    """The command that tries one case again."""
    return f"python benchmarks/torture.py --seed {seed} --repeat {area}:{number}"


def _place(name: str) -> tuple[int, str]:
    group = name.partition("/")[0]
    return [*GROUPS, group].index(group), name


def show(console: Console, record: Record) -> None:
    """The table, and how to see each fault again."""
    console.print(record.table())
    for fault in record.faults:
        said = " ".join(fault["detail"].split())
        console.print(f"{fault['kind']}: {said[:300]}\n  {fault['repeat']}", markup=False)
