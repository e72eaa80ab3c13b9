"""Cases that run in children under a watch: what hangs, dies or eats memory is a finding too."""

from __future__ import annotations

import json
import os
import select
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from harm import children
from harm.outcomes import Outcome

_ROOM = 2 << 30  # bytes that may be mapped beyond the limit: a window of zstd is, and not touched

_PATIENCE = 4  # times the limit: machines are busy
_BROKEN = 70  # exit code of a case that could not be made


@dataclass
class Limits:
    """What a case may take."""

    seconds: float = 20.0
    memory: int = 512 << 20


LIMITS = Limits()


def watched(numbers: Sequence[int], act: Callable[[int], Outcome]) -> Iterator[tuple[int, Outcome]]:
    """The outcomes of some cases, one after the other in one child; whoever ends a child leaves
    the rest to another. What takes too long is tried again, alone and with more time."""
    left = list(numbers)
    while left:
        for number, outcome in _in_one_child(left, act, LIMITS.seconds):
            left.pop(0)
            if outcome.kind == "hung":
                ((_, outcome),) = _in_one_child([number], act, _PATIENCE * LIMITS.seconds)
            yield number, outcome


def _in_one_child(
    numbers: Sequence[int], act: Callable[[int], Outcome], seconds: float
) -> Iterator[tuple[int, Outcome]]:
    """The same up to the first case that ends the child."""
    reader, writer = os.pipe()
    left = list(numbers)
    child = children.start(lambda: _report(numbers, act, writer))
    os.close(writer)
    lines = _Lines(reader)
    try:
        while left and (line := lines.next(seconds)):
            yield left.pop(0), Outcome(**json.loads(line))
    finally:
        code = None if lines.late else child.wait(seconds)
        if code is None:
            child.end()
        os.close(reader)
    if left and code == _BROKEN:
        raise RuntimeError(f"case {left[0]} could not be made")
    if left:
        late = f"took more than {seconds:g} s"
        yield left[0], Outcome("hung", late) if lines.late else Outcome("uncaught", f"died: {code}")


def _report(numbers: Sequence[int], act: Callable[[int], Outcome], writer: int) -> int:
    """What the child does."""
    children.limit_memory(LIMITS.memory + _ROOM)
    children.watch_code()
    for number in numbers:
        peak = children.Peak()
        try:
            outcome = act(number)
        except Exception:  # ours: whatever the library raises is an outcome
            traceback.print_exc()
            return _BROKEN
        if not outcome.is_fault and peak.grown() > LIMITS.memory:
            outcome = Outcome("memory", f"{peak.grown() >> 20} MiB")
        os.write(writer, json.dumps(outcome.to_dict()).encode() + b"\n")
    return 0


class _Lines:
    """Lines of a pipe, each of which has to come in time."""

    def __init__(self, handle: int) -> None:
        self.handle, self.rest, self.late = handle, b"", False

    def next(self, seconds: float) -> bytes:
        """The next line; nothing at the end, or if it was late."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self.rest:
            left = deadline - time.monotonic()
            if not select.select([self.handle], [], [], max(left, 0.0))[0]:
                self.late = True
                return b""
            data = os.read(self.handle, 1 << 16)
            if not data:
                return b""
            self.rest += data
        line, _, self.rest = self.rest.partition(b"\n")
        return line
