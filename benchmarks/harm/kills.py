"""Commands that are killed at random moments and given again, until they come to their end.

What they leave then must be what an undisturbed command leaves, in every bit, and nothing else.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from harm import children, looks
from harm.cases import chance_of
from harm.jobs import Job
from harm.outcomes import Outcome
from harm.places import PATIENCE
from harm.stage import Stage
from harm.surroundings import copied
from partita.errors import InputError
from partita.files import format
from partita.files.atomic import PARTIAL
from partita.models import checkpoints

_SIGNALS, _SHARES = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT), (7, 2, 1)
_COLD = 1 / 16  # of all processes are new interpreters
_COLD_START = 3.0  # seconds that those take longer, about
_STOPPED = 130  # what Ctrl-C ends in
_INTERRUPTED = re.compile(r"\nKeyboardInterrupt:?\s*$")
_IN_THE_COMMAND = re.compile(r'commands/__init__\.py", line \d+, in main')
MOMENTS = ["early", "any", "any", "writing", "writing", "change", "change"]
"""When a process is killed: at once, at any time, while something is being written, or, without a
clock, before one of its changes of files. Each is as likely as it is listed."""


class BrokenError(Exception):
    """What must not be left behind by a kill."""

    def __init__(self, kind: str, detail: str) -> None:
        self.kind, self.detail = kind, detail
        super().__init__(detail)


@dataclass
class _Victim:
    """A job under way."""

    job: Job
    random: Random
    seconds: float
    """How long it takes undisturbed."""
    changes: int
    """How many changes of files it makes undisturbed."""
    sound: str
    log: Path
    kills: int = 0
    steps: dict[str, int] = field(default_factory=dict)
    """The newest checkpoint of each run."""

    def attempt(self) -> bool:
        """Start it and kill it at some moment; whether it was killed before its end."""
        cold = self.random.random() < _COLD
        when = self.random.choice(MOMENTS)
        (number,) = self.random.choices(_SIGNALS, _SHARES)
        if when == "change":
            child = self._start(before=self._at_a_change(number))
        else:
            child = self._start(cold=cold)
            self._wait(when, self.seconds + _COLD_START * cold)
            child.send(number)
        code = child.wait(PATIENCE)
        if code is None:
            child.end()
            raise BrokenError("hung", f"does not end after {number.name}")
        self._check_code(code, number)
        self.kills += code != 0
        self._check_made()
        return code != 0

    def _start(self, **how: Any) -> children.Child:
        words = shlex.split(self.job.action.name)
        return children.start_command(words, Path.cwd(), self.log, **how)

    def _at_a_change(self, number: signal.Signals) -> Callable[[], None]:
        """What kills a process that calls it before each of its changes, before one of them."""
        left = self.random.randint(1, max(self.changes, 1))

        def count() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), number)

        return count

    def _wait(self, when: str, seconds: float) -> None:
        """Until a moment to kill."""
        if when == "early":
            time.sleep(self.random.uniform(0, 0.05))
        elif when == "any":
            time.sleep(self.random.uniform(0, 1.05 * seconds))
        else:
            deadline = time.monotonic() + seconds
            if self.random.random() < 0.5:  # one of many writes, not the first
                time.sleep(self.random.uniform(0, seconds))
            while time.monotonic() < deadline and not _writing():
                time.sleep(0.0003)
            time.sleep(self.random.choice([0, self.random.uniform(0, 0.004)]))

    def _check_code(self, code: int, number: signal.Signals) -> None:
        asked = {0, -number, 128 + number} | ({_STOPPED} if number == signal.SIGINT else set())
        said = self.log.read_text(errors="replace")
        outside = number == signal.SIGINT and _outside_the_command(said)
        if not outside and (code not in asked or "Traceback" in said):
            raise BrokenError("uncaught", f"exit code {code} after {number.name}\n{said}")
        self.log.write_text("")

    def _check_made(self) -> None:
        """What is there is whole, and no checkpoint that was there is gone."""
        for name in self.job.runs:
            newest = 0
            for folder in checkpoints.listed(Path(name)):
                try:
                    format.verify(folder)
                except InputError as error:
                    raise BrokenError("lost", str(error)) from error
                newest = int(folder.name.removeprefix("step-"))
            if newest < self.steps.get(name, 0):
                raise BrokenError("lost", f"step {self.steps[name]} of {name} is gone")
            self.steps[name] = newest
        if self.is_made():
            self.check_result("lost")

    def is_made(self) -> bool:
        """Whether the result is there, of jobs that leave it whole or not at all."""
        made = self.job.made
        return bool(made) and any(PARTIAL not in path.name for path in Path().glob(made))

    def check_result(self, differs: str) -> None:
        """The result must be that of the undisturbed job; how it ends if it is another one."""
        try:
            found = self.job.action.look("")
        except Exception as error:  # it cannot even be looked at
            raise BrokenError("lost", f"{type(error).__name__}: {error}") from error
        if found != self.sound:
            raise BrokenError(differs, "the result differs from the undisturbed one")

    def finish(self) -> None:
        """Without a kill, to the end; what is made already is not made again."""
        if not (self.is_made() and self.job.made == "new"):
            words = shlex.split(self.job.action.name)
            code = children.run_command(words, Path.cwd(), self.log, PATIENCE)
            if code != 0:
                said = self.log.read_text(errors="replace")
                raise BrokenError("hung" if code is None else "uncaught", f"code {code}\n{said}")
        self.check_result("silent")
        if left := looks.leftovers(Path()):
            raise BrokenError("leftover", ", ".join(left))


def kill(job: Job, stage: Stage, seed: int, scratch: Path) -> Callable[[int], Outcome]:
    """Cases of a job by their numbers."""

    def act(number: int) -> Outcome:
        random = chance_of(seed, job.name, number)
        key = job.place, job.action.name
        log = scratch.with_name(f"{scratch.name}.log")
        log.write_text("")
        with copied(stage.place(job.place), scratch):
            expected = stage.seconds[key], stage.changes[key], stage.results[key]
            victim = _Victim(job, random, *expected, log)
            try:
                for _ in range(random.choice([1, 2, 3, 4, 6])):
                    if not victim.attempt() or (victim.is_made() and job.made == "new"):
                        break
                victim.finish()
            except BrokenError as error:
                detail = f"{job.action.name}: {error.detail}"
                return Outcome(error.kind, detail, victim.kills)
        return Outcome("equal", kills=victim.kills)

    return act


def _outside_the_command(said: str) -> bool:
    """Whether Ctrl-C met a new interpreter that had not come to the command yet, or had left it.

    Python itself shows where, and ends by the signal, with 1 where it could not even begin, or with
    the command's own code.
    """
    return bool(_INTERRUPTED.search(said)) and not _IN_THE_COMMAND.search(said)


def _writing() -> bool:
    """Whether something in the working folder is being written."""
    for _, folders, files in os.walk(Path()):
        if any(PARTIAL in name for name in (*folders, *files)):
            return True
    return False
