"""Diagnosis of a refused command line: which word is wrong, why, and what to write instead.

jsonargparse's own messages say little about flags and may change. So a refused command line is
examined again here, with the verb's declarations.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, groupby
from operator import itemgetter

from jsonargparse import get_loader

from partita.commands.declared import Parser, leaves
from partita.commands.recipe_files import Configs
from partita.config.renames import name_of_today
from partita.errors import InputError, described, fits, suggestion

_HELP = ("--help", "-h", "--config", "--print_config")
_NUMBER = re.compile(r"-\d+|-\d*\.\d+")  # argparse does not take these for flags
_HUGE = re.compile(r"[-+]?[0-9]{309,}")  # digits of integers beyond the largest float


def diagnosed(parser: Parser, words: list[str], configs: Configs, text: str) -> InputError:
    """The first error in a refused command line; `text` is the parser's own message."""
    return next(_faults(parser, words, configs), InputError("options", text, usage(parser)))


def usage(parser: Parser) -> str:
    """The remedy that points to the verb's help."""
    return f"{parser.prog} --help shows what there is"


def huge_number(words: list[str]) -> str | None:
    """The flag whose value is an integer too large for a float, if any."""
    pairs = values_of(words)
    return next((flag for flag, value in pairs if _HUGE.fullmatch(value or "")), None)


def _faults(parser: Parser, words: list[str], configs: Configs) -> Iterator[InputError]:
    yield from _in_files(parser, configs)
    yield from _in_flags(parser, words)
    yield from _in_places(parser, words)
    given = {key for content in configs.values() for key, _ in leaves(content)}
    given |= {parser.key_of(flag) or "" for flag, _ in values_of(words)}
    missing = [*_missing_places(parser, words), *(k for k in parser.needed if k not in given)]
    if missing:
        names = parser.written(missing[0]) if len(missing) == 1 else ", ".join(missing)
        yield InputError(names, "must be given", usage(parser))


# Values ------------------------------------------------------------------------------------------


def _in_flags(parser: Parser, words: list[str]) -> Iterator[InputError]:
    for flag, text in values_of(words):
        key = parser.key_of(flag)
        if flag in _HELP and flag in parser.flags:
            if flag == "--config" and text is None:
                yield InputError(flag, "needs a value", usage(parser))
        elif key is None:
            yield _unknown(parser, flag, "option", parser.flags)
        elif text is None:
            yield InputError(flag, "needs a value", usage(parser))
        elif key in parser.sections:
            if not isinstance(_loaded(text), Mapping):
                yield _section(parser, key, text, f"--{key}.name {text}")
        else:
            inside = flag.removeprefix("--").removeprefix(key).strip(".")
            value = {inside: _loaded(text)} if inside and flag not in parser.aliases else text
            yield from _misfit(parser, key, value, text)


def _in_files(parser: Parser, configs: Configs) -> Iterator[InputError]:
    for content in configs.values():
        for key, value in leaves(content):
            if key in parser.sections:
                if not isinstance(value, Mapping):
                    yield _section(parser, key, value, f"{key}: {{name: {value}}}")
            elif key in parser.kinds:
                yield from _misfit(parser, key, value, value)
            elif (above := parser.key_of(f"--{key}")) is not None:  # inside a dictionary
                inside = {key.removeprefix(f"{above}."): value}
                yield from _misfit(parser, above, inside, value)
            elif key not in parser.places:
                yield _unknown(parser, key, "key", [*parser.kinds, *parser.sections])


def _misfit(parser: Parser, key: str, value: object, shown: object) -> Iterator[InputError]:
    """Yield an error if a value does not have its key's type."""
    kind = parser.kinds[key]
    tried = [value, _loaded(value)] if isinstance(value, str) else [value]
    if not any(fits(each, kind) for each in tried):
        got = f"got {reprlib.repr(str(shown))}"
        yield InputError(parser.written(key), f"must be {described(kind)}, {got}")


def _loaded(text: str) -> object:
    """A text parsed as YAML, as jsonargparse does."""
    try:
        value: object = get_loader("yaml")(text)
    except Exception:
        return text
    return value


