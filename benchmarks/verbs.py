"""Run the library's commands from a program, and read their results."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NAMED = ("file", "model", "other", "train", "tokenizer")  # keys whose values may be file names


def partita(*words: str | Path, seconds: float | None = None) -> None:
    """Run a command of the library in its own process, so that nothing stays in memory.

    After `seconds` it gets a signal to stop, and saves what it has.
    """
    with subprocess.Popen([sys.executable, "-m", "partita", *map(str, words)]) as process:
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait()
            raise SystemExit("Stopped; the same command goes on from there.") from None
        finally:
            process.terminate()  # if this program is interrupted
    if code:
        raise SystemExit(code)


def asked(*words: str | Path) -> dict[str, Any]:
    """The results that a command writes to --out, without folders of this machine."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "said.json"
        partita(*words, "--out", out)
        said = without_places(json.loads(out.read_text()))
    assert isinstance(said, dict)
    return said


def printed(*words: str | Path) -> dict[str, Any]:
    """The results of a command that only prints them, without folders of this machine."""
    command = [sys.executable, "-m", "partita", *map(str, words), "--json"]
    said = without_places(
        json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    )
    assert isinstance(said, dict)
    return said


def keep(found: dict[str, Any], path: Path) -> None:
    """Save results as a file, and print its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(f"Written: {path}", flush=True)


def split_flags(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split a program's own arguments from those after `--`, the flags for `partita train`."""
    cut = words.index("--") if "--" in words else len(words)
    return [*words[:cut]], [*words[cut + 1 :]]


def without_places(said: object) -> object:
    """The same results, with files and models by their names only."""
    if isinstance(said, list):
        return [without_places(part) for part in said]
    if not isinstance(said, dict):
        return said
    return {
        Path(key).name: Path(value).name
        if key in NAMED and isinstance(value, str)
        else without_places(value)
        for key, value in said.items()
        if key != "path"
    }
