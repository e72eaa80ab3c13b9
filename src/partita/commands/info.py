"""`partita info`: recipe, provenance and metrics of a run, checkpoint or model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from partita.commands.parsing import MODEL, add_options, make_parser, parse
from partita.commands.terminal import Terminal, print_json
from partita.config.migration import saved_recipe
from partita.config.recipe import flatten
from partita.files import format
from partita.models import checkpoints
from partita.models.find import read_found


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of `partita info`."""

    model: str
    json: bool = False
    """Print JSON, for machines."""


def options(words: Sequence[str]) -> Options:
    """Parse the command line."""
    parser = make_parser(
        "info",
        "Check a model's files and print its full recipe, provenance, metrics and checksums.\n"
        "It also reads tokenizers of `partita vq` and classifiers of `partita eval`.",
        [
            "partita info runs/notes-mdlm",
            "partita info runs/notes-mdlm --json",
            "partita info default",
        ],
    )
    add_options(parser, Options, model=MODEL)
    return parse(parser, words, Options)


def run(words: Sequence[str]) -> None:
    """Parse the command line and run the verb."""
    show_info(options(words))


def show_info(chosen: Options) -> None:
    """Check the files and print what they contain."""
    facts = gather(chosen.model)
    if chosen.json:
        print_json(facts)
        return
    print_facts(Terminal(), facts)


def gather(model: str) -> dict[str, Any]:
    """Everything that the files contain, after checking them."""
    listed = [path.name for path in checkpoints.listed(Path(model))]
    return read_found(_facts, model) | {"checkpoints": listed}


def _facts(folder: Path) -> dict[str, Any]:
    kind = format.kind_of(folder)
    needed = format.REQUIRED if kind == format.KIND else (format.CONFIG, format.WEIGHTS)
    checksums = format.verify(folder, kind, needed)
    place = folder / format.CONFIG
    content = format.read_json(place)
    recipe = saved_recipe({"recipe": {}} | content, place) if kind == format.KIND else content
    shapes = format.shapes(folder / format.WEIGHTS)
    state = format.read_json(folder / format.STATE) if format.STATE in checksums else {}
    return {
        "folder": str(folder),
        "kind": kind,
        "parameters": sum(shapes.values()),
        "recipe": recipe,
        "provenance": content.get("provenance", {}),
        "state": state,
        "checksums": checksums,
    }


def print_facts(console: Terminal, facts: dict[str, Any]) -> None:
    """Print the facts as text, a line for every key."""
    console.print(
        f"{facts['folder']}: {facts['kind']}, {facts['parameters']:,} parameters", soft_wrap=True
    )
    if facts["checkpoints"]:
        console.print(f"checkpoints: {', '.join(facts['checkpoints'])}", soft_wrap=True)
    for section in ("recipe", "provenance", "state", "checksums"):
        table = Table(title=section, title_justify="left", show_header=False, box=None)
        for key, value in flatten(facts[section]).items():
            table.add_row(key, str(value))
        console.print(table)
