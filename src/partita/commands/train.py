"""`partita train`: from a text to a trained model in one command, and on again after any end."""

from __future__ import annotations

import math
import signal
from collections.abc import Container, Sequence
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path

import yaml  # type: ignore[import-untyped]
from jsonargparse import ArgumentParser
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from partita.commands import program
from partita.commands.parsing import make_parser, parse
from partita.commands.prepare import counter, summary
from partita.commands.show import printable
from partita.errors import naming, require
from partita.evaluation.likelihood import Estimate
from partita.hub import checkpoints, format
from partita.hub.find import find
from partita.plotting import NO_PLOTS, can_plot
from partita.recipe import Recipe
from partita.training import loop
from partita.training.distribution import leave
from partita.training.journal import CURVES
from partita.training.retrofit import is_retrofit
from partita.training.runner import Setting, Watcher, default_folder, run_recipe

DESCRIPTION = """\
Train a model on a text or a set of images, from raw files to samples. The run lives in a folder
(runs/NAME-METHOD unless --out says otherwise) with checkpoints, metrics.jsonl, curves.png and
samples/. The same command again resumes it: after the end of the run nothing is left to do, after
a crash, Ctrl-C or a kill it goes on from the last checkpoint. A changed recipe is refused with a
list of the changes; only the section `run` may change.

Every flag is a key of the recipe: `--network.width 256` is `network: {width: 256}` in YAML.
--print_config prints the whole recipe as YAML, to keep and to change."""

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
    "torchrun --nproc-per-node 8 -m partita train notes.txt --run.distribution fsdp",
]
# What a model that is trained further keeps, and what is left if its method changes.
_SHARED = ("network", "tokenizer")
_KEPT = ("method", *_SHARED, "sampling")
# Arguments of a run that are no keys of the recipe, and one that has a short name.
NAMES = {"out": "--out", "model": "--from", "--training.start_from": "--from"}


@dataclass(frozen=True)
class Options(Recipe):
    """A recipe, the text by its short name, and where the run lives."""

    corpus: str | None = None
    out: str | None = None


def options(words: Sequence[str]) -> tuple[Recipe, Path]:
    """The recipe and the folder that the words ask for."""
    words = [
        word.replace("--from", "--training.start_from", 1) if _is_from(word) else word
        for word in words
    ]
    given = [word for word in words if word != PRINT]
    start = _value_of(words, "--training.start_from")
    if start is None:
        chosen = parse(_parser(), given, Options)
    else:
        base = recipe_of(start)
        chosen = parse(_parser(base, _KEPT), given, Options)
        if is_retrofit(chosen, base):  # which has no use for the choices of another method
            chosen = parse(_parser(base, _SHARED), given, Options)
    require(chosen.out != "", "out", "is empty", "name a folder, or leave it out")
    recipe = Recipe(**{key: getattr(chosen, key) for key in Recipe.__dataclass_fields__})
    if chosen.corpus is not None:
        recipe = replace(recipe, data=replace(recipe.data, path=chosen.corpus))
    if PRINT in words:  # the sections alone, so that what is printed is a recipe
        print(yaml.safe_dump(recipe.to_dict(), sort_keys=False), end="")
        raise SystemExit(0)
    return recipe, default_folder(recipe) if chosen.out is None else Path(chosen.out)


