"""Mutation testing: do the tests notice small faults? Hundreds are planted, one at a time.

    python benchmarks/mutants.py
    python benchmarks/mutants.py --count 30 --seed 7 --only samplers/planned.py

A mutant is the library with one operator, number, comparison or word changed, such as `<` to `<=`
or `+` to `-`. The tests that ran its line are run, the fastest first, until one fails: the mutant
is killed. One that passes them all has survived: either a test is missing, or the change has no
effect (survivors that are understood are listed in `benchmarks/survivors.json`, each with the
reason). Which test runs which line is measured once, by coverage; that takes some minutes.

Results are written one by one to benchmarks/results/mutants.json; a stopped run can be resumed.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

HERE = Path(__file__).resolve().parents[1]
SOURCE = HERE / "src" / "partita"
RESULTS = HERE / "benchmarks" / "results" / "mutants.json"
SURVIVORS = HERE / "benchmarks" / "survivors.json"
TARGETS = ["processes", "samplers", "data/batches.py"]
TESTS = ["tests/laws", "tests/samplers", "tests/golden", "tests/data/test_batches.py"]
PATIENCE = 120  # seconds for the tests of a mutant; one that takes longer counts as killed
MOST_TESTS = 40  # the most tests to run for a mutant
PLAIN = ["-o", "addopts=", "-p", "no:cacheprovider", "-q", "-x"]
"""Shape checks are off, so that a mutant is killed by a test's own assertion."""

SWAPS = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "/"),
    ast.Mod: ("%", "//"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
}


@dataclass(frozen=True)
class Mutant:
    """One change to one line."""

    file: str
    line: int
    start: int
    end: int
    """Columns of the replaced text, in bytes."""
    new: str
    old: str

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line}:{self.start} {self.old} -> {self.new}"

    def of(self, source: str) -> str:
        """The source with the change."""
        lines = source.splitlines(keepends=True)
        line = lines[self.line - 1].encode()
        changed = line[: self.start] + self.new.encode() + line[self.end :]
        lines[self.line - 1] = changed.decode()
        return "".join(lines)


# Which mutants there are --------------------------------------------------------------------------


def mutants(file: Path) -> list[Mutant]:
    """All mutants of a file, in the order of its lines."""
    source, found = file.read_text(), list[Mutant]()
    name = str(file.relative_to(SOURCE))
    lines = source.splitlines()
    for node in _computed(ast.parse(source)):
        for line, start, end, new in _changes(node, lines):
            old = lines[line - 1].encode()[start:end].decode()
            found.append(Mutant(name, line, start, end, new, old))
    return sorted(set(found), key=lambda mutant: (mutant.line, mutant.start, mutant.new))


def _computed(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that compute: no annotations, decorators, docstrings, type defaults, messages."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.Import | ast.ImportFrom):
                continue
            if isinstance(child, ast.Call) and getattr(child.func, "id", "") in ("require", "cast"):
                continue
            if isinstance(child, ast.JoinedStr | ast.Raise):
                continue
            yield child
            yield from _computed(child)


def _changes(node: ast.AST, lines: list[str]) -> Iterator[tuple[int, int, int, str]]:
    if isinstance(node, ast.BinOp):
        yield from _between(node.left, node.right, node.op, lines)
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield from _between(node.left, node.comparators[0], node.ops[0], lines)
    elif isinstance(node, ast.BoolOp):
        yield from _between(node.values[0], node.values[1], node.op, lines)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub | ast.Invert):
        width = len("not ") if isinstance(node.op, ast.Not) else 1
        if not isinstance(node.operand, ast.Constant):
            yield node.lineno, node.col_offset, node.col_offset + width, ""
    elif isinstance(node, ast.Constant) and not isinstance(node.value, str | bytes):
        new = _other(node.value)
        if new is not None and node.end_col_offset is not None and node.lineno == node.end_lineno:
            yield node.lineno, node.col_offset, node.end_col_offset, new


