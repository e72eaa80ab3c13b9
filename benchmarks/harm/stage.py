"""Sound places and what comes of them, made once for all cases."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from harm import children
from harm.places import PATIENCE, PLACES
from harm.subjects import Action
from harm.surroundings import copied, listening


@dataclass
class Stage:
    """Where sound places lie, and what actions make of them."""

    folder: Path
    results: dict[tuple[str, str], str] = field(default_factory=dict)
    """By the names of a place and of an action."""
    seconds: dict[tuple[str, str], float] = field(default_factory=dict)
    """How long that took."""
    changes: dict[tuple[str, str], int] = field(default_factory=dict)
    """How many changes of files it was."""

    def place(self, name: str) -> Path:
        """The folder of a place, which is filled on the first call."""
        folder = self.folder / name
        if not folder.exists():
            partial = self.folder / f"{name}-unfinished"
            partial.mkdir()
            PLACES[name](partial)
            partial.rename(folder)
        return folder

    def prepare(self, place: str, actions: Iterable[Action]) -> None:
        """Find out what each action makes of a sound place."""
        source = self.place(place)
        for action in actions:
            key = place, action.name
            if key not in self.results:
                found = self._result(source, action)
                self.results[key], self.seconds[key], self.changes[key] = found

    def _result(self, source: Path, action: Action) -> tuple[str, float, int]:
        """A checksum of what comes of an action, how long it took, and the changes of files."""
        found = self.folder / "result"

        def act() -> int:
            changes = list[None]()
            with copied(source, self.folder / "sound"):
                children.before_changes(lambda: changes.append(None))
                began = time.monotonic()
                with listening() as (out, err):
                    code = action.do()
                    said, blamed = out.text(), err.text()
                seconds, number = time.monotonic() - began, len(changes)
                if code == 0:
                    found.write_text(json.dumps([action.look(said), seconds, number]))
                else:
                    sys.stderr.write(blamed)
            return code

        child = children.start(act)
        if child.wait(PATIENCE) != 0:
            raise RuntimeError(f"{source.name}: {action.name} fails on sound input")
        result, seconds, number = json.loads(found.read_text())
        return result, seconds, number
