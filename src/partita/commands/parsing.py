"""Parsing of verbs' options: typed dataclasses, which jsonargparse turns into flags and YAML."""

from __future__ import annotations

from argparse import ArgumentError
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar, cast

from partita.commands import program
from partita.commands.declared import Parser
from partita.commands.recipe_files import inline_recipes, one_line, placed, with_recipes
from partita.commands.refusals import diagnosed, free_words, huge_number, usage
from partita.errors import InputError, require, require_seed
from partita.modalities import MODALITIES, Modality
from partita.modalities.base import OwnOptions

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Shared:
    """Options that many verbs share; their help stands last."""

    seed: int = 0
    """Seed of all random numbers: the same seed gives the same result."""
    device: str = "auto"
    """cpu, cuda, or auto."""
    json: bool = False
    """Print JSON, for machines."""

    def __post_init__(self) -> None:
        require_seed(self.seed, "--seed")


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
    names = {field.name for field in fields(options)}
    last = {field.name for field in fields(Shared)} & names
    parser.add_class_arguments(options, as_group=False, skip=last | {*places})
    parser.add_class_arguments(options, as_group=False, skip=names - last)


def reader(
    verb: str,
    description: str,
    examples: Sequence[str],
    options: type[T],
    *,
    own: str | None = None,
    **places: str,
) -> Callable[[Sequence[str]], T]:
    """The function that parses the command line of a verb; `places` as in `add_options`.

    `own` is the attribute of a modality that has its own options of the verb.
    """

    def read(words: Sequence[str]) -> T:
        every = options if own is None else with_own(options, own)
        parser = make_parser(verb, description, examples)
        add_options(parser, every, **places)
        return parse(parser, words, every)

    return read


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
    values = {field.name: found[field.name] for field in fields(options)}  # type: ignore[arg-type]
    return options(**values)


def flags_of(options: type, *places: str) -> dict[str, str]:
    """The flags of the fields of a dataclass, except for positional arguments (`places`)."""
    names = [field.name for field in fields(options)]
    return {name: f"--{name}" for name in names if name not in places}


# Flags that modalities add to a verb --------------------------------------------------------------
#
# All are parsed, those of the model's modality are used. The modality is known only once the model
# has been read. Errors in flags that only one modality has are reported before that.


def with_own(common: type[T], verb: str) -> type[T]:
    """A verb's dataclass of options, with the fields that modalities add. `verb` names the
    attribute of a modality that has its options, such as "sample_options"."""
    own = dict.fromkeys(getattr(MODALITIES[name], verb) for name in MODALITIES)
    checked = getattr(common, "__post_init__", lambda _self: None)
    inside = {"__doc__": common.__doc__, "__post_init__": lambda self: checked(self)}
    made = type(common.__name__, (*own, common), inside)
    return cast("type[T]", dataclass(frozen=True, kw_only=True)(made))


def own_options(chosen: object, verb: str, modality: Modality[Any], asked: object) -> OwnOptions:
    """The options that a modality adds, as given; flags of other modalities are refused."""
    for name in given(chosen, verb):
        has = [kind for kind in MODALITIES if name in _names(getattr(MODALITIES[kind], verb))]
        problem = f"is for {' and '.join(has)}, and this is a model of {modality.name}"
        require(modality.name in has, f"--{name}", problem, "leave it out")
    kind: type[OwnOptions] = getattr(modality, verb)
    own = kind(**{name: getattr(chosen, name) for name in _names(kind)})
    own.check(asked)
    return own


def check_own(
    chosen: object, verb: str, asked: object, modalities: Iterable[str] = MODALITIES
) -> None:
    """If exactly one modality has all the given flags, check their values for it."""
    flags = given(chosen, verb)
    having = [name for name in modalities if flags <= _names(getattr(MODALITIES[name], verb))]
    if len(having) == 1:
        own_options(chosen, verb, MODALITIES[having[0]], asked)


def given(chosen: object, verb: str) -> set[str]:
    """The flags of modalities whose values are not the defaults."""
    kinds = [getattr(MODALITIES[name], verb) for name in MODALITIES]
    own = [field for kind in kinds for field in fields(kind)]
    return {field.name for field in own if getattr(chosen, field.name) != field.default}


def _names(kind: type[OwnOptions]) -> set[str]:
    return {field.name for field in fields(kind)}


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
