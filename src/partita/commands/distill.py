"""`partita distill`: a student that needs fewer sampling steps than its teacher (SDTT)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from partita.commands import program
from partita.commands.declared import Parser
from partita.commands.display import Display, remembering
from partita.commands.interruptions import announce
from partita.commands.parsing import MODEL, make_parser, parse
from partita.commands.terminal import Terminal
from partita.commands.train import PRINT, flat, recipe_of
from partita.config.data import DataOptions
from partita.config.recipe import Recipe
from partita.config.training import RunOptions, TrainingOptions
from partita.distillation.options import MOST_ROUNDS, DistillationOptions
from partita.errors import naming, require, require_int
from partita.files.names import RUNS
from partita.models import checkpoints
from partita.parallel import joined, leave
from partita.training.callbacks import RunInfo
from partita.training.runner import train
from partita.training.signals import Signals

DESCRIPTION = """\
Distill a trained model into one that needs fewer sampling steps: self-distillation through time
(SDTT). In each round the student, which starts as a copy of its teacher, learns to predict in one
step what the teacher predicts in two; it is then the teacher of the next round. Three rounds from
128 steps make a student for 16 steps. Use partita compare to measure how good its texts are.

By default, students are trained on the text of the teacher. Every round is a run of its own
(OUT/round-1, OUT/round-2 and so on); as the name of a model, OUT is the last student. Run the same
command again to resume after an interruption, or with more --rounds to add rounds.

