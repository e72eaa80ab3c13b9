"""What a verb takes: a parser that knows its keys, their types and their flags."""

from __future__ import annotations

import dataclasses
from argparse import RawDescriptionHelpFormatter
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_origin, get_type_hints

from jsonargparse import ArgumentParser, DefaultHelpFormatter, set_parsing_settings

set_parsing_settings(docstring_parse_attribute_docstrings=True)


class _Formatter(RawDescriptionHelpFormatter, DefaultHelpFormatter):
    """Examples keep their lines."""


@dataclass(frozen=True)
class Place:
    """Something that is told by its place among the words."""

    name: str
    nargs: str | None = None
    """None for one word, "?" for one that may be left out, "*" for any number."""


class Parser(ArgumentParser):
    """jsonargparse's parser, which keeps what is declared, so that errors can say what there is."""

    def __init__(self, *, recipe: bool = False, **named: Any) -> None:
        self.kinds: dict[str, Any] = {}
        """The type of every key, sections and their keys with a dot between."""
        self.sections: dict[str, None] = {}
        """Keys that hold others."""
        self.aliases: dict[str, str] = {}
        """Flags with another name than their key, and the key."""
        self.places: list[Place] = []
        self.needed: list[str] = []
        """Keys whose flags must be given."""
        self.recipe = recipe
        super().__init__(formatter_class=_Formatter, exit_on_error=False, **named)
        if recipe:
            said = "a recipe as YAML; flags after it override it"
            self.add_argument("--config", action="config", help=said)

    def add(self, name: str, *, type: type, **about: Any) -> None:
        """A place, or a flag beside those of the sections; `about` as in argparse."""
        if name.startswith("--"):
            key = about.get("dest", name.removeprefix("--"))
            given = about.get("required") or "default" in about
            self.kinds[key] = type if given else type | None
            if name != f"--{key}":
                self.aliases[name] = key
            if about.get("required"):
                self.needed.append(key)
        else:
            self.places.append(Place(name, about.get("nargs")))
        self.add_argument(name, type=type, **about)

    def add_class_arguments(
        self, options: type, nested_key: str | None = None, as_group: bool = True, **named: Any
    ) -> None:
        """The fields of a dataclass as flags, below a section if it has a name."""
        self._declare(options, f"{nested_key}." if nested_key else "", named.get("skip") or ())
        if nested_key:
            self.sections[nested_key] = None
        super().add_class_arguments(options, nested_key, as_group, **named)

    def _declare(self, options: type, prefix: str, skip: Container[str]) -> None:
        kinds = get_type_hints(options)
        for field in dataclasses.fields(options):
            key, kind = f"{prefix}{field.name}", kinds[field.name]
            if field.name in skip:
                continue
            if dataclasses.is_dataclass(kind):
                self.sections[key] = None
                self._declare(kind, f"{key}.", ())  # type: ignore[arg-type]
                continue
            self.kinds[key] = kind
            given = (field.default, field.default_factory)
            if given == (dataclasses.MISSING, dataclasses.MISSING):
                self.needed.append(key)

    @property
    def flags(self) -> list[str]:
        """Every flag."""
        more = ["--help", "-h"] + (["--config", "--print_config"] if self.recipe else [])
        taken = {*self.aliases.values()}
        return [*more, *self.aliases, *(f"--{key}" for key in self.kinds if key not in taken)]

    @property
    def switches(self) -> set[str]:
        """Flags that are true or false: alone they are true."""
        return {f"--{key}" for key, kind in self.kinds.items() if kind is bool}

    def key_of(self, flag: str) -> str | None:
        """The key that a flag gives a value; of `--method.options.steps`, what it is inside of."""
        key = self.aliases.get(flag, flag.removeprefix("--"))
        if key in self.kinds or key in self.sections:
            return key
        above = (name for name in self.kinds if key.startswith(f"{name}."))
        return next((name for name in above if holds_keys(self.kinds[name])), None)

    def written(self, key: str) -> str:
        """How somebody writes a key: as a flag, or, in recipes and for places, as it is."""
        flag = key in self.kinds or key in self.sections
        return f"--{key}" if flag and "." not in key else key


def holds_keys(kind: Any) -> bool:  # noqa: ANN401 - any type
    """Whether values of a type are dictionaries."""
    return get_origin(kind) is dict


def leaves(content: Mapping[Any, Any], above: str = "") -> Iterator[tuple[str, object]]:
    """All keys of a file that hold no others, each with its sections and on one line: a message
    has no tab or end of line inside a key."""
    for key, held in content.items():
        name = above + " ".join(str(key).split())
        if isinstance(held, Mapping) and held:
            yield from leaves(held, f"{name}.")
        else:
            yield name, held