def _parser(base: Recipe | None = None, sections: Sequence[str] = ()) -> ArgumentParser:
    """The parser of a recipe, some sections of which are as those of another unless given."""
    parser = make_parser("train", DESCRIPTION, EXAMPLES, recipe=True)
    parser.add_argument("corpus", nargs="?", type=str, help="the text: short for --data.path")
    parser.add_argument("--out", type=str, help="the run's folder (default: runs/NAME-METHOD)")
    parser.add_argument(
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


def _is_from(word: str) -> bool:
    """Whether a word is the flag --from."""
    return word == "--from" or word.startswith("--from=")


def _value_of(words: Sequence[str], flag: str) -> str | None:
    for index, word in enumerate(words):
        if word == flag and index + 1 < len(words):
            return words[index + 1]
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return None


def recipe_of(start: str) -> Recipe:
    """The recipe of a model that is trained further."""
    folder = find(start)
    format.verify(folder)
    return Recipe.from_dict(format.read_json(folder / format.CONFIG).get("recipe", {}))


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
    recipe.check_data()  # a missing file is said before anything is made
    console = Console(highlight=False)
    with naming(NAMES), Display(console, recipe) as display:
        stopped_by = run_recipe(recipe, folder, display.watcher())
    if display.setting is not None:  # the first of the processes
        display.farewell(stopped_by)
    code = 128 + stopped_by if stopped_by else 0
    leave(code)
    return code


def _size(number: int) -> str:
    return f"{number / 1e6:.1f} M" if number >= 100_000 else f"{number:,}"


class Display:
    """What a run shows while it goes."""

    measure = "validation"

    def __init__(self, console: Console, recipe: Recipe) -> None:
        self.console, self.recipe = console, recipe
        self.counter = counter(console)
        self.bar = Progress(
            TextColumn("step {task.fields[step]:,}"),
            BarColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(),
            console=console,
        )
        self.task = self.bar.add_task("train", total=1.0, step=0, numbers="")
        self.setting: Setting | None = None
        self.valid: Estimate | None = None
        self.texts: list[str] = []
        self.bits = math.nan

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        self.counter.__exit__()
        if self.bar.live.is_started:
            self.bar.stop()

    def watcher(self) -> Watcher:
        """The calls that the run makes."""
        return Watcher(
            preparing=self.counter.update_to,
            ready=self.ready,
            progress=self.progress,
            validated=self.validated,
            previewed=lambda _step, texts: setattr(self, "texts", texts),
        )

    def ready(self, setting: Setting) -> None:
        self.counter.__exit__()
        self.setting = setting
        self.console.print(summary(setting.prepared), soft_wrap=True)
        where = setting.device if setting.processes == 1 else f"{setting.processes} processes"
        self.console.print(
            f"{self.recipe.method.name}, {_size(setting.parameters)} parameters, on {where}. "
            f"{self.aim(setting)}",
            soft_wrap=True,
        )
        if setting.left_out:
            longer = "longer than a row and left out"
            self.console.print(f"{setting.left_out:,} documents are {longer}.", soft_wrap=True)
        if len(setting.prepared.valid) == 0 and self.recipe.data.valid > 0:
            finer = self.recipe.data.documents != "line"
            hint = ": --data.documents line makes more of them" if finer else ""
            self.console.print(f"No document is left for validation{hint}.", soft_wrap=True)
        if self.recipe.distillation.round <= 1 and not can_plot():  # of several rounds, once
            self.console.print(f"{CURVES} is not drawn: {NO_PLOTS}", soft_wrap=True, markup=False)
        went_on = f", going on from {setting.resumed.name}" if setting.resumed else ""
        self.console.print(f"Run folder: {setting.folder}{went_on}", soft_wrap=True)

    def aim(self, setting: Setting) -> str:
        """What the bits are to be compared with."""
        if setting.unigram_bits is None:
            return "Bits are those of whole texts, their ends included."
        entropy = f"Single tokens have an entropy of {setting.unigram_bits:.3f} bits"
        if setting.bounded:
            return f"{entropy}: a model must get below it."
        return (
            f"{entropy}: at validation a model must get below it. Bits in between are the loss of "
            "training, which has other weights and is no bound."
        )

    def progress(self, report: loop.Progress, mfu: float | None) -> None:
        if not self.bar.live.is_started:
            self.bar.start()
        bits = report.loss / math.log(2)
        self.bits = bits
        speed = f"{report.tokens_per_second:,.0f} tokens/s"
        busy = "" if mfu is None else f"  MFU {mfu:.0%}"
        loss = f"loss {report.loss:.3f}  {bits:.3f} bits/token"
        numbers = f"{loss}  {speed}{busy}  epoch {report.epoch:.2f}"
        self.bar.update(self.task, completed=report.share, step=report.step, numbers=numbers)
        if not self.console.is_terminal and report.share < 1:
            line = f"step {report.step:,} ({report.share:.0%})  {numbers}"
            self.console.print(line, soft_wrap=True)

    def validated(self, step: int, bound: Estimate) -> None:
        self.valid = bound
        self.console.print(
            f"step {step:,}: {self.measure} {bound.bits:.3f} ± {bound.bits_error:.3f} "
            "bits per token"
        )

    def farewell(self, stopped_by: int) -> None:
        """The last words: how to go on, or samples, and where everything is."""
        assert self.setting is not None
        folder = self.setting.folder
        if stopped_by:
            newest = checkpoints.latest(folder)
            saved = f"saved as {newest}" if newest else "there was nothing to save yet"
            self.console.print(
                f"Stopped by {signal.Signals(stopped_by).name}; {saved}. The same command goes on "
                "from there.",
                soft_wrap=True,
            )
            return
        if math.isnan(self.bits):
            self.console.print("The run is finished: nothing was left to do.")
        for text in self.texts:
            self.console.rule("sample", align="left", style="dim")
            self.console.print(printable(text), markup=False)
        if self.texts:
            self.console.rule(style="dim")
        drawn = f"  curves: {folder / CURVES}" if (folder / CURVES).exists() else ""
        self.console.print(f"Done. Model: {folder}{drawn}", soft_wrap=True)
        flags = "--out samples.png" if self.recipe.tokenizer.of_images else "--show"
        self.console.print(f"Try: {program()} sample {folder} {flags}", soft_wrap=True)
