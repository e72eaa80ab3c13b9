"""Which tests run which line, by coverage; measured once for a version of the library.

Kept in a folder, with digests of the library and of every file of tests: later calls measure only
the files of tests that have changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from faults.changes import HERE, SOURCE, in_functions

PLAIN = ["-o", "addopts=", "-p", "no:cacheprovider", "--hypothesis-seed=0", "-q", "-x"]
"""Shape checks are off, so that a mutant is killed by a test's own assertion."""
BUDGET = 60.0
"""The most seconds that the tests of a line may take, as measured; one test may take more."""

Measured = dict[str, Any]
"""For each file of tests: its digest, `seconds` by test, `lines` by test and source file."""


class Lines:
    """The tests of every line, the fastest first."""

    def __init__(self, measured: Measured) -> None:
        self.seconds: dict[str, float] = {}
        self._runs: dict[tuple[str, int], set[str]] = defaultdict(set)
        self._imports: dict[str, set[str]] = defaultdict(set)
        self._inside: dict[str, set[int]] = {}
        for found in measured.values():
            self.seconds |= found["seconds"]
            for test, files in found["lines"].items():
                for file, lines in files.items():
                    self._imports[file].add(test)
                    for line in lines:
                        self._runs[file, line].add(test)

    def tests(self, file: str, line: int) -> list[str]:
        """Tests of a line: those that run it, then others of their files, up to the budget.

        The others may use what the first one has kept. What only an import runs, such as a
        default, may matter to any test: half of the budget is for those of its file, half for all.
        """
        own = self._runs[file, line]
        if line in self._bodies(file):
            files = {_file_of(test) for test in own}
            others = {test for test in self.seconds if _file_of(test) in files} - own
            return self._affordable([*self._by_time(own), *self._by_time(others)], BUDGET)
        near = self._affordable(self._by_time(own | self._imports[file]), BUDGET / 2)
        far = self._by_time({*self.seconds} - {*near})
        return [*near, *self._affordable(far, BUDGET / 2)]

    def _bodies(self, file: str) -> set[int]:
        if file not in self._inside:
            self._inside[file] = in_functions((SOURCE / file).read_text())
        return self._inside[file]

    def _by_time(self, tests: Iterable[str]) -> list[str]:
        return sorted(tests, key=lambda test: (self.seconds.get(test, 0.0), test))

    def _affordable(self, tests: list[str], budget: float) -> list[str]:
        total, chosen = 0.0, list[str]()
        for test in tests:
            total += self.seconds.get(test, 0.0)
            if chosen and total > budget:
                break
            chosen.append(test)
        return chosen


def tests_of_lines(folder: Path, names: Sequence[str], sources: Iterable[Path]) -> Lines:
    """The tests of the lines of some source files; measures what is not kept in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    place, library = folder / "lines.json", _digest([*_python(SOURCE), *_helpers()])
    kept = json.loads(place.read_text()) if place.exists() else {}
    measured: Measured = kept["tests"] if kept.get("library") == library else {}
    files = [path for name in names for path in _test_files(HERE / name)]
    digests = {str(path.relative_to(HERE)): _digest([path]) for path in files}
    measured = {name: found for name, found in measured.items() if name in digests}
    new = [name for name in digests if measured.get(name, {}).get("digest") != digests[name]]
    if new:
        print(f"Measuring which lines the tests of {len(new)} files run.", flush=True)
        for name, found in _measure(folder, new, list(sources)).items():
            measured[name] = {"digest": digests[name], **found}
        place.write_text(json.dumps({"library": library, "tests": measured}) + "\n")
    return Lines(measured)


def _measure(folder: Path, names: list[str], sources: list[Path]) -> Measured:
    data = folder / "coverage"
    words = [*PLAIN[:-1], "--cov", "--cov-context=test", "--cov-report=", "--durations=0", "-vvv"]
    command = [sys.executable, "-m", "pytest", *words, "-n", "2", "--dist", "worksteal", *names]
    said = subprocess.run(
        command,
        cwd=HERE,
        env=variables(SOURCE.parent, folder) | {"COVERAGE_FILE": str(data)},
        check=False,
        capture_output=True,
        text=True,
    )
    (folder / "tests.txt").write_text(said.stdout + said.stderr)
    if said.returncode:
        raise SystemExit(f"The tests fail without any fault:\n{said.stdout[-3000:]}")
    return _by_file(names, _lines_run(data, sources), seconds_of(said.stdout))


def _by_file(
    names: list[str], lines: dict[str, dict[str, list[int]]], seconds: dict[str, float]
) -> Measured:
    return {
        name: {
            "seconds": {test: s for test, s in seconds.items() if _file_of(test) == name},
            "lines": {test: found for test, found in lines.items() if _file_of(test) == name},
        }
        for name in names
    }


def _lines_run(data: Path, sources: Iterable[Path]) -> dict[str, dict[str, list[int]]]:
    """For each test, the lines that it runs by file, as coverage has them."""
    from coverage import CoverageData

    found: dict[str, dict[str, list[int]]] = {}
    coverage = CoverageData(str(data))
    coverage.read()
    for path in sources:
        name = str(path.relative_to(SOURCE))
        for line, contexts in coverage.contexts_by_lineno(str(path)).items():
            for test in {context.rpartition("|")[0] for context in contexts} - {""}:
                found.setdefault(test, {}).setdefault(name, []).append(line)
    return found


def seconds_of(said: str) -> dict[str, float]:
    """The seconds that each test took, as pytest reports them."""
    taken: dict[str, float] = {}
    for line in said.splitlines():
        words = line.split()
        if len(words) >= 3 and words[0].endswith("s") and words[1] in ("call", "setup"):
            name = line.split(words[1], 1)[1].strip()
            taken[name] = taken.get(name, 0.0) + float(words[0][:-1])
    return taken


def variables(source: Path, folder: Path) -> dict[str, str]:
    """The environment of tests that import a copy of the library."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(source), str(HERE / "benchmarks")]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "hypothesis"),
    }


def _file_of(test: str) -> str:
    return test.partition("::")[0]


def _python(place: Path) -> list[Path]:
    return sorted(place.rglob("*.py")) if place.is_dir() else [place]


def _test_files(place: Path) -> list[Path]:
    return [path for path in _python(place) if path.name.startswith("test_")]


def _helpers() -> list[Path]:
    """What tests share."""
    return [path for path in _python(HERE / "tests") if not path.name.startswith("test_")]


def _digest(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.relative_to(HERE)}\n".encode() + path.read_bytes())
    return digest.hexdigest()
