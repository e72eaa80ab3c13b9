"""`partita methods`: what there is to choose from."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from partita.commands.parsing import add_options, make_parser, parse
from partita.methods import METHODS
from partita.methods.corruption import LAWS
from partita.samplers import SAMPLERS
from partita.schedules import SCHEDULES
from partita.training.optimisers import OPTIMISERS


@dataclass(frozen=True, kw_only=True)
class Options:
    """Lists."""

    json: bool = False
    """Print JSON, for machines."""


def options(words: Sequence[str]) -> Options:
    """What the words ask for."""
    parser = make_parser(
        "methods",
        "List methods, samplers, schedules, laws and optimisers, each with a line of explanation.",
        ["partita methods", "partita methods --json"],
    )
    add_options(parser, Options)
    return parse(parser, words, Options)


def run(words: Sequence[str]) -> None:
    """Print every registry."""
    chosen = options(words)
    lists = gather()
    if chosen.json:
        print(json.dumps(lists))
        return
    console = Console(highlight=False)
    for title, entries in lists.items():
        table = Table(title=title, title_justify="left", show_header=False, box=None)
        for name, line in entries.items():
            table.add_row(f"[bold]{name}[/]", line)
        console.print(table)


def gather() -> dict[str, dict[str, str]]:
    """Every name with the first line of what it says of itself."""
    return {
        "methods": _lines((name, METHODS[name]) for name in METHODS),
        "samplers": _lines((name, SAMPLERS[name].run) for name in SAMPLERS),
        "schedules": _lines((name, SCHEDULES[name]) for name in SCHEDULES),
        "laws": _lines((name, LAWS[name]) for name in LAWS),
        "optimisers": _lines((name, OPTIMISERS[name]) for name in OPTIMISERS),
    }


def _lines(entries: Iterable[tuple[str, object]]) -> dict[str, str]:
    return {name: (inspect.getdoc(entry) or "").split("\n")[0] for name, entry in entries}
