"""Recipes that are given as YAML: read, migrated to today's keys, checked."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from jsonargparse import get_loader

from partita.commands.declared import Parser, leaves
from partita.config.migration import written_recipe
from partita.errors import InputError, naming, require
from partita.files.reading import reading

Configs = dict[str, Mapping[str, Any]]


def with_recipes(parser: Parser, words: list[str]) -> tuple[list[str], Configs]:
    """The words with inline recipes in place of files of an earlier version, and the content of
    all files in today's keys."""
    names = [name for name in _given(words) if not name.startswith("{")] if parser.recipe else []
    read = {name: _read_config(parser, Path(name)) for name in names}
    with naming({"model": "--config"}):
        configs = {name: written_recipe(content, Path(name)) for name, content in read.items()}
    changed = {name: new for name, new in configs.items() if new != read[name]}
    return _replaced(words, changed), configs


def inline_recipes(words: list[str]) -> Configs:
    """Recipes that are written on the command line itself, as `--config {...}`."""
    found: Configs = {}
    for text in _given(words):
        if text.startswith("{"):
            try:
                content = get_loader("yaml")(text)
            except Exception:
                continue
            found |= {text: content} if isinstance(content, Mapping) else {}
    return found


def _given(words: list[str]) -> list[str]:
    joined = [word.partition("=")[2] for word in words if word.startswith("--config=")]
    return joined + [word for flag, word in pairwise(words) if flag == "--config"]


def _read_config(parser: Parser, path: Path) -> Mapping[str, Any]:
    with reading(path, "--config"):
        require(path.exists(), "--config", f"{path} does not exist", "name a YAML file")
        data = path.read_bytes()
    hint = f"{parser.prog} --print_config shows a recipe"
    try:
        content = get_loader("yaml")(data.decode())
        json.dumps(content, default=str)  # fails if an anchor contains itself
    except Exception as error:  # of many kinds: the file may hold anything
        raise InputError("--config", f"{path} is no YAML: {one_line(error)}", hint) from error
    require(isinstance(content, Mapping), "--config", f"{path} holds no recipe", hint)
    for section in parser.sections:
        inside = _inside(content, section)
        problem = f"{path}: {section} must hold keys, got {reprlib.repr(inside)}"
        require(isinstance(inside, Mapping | str), "--config", problem, hint)
    return content  # type: ignore[no-any-return]


def _replaced(words: list[str], configs: Configs) -> list[str]:
    """The words, with some file names replaced by inline recipes."""
    inline = {name: _one_document(content) for name, content in configs.items()}
    joined = {f"--config={name}": f"--config={text}" for name, text in inline.items()}
    return [
        inline.get(word, word) if flag == "--config" else joined.get(word, word)
        for flag, word in zip(["", *words], words, strict=False)
    ]


class _Quoting(yaml.SafeDumper):  # type: ignore[misc]
    """Texts in quotes: without them `1e-3` is read as a number."""


_Quoting.add_representer(
    str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')
)


def _one_document(content: Mapping[str, Any]) -> str:
    """A recipe as YAML in braces, which `--config` takes in place of a file."""
    text: str = yaml.dump(dict(content), Dumper=_Quoting, default_flow_style=True, sort_keys=False)
    return text


def _inside(content: Any, section: str) -> object:  # noqa: ANN401 - whatever a file holds
    """The value under a dotted name; None if there is none."""
    for key in section.split("."):
        if not isinstance(content, Mapping):
            return {}
        content = content.get(key, {})
    return content


def placed(error: InputError, configs: Configs, words: list[str]) -> InputError:
    """An error that also names the file from which the wrong key comes, if any."""
    name = error.argument.removeprefix("--")
    if any(word.split("=")[0] == f"--{name}" for word in words):
        return error
    for file, content in reversed(configs.items()):
        keys = [key for key, _ in leaves(content)]
        if name == "options" or any(key == name or key.startswith(f"{name}.") for key in keys):
            return InputError(error.argument, f"{error.problem} (in {file})", error.remedy)
    return error


def one_line(error: Exception) -> str:
    """The text of an error, on one line; YAML has no name for what it reads."""
    return " ".join(str(error).replace('in "<unicode string>", ', "at ").split())