The teacher may be any mdlm, md4, mdlm-complementary, pgm or maskgit without time conditioning. Its
tokenizer, method and network are kept. The flags below set how each round is trained; the defaults
of --training.precision, --distillation.steps and --data come from the teacher."""

EXAMPLES = [
    "partita distill --teacher runs/notes-mdlm --rounds 3",
    "partita distill --teacher runs/notes-mdlm --rounds 2 --distillation.steps 64",
    "partita distill more.txt --teacher runs/notes-mdlm --training.steps 500",
    "partita distill --teacher runs/notes-mdlm --distillation.divergence forward-kl --out runs/f",
]
# The student starts from trained weights: a small learning rate.
TRAINING = TrainingOptions(optimizer="adamw", learning_rate=3e-4, ema_decay=0.99)
_REST = {"distillation": DistillationOptions(), "run": RunOptions()}
# Keys that each round sets by itself.
_FILLED_IN = {"training": {"start_from"}, "distillation": {"round", "teacher"}}
NAMES = {"out": "--out", "model": "--teacher", "teacher": "--teacher"}
NAMES |= {"training.start_from": "--teacher", "data.path": "text"}


@dataclass(frozen=True, kw_only=True)
class Options:
    """The teacher, and the sections of the recipe that it does not determine."""

    teacher: str
    rounds: int = 1
    out: str | None = None
    corpus: str | None = None
    data: DataOptions
    training: TrainingOptions
    distillation: DistillationOptions
    run: RunOptions


def _parser(data: DataOptions, steps: int, precision: str) -> Parser:
    parser = make_parser("distill", DESCRIPTION, EXAMPLES, recipe=True)
    parser.add("corpus", nargs="?", type=str, help="the text: short for --data.path")
    parser.add("--teacher", type=str, required=True, help=f"the teacher: {MODEL}")
    help_text = "number of rounds; each divides the number of steps by distillation.substeps"
    parser.add("--rounds", type=int, default=1, help=help_text)
    parser.add("--out", type=str, help="folder of the rounds (default: runs/TEACHER-sdtt)")
    for name, default in {"data": data, "training": TRAINING, **_REST}.items():
        skip = _FILLED_IN.get(name, set())
        parser.add_class_arguments(type(default), name, skip=set(skip))
        parser.set_defaults(flat(name, default, skip))
    parser.set_defaults({"distillation.steps": steps, "training.precision": precision})
    return parser


def options(words: Sequence[str]) -> tuple[list[Recipe], Path]:
    """Parse the command line: the recipe of each round, and the folder of all rounds."""
    given = [word for word in words if word != PRINT]
    usual = DataOptions(), DistillationOptions().steps, TRAINING.precision
    base = recipe_of(parse(_parser(*usual), given, Options).teacher)
    # A student has a number of steps that it was made for.
    made_for = base.sampling.steps if base.distillation.round else None
    defaults = base.data, made_for or DistillationOptions().steps, base.training.precision
    chosen = parse(_parser(*defaults), given, Options)
    require(chosen.out != "", "out", "is empty", "name a folder, or leave it out")
    require_int(chosen.rounds, "--rounds", 1, MOST_ROUNDS)
    sections = {name: getattr(chosen, name) for name in ("data", "training", *_REST)}
    recipe = replace(base, **sections)
    if chosen.corpus is not None:
        recipe = replace(recipe, data=replace(recipe.data, path=chosen.corpus))
    folder = Path(chosen.out) if chosen.out else RUNS / f"{_name(chosen.teacher)}-sdtt"
    taken = bool(checkpoints.listed(folder))
    require(not taken, "out", f"{folder} holds a run of its own", "choose another folder")
    rounds = list(_rounds(recipe, chosen.teacher, chosen.rounds, folder))
    if PRINT in words:
        print(yaml.safe_dump(_shown(recipe), sort_keys=False), end="")
        raise SystemExit(0)
    return rounds, folder


def _shown(recipe: Recipe) -> dict[str, dict[str, Any]]:
    """The sections of a recipe that this verb takes, without the keys that a round sets."""
    every = recipe.to_dict()
    return {
        name: {key: every[name][key] for key in every[name] if key not in _FILLED_IN.get(name, ())}
        for name in ("data", "training", *_REST)
    }


def _name(teacher: str) -> str:
    """The name of a teacher: its folder's, or for a checkpoint its run's."""
    path = Path(teacher)
    run = (path.parents[1] if path.parent.name == checkpoints.FOLDER else path).resolve()
    name = f"{run.parent.name}-{run.name}" if run.name.startswith("round-") else run.name
    return name or "model"


def _rounds(recipe: Recipe, teacher: str, count: int, folder: Path) -> Iterator[Recipe]:
    """The recipes, round by round: each student is the teacher of the next round."""
    for number in range(1, count + 1):
        options = replace(recipe.distillation, round=number)
        training = replace(
            recipe.training, start_from=teacher, seed=recipe.training.seed + number - 1
        )
        sampling = replace(recipe.sampling, steps=options.student_steps)
        yield replace(recipe, training=training, distillation=options, sampling=sampling)
        teacher = str(checkpoints.round_folder(folder, number))


def run(words: Sequence[str]) -> int:
    """Distill round by round; a stopped round says how to resume."""
    with naming(NAMES):
        rounds, folder = options(words)
    console, device = Terminal(), rounds[0].run.device
    places = [checkpoints.round_folder(folder, number) for number in range(1, len(rounds) + 1)]
    with remembering(*places), naming(NAMES | {"device": "run.device"}), joined(device) as world:
        stopped_by = 0
        with Signals(announce) as signals:
            for recipe, place in zip(rounds, places, strict=True):
                with RoundDisplay(console, recipe) as display:
                    stopped_by = train(recipe, place, display, signals)
                if display.info is not None and stopped_by:  # the first of the processes
                    display.farewell(stopped_by)
                if stopped_by:
                    break
        if world.first and not stopped_by:
            console.say(f"Done. Model of the last round: {places[-1]}")
            console.say(f"Try: {program()} sample {places[-1]}")
    code = 128 + stopped_by if stopped_by else 0
    leave(code)
    return code


class RoundDisplay(Display):
    """The display of a round: its bits are the divergence from the teacher."""

    measure = "divergence from the teacher"

    def aim(self, info: RunInfo) -> str:  # noqa: ARG002 - compared with the teacher only
        options: DistillationOptions = self.recipe.distillation
        before = options.student_steps * options.substeps
        return (
            f"Round {options.round}: {options.student_steps} steps of the student for {before} of "
            f"the teacher. Bits are those of the {options.divergence} of hidden tokens."
        )