def _between(
    left: ast.expr, right: ast.expr, operator: ast.AST, lines: list[str]
) -> Iterator[tuple[int, int, int, str]]:
    """The operator between two expressions, if all of it is on one line."""
    if type(operator) not in SWAPS or left.end_lineno != right.lineno:
        return
    old, new = SWAPS[type(operator)]
    assert left.end_col_offset is not None
    space = lines[right.lineno - 1].encode()[left.end_col_offset : right.col_offset].decode()
    place = space.find(old)
    if place >= 0:
        start = left.end_col_offset + place
        yield right.lineno, start, start + len(old), new


def _other(value: object) -> str | None:
    if isinstance(value, bool):
        return str(not value)
    if isinstance(value, int):
        return str(value + 1)
    return repr(value * 2 + 1) if isinstance(value, float) else None


# Which tests run which line -----------------------------------------------------------------------


def tests_of_lines(folder: Path, names: Sequence[str]) -> dict[str, dict[int, list[str]]]:
    """For each file and line, the tests that ran it, the fastest first."""
    data, report = folder / "coverage", folder / "durations.txt"
    words = [*PLAIN[:-1], "--cov", "--cov-context=test", "--cov-report=", "--durations=0", "-vv"]
    command = [sys.executable, "-m", "pytest", *words, "-n", "2", *names]
    environment = os.environ | {"COVERAGE_FILE": str(data), "OMP_NUM_THREADS": "1"}
    said = subprocess.run(
        command, cwd=HERE, env=environment, check=False, capture_output=True, text=True
    )
    if said.returncode:
        raise SystemExit(f"The tests fail without any fault:\n{said.stdout[-3000:]}")
    report.write_text(said.stdout)
    return _ordered(data, _seconds(said.stdout))


def _seconds(said: str) -> dict[str, float]:
    """The seconds that each test took, as pytest reports them."""
    taken: dict[str, float] = {}
    for line in said.splitlines():
        words = line.split()
        if len(words) >= 3 and words[0].endswith("s") and words[1] in ("call", "setup"):
            name = line.split(words[1], 1)[1].strip()
            taken[name] = taken.get(name, 0.0) + float(words[0][:-1])
    return taken


def _ordered(data: Path, seconds: dict[str, float]) -> dict[str, dict[int, list[str]]]:
    from coverage.numbits import numbits_to_nums

    found: dict[str, dict[int, list[str]]] = {}
    query = (
        "select file.path, context.context, line_bits.numbits from line_bits"
        " join file on file.id = line_bits.file_id"
        " join context on context.id = line_bits.context_id"
    )
    with sqlite3.connect(data) as connection:
        for path, context, bits in connection.execute(query):
            test = context.partition("|")[0]
            if not test or not path.startswith(str(SOURCE)):
                continue
            lines = found.setdefault(str(Path(path).relative_to(SOURCE)), {})
            for line in numbits_to_nums(bits):
                lines.setdefault(line, []).append(test)
    for lines in found.values():
        for line, tests in lines.items():
            lines[line] = sorted(set(tests), key=lambda test: seconds.get(test, 0.0))
    return found


# One mutant after the other -----------------------------------------------------------------------


