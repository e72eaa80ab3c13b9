"""Command lines that nobody should write, and what the commands say to them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from harm.cases import chance_of, verdict
from harm.odd_texts import ODD
from harm.outcomes import Outcome
from harm.places import FAST, TINY
from harm.stage import Stage
from harm.subjects import Action
from harm.surroundings import copied
from partita.commands import main

TOGETHER = 15
_MESSAGE = re.compile(r"partita: .+: .*\w", re.DOTALL)
# Small, or beyond all measure: what lies between may be asked for, and takes its time.
_NUMBERS = shlex.split(
    "0 -1 1 3 -0 +2 1.5 1e-3 1e-320 1e309 1_0 0x10 ٣ nan .nan inf -.inf 99999999999999999999"
)
_NUMBERS.append("-" + "9" * 400)
_WORDS = shlex.split(
    "'' ' ' null true ~ [] {} [1,2] '{a: 1}' [ { '- x' '!!int 3' '&a [*a]' *a %s no/where . saved "
    "corpus.txt hf: cpu each -- -h --help --json --config"
)
_WORDS += ["x" * 3000, "\udcff", "\ufeff"]
_FLAGS = shlex.split(
    "--steps -- - ---x --= --steps= --options. --options..x --.x -x --options.steps --data "
    "--data.path --config --json=maybe --🙂"
)


@dataclass(frozen=True)
class Words:
    """Command lines that are sound until they are changed."""

    name: str
    place: str
    lines: tuple[str, ...]
    together: int = TOGETHER
    actions: tuple[Action, ...] = ()
    """Nothing to compare with."""


def speak(words: Words, stage: Stage, seed: int, scratch: Path) -> Callable[[int], Outcome]:
    """Cases by their numbers."""

    def act(number: int) -> Outcome:
        random = chance_of(seed, words.name, number)
        line = changed(random, shlex.split(random.choice(words.lines)))
        with copied(stage.place(words.place), scratch):
            outcome = verdict(lambda: main(line), _said, lambda _said: Outcome("ran"))
        detail = f"partita {shlex.join(line)}; {outcome.detail}" if outcome.is_fault else ""
        return Outcome(outcome.kind, detail)

    return act


def _said(problem: str) -> Outcome:
    """A refusal is one message: what it is about, and what is wrong with it."""
    return Outcome("refused" if _MESSAGE.match(problem) else "unclear", problem)


def changed(random: Random, line: list[str]) -> list[str]:
    """Some words of a line are others, doubled, moved or missing; the verb stays."""
    verb, *rest = line
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        at = random.randrange(len(rest) + 1)
        how = random.choice(["value", "value", "value", "drop", "double", "insert", "move"])
        if how == "insert":
            rest.insert(at, random.choice([random.choice(_FLAGS), _value(random)]))
        elif at == len(rest):
            continue
        elif how == "value":
            values = [n for n, word in enumerate(rest) if not word.startswith("--")]
            rest[random.choice(values or [at])] = _value(random)
        elif how == "drop":
            del rest[at]
        elif how == "double":
            rest += rest[at : at + 2]
        else:
            rest.insert(random.randrange(len(rest)), rest.pop(at))
    return [verb, *rest]


def _value(random: Random) -> str:
    """A number, a word, or a text; no argument of a process holds a NUL."""
    kind: Sequence[str] = random.choice([_NUMBERS, _NUMBERS, _WORDS, ODD])
    found = random.choice(kind)
    if kind is ODD:
        found = "".join(random.choices([*ODD, "a ", "the ____ b "], k=random.randint(1, 4)))
    return found.replace("\0", "")


_DRAW = "--seed 1 --temperature 0.8 --top_p 0.9 --device cpu --json true"
WORDS = (
    Words(
        "mutants/words",
        "saved",
        (
            f"sample saved --count 2 --steps 4 {_DRAW} --prompt the --length 8",
            "sample saved --sampler confidence --steps 4 --options.confidence margin --top_k 3",
            "sample saved --sampler blocks --options.block_length 4 --steps 2 --length 20",
            f"infill saved 'the ____ sat' --blank_tokens 2 --count 2 --steps 3 {_DRAW}",
            "infill saved 'the __2__ sat' --sampler ordered --options.order left-to-right",
            "score saved 'the cat' 'a dog' --replicates 2 --seed 1 --json true",
            "score saved --file corpus.txt --replicates 2 --device cpu",
            "eval saved corpus.txt --samples 2 --limit 50 --replicates 2 --steps 2 --seed 1",
            "info saved --json true",
            "methods",
            "export saved new --precision bfloat16",
            "accuracy saved corpus.txt --task infill --count 2 --replicates 2 --seed 0",
        ),
    ),
    Words(
        "mutants/recipe-words",
        "saved",
        (
            "prepare corpus.txt --data.cache new --data.validation_fraction 0.1 "
            "--data.documents line --tokenizer.name bpe --tokenizer.vocab_size 300",
            f"train corpus.txt --out new {TINY} {FAST} --training.steps 2 --method.name pgm "
            "--method.corruption subset --method.schedule linear --run.device cpu "
            "--training.ema_decay 0.9",
            f"train corpus.txt --print_config --out new {TINY} --training.steps 2 "
            "--training.warmup 0.1 "
            "--training.learning_rate 0.01 --training.max_grad_norm 1 "
            "--network.dropout 0.1 --run.keep_checkpoints 2",
            "train corpus.txt --print_config --from saved --training.steps 2 "
            "--training.optimizer muon --sampling.sampler confidence "
            "--sampling.options.counts cosine",
            "distill --print_config --teacher saved --rounds 2 --distillation.steps 8 "
            "--training.steps 2",
        ),
    ),
)
