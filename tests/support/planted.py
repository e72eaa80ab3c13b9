"""Faults planted in the library, and the counts of `benchmarks/torture.py` with each.

    python -m tests.support.planted
    python -m tests.support.planted accepts --only mutants/notes.txt.xz --rounds 1 --out counts.json

Prints JSON: the counts of some cases by the name of the plant; "sound" is the unchanged library.
With the name of a plant it runs the program itself with that fault, and with the arguments given.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import torture
from harm import children, kills
from harm.areas import AREAS
from harm.outcomes import tally
from harm.places import PATIENCE
from harm.stage import Stage
from harm.watched import LIMITS

from partita.data import prepared
from partita.data.documents import Corpus
from partita.errors import InputError

TEXT, PACKED, ARRAYS = "mutants/notes.txt", "mutants/notes.txt.xz", "mutants/codes.npz"
KILLED, DAMAGED = "kills/prepare-text", "damage/notes.txt.xz"
MORE = 64 << 20
pieces = Corpus.pieces


def reading(corpus: Corpus, instead: Callable[[], object]) -> object:
    """The pieces of a corpus, after a call of `instead`."""
    instead()
    return pieces(corpus)


def misread(corpus: Corpus) -> object:
    """Damaged input is read as another text."""
    try:
        yield from list(pieces(corpus))
    except InputError:
        yield from ()


def refuse() -> None:
    raise InputError("path", "is not to our liking")


def leave() -> None:
    Path("left").touch()
    raise InputError("path", f"{[*map(str, Path().iterdir())]} are not to our liking")


@contextmanager
def at_once(folder: Path):
    """A folder that has its name before it is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    yield folder


@contextmanager
def elsewhere(folder: Path):
    """A folder that is complete when it gets its name; the partial one is never removed."""
    partial = folder.with_name(f"{folder.name}.partial-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    yield partial
    partial.rename(folder)


def plant(owner: object, name: str, fault: object) -> Callable[[], None]:
    if not hasattr(owner, name):
        raise RuntimeError(f"{owner} has no {name} to plant a fault in")
    return lambda: setattr(owner, name, fault)


def before_reading(instead: Callable[[], object]) -> Callable[[], None]:
    return plant(Corpus, "pieces", lambda corpus: reading(corpus, instead))


def hanging() -> None:
    """Reading hangs, and the time limit is short."""
    LIMITS.seconds = 0.5
    before_reading(lambda: time.sleep(10 * PATIENCE))()


def killed_at_changes(fault: object) -> Callable[[], None]:
    """A fault in writing folders; the moments of kills follow from the seed alone."""
    planted = plant(prepared, "whole_folder", fault)

    def act() -> None:
        kills.MOMENTS[:] = ["change"]
        planted()

    return act


# name: how it is planted, the area that must notice it, and how many of its cases are tried
PLANTS = {
    "sound": (lambda: None, [TEXT, PACKED, ARRAYS, KILLED, DAMAGED], 4),
    "accepts": (plant(Corpus, "pieces", misread), [PACKED], 12),
    "raises": (before_reading(lambda: {}["x"]), [TEXT], 2),
    "dies": (before_reading(os.abort), [TEXT], 2),
    "hangs": (hanging, [TEXT], 1),
    "fills the memory": (before_reading(lambda: bytearray(LIMITS.memory + MORE)), [TEXT], 2),
    "asks for all memory": (before_reading(lambda: bytearray(1 << 50)), [TEXT], 2),
    "runs something": (before_reading(lambda: os.system("true")), [TEXT], 2),
    "names nothing": (before_reading(refuse), [TEXT], 2),
    "leaves a file": (before_reading(leave), [TEXT], 2),
    "is half written": (killed_at_changes(at_once), [KILLED], 4),
    "leaves a half": (killed_at_changes(elsewhere), [KILLED], 4),
}


def counts(stage: Stage, name: str) -> dict[str, int]:
    """The counts with one plant."""
    how, areas, number = PLANTS[name]
    how()
    found = []
    for area in areas:
        cases = AREAS[area].outcomes(stage, 0, range(number), stage.folder / "case")
        found += [outcome for _, outcome in cases]
    return tally(found)


def counted(stage: Stage, name: str, file: Path) -> dict[str, int]:
    """The same in a process of its own, which writes them to a file."""

    def body() -> int:
        file.write_text(json.dumps(counts(stage, name)))
        return 0

    if children.start(body).wait(PATIENCE) != 0:
        raise RuntimeError(f"{name}: the program itself failed")
    return json.loads(file.read_text())


def everything() -> None:
    """Each plant in a process of its own."""
    children.preload()
    with tempfile.TemporaryDirectory(dir=torture.parsed([]).scratch) as folder:
        stage = Stage(Path(folder))
        for area in PLANTS["sound"][1]:
            AREAS[area].prepare(stage)
        results = {}
        for name in PLANTS:
            results[name] = counted(stage, name, Path(folder, "counts"))
    print(json.dumps(results))


if __name__ == "__main__":
    if len(sys.argv) == 1:
        everything()
    else:
        PLANTS[sys.argv[1]][0]()
        sys.exit(torture.main(sys.argv[2:]))