def values_of(words: list[str]) -> Iterator[tuple[str, str | None]]:
    """Flags and their values; None if there is none."""
    before = words[: words.index("--")] if "--" in words else words
    for word, following in zip(before, [*before[1:], "--"], strict=False):
        flag, equals, text = word.partition("=")
        if word.startswith("--"):
            like_a_flag = following.startswith("-") and not _NUMBER.fullmatch(following)
            yield flag, text if equals else None if like_a_flag else following


def _section(parser: Parser, key: str, value: object, named: str) -> InputError:
    """The error for a section that has a value; a word is meant for its key `name`."""
    word = isinstance(value, str) and value.isidentifier() and f"{key}.name" in parser.kinds
    hint = f"write {named}" if word else f"write --{key}.KEY VALUE"
    return InputError(parser.written(key), "is a section with keys of its own", hint)


# Names -------------------------------------------------------------------------------------------


def _unknown(parser: Parser, name: str, what: str, known: Iterable[str]) -> InputError:
    """The error for a flag, or a key of a YAML file, that a verb does not have."""
    dashes = "--" if name.startswith("--") else ""
    new = name_of_today(name.removeprefix("--"))
    if new is not None:
        return InputError(name, "has another name now", f"write {dashes}{new}")
    better = _inside_a_section(parser, name) or _of_a_sampler(parser, name)
    others = [word.removeprefix("--") for word in known if word not in _HELP]
    better = better or suggestion(name.removeprefix("--"), others, dashes + "{}")
    return InputError(name, f"unknown {what}", better or usage(parser))


def _inside_a_section(parser: Parser, name: str) -> str:
    """A question after the keys of sections that end in the name of a flag."""
    last = name.removeprefix("--").replace("-", "_")
    keys = [key for key in parser.kinds if key.rpartition(".")[2] == last and "." in key]
    return f"did you mean {' or '.join(f'--{key}' for key in keys)}?" if keys else ""


def _of_a_sampler(parser: Parser, name: str) -> str:
    """How to give an option of samplers, if a flag is named like one."""
    from partita.registry import options_of  # they take a second to import
    from partita.samplers import SAMPLERS

    option = name.removeprefix("--").replace("-", "_")
    if "options" not in parser.kinds or "sampler" not in parser.kinds:
        return ""
    takers = [key for key in SAMPLERS if option in options_of(SAMPLERS[key].run, keywords=True)]
    return f"for the samplers {', '.join(takers)} write --options.{option}" if takers else ""


# Positional arguments ----------------------------------------------------------------------------


def free_words(words: list[str]) -> list[list[str]]:
    """The positional arguments, in groups that are separated by flags."""
    end = words.index("--") if "--" in words else len(words)
    taken = False  # whether this word is the value of the flag before it
    marked = []
    for word in words[:end]:
        is_flag = word.startswith("--")
        marked.append((is_flag or taken, word))
        taken = is_flag and "=" not in word
    parted = groupby(marked, key=itemgetter(0))
    groups = [[word for _, word in found] for flag, found in parted if not flag]
    return [*groups, words[end + 1 :]] if words[end + 1 :] else groups


def _in_places(parser: Parser, words: list[str]) -> Iterator[InputError]:
    """Yield an error for a surplus positional argument, or one separated from the others."""
    groups = free_words(words)
    free = [word for group in groups for word in group]
    counts = [*parser.places.values()]
    number = len(free) if "*" in counts else len(counts)
    if len(groups) > 1 and counts.count(None) <= len(groups[0]) < len(free):
        number = min(number, len(groups[0]))
    for word in free[number : number + 1]:
        yield _too_many(parser, words, word)


def _too_many(parser: Parser, words: list[str], word: str) -> InputError:
    earlier = words[: words.index(word)]
    switch = earlier[-1].removesuffix("=true") if earlier else ""
    if switch in parser.switches and earlier[-1] != switch:
        return InputError(switch, f"must be true or false, got {word!r}")
    late = any(one.startswith("--") for one in earlier)
    problem = "is one word too many" + (", or is parted from the others by flags" if late else "")
    return InputError(repr(word), problem, usage(parser))


def _missing_places(parser: Parser, words: list[str]) -> list[str]:
    """The names of missing positional arguments: argparse fills as many as it can, in order."""
    free = sum(map(len, free_words(words)))
    needs = accumulate(int(count is None) for count in parser.places.values())
    places = zip(parser.places.items(), needs, strict=True)
    return [name for (name, count), need in places if need > free and count != "?"]
