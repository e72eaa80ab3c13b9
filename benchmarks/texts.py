"""Measure models of natural text on questions and likelihood, and save the results as JSON.

    python examples/make_choices.py wiki-test.txt quiz.jsonl --count 1000
    python benchmarks/texts.py runs/wikipedia-pgm runs/wikipedia-sdtt --judge runs/wikipedia-ar \
        --sets wiki-test.txt wikitext2_test.txt ptb_test.txt lambada_test.txt \
        --passages lambada_test.txt --choices quiz.jsonl --infill wiki-test.txt

Measured are, if their option is given: the bits of every set, the last words of passages, the right
one of several endings, words inside a text, and with a judge the texts of all models against the
number of steps. With --grams, the n-grams of a text answer the same questions, with the first
model's tokens. The results of a model go to benchmarks/results/NAME-texts.json, where NAME is its
folder; those of the judge to NAME-steps.json and those of n-grams to NAME-grams.json, with the
first model's name.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from verbs import asked, keep

RESULTS = Path(__file__).parent / "results"


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", help="run folders or models")
    parser.add_argument("--sets", nargs="*", default=[], help="texts whose bits are measured")
    parser.add_argument("--limit", type=int, default=1_000_000, help="tokens of each, at most")
    parser.add_argument("--replicates", type=int, default=8, help="draws of each bound")
    parser.add_argument("--passages", help="passages whose last words are hidden")
    parser.add_argument("--choices", help="questions with several endings")
    parser.add_argument("--infill", help="a text in which words are hidden")
    parser.add_argument("--grams", help="a text whose 5-grams are counted")
    parser.add_argument("--count", type=int, default=2000, help="questions of each kind, at most")
    parser.add_argument("--judge", help="an autoregressive model that scores the others' texts")
    parser.add_argument("--steps", default="[4,8,16,32,64,128,256]", help="numbers of steps")
    parser.add_argument("--samples", type=int, default=256, help="texts for each number of steps")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where results go")
    chosen = parser.parse_args(words)
    names = [Path(model).name for model in chosen.models]
    if len(set(names)) < len(names):  # one would overwrite the other's results
        parser.error(f"models: two of {', '.join(names)} have the same name; rename a folder")
    return chosen


def answers(model: str, chosen: argparse.Namespace) -> dict[str, Any]:
    """The results of one model."""
    few = "--replicates", str(chosen.replicates)
    found: dict[str, Any] = {"name": Path(model).name, "sets": {}}
    for text in chosen.sets:
        limits = "--limit", str(chosen.limit), *few, "--samples", "0"
        said = asked("eval", model, text, *limits)
        found |= {"environment": said["environment"], "sha256": said["model"]["sha256"]}
        found["sets"][Path(text).stem] = said["likelihood"]
    tasks = {"last-word": chosen.passages, "choices": chosen.choices, "infill": chosen.infill}
    for task, file in tasks.items():
        if file is not None:
            questions = "--count", str(chosen.count), *few
            said = asked("accuracy", model, file, "--task", task, *questions)
            found |= {"environment": said.pop("environment"), "sha256": said.pop("model")["sha256"]}
            found[task] = said
    return found


def counted(chosen: argparse.Namespace) -> dict[str, Any]:
    """The same for 5-grams: the bits of the first set, hidden words, the judge's score."""
    words = [chosen.grams, "--tokenizer", chosen.models[0]]
    files = {"test": chosen.sets[:1], "infill": chosen.infill, "last_word": chosen.passages}
    for flag, file in files.items():
        if file:
            words += [f"--{flag}", *([file] if isinstance(file, str) else file)]
    words += ["--count", str(chosen.count)]
    if chosen.judge is not None:
        words += ["--samples", str(chosen.samples), "--judge", chosen.judge]
    return asked("ngram", *words)


def main(words: Sequence[str] | None = None) -> None:
    """Measure all models, the n-grams and the comparison."""
    chosen = parsed(words)
    for model in chosen.models:
        keep(answers(model, chosen), chosen.out / f"{Path(model).name}-texts.json")
    first = Path(chosen.models[0]).name
    if chosen.grams is not None:
        keep(counted(chosen), chosen.out / f"{first}-grams.json")
    if chosen.judge is not None:
        numbers = "--steps", chosen.steps, "--samples", str(chosen.samples)
        said = asked("compare", *chosen.models, "--judge", chosen.judge, *numbers)
        keep(said, chosen.out / f"{first}-steps.json")


if __name__ == "__main__":
    main()
