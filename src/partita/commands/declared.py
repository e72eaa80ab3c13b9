"""The parser of a verb's options, which knows their keys, types and flags."""

from __future__ import annotations

import dataclasses
from argparse import Action, RawDescriptionHelpFormatter
from collections.abc import Container, Iterator, Mapping
from typing import Any, get_origin, get_type_hints

from jsonargparse import ArgumentParser, DefaultHelpFormatter, set_parsing_settings

set_parsing_settings(docstring_parse_attribute_docstrings=True)


class _Formatter(RawDescriptionHelpFormatter, DefaultHelpFormatter):
    """Help with defaults, in which examples keep their line breaks."""

    def _expand_help(self, action: Action) -> str:
        """The help of a flag; one without a default says in words what holds if it is left out."""
        return super()._expand_help(action).replace(" | null", "").replace(", default: null", "")


class Parser(ArgumentParser):
    """jsonargparse's parser, which records its options, so that error messages can name them."""

    def __init__(self, *, recipe: bool = False, **named: Any) -> None:
        self.kinds: dict[str, Any] = {}
        """The type of every key; keys inside a section are dotted names."""
        self.sections: dict[str, None] = {}
        """Keys that contain other keys."""
        self.aliases: dict[str, str] = {}
        """Flags that are named otherwise than their key, with that key."""
        self.places: dict[str, str | None] = {}
        """Positional arguments: None for one required word, "?" for an optional one, "*" for any
        number."""
        self.needed: list[str] = []
        """Keys whose flags must be given."""
        self.recipe = recipe
        super().__init__(formatter_class=_Formatter, exit_on_error=False, **named)
        if recipe:
            said = "a recipe as YAML; flags after it override it"
            self.add_argument("--config", action="config", help=said)

    def add(self, name: str, *, type: type, **about: Any) -> None:
        """Add a positional argument, or a flag outside all sections; `about` as in argparse."""
        if name.startswith("--"):
            key = about.get("dest", name.removeprefix("--"))
            given = about.get("required") or "default" in about
            self.kinds[key] = type if given else type | None
            if name != f"--{key}":
                self.aliases[name] = key
            if about.get("required"):
                self.needed.append(key)
        else:
            self.places[name] = about.get("nargs")
        self.add_argument(name, type=type, **about)

    def add_class_arguments(
        self, options: type, nested_key: str | None = None, as_group: bool = True, **named: Any
    ) -> None:
        """Add the fields of a dataclass as flags, inside section `nested_key` if it is given."""
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
        """All flags."""
        more = ["--help", "-h"] + (["--config", "--print_config"] if self.recipe else [])
        taken = {*self.aliases.values()}
        return [*more, *self.aliases, *(f"--{key}" for key in self.kinds if key not in taken)]

    @property
    def switches(self) -> set[str]:
        """Boolean flags; without a value they mean true."""
        return {f"--{key}" for key, kind in self.kinds.items() if kind is bool}

    def key_of(self, flag: str) -> str | None:
        """The key that a flag sets; for `--method.options.steps`, the dictionary containing it."""
        key = self.aliases.get(flag, flag.removeprefix("--"))
        if key in self.kinds or key in self.sections:
            return key
        above = (name for name in self.kinds if key.startswith(f"{name}."))
        return next((name for name in above if get_origin(self.kinds[name]) is dict), None)

    def written(self, key: str) -> str:
        """A key as users write it: as a flag, or for recipes and positional arguments as it is."""
        flag = key in self.kinds or key in self.sections
        return f"--{key}" if flag and "." not in key else key


def leaves(content: Mapping[Any, Any], above: str = "") -> Iterator[tuple[str, object]]:
    """The leaf keys of a file as dotted names, with their values; white space in a key becomes
    one space, since messages are single lines."""
    for key, held in content.items():
        name = above + " ".join(str(key).split())
        if isinstance(held, Mapping) and held:
            yield from leaves(held, f"{name}.")
        else:
            yield name, held
