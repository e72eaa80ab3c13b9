"""Check files against recorded sizes and checksums, several at a time."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event

from partita.errors import require
from partita.files.reading import reading

Progress = Callable[[int, int], None]
"""Called with the number of bytes read so far, and their total."""

_AT_ONCE = 1 << 20
_REPORT_EVERY = 0.5  # seconds; shorter checks report nothing
_MOST_THREADS = 8  # more read no faster


def check_contents(checksums: Mapping[Path, str], progress: Progress | None = None) -> None:
    """Refuse a file whose SHA-256 is not the recorded one. Several are read at a time."""
    paths = list(checksums)
    total = sum(map(size_of, paths))
    read, stop = [0] * len(paths), Event()

    def check(number: int) -> None:
        path = paths[number]
        digest, buffer = hashlib.sha256(), memoryview(bytearray(_AT_ONCE))
        with reading(path, "shards"), path.open("rb", buffering=0) as stream:
            while not stop.is_set() and (count := stream.readinto(buffer)):
                digest.update(buffer[:count])
                read[number] += count
        same = stop.is_set() or digest.hexdigest() == checksums[path]
        require(same, "shards", f"{path} was changed, or its disk failed", "prepare again")

    with ThreadPoolExecutor(min(os.cpu_count() or 1, _MOST_THREADS)) as pool:
        try:
            checks = [pool.submit(check, number) for number in range(len(paths))]
            _watched(checks, read, total, progress)
        finally:
            stop.set()  # after an error, or Ctrl-C, the other threads end too


def size_of(path: Path) -> int:
    """The size of a file in bytes; a missing file is refused."""
    with reading(path, "shards"):
        require(path.is_file(), "shards", f"{path} is missing", "prepare again")
        return path.stat().st_size


def _watched(
    checks: list[Future[None]], read: list[int], total: int, progress: Progress | None
) -> None:
    left = set(checks)
    while left:
        done, left = wait(left, _REPORT_EVERY, FIRST_EXCEPTION)
        for check in done:
            check.result()
        if left and progress is not None:
            progress(sum(read), total)
