"""`partita train`: from a text to a trained model; the same command resumes a stopped run."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from partita.commands.declared import Parser
from partita.commands.display import Display, remembering
from partita.commands.interruptions import announce
from partita.commands.parsing import make_parser, parse
from partita.commands.refusals import values_of
from partita.commands.terminal import Terminal
from partita.config.recipe import Recipe
from partita.errors import naming, require
from partita.files import format
from partita.models.assembling import read_recipe
from partita.models.find import read_found
from partita.parallel import leave
from partita.training.conversion import is_conversion
from partita.training.runner import default_folder, train
from partita.training.signals import Signals

DESCRIPTION = """\
Train a model on a text or a set of images. The run is saved in a folder (runs/NAME-METHOD, or
--out) with checkpoints, metrics.jsonl, curves.png and samples/. If the run is interrupted (by a
crash, Ctrl-C or a kill), run the same command again to resume from the last checkpoint. A finished
run is left as it is. If the recipe has changed, the command stops with an error that lists the
changes; only the section `run` may change.

Every flag with a dot is a key of the recipe: `--network.width 256` is `network: {width: 256}` in
YAML. --print_config prints the whole recipe as YAML, to save and edit."""

PRINT = "--print_config"
EXAMPLES = [
    "partita train notes.txt                                   some minutes on a laptop",
    "partita train notes.txt --training.seconds 60             stop after a minute",
    "partita train corpus/ --tokenizer.name bpe --tokenizer.vocab_size 8192",
    "partita train notes.txt --method.name ar --out runs/judge  an autoregressive model",
    "partita train dump.jsonl.zst --data.field body --data.rows padded",
    "partita train more.txt --from runs/notes-mdlm             fine-tune a trained model",
    "partita train notes.txt --method.name flexmdm --data.documents line  texts of any length",
    "partita train --config recipe.yaml --training.seed 1      a recipe, one key changed",
    "partita train digits --tokenizer.name pixels --network.length 64 --network.grid 8  images",
    "torchrun --nproc-per-node 8 -m partita train notes.txt --run.parallel fsdp",
]
# Sections kept by a model that is trained further; the shared ones also if its method changes.
_SHARED = ("network", "tokenizer")
_KEPT = ("method", *_SHARED, "sampling")
# Arguments of a run that are not keys of the recipe, and one that has a short name.
NAMES = {"out": "--out", "model": "--from", "--training.start_from": "--from"}


@dataclass(frozen=True)
class Options(Recipe):
    """A recipe, with short names for the text and the run's folder."""

    corpus: str | None = None
    out: str | None = None


def options(words: Sequence[str]) -> tuple[Recipe, Path]:
    """Parse the command line: the recipe and the run's folder."""
    words = [re.sub(r"^--from(?==|$)", "--training.start_from", word) for word in words]
    given = [word for word in words if word != PRINT]
    start = dict(values_of(words)).get("--training.start_from")
    if start is None:
        chosen = parse(_parser(), given, Options)
    else:
        base = recipe_of(start)
        chosen = parse(_parser(base, _KEPT), given, Options)
        if is_conversion(chosen, base):  # drops the options of another method
            chosen = parse(_parser(base, _SHARED), given, Options)
    require(chosen.out != "", "out", "is empty", "name a folder, or leave it out")
    recipe = Recipe(**{key: getattr(chosen, key) for key in Recipe.__dataclass_fields__})
    if chosen.corpus is not None:
        recipe = replace(recipe, data=replace(recipe.data, path=chosen.corpus))
    if PRINT in words:  # only the sections, so that the output is a recipe
        print(yaml.safe_dump(recipe.to_dict(), sort_keys=False), end="")
        raise SystemExit(0)
    return recipe, default_folder(recipe) if chosen.out is None else Path(chosen.out)


def _parser(base: Recipe | None = None, sections: Sequence[str] = ()) -> Parser:
    """The parser of a recipe; the named sections take their defaults from `base`."""
    parser = make_parser("train", DESCRIPTION, EXAMPLES, recipe=True)
    parser.add("corpus", nargs="?", type=str, help="the text or images: short for --data.path")
    parser.add("--out", type=str, help="the run's folder (default: runs/NAME-METHOD)")
    parser.add(
        "--from",
        dest="from_",
        metavar="MODEL",
        type=str,
        help="start from a model's weights and tokenizer: short for --training.start_from",
    )
    parser.add_class_arguments(Recipe, as_group=False)
    for section in sections:
        parser.set_defaults(flat(section, getattr(base, section)))
    return parser


def recipe_of(start: str) -> Recipe:
    """The recipe of a model that is trained further."""

    def read(folder: Path) -> Recipe:
        format.verify(folder)
        place = folder / format.CONFIG
        return read_recipe(format.read_json(place), place)

    return read_found(read, start)


def flat(name: str, value: object, skip: Container[str] = ()) -> dict[str, object]:
    """The keys of a section (but for some) and of those inside it, with their values."""
    if not is_dataclass(value):
        return {name: value}
    found = {key: inside for key, inside in vars(value).items() if key not in skip}
    parts = [flat(f"{name}.{key}", inside) for key, inside in found.items()]
    return {key: inside for part in parts for key, inside in part.items()}


def run(words: Sequence[str]) -> int:
    """Train, with a bar; a stopped run says how to go on."""
    with naming(NAMES):
        recipe, folder = options(words)
    display = Display(Terminal(), recipe)
    with naming(NAMES), remembering(folder), display, Signals(announce) as signals:
        stopped_by = train(recipe, folder, display, signals)
    if display.info is not None:  # the first of the processes
        display.farewell(stopped_by)
    code = 128 + stopped_by if stopped_by else 0
    leave(code)
    return code
