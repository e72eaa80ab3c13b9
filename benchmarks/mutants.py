"""Mutation testing: do the tests notice small faults? Hundreds are planted, one at a time.

    python benchmarks/mutants.py
    python benchmarks/mutants.py --count 30 --seed 7 --only samplers/planned.py --out few.json

A mutant is the library with one operator, number or comparison changed, such as `<` to `<=` or `+`
to `-`. The tests that run its line are run, the fastest first, until one fails: the mutant is
killed. One that passes them all survives: either a test is missing, or the change has no effect
(survivors that are understood are listed in `benchmarks/survivors.json`, each with the reason).
Which test runs which line is measured first, by coverage.

Results are saved one by one to benchmarks/results/mutants.json. A run that was stopped goes on
where it was, and tries survivors without a reason again.
"""

from __future__ import annotations

import argparse
import compileall
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch
from faults.changes import HERE, SOURCE, Mutant, mutants
from faults.lines import PLAIN, Lines, tests_of_lines, variables

from partita.files.atomic import write_whole
from partita.provenance import environment

RESULTS = HERE / "benchmarks" / "results" / "mutants.json"
SURVIVORS = HERE / "benchmarks" / "survivors.json"
TARGETS = ["processes", "samplers", "data/batches.py"]
TESTS = [
    "tests/laws",
    "tests/samplers",
    "tests/processes",
    "tests/golden",
    "tests/data/test_batches.py",
    "tests/data/test_borders.py",
    "tests/execution/test_captured_pass.py",
    "tests/execution/test_programs.py",
    "tests/methods/test_ddpm.py",
    "tests/networks/test_block_diffusion.py",
    "tests/test_bad_input.py",
    "tests/test_categorical.py",
    "tests/test_moved.py",
]
PATIENCE = 120.0
SLOWNESS = 5.0
"""Tests that take longer than SLOWNESS times what they took before, and PATIENCE seconds more, do
not end: the mutant counts as killed. A busy machine is not that slow."""
Row = dict[str, Any]


class Workshop:
    """A private copy of the library, in which one file at a time is changed, and what tests it."""

    def __init__(self, folder: Path) -> None:
        self.log, self.source = folder / "log.txt", folder / "src"
        without_weights = shutil.ignore_patterns("weights", "__pycache__")
        shutil.copytree(SOURCE, self.source / "partita", ignore=without_weights)
        (self.source / "partita" / "weights").symlink_to(SOURCE / "weights")
        # Compiled once; what is changed later is newer than that, and compiled in memory.
        compileall.compile_dir(self.source, quiet=1)
        self.server = subprocess.Popen(
            [sys.executable, "-m", "faults.server"],
            cwd=HERE,
            env=variables(self.source, folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def outcome(self, mutant: Mutant, tests: list[str], seconds: float) -> Row:
        """Whether tests that take so many seconds kill a mutant, and which one does."""
        place = self.source / "partita" / mutant.file
        whole = place.read_text()
        place.write_text(mutant.of(whole))
        began = time.monotonic()
        try:
            by = self.failure(tests, PATIENCE + SLOWNESS * seconds)
        finally:
            place.write_text(whole)
        taken = round(time.monotonic() - began, 1)
        return {**asdict(mutant), "killed": by is not None, "by": by or "", "seconds": taken}

    def failure(self, tests: list[str], patience: float) -> str | None:
        """The first test that fails, if any does."""
        if not tests:
            return None
        asked = {"words": [*PLAIN, *tests], "log": str(self.log), "patience": patience}
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.write(json.dumps(asked) + "\n")
        self.server.stdin.flush()
        code = json.loads(self.server.stdout.readline())["code"]
        if code is None:
            return "no end"
        said = self.log.read_text(errors="replace")
        failed = [line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))]
        return (failed or [said[-200:]])[0][:200] if code else None

    def close(self) -> None:
        """End the process that runs the tests."""
        self.server.communicate()


def chosen_mutants(count: int, seed: int, only: str) -> list[Mutant]:
    """`count` random mutants, by a seed."""
    every = [mutant for path in sources() for mutant in mutants(path)]
    every = [mutant for mutant in every if mutant.file.startswith(only)]
    return random.Random(seed).sample(every, min(count, len(every)))


def sources() -> list[Path]:
    """The files that mutants are planted in."""
    places = [SOURCE / name for name in TARGETS]
    return [
        path
        for place in places
        for path in (sorted(place.rglob("*.py")) if place.is_dir() else [place])
    ]


