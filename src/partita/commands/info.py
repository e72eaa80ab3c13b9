"""`partita info`: recipe, provenance and metrics of a run, checkpoint or model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from partita.commands.parsing import MODEL, reader
from partita.commands.terminal import Terminal, print_json
from partita.config.method import parameters_of
from partita.config.migration import saved_recipe
from partita.config.recipe import flatten
from partita.files import format
from partita.methods import METHODS
from partita.models import checkpoints
from partita.models.find import read_found
from partita.samplers.front import fitting_samplers


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of `partita info`."""

    model: str
    json: bool = False
    """Print JSON, for machines."""


options = reader(
    "info",
    "Check a model's files and print its full recipe, provenance, metrics and checksums.\n"
    "It also reads tokenizers of `partita vq` and classifiers of `partita eval`.",
    [
        "partita info runs/notes-mdlm",
        "partita info runs/notes-mdlm --json",
        "partita info default",
    ],
    Options,
    model=MODEL,
)


def run(words: Sequence[str]) -> None:
    """Check the files and print what they contain."""
    chosen = options(words)
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
    console.say(f"{facts['folder']}: {facts['kind']}, {facts['parameters']:,} parameters")
    if facts["checkpoints"]:
        console.say(f"checkpoints: {', '.join(facts['checkpoints'])}")
    for section in ("recipe", "provenance", "state", "checksums"):
        table = Table(title=section, title_justify="left", show_header=False, box=None)
        usual = _defaults_of_the_method(facts[section]) if section == "recipe" else {}
        for key, value in flatten(facts[section]).items():
            table.add_row(key, usual.get(key, "not set") if value is None else str(value))
        console.print(table)


def _defaults_of_the_method(recipe: dict[str, Any]) -> dict[str, str]:
    """What holds where a recipe leaves a choice to its method."""
    name = recipe.get("method", {}).get("name")
    if name not in METHODS:  # it may be a user's, whose file is not loaded
        return {}
    sampler = fitting_samplers(METHODS[name].family)[0]
    own = f"the default of {name}"
    return {f"method.{key}": own for key in parameters_of(name)} | {
        "sampling.sampler": f"{sampler}, {own}"
    }
