"""The checkpoints of a run folder: all, the latest, the best.

Each is a folder RUN/checkpoints/step-00001000 in the format of `format.py`.
"""

from __future__ import annotations

import math
import os
import re
from contextlib import suppress
from pathlib import Path

from partita.errors import InputError
from partita.files.format import MANIFEST, STATE, read_json, verify_file
from partita.files.reading import reading

FOLDER = "checkpoints"
_MOST_BITS = 1e6  # per token; JSON has larger numbers than a float can be
_NAME = re.compile(r"step-([0-9]+)")
_ROUND = re.compile(r"round-[0-9]+")


def folder_of(run: Path, step: int) -> Path:
    """The folder of a step's checkpoint."""
    return run / FOLDER / f"step-{step:08}"


def listed(run: Path) -> list[Path]:
    """All complete checkpoints, oldest first."""
    found = [(int(match[1]), name) for name in _folders(run) if (match := _NAME.fullmatch(name))]
    return [run / FOLDER / name for _, name in sorted(found)]


def _folders(run: Path) -> list[str]:
    """The names of the folders beside which checkpoints are written, all read at one moment.

    To check listed names one by one would be too late: training may have made a new checkpoint and
    removed the listed ones by then, and there would seem to be none.
    """
    names, gone = list[str](), True
    while gone and not names:
        gone = False
        with (
            reading(run, "model"),
            suppress(FileNotFoundError, NotADirectoryError),
            os.scandir(run / FOLDER) as entries,
        ):
            for entry in entries:
                if entry.is_dir():
                    names.append(entry.name)
                else:  # some file systems check the kind only now
                    gone = gone or not os.path.lexists(entry.path)
    return names


def latest(run: Path) -> Path | None:
    """The newest checkpoint: where a resumed run goes on."""
    return next(reversed(listed(run)), None)


def best(run: Path, *, pass_over_damage: bool = False) -> Path | None:
    """The checkpoint with the lowest validation loss; the newest if none was validated.

    A checkpoint with damaged metrics could be the best: it is refused, or skipped with
    `pass_over_damage`, as a run does that resumes.
    """
    every = listed(run)
    bits_of = validation_bits if pass_over_damage else _checked_bits
    known = [(bits, path) for path in every if math.isfinite(bits := bits_of(path))]
    return min(known)[1] if known else next(reversed(every), None)


def round_folder(folder: Path, number: int) -> Path:
    """The run folder of a round of distillation."""
    return folder / f"round-{number}"


def last_round(folder: Path) -> Path:
    """The run folder of the last round with a checkpoint; a folder that is a run itself."""
    if listed(folder):
        return folder
    with reading(folder, "model"):
        found = [path for path in folder.glob("round-*") if _ROUND.fullmatch(path.name)]
    found.sort(key=lambda path: int(path.name.removeprefix("round-")), reverse=True)
    return next(filter(listed, found), folder)


def validation_bits(checkpoint: Path) -> float:
    """Bits per token of the validation text at a checkpoint; infinite if it was not measured."""
    if not (checkpoint / STATE).is_file():
        return math.inf
    try:
        metrics = read_json(checkpoint / STATE).get("metrics")
    except InputError:  # a damaged checkpoint is never the best, and no reason to stop
        return math.inf
    bits = metrics.get("valid_bits") if isinstance(metrics, dict) else None
    known = isinstance(bits, int | float) and abs(bits) < _MOST_BITS
    return float(bits) if known else math.inf  # type: ignore[arg-type]


def _checked_bits(checkpoint: Path) -> float:
    """The same, after a check of the metrics' checksum; damaged ones are refused."""
    try:
        verify_file(checkpoint, STATE)
        return validation_bits(checkpoint)
    except InputError:
        if checkpoint.is_dir():
            raise
        return math.inf  # training has removed it meanwhile


def is_model(folder: Path) -> bool:
    """Whether a folder is itself a model or checkpoint."""
    return (folder / MANIFEST).is_file()
