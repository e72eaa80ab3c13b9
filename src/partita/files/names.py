"""Decide whether the name of a model, tokenizer or data set is a local path or on the hub.

    hf:OWNER/NAME[@REVISION]    a repository of the Hugging Face hub, always
    OWNER/NAME                  the same, unless it looks like a local path
    anything else               a file or folder here

A name that looks like a local path is never sent anywhere, so that typing errors stay private.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from partita.errors import InputError
from partita.files.atomic import PARTIAL

PREFIX = "hf:"
RUNS = Path("runs")  # where runs are made by default
ASK_THE_HUB = f"{PREFIX}OWNER/NAME"
_HOSTED = re.compile(r"([\w.-]+(?:/[\w.-]+)?)(?:@([\w./-]+))?")
_BARE = re.compile(r"[\w.-]+/[\w.-]+")
_BEGINNINGS = ("/", "./", "../", "~")
_ENDINGS = re.compile(
    r"\.(safetensors|ckpt|pth?|bin|pkl|pickle|json|jsonl|ya?ml|txt|csv|parquet|npz?|tar|zip|gz)"
)
_SHOWN = 3


@dataclass(frozen=True)
class Hosted:
    """A repository of the hub."""

    repository: str
    revision: str | None = None

    @property
    def folder(self) -> str:
        """The name for a local copy."""
        return self.repository.rpartition("/")[2]


def hosted(name: str, argument: str, flag: str = "") -> Hosted | None:
    """The repository of the hub that a name means; None for a local path.

    `argument` is what an error names, and `flag` what it says to write the name after.
    """
    if name.startswith(PREFIX):
        rest = name.removeprefix(PREFIX)
        found = None if rest.startswith(_BEGINNINGS) else _HOSTED.fullmatch(rest)
        if found is None:
            problem = f"cannot read {name!r} as a name on the hub"
            remedy = f"write {flag} {ASK_THE_HUB}, or a path without {PREFIX}"
            raise InputError(argument, problem, " ".join(remedy.split()))
        return Hosted(found[1], found[2])
    return Hosted(name) if _BARE.fullmatch(name) and not is_local(name) else None


def looks_local(name: str) -> bool:
    """Whether a name is written like a path, as names on the hub are not."""
    written = name.startswith(_BEGINNINGS) or "\\" in name or name in (".", "..")
    return written or _ENDINGS.fullmatch(Path(name).suffix.lower()) is not None


def is_local(name: str) -> bool:
    """Whether a name without a prefix is a local path: it looks like one, exists, or begins with
    an existing folder or the one where runs are made."""
    first = Path(name).parts[:1]
    inside = len(Path(name).parts) > 1 and (first == RUNS.parts or Path(*first).is_dir())
    return looks_local(name) or inside or Path(name).exists()


def missing(
    name: str, argument: str, remedy: str, fits: Callable[[Path], bool] = Path.exists
) -> InputError:
    """The error for a local path that does not exist, with paths of similar names."""
    return InputError(argument, f"{name} does not exist{near(name, fits)}", remedy)


def near(name: str, fits: Callable[[Path], bool] = Path.exists) -> str:
    """A text that lists paths with similar names, or else the first few in the same folder."""
    place = Path(name.replace("\\", "/"))
    own = _inside(place.parent, fits) if place.parent != Path() else []
    around = own or [path for folder in (Path(), RUNS) for path in _inside(folder, fits)]
    found = [path for path in around if path != place]  # which may be there, and be unfit
    # Without endings, which make every two files alike.
    alike = difflib.get_close_matches(place.stem, {path.stem: None for path in found}, n=_SHOWN)
    shown = [path for stem in alike for path in found if path.stem == stem] or own
    return f" (here is {', '.join(map(str, shown[:_SHOWN]))})" if shown else ""


def _inside(folder: Path, fits: Callable[[Path], bool]) -> list[Path]:
    """What fits in a folder, by name; hidden and unfinished things do not."""
    with suppress(OSError):
        names = sorted(folder.iterdir())
        shown = (path for path in names if path.name[0] != "." and PARTIAL not in path.name)
        return [path for path in shown if fits(path)]
    return []
