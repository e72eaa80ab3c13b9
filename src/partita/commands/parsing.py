"""Parsing of verbs' options: typed dataclasses, which jsonargparse turns into flags and YAML."""

from __future__ import annotations

import dataclasses
from argparse import ArgumentError
from collections.abc import Sequence
from typing import TypeVar

from partita.commands import program
from partita.commands.declared import Parser
from partita.commands.recipe_files import inline_recipes, one_line, placed, with_recipes
from partita.commands.refusals import diagnosed, free_words, huge_number, usage
from partita.errors import InputError

T = TypeVar("T")


def make_parser(
    verb: str, description: str, examples: Sequence[str], *, recipe: bool = False
) -> Parser:
    """A parser whose help has a description of the verb and examples."""
    lines = "\n".join(f"  {example}" for example in examples)
    return Parser(
        recipe=recipe,
        prog=f"{program()} {verb}",
        description=description,
        epilog=f"examples:\n{lines}",
        allow_abbrev=False,
    )


MODEL = (
    "a run folder (its best checkpoint is used), a checkpoint, an exported model, hf:OWNER/NAME "
    "on the hub, or default (the model that comes with the library, if there is one)"
)
OPTIONAL_MODEL = f"?{MODEL}; without a name, default is used"


def add_options(parser: Parser, options: type, **places: str) -> None:
    """Add the fields of a dataclass as flags; `places` become positional arguments.

    The value of a place is its help text, with a leading "?" if it is optional, "*" if repeated.
    """
    for name, text in places.items():
        nargs = text[0] if text[0] in "?*" else None
        parser.add(name, type=str, nargs=nargs, help=text.lstrip("?*"))
    parser.add_class_arguments(options, as_group=False, skip=set(places))


def parse(parser: Parser, words: Sequence[str], options: type[T]) -> T:
    """Parse words into a dataclass of options; an error is one clear line."""
    words, configs = with_recipes(parser, _switched(parser, _underscored(words)))
    try:
        found = parser.instantiate(parser.parse_args(words))
    except InputError as error:
        raise placed(error, configs, words) from error
    except ArgumentError as error:
        everywhere = configs | inline_recipes(words)
        said = diagnosed(parser, words, everywhere, one_line(error))
        raise placed(said, configs, words) from error
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        said = InputError(huge_number(words) or "options", one_line(error), usage(parser))
        raise placed(said, configs, words) from error
    values = {field.name: found[field.name] for field in dataclasses.fields(options)}  # type: ignore[arg-type]
    return options(**values)


def flags_of(options: type, *places: str) -> dict[str, str]:
    """The flags of the fields of a dataclass, except for positional arguments (`places`)."""
    names = [field.name for field in dataclasses.fields(options)]
    return {name: f"--{name}" for name in names if name not in places}


# Words -------------------------------------------------------------------------------------------


def count_places(parser: Parser, words: Sequence[str]) -> int:
    """The number of positional arguments: words that are neither flags nor values of flags."""
    return sum(map(len, free_words(_switched(parser, _underscored(words)))))


def _underscored(words: Sequence[str]) -> list[str]:
    """Accept dashes in flags: `--vocab-size` is `--vocab_size`, as in the YAML.

    Words after `--` are not flags.
    """
    end = words.index("--") if "--" in words else len(words)
    return [_flag(word) if word.startswith("--") else word for word in words[:end]] + [*words[end:]]


def _flag(word: str) -> str:
    flag, equals, value = word[2:].partition("=")
    return f"--{flag.replace('-', '_')}{equals}{value}"


def _switched(parser: Parser, words: list[str]) -> list[str]:
    """Give boolean flags without a value the value true: `--json` is `--json=true`."""
    switches = parser.switches
    return [
        f"{word}=true" if word in switches and following not in ("true", "false") else word
        for word, following in zip(words, [*words[1:], ""], strict=False)
    ]
