"""Options of verbs: typed dataclasses, which jsonargparse turns into flags and YAML."""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import reprlib
from argparse import ArgumentError, RawDescriptionHelpFormatter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import yaml  # type: ignore[import-untyped]
from jsonargparse import ArgumentParser, DefaultHelpFormatter, get_loader, set_parsing_settings

from partita.commands import program
from partita.config.migration import written_recipe
from partita.config.renames import name_of_today
from partita.errors import InputError, described, naming, require
from partita.files.reading import reading

T = TypeVar("T")
Configs = dict[str, Mapping[str, Any]]

_HUGE = re.compile(r"[-+]?[0-9]{309,}")  # digits of what no fraction of the machine's holds

set_parsing_settings(docstring_parse_attribute_docstrings=True)


class _Formatter(RawDescriptionHelpFormatter, DefaultHelpFormatter):
    """Examples keep their lines."""


def make_parser(
    verb: str, description: str, examples: Sequence[str], *, recipe: bool = False
) -> ArgumentParser:
    """A parser that teaches: what the verb does, and lines to try."""
    lines = "\n".join(f"  {example}" for example in examples)
    parser = ArgumentParser(
        prog=f"{program()} {verb}",
        description=description,
        epilog=f"examples:\n{lines}",
        formatter_class=_Formatter,
        exit_on_error=False,
        allow_abbrev=False,
    )
    if recipe:
        parser.add_argument(
            "--config", action="config", help="a recipe as YAML; flags after it override it"
        )
    return parser


MODEL = (
    "a run folder (its best checkpoint is used), a checkpoint, an exported model, hf:OWNER/NAME "
    "on the hub, or default (the model that this installation comes with, if it does)"
)
OPTIONAL_MODEL = f"?{MODEL}, which is also taken if none is named"


def add_options(parser: ArgumentParser, options: type, **places: str) -> None:
    """The fields of a dataclass as flags, but for `places`: those are told by their place.

    A place is described by its help; one that begins with "?" may be left out, with "*" repeated.
    """
    for name, text in places.items():
        nargs = text[0] if text[0] in "?*" else None
        parser.add_argument(name, type=str, nargs=nargs, help=text.lstrip("?*"))
    parser.add_class_arguments(options, as_group=False, skip=set(places))


def parse(parser: ArgumentParser, words: Sequence[str], options: type[T]) -> T:
    """The dataclass that some words describe. What does not fit is one clear line."""
    words = _switched(parser, _underscored(words))
    read = _read_configs(parser, words)
    configs = {name: _in_todays_keys(content, Path(name)) for name, content in read.items()}
    words = _replaced(words, {name: new for name, new in configs.items() if new != read[name]})
    try:
        found = parser.instantiate(parser.parse_args(words))
    except InputError as error:
        raise _placed(error, configs, words) from error
    except ArgumentError as error:
        raise _placed(_explained(parser, words, error), configs, words) from error
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        apart = [part for word in words for part in word.split("=", 1)]
        huge = [flag for flag, value in pairwise(apart) if _HUGE.fullmatch(value)]
        said = InputError([*huge, "options"][0], _one_line(error), _usage(parser))
        raise _placed(said, configs, words) from error
    values = {field.name: found[field.name] for field in dataclasses.fields(options)}  # type: ignore[arg-type]
    return options(**values)


def flags_of(options: type, *places: str) -> dict[str, str]:
    """How the fields of a dataclass are written as flags; `places` are told by their place."""
    names = [field.name for field in dataclasses.fields(options)]
    return {name: f"--{name}" for name in names if name not in places}


# Words -------------------------------------------------------------------------------------------


def count_places(parser: ArgumentParser, words: Sequence[str]) -> int:
    """How many words are told by their place: those that are neither flags nor values of flags."""
    words = _switched(parser, _underscored(words))
    end = words.index("--") if "--" in words else len(words)
    asking = [False] + [word.startswith("--") and "=" not in word for word in words]
    pairs = zip(asking, words[:end], strict=False)  # each word, and whether the one before takes it
    free = [word for taken, word in pairs if not taken and not word.startswith("--")]
    return len(free) + len(words[end + 1 :])