def run(chosen: list[Mutant], lines: Lines, about: Row, out: Path) -> list[Row]:
    """Test all mutants, two at a time, and save each outcome."""
    rows, reasons = _rows_of(out), _reasons()
    done = {_place(row) for row in rows if row["killed"] or _key(row) in reasons}
    left = [mutant for mutant in chosen if _place(asdict(mutant)) not in done]
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pool = stack.enter_context(ThreadPoolExecutor(2))
        shops: SimpleQueue[Workshop] = SimpleQueue()
        for number in range(2):
            shop = Workshop(place / str(number))
            stack.callback(shop.close)
            shops.put(shop)
        stack.callback(pool.shutdown, cancel_futures=True)  # what is left, when it is stopped
        _check_unchanged(shops, lines, left)

        def one(mutant: Mutant) -> Row:
            shop = shops.get()
            try:
                tests = lines.tests(mutant.file, mutant.line)
                seconds = sum(lines.seconds.get(test, 0.0) for test in tests)
                return shop.outcome(mutant, tests, seconds)
            finally:
                shops.put(shop)

        for future in as_completed([pool.submit(one, mutant) for mutant in left]):
            row = future.result()
            rows = [old for old in rows if _place(old) != _place(row)] + [row]
            counts = {"killed": sum(row["killed"] for row in rows), "mutants": len(rows)}
            write_whole(out, json.dumps({**about, **counts, "rows": rows}, indent=1) + "\n")
            state = "killed  " if row["killed"] else "SURVIVED"
            name = f"{row['file']}:{row['line']}:{row['start']} {row['old']} -> {row['new']}"
            print(f"{len(rows):>4} {row['seconds']:>6} {state} {name}  {row['by']}", flush=True)
    return rows


def _check_unchanged(shops: SimpleQueue[Workshop], lines: Lines, left: list[Mutant]) -> None:
    """The tests of the first mutant pass in a copy of the library that nobody has changed."""
    shop = shops.get()
    for mutant in left[:1]:
        by = shop.failure(lines.tests(mutant.file, mutant.line), 3600.0)
        if by is not None:
            raise SystemExit(f"The tests fail in a copy of the library without any fault:\n{by}")
    shops.put(shop)


def _rows_of(out: Path) -> list[Row]:
    """The rows of an earlier run, of mutants that the library still has."""
    rows: list[Row] = json.loads(out.read_text())["rows"] if out.exists() else []
    known = {_place(asdict(mutant)) for path in sources() for mutant in mutants(path)}
    return [row for row in rows if _place(row) in known]


def _reasons() -> dict[str, str]:
    """Why survivors that are understood have no effect, by the change of their line."""
    reasons: dict[str, str] = json.loads(SURVIVORS.read_text()) if SURVIVORS.exists() else {}
    return reasons


def _place(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("file", "line", "start", "old", "new"))


def _key(row: Row) -> str:
    mutant = Mutant(*(row[name] for name in ("file", "line", "start", "end", "new", "old")))
    return mutant.key((SOURCE / mutant.file).read_text())


def main(words: Sequence[str] | None = None) -> None:
    """Test mutants, and print how many survive."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=300, help="how many mutants")
    parser.add_argument("--seed", type=int, default=0, help="seed of their choice")
    parser.add_argument("--only", default="", help="files whose names begin with this")
    parser.add_argument("--list", action="store_true", help="only list the mutants")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--scratch", type=Path, default=HERE / "build" / "mutants")
    chosen = parser.parse_args(words)
    picked = chosen_mutants(chosen.count, chosen.seed, chosen.only)
    if chosen.list:
        print(*(mutant.name for mutant in picked), sep="\n")
        return
    lines = tests_of_lines(chosen.scratch, TESTS, sources())
    about = {"environment": environment(torch.device("cpu")), "seed": chosen.seed}
    rows = run(picked, lines, about, chosen.out)
    survived = [row for row in rows if not row["killed"]]
    unexplained = [row for row in survived if _key(row) not in _reasons()]
    for row in unexplained:
        print(f"without a reason: {_key(row)}")
    print(f"{len(rows)} mutants, {len(survived)} survived, {len(unexplained)} without a reason.")
    raise SystemExit(bool(unexplained))


if __name__ == "__main__":
    main()
