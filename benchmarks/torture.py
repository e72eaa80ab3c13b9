"""Kill commands, damage files, generate hostile input, and count the faults.

    python benchmarks/torture.py
    python benchmarks/torture.py --long --seed 1

Real commands are killed at random moments until they finish; files of every kind are damaged and
read; readers and command lines get mutated input. `harm/__init__.py` says what counts as a fault.
Takes ten minutes, or with --long an hour, and longer until there are 300 kills and 30,000 mutants.
Everything follows from the seed; a stopped run can be resumed. Counts go to
benchmarks/results/torture.json after every round. Exit code 1 means that there was a fault: each is
printed with the command that repeats it, which also keeps the files. Linux only.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

# All work runs in forked children: threads would not survive, and the network must not be used.
os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
sys.path.insert(0, str(Path(__file__).parents[1]))  # for the tests' files to damage

import torch
from harm import children
from harm.areas import AREAS, Area
from harm.record import Record, show
from harm.rounds import Plan, run_all
from harm.stage import Stage
from rich.console import Console

from partita.errors import InputError
from partita.provenance import environment

RESULTS = Path(__file__).parent / "results"
SHORT, LONG = 10.0, 60.0
FEWEST = {"kills": 300, "mutants": 30_000}
_MEMORY = Path("/dev/shm")  # in memory, where writing is fast


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of everything random")
    parser.add_argument("--minutes", type=float, help=f"{SHORT:g}, or {LONG:g} with --long")
    parser.add_argument("--long", action="store_true", help="an hour, and the required counts")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes at a time")
    parser.add_argument("--only", nargs="+", default=[""], help="areas whose names begin so")
    parser.add_argument("--rounds", type=int, help="rounds of each area, in place of a time")
    parser.add_argument("--repeat", metavar="AREA:NUMBER", help="try one case again")
    parser.add_argument("--out", type=Path, default=RESULTS / "torture.json", help="the counts")
    parser.add_argument("--markdown", action="store_true", help="print the counts of --out")
    kept = Path("runs/torture")
    parser.add_argument("--keep", type=Path, default=kept, help="where --repeat keeps its files")
    scratch = _MEMORY if _MEMORY.is_dir() else Path(tempfile.gettempdir())
    parser.add_argument("--scratch", type=Path, default=scratch, help="folder of temporary files")
    chosen = parser.parse_args(words)
    if chosen.minutes is None:
        chosen.minutes = LONG if chosen.long else SHORT
    chosen.areas = [area for name, area in AREAS.items() if name.startswith(tuple(chosen.only))]
    if not chosen.areas or chosen.workers < 1:
        parser.error("--only must begin some area's name, and --workers be 1 or more")
    if chosen.repeat and chosen.repeat.rpartition(":")[0] not in AREAS:
        parser.error(f"--repeat: there is no such area; known: {', '.join(AREAS)}")
    return chosen


def again(chosen: argparse.Namespace, scratch: Path) -> int:
    """Repeat one case, with full output; its input is left in --keep."""
    children.preload()
    name, _, number = chosen.repeat.rpartition(":")
    area, stage = AREAS[name], Stage(scratch)
    area.prepare(stage)
    keep = chosen.keep / f"{name.replace('/', '-')}-{number}"
    shutil.rmtree(keep, ignore_errors=True)
    keep.parent.mkdir(parents=True, exist_ok=True)
    ((_, outcome),) = area.outcomes(stage, chosen.seed, [int(number)], scratch / "case", keep)
    print(f"{outcome.kind}, {outcome.kills} kills\n{outcome.detail}")
    print(f"The input: {keep}" if keep.exists() else "")
    return int(outcome.is_fault)


def page(chosen: argparse.Namespace) -> int:
    """Print the counts of an earlier run as a table in Markdown."""
    held = json.loads(chosen.out.read_text())
    print(Record.open(chosen.out, held["seed"], held["environment"]).markdown(), end="")
    return 0


def everything(chosen: argparse.Namespace, scratch: Path) -> int:
    """Run round after round until the time is over."""
    facts = environment(torch.device("cpu"))
    record = Record.open(chosen.out, chosen.seed, facts)
    children.preload()
    stage, areas = Stage(scratch), list[Area](chosen.areas)
    for area in areas:
        area.prepare(stage)
    fewest = FEWEST if chosen.long and chosen.only == [""] else {}
    seconds = math.inf if chosen.rounds else chosen.minutes * 60
    run_all(Plan(areas, seconds, fewest, chosen.workers, chosen.rounds), stage, record)
    show(Console(width=160), record)
    print(f"Written: {record.path}")
    return int(record.found > 0)


def main(words: Sequence[str] | None = None) -> int:
    """Run one case, or all."""
    chosen = parsed(words)
    if chosen.markdown:
        return page(chosen)
    with tempfile.TemporaryDirectory(dir=chosen.scratch, prefix="torture-") as scratch:
        try:
            return (again if chosen.repeat else everything)(chosen, Path(scratch))
        except InputError as error:
            raise SystemExit(str(error)) from None


if __name__ == "__main__":
    sys.exit(main())
