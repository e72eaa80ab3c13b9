"""The library's own commands, as programs call them."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NAMED = ("file", "model", "other", "train", "tokenizer")  # what may be the name of a file


def partita(*words: str | Path, seconds: float | None = None) -> None:
    """A command of the library, in a process of its own: it leaves nothing in memory.

    After so many seconds it is asked to stop, and keeps what it has.
    """
    with subprocess.Popen([sys.executable, "-m", "partita", *map(str, words)]) as process:
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait()
            raise SystemExit("Stopped; the same command goes on from there.") from None
        finally:
            process.terminate()  # where somebody stops this program
    if code:
        raise SystemExit(code)


def asked(*words: str | Path) -> dict[str, Any]:
    """What a command that measures something says, without the folders of somebody's machine."""
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "said.json"
        partita(*words, "--out", out)
        said = without_places(json.loads(out.read_text()))
    assert isinstance(said, dict)
    return said


def printed(*words: str | Path) -> dict[str, Any]:
    """What a command that writes no figures to a file prints of them."""
    command = [sys.executable, "-m", "partita", *map(str, words), "--json"]
    said = without_places(
        json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    )
    assert isinstance(said, dict)
    return said


def keep(found: dict[str, Any], path: Path) -> None:
    """Figures as a file, and a line about it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(f"Written: {path}", flush=True)


def split_flags(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """A program's own words, and those after `--`, which are flags for `partita train`."""
    cut = words.index("--") if "--" in words else len(words)
    return [*words[:cut]], [*words[cut + 1 :]]


def without_places(said: object) -> object:
    """Files and models by their names alone."""
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