def _underscored(words: Sequence[str]) -> list[str]:
    """`--vocab-size` is `--vocab_size`: flags are the keys of the YAML, dashes are forgiven.

    What comes after `--` is no flag.
    """
    end = words.index("--") if "--" in words else len(words)
    return [_flag(word) if word.startswith("--") else word for word in words[:end]] + [*words[end:]]


def _flag(word: str) -> str:
    flag, equals, value = word[2:].partition("=")
    return f"--{flag.replace('-', '_')}{equals}{value}"


def _switched(parser: ArgumentParser, words: list[str]) -> list[str]:
    """`--json` alone is `--json=true`."""
    switches = _switches(parser)
    return [
        f"{word}=true" if word in switches and following not in ("true", "false") else word
        for word, following in zip(words, [*words[1:], ""], strict=False)
    ]


def _switches(parser: ArgumentParser) -> set[str]:
    typed = ((action, getattr(action, "_typehint", None)) for action in parser._actions)
    return {flag for action, kind in typed if kind is bool for flag in action.option_strings}


# YAML --------------------------------------------------------------------------------------------


def _read_configs(parser: ArgumentParser, words: list[str]) -> Configs:
    """The YAML files among some words, each of which must hold the sections of a recipe."""
    if not any("--config" in action.option_strings for action in parser._actions):
        return {}
    given = [word.partition("=")[2] for word in words if word.startswith("--config=")]
    given += [word for flag, word in pairwise(words) if flag == "--config"]
    return {name: _read_config(parser, Path(name)) for name in given if not name.startswith("{")}


def _read_config(parser: ArgumentParser, path: Path) -> Mapping[str, Any]:
    known = [action.dest for action in parser._actions]
    sections = [name for name in known if any(other.startswith(f"{name}.") for other in known)]
    with reading(path, "--config"):
        require(path.exists(), "--config", f"{path} does not exist", "name a YAML file")
        data = path.read_bytes()
    hint = f"{parser.prog} --print_config shows a recipe"
    try:
        content = get_loader("yaml")(data.decode())
        json.dumps(content, default=str)  # fails if an anchor holds itself
    except Exception as error:  # of many kinds: the file may hold anything
        raise InputError("--config", f"{path} is no YAML: {_one_line(error)}", hint) from error
    require(isinstance(content, Mapping), "--config", f"{path} holds no recipe", hint)
    for section in sections:
        inside = _inside(content, section)
        problem = f"{path}: {section} must hold keys, got {reprlib.repr(inside)}"
        require(isinstance(inside, Mapping | str), "--config", problem, hint)
    return content  # type: ignore[no-any-return]


