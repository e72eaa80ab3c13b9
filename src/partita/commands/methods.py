"""`partita methods`: list methods, samplers and networks, and which fit together."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from docstring_parser import parse_from_object
from rich.table import Table

from partita.commands.parsing import reader
from partita.commands.terminal import Terminal, print_json
from partita.config.method import own_options, parameters_of
from partita.methods import METHODS
from partita.modalities.base import heading
from partita.networks.kind_options import KindOptions
from partita.networks.kinds import NETWORKS
from partita.optim.optimizers import OPTIMIZERS
from partita.processes.corruption import CORRUPTIONS
from partita.registry import FROM_ELSEWHERE, Option, Registry, options_of
from partita.samplers import SAMPLERS
from partita.samplers.front import fitting_samplers
from partita.schedules import SCHEDULES

# The facts of a method, in the order in which they are printed.
ROWS = ("paper", "equation", "loss", "samplers", "data", "file")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of `partita methods`."""

    name: str | None = None
    json: bool = False
    """Print JSON, for machines."""


options = reader(
    "methods",
    "List every method with its paper, the equation of its loss, the samplers and networks\n"
    "that fit it and its options; then samplers, networks, schedules, corruptions and\n"
    "optimizers, a line for each.",
    ["partita methods", "partita methods d3pm", "partita methods --json"],
    Options,
    name="?show only this method",
)


def run(words: Sequence[str]) -> None:
    """Print every registry, or the facts of one method."""
    chosen = options(words)
    name = chosen.name
    lists = gather() if name is None else {"methods": {name: facts_of(name)}}
    if chosen.json:
        print_json(lists)
        return
    console = Terminal()
    for method, facts in lists.pop("methods").items():
        console.print(described(method, facts))
    for title, entries in lists.items():
        table = Table(title=title, title_justify="left", show_header=False, box=None)
        for entry, line in entries.items():
            table.add_row(heading(entry), str(line))
        console.print(table)


def gather() -> dict[str, dict[str, Any]]:
    """All registries: every name with its description."""

    def line(entry: Any) -> str:  # noqa: ANN401 - of several registries
        return _line(entry, options_of(entry, FROM_ELSEWHERE))

    registries: dict[str, tuple[Registry[Any], Callable[[Any], str]]] = {
        "samplers": (
            SAMPLERS,
            lambda found: _line(found.run, options_of(found.run, keywords=True)),
        ),
        "networks": (NETWORKS, lambda found: _line(found.network, options_of(found.options))),
        "schedules": (SCHEDULES, line),
        "corruptions": (CORRUPTIONS, line),
        "optimizers": (OPTIMIZERS, _line),
    }
    lists = {
        title: {name: described(registry[name]) for name in registry}
        for title, (registry, described) in registries.items()
    }
    return {"methods": {name: facts_of(name) for name in METHODS}, **lists}


def facts_of(name: str) -> dict[str, Any]:
    """The facts of a method that help to choose it."""
    method = METHODS[name]
    about = method.about  # a user's own method may have no description
    return {
        "summary": _line(method),
        **(asdict(about) if about else {}),
        "choices": dict(about.choices) if about else _undescribed(name),
        "samplers": fitting_samplers(method.family),
        "networks": {kind: _choices(kind) for kind in NETWORKS.that_read(method.reads)},
        "file": _file(method),
    }


def _undescribed(name: str) -> dict[str, str]:
    """The choices of a method without a description: its parameters and their defaults."""
    own = own_options(name)
    known = parameters_of(name)
    return {
        f"options.{key}" if key in own else key: f"{option.default}"
        for key, option in known.items()
    }


def _choices(kind: str) -> dict[str, str]:
    """The options of a kind of network in `network.options`, each described."""
    options = NETWORKS[kind].options
    owners = [each for each in reversed(options.__mro__) if issubclass(each, KindOptions)]
    said = {
        parameter.arg_name: " ".join((parameter.description or "").split())
        for owner in owners
        for parameter in parse_from_object(owner).params
    }
    return {
        name: said.get(name) or f"{option.default}" for name, option in options_of(options).items()
    }


def _file(method: type) -> str:
    """The file of a method's source: inside the package or elsewhere."""
    path = Path(inspect.getfile(method)).absolute()
    for root in (Path(__file__).parents[2], Path.cwd()):
        if path.is_relative_to(root):
            return str(path.relative_to(root))
    return str(path)


def described(name: str, facts: dict[str, Any]) -> Table:
    """A method's facts as a table; its options under their recipe keys."""
    table = Table(title=f"{name}: {facts['summary']}", title_justify="left", box=None)
    table.show_header = False
    for row in ROWS:
        value = facts.get(row)
        if value:
            table.add_row(f"  {row}", ", ".join(value) if isinstance(value, list) else value)
    for key, text in facts["choices"].items():
        table.add_row(f"  method.{key}", text)
    kinds = facts["networks"]
    table.add_row("  network.kind", ", ".join(kinds))
    for key, text in {key: text for kind in kinds.values() for key, text in kind.items()}.items():
        having = [name for name, kind in kinds.items() if key in kind]
        of = f"of {' and '.join(having)}: " if having != [*kinds] else ""
        table.add_row(f"  network.options.{key}", of + text)
    return table


def _line(entry: object, options: Mapping[str, Option] | None = None) -> str:
    """The first sentence of an entry's docstring, and its options."""
    takes = f" Takes {', '.join(options)}." if options else ""
    return (inspect.getdoc(entry) or "").split("\n")[0] + takes
