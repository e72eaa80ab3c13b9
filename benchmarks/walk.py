"""Trace a command: how many files does it run, how deep, and how often does it call upward?

    python benchmarks/walk.py
    python benchmarks/walk.py --calls sample

Two commands are traced call by call: `partita train` on a text up to the first step of the
optimizer, and `partita sample` up to the text. Counted are the files of the library in which a
function ran, the largest number of the library's frames on the stack, and the calls from a function
to one in a layer above its own (each pair of functions once). A layer is a package, as in the test
of imports. A call of a method that the caller's layer, or one below it, declares in a base class
is counted apart: the object was handed down, as callbacks and executors are. What a decorator
wraps is called by the decorator's caller, and looking up a module's name is no call. Counts go to
benchmarks/results/walk.json.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the tests know the layers

import torch
from rich.console import Console
from rich.table import Table

from partita.commands import main as partita
from partita.provenance import environment
from tests.support.layers import HEIGHT, SOURCE, room

RESULTS = Path(__file__).parent / "results"
SMALL = "--network.width 32 --network.depth 2 --network.heads 2 --network.length 32"
TRANSPARENT = ("<module>", "__getattr__", "old_keywords.<locals>.add.<locals>.renamed")
QUIET = "--training.batch_size 4 --run.previews 0"


class Arrived(BaseException):
    """Raised when the goal of a walk is reached."""


@dataclass
class Walk:
    """A trace of the calls of a command."""

    goal: str | None = None
    """The function at which the walk ends; None: at the end of the command."""
    files: set[str] = field(default_factory=set)
    upward: set[tuple[str, str]] = field(default_factory=set)
    handed: set[tuple[str, str]] = field(default_factory=set)
    """Calls upward of methods that a base class declares in the caller's layer or below."""
    deepest: int = 0
    _stack: list[tuple[FrameType, str, str]] = field(default_factory=list)
    _import: FrameType | None = None
    """The outermost module being imported: calls during an import are not counted."""

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:  # noqa: ARG002
        """The trace function, called by the interpreter at every call and return."""
        if self._import is not None:
            if event == "return" and frame is self._import:
                self._import = None
        elif event == "call":
            self._enter(frame)
        elif event == "return" and self._stack and self._stack[-1][0] is frame:
            self._stack.pop()

    def _enter(self, frame: FrameType) -> None:
        path, name = frame.f_code.co_filename, frame.f_code.co_qualname
        if name == "<module>":
            self._import = frame
        if not path.startswith(str(SOURCE)) or name in TRANSPARENT:
            return
        file = str(Path(path).relative_to(SOURCE))
        if self._stack:
            _, caller, before = self._stack[-1]
            if _height(file) > _height(before):
                found = self.handed if _declared(frame, _height(before)) else self.upward
                found.add((f"{before}: {caller}", f"{file}: {name}"))
        self.files.add(file)
        self._stack.append((frame, name, file))
        self.deepest = max(self.deepest, len(self._stack))
        if name == self.goal:
            raise Arrived


def _declared(frame: FrameType, height: int) -> bool:
    """Whether a base class at this height or below declares the method that is called."""
    bases = type(frame.f_locals.get("self")).__mro__
    return any(
        frame.f_code.co_name in vars(base) and HEIGHT[room(base.__module__)] <= height
        for base in bases
        if base.__module__.startswith("partita.")
    )


def _height(file: str) -> int:
    parts = Path(file).with_suffix("").parts
    height: int = HEIGHT[room(".".join(["partita", *parts]).removesuffix(".__init__"))]
    return height


def followed(work: Callable[[], object], goal: str | None = None) -> Walk:
    """Trace some work."""
    walk = Walk(goal)
    sys.setprofile(walk)
    try:
        work()
    except Arrived:
        pass
    finally:
        sys.setprofile(None)
    return walk


def walks(folder: Path) -> dict[str, Walk]:
    """Trace both commands, in a folder with a text."""
    os.chdir(folder)
    Path("notes.txt").write_text("\n\n".join(f"note {n} is short and says so" for n in range(200)))
    training = ["train", "notes.txt", "--out", "runs/a", *SMALL.split(), *QUIET.split()]
    first = followed(lambda: partita([*training, "--training.steps", "2"]), "MovingAverage.update")
    partita([*training, "--training.steps", "2", "--out", "runs/b"])
    writing = ["sample", "runs/b", "--steps", "4", "--length", "8"]
    return {"train": first, "sample": followed(lambda: partita(writing))}


def table(found: dict[str, Walk]) -> Table:
    """The counts as a table."""
    shown = Table(title="From a command to its first step, or to its text", title_justify="left")
    for name in ("walk", "files", "deepest", "ways back up", "to what was handed down"):
        shown.add_column(name, justify="left" if name == "walk" else "right")
    for name, walk in found.items():
        shown.add_row(
            name,
            str(len(walk.files)),
            str(walk.deepest),
            str(len(walk.upward)),
            str(len(walk.handed)),
        )
    return shown


def main(words: Sequence[str] | None = None) -> None:
    """Trace the commands, print and save the counts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", choices=["train", "sample"], help="list the ways back up of one")
    parser.add_argument("--out", type=Path, default=RESULTS / "walk.json")
    chosen = parser.parse_args(words)
    place = chosen.out.absolute()
    with tempfile.TemporaryDirectory() as folder:
        found = walks(Path(folder))
        os.chdir(place.parent)
    console = Console(width=160)
    if chosen.calls:
        for caller, called in sorted(found[chosen.calls].upward | found[chosen.calls].handed):
            console.print(f"{caller} -> {called}", markup=False, highlight=False)
        console.print(*sorted(found[chosen.calls].files), sep="\n", markup=False)
        return
    counts: dict[str, Any] = {
        name: {
            "files": sorted(walk.files),
            "deepest": walk.deepest,
            "upward": sorted(map(list, walk.upward)),
            "handed_down": sorted(map(list, walk.handed)),
        }
        for name, walk in found.items()
    }
    counts["environment"] = environment(torch.device("cpu"))
    place.write_text(json.dumps(counts, indent=1) + "\n")
    console.print(table(found))


if __name__ == "__main__":
    main()