def _in_todays_keys(content: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """A recipe that was perhaps written for an earlier version."""
    with naming({"model": "--config"}):
        return written_recipe(content, path)


def _replaced(words: list[str], configs: Configs) -> list[str]:
    """The words with some recipes in place of the names of their files."""
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
    """YAML in braces, which `--config` takes in place of a file."""
    text: str = yaml.dump(dict(content), Dumper=_Quoting, default_flow_style=True, sort_keys=False)
    return text


def _inside(content: Any, section: str) -> object:  # noqa: ANN401 - whatever a file holds
    """What stands under a dotted name; nothing, if what is above it does not go so deep."""
    for key in section.split("."):
        if not isinstance(content, Mapping):
            return {}
        content = content.get(key, {})
    return content


def _placed(error: InputError, configs: Configs, words: list[str]) -> InputError:
    """An error that names the file too if the key at fault comes from one."""
    name = error.argument.removeprefix("--")
    if any(word.split("=")[0] == f"--{name}" for word in words):
        return error
    files = [file for file, content in configs.items() if name == "options" or _says(content, name)]
    if not files:
        return error
    return InputError(error.argument, f"{error.problem} (in {files[-1]})", error.remedy)


def _says(content: Mapping[Any, Any], key: str) -> bool:
    """Whether a file says something of a key or a section, written as messages write it."""
    return any(name == key or name.startswith(f"{key}.") for name in _names(content))


def _names(content: Mapping[Any, Any], above: str = "") -> Iterator[str]:
    """All keys of a file, each with its sections and on one line: a message has no tab or end of
    line inside a key, and cannot tell a point inside one from that after a section."""
    for key, held in content.items():
        name = above + " ".join(str(key).split())
        yield name
        if isinstance(held, Mapping):
            yield from _names(held, f"{name}.")


# Errors ------------------------------------------------------------------------------------------


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _usage(parser: ArgumentParser) -> str:
    return f"{parser.prog} --help shows what there is"


def _explained(parser: ArgumentParser, words: list[str], error: ArgumentError) -> InputError:
    """Name the flag or key, the problem, and the nearest thing that exists."""
    text = _one_line(error)
    if found := re.search(r"unrecognized arguments: (\S+)", text):
        return _unexpected(parser, words, found[1])
    if found := re.fullmatch(r"Group '([\w.]+)' does not accept option '([^']+)'", text):
        return _unknown_key(parser, f"{found[1]}.{found[2]}")
    if found := re.fullmatch(r"Option '([^']+)' is not accepted", text):
        return _unknown_key(parser, found[1])
    if found := re.fullmatch(r"Key must be a string, got: (.*)\.", text):
        return _unknown_key(parser, found[1])
    if found := re.search(r"argument (\S+): expected one argument", text):
        return InputError(found[1], "needs a value", _usage(parser))
    if found := re.search(r"arguments are required: (.*)", text):
        return InputError(_written(parser, found[1]), "must be given", _usage(parser))
    if found := re.fullmatch(r'Parser key "([\w.]+)": (.*)', text):
        return _wrong_value(parser, found[1], found[2])
    return InputError("options", text, _usage(parser))


def _written(parser: ArgumentParser, key: str) -> str:
    """How somebody writes a key: as a flag, or, in recipes and for places, as it is."""
    action = next((action for action in parser._actions if action.dest == key), None)
    return key if "." in key or not getattr(action, "option_strings", []) else f"--{key}"


def _unexpected(parser: ArgumentParser, words: list[str], word: str) -> InputError:
    """A word that no option takes."""
    if word.startswith("--"):
        flag = word.split("=")[0]
        flags = [flag for action in parser._actions for flag in action.option_strings]
        new = name_of_today(flag.removeprefix("--"))
        if new is not None:
            return InputError(flag, "has another name now", f"write --{new}")
        near = difflib.get_close_matches(flag, flags, n=1)
        return InputError(
            flag, "unknown option", f"did you mean {near[0]}?" if near else _usage(parser)
        )
    earlier = words[: words.index(word)] if word in words else []
    before = earlier[-1] if earlier else ""
    switch = before.removesuffix("=true")
    if before != switch and switch in _switches(parser):
        return InputError(switch, f"must be true or false, got {word!r}")
    late = any(one.startswith("--") for one in earlier)
    problem = "is one word too many" + (", or is parted from the others by flags" if late else "")
    return InputError(repr(word), problem, _usage(parser))


def _unknown_key(parser: ArgumentParser, key: str) -> InputError:
    """A key that a YAML file has and a recipe has not."""
    new = name_of_today(key)
    if new is not None:
        return InputError(key, "has another name now", f"write {new}")
    near = difflib.get_close_matches(key, [action.dest for action in parser._actions], n=1)
    return InputError(key, "unknown key", f"did you mean {near[0]}?" if near else _usage(parser))


def _wrong_value(parser: ArgumentParser, key: str, text: str) -> InputError:
    """A value of another type than its key's."""
    action = next((action for action in parser._actions if action.dest == key), None)
    name = _written(parser, key)
    if "Unable to load config" in text:
        hint = f"write --{key}.KEY VALUE"
        return InputError(name, "is a section with keys of its own", hint)
    value = re.search(r"(?:Got|Given) value: (.*)", text)
    kind = getattr(action, "_typehint", None)
    if value is None or kind is None:
        return InputError(name, text, _usage(parser))
    return InputError(name, f"must be {described(kind)}, got {reprlib.repr(value[1])}")