class Workshop:
    """A private copy of the library, in which one file at a time is changed."""

    def __init__(self, folder: Path) -> None:
        self.source = folder / "src"
        without_weights = shutil.ignore_patterns("weights", "__pycache__")
        shutil.copytree(SOURCE, self.source / "partita", ignore=without_weights)
        (self.source / "partita" / "weights").symlink_to(SOURCE / "weights")

    def outcome(self, mutant: Mutant, tests: list[str]) -> dict[str, Any]:
        """Whether the tests kill a mutant, and which one does."""
        place = self.source / "partita" / mutant.file
        whole = place.read_text()
        place.write_text(mutant.of(whole))
        began = time.monotonic()
        try:
            killed, by = self._killed(tests)
        finally:
            place.write_text(whole)
        seconds = round(time.monotonic() - began, 1)
        return {**asdict(mutant), "killed": killed, "by": by, "seconds": seconds}

    def _killed(self, tests: list[str]) -> tuple[bool, str]:
        if not tests:
            return False, "no test runs the line"
        words = [sys.executable, "-B", "-m", "pytest", *PLAIN, *tests[:MOST_TESTS]]
        environment = os.environ | {"PYTHONPATH": str(self.source), "OMP_NUM_THREADS": "1"}
        try:
            said = subprocess.run(
                words,
                cwd=HERE,
                env=environment,
                check=False,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
            )
        except subprocess.TimeoutExpired:
            return True, "no end"
        failed = [line for line in said.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        return said.returncode != 0, failed[0][:200] if failed else ""


def chosen_mutants(count: int, seed: int, only: str) -> list[Mutant]:
    """`count` random mutants, by a seed."""
    files = [path for name in TARGETS for path in _files(SOURCE / name)]
    every = [mutant for path in files for mutant in mutants(path)]
    every = [mutant for mutant in every if mutant.file.startswith(only)]
    return random.Random(seed).sample(every, min(count, len(every)))


def _files(place: Path) -> list[Path]:
    return sorted(place.rglob("*.py")) if place.is_dir() else [place]


def run(chosen: list[Mutant], lines: dict[str, dict[int, list[str]]], out: Path) -> list[Any]:
    """Test all mutants, two at a time, and save each outcome."""
    content = json.loads(out.read_text()) if out.exists() else {}
    rows: list[dict[str, Any]] = content.get("rows", [])
    done = {(row["file"], row["line"], row["start"], row["new"]) for row in rows}
    left = [m for m in chosen if (m.file, m.line, m.start, m.new) not in done]
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(2) as pool:
        shops: SimpleQueue[Workshop] = SimpleQueue()
        for number in range(2):
            shops.put(Workshop(Path(place) / str(number)))

        def one(mutant: Mutant) -> dict[str, Any]:
            shop = shops.get()
            try:
                return shop.outcome(mutant, lines.get(mutant.file, {}).get(mutant.line, []))
            finally:
                shops.put(shop)

        for row in pool.map(one, left):
            rows.append(row)
            out.write_text(json.dumps({**content, "rows": rows}, indent=1) + "\n")
            state = "killed  " if row["killed"] else "SURVIVED"
            name = f"{row['file']}:{row['line']} {row['old']} -> {row['new']}"
            print(f"{len(rows):>4} {state} {name}  {row['by']}", flush=True)
    return rows


def main(words: Sequence[str] | None = None) -> None:
    """Test mutants, and print those that survive."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=300, help="how many mutants")
    parser.add_argument("--seed", type=int, default=0, help="seed of their choice")
    parser.add_argument("--only", default="", help="files whose names begin with this")
    parser.add_argument("--list", action="store_true", help="only list the mutants")
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args(words)
    picked = chosen_mutants(chosen.count, chosen.seed, chosen.only)
    if chosen.list:
        print(*(mutant.name for mutant in picked), sep="\n")
        return
    with tempfile.TemporaryDirectory() as place:
        lines = tests_of_lines(Path(place), TESTS)
    rows = run(picked, lines, chosen.out)
    known = json.loads(SURVIVORS.read_text()) if SURVIVORS.exists() else {}
    survived = [row for row in rows if not row["killed"]]
    unexplained = [row for row in survived if _key(row) not in known]
    print(f"{len(rows)} mutants, {len(survived)} survived, {len(unexplained)} without a reason.")
    raise SystemExit(bool(unexplained))


def _key(row: dict[str, Any]) -> str:
    """The key of a survivor: its line's text, which is more stable than its number."""
    line = (SOURCE / row["file"]).read_text().splitlines()[row["line"] - 1].strip()
    return f"{row['file']}: {line}: {row['old']} -> {row['new']}"


if __name__ == "__main__":
    main()
