"""What is damaged, and what is then done with it."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from harm import looks
from harm.damage import damaged
from harm.places import FAST, IMAGES, TEXTS, TINY, TRAIN
from partita.commands import main

Change = Callable[[Random, Path, bytes], tuple[bytes, str]]
"""Other bytes for a file, and what was done to them."""


@dataclass(frozen=True)
class Action:
    """Something that reads the damaged input, in its folder."""

    name: str
    do: Callable[[], int]
    """The exit code; an `InputError` is as good as a 2."""
    look: Callable[[str], str]
    """A checksum of the result, given what was printed."""


@dataclass(frozen=True)
class Subject:
    """Files of one kind."""

    name: str
    place: str
    files: tuple[str, ...]
    """Patterns of the files that are damaged."""
    actions: tuple[Action, ...]
    ours: bool = False
    """Whether checksums of our own stand for the files."""
    called: tuple[str, ...] = ()
    """What a message may call them, beside their names."""
    change: Change = field(default=lambda random, _path, data: damaged(random, data))
    together: int = 1
    """How many cases share a process."""
    removes: bool = False
    """Whether files may be missing, or stand in each other's place."""


def command(words: str, look: Callable[[str], str]) -> Action:
    """A command of the library."""
    return Action(words, lambda: main(shlex.split(words)), look)


def printed(said: str) -> str:
    """What a command said is its result."""
    return looks.digest([said])


def prepared(_said: str) -> str:
    """Tokens in a new cache."""
    return looks.tokens(Path("new"))


def exported(_said: str) -> str:
    """A new model."""
    return looks.model(Path("new"))


def images_of(name: str) -> Action:
    """A set of images as tokens."""
    words = f"prepare {name} --tokenizer.name pixels --data.cache new"
    return command(words, prepared)


MODEL = (
    command("info saved --json", printed),
    command("sample saved --json --steps 4 --seed 1", printed),
    command("score saved 'the cat sat' --json --replicates 2", printed),
    command("export saved new", exported),
)
RUN = (
    command("info run --json", printed),
    command("sample run --json --steps 4 --seed 1", printed),
    command("export run new", exported),
)
RESUME = command(f"{TRAIN} --data.validation_fraction 0", lambda _said: looks.weights(Path("run")))
FROM_TOKENS = (
    "train rows.jsonl --data.label kind --data.validation_fraction 0.2 --network.classes 3 "
    f"--data.rows padded --out new {TINY} {FAST} --training.steps 2"
)
DRAWING = (
    command("sample saved --count 2 --steps 2 --out new.png", lambda _said: _file("new.png")),
    command("info saved --json", printed),
)
VQ = (
    command("prepare set --tokenizer.name vq --data.cache new", prepared),
    command("info vq --json", printed),
)


def _file(name: str) -> str:
    return looks.digest([Path(name).read_bytes()])


SUBJECTS = (
    Subject("damage/model", "saved", ("saved/*",), MODEL, ours=True, removes=True),
    Subject(
        "damage/run",
        "finished",
        ("run/*", "run/checkpoints/*/*"),
        RUN,
        ours=True,
        removes=True,
    ),
    Subject(
        "damage/resumed",
        "run",
        ("run/*.json*", "run/checkpoints/*/*"),
        (RESUME,),
        ours=True,
        removes=True,
    ),
    Subject(
        "damage/tokens",
        "tokens",
        ("tok/*/*", "tok/*/*/*"),
        (command(FROM_TOKENS, lambda _said: looks.weights(Path("new"))),),
        ours=True,
        removes=True,
    ),
    Subject("damage/images-model", "drawing", ("saved/*",), DRAWING, ours=True, removes=True),
    Subject("damage/vq", "drawing", ("vq/*",), VQ, ours=True, removes=True),
    Subject(
        "damage/published",
        "published",
        ("model.ckpt",),
        (command("import model.ckpt new --tokenizer tokenizer.json --length 16", exported),),
    ),
    *(
        Subject(f"damage/{name}", "texts", (name,), (command(words, prepared),))
        for name in TEXTS
        for words in [f"prepare {name} --data.cache new"]
    ),
    Subject(
        "damage/tokenizer.json",
        "texts",
        ("tokenizer.json",),
        (command("prepare notes.txt --tokenizer.name tokenizer.json --data.cache new", prepared),),
    ),
    *(
        Subject(f"damage/{name}", "images", (name, f"{name}/**/*"), (images_of(name),))
        for name in IMAGES
    ),
    Subject(
        "damage/recipe.yaml",
        "texts",
        ("recipe.yaml",),
        (command("train --config recipe.yaml --print_config", printed),),
    ),
)
