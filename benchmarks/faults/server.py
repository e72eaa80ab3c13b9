"""Runs tests again and again in forks of one process, which has imported what takes long.

Started by `benchmarks/mutants.py`, as a program: reads a line of JSON per run, {"words", "log",
"patience"}, and answers each with a line, {"code"}; the code is null for tests that do not end.
The library itself is imported in the forks only, so that each sees its files as they are.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import sys
import time
from contextlib import suppress

HEAVY = (
    "_pytest.doctest",
    "anyio",
    "beartype",
    "hypothesis",
    "jaxtyping",
    "numpy.testing",
    "pytest",
    "pytest_cov.plugin",
    "safetensors.torch",
    "scipy.stats",
    "sympy",
    "tokenizers",
    "torch.distributed",
    "xdist.plugin",
)
MEMORY = 8 << 30  # bytes of address space for the tests of a mutant


def main() -> None:
    """Answer until there is nothing more to read."""
    for name in HEAVY:
        importlib.import_module(name)
    ours = [name for name in sys.modules if name.partition(".")[0] == "partita"]
    assert not ours, ours
    for line in sys.stdin:
        asked = json.loads(line)
        code = _waited(_forked(asked["words"], asked["log"]), asked["patience"])
        print(json.dumps({"code": code}), flush=True)


def _forked(words: list[str], log: str) -> int:
    """The number of a new process that runs pytest."""
    child = os.fork()
    if child:
        return child
    code = 99
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        _redirect(log)
        import pytest

        code = int(pytest.main(words))
        sys.stdout.flush()
    finally:
        os._exit(code)


def _redirect(log: str) -> None:
    """Nothing to read, and everything that is written into a file."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number, place in ((0, os.open(os.devnull, os.O_RDONLY)), (1, file), (2, file)):
        os.dup2(place, number)


def _waited(child: int, patience: float) -> int | None:
    """How a process ends; None if it does not. What it has started ends with it."""
    end = time.monotonic() + patience
    try:
        while time.monotonic() < end:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)


if __name__ == "__main__":
    main()
