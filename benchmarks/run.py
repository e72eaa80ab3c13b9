"""Train recipes one after the other, then measure each model; results are saved as JSON.

    python benchmarks/run.py recipes/wiki8-mdlm.yaml recipes/wiki8-pgm.yaml \
        --train wiki8-train.txt --valid wiki8-valid.txt --test wiki8-test.txt

A run is named after its recipe, saved in runs/NAME, and resumed by the same command. Its
measurements go to benchmarks/results/NAME.json: the recipe, the machine, tokens and seconds, the
training curve, the bits of both texts, and for masked models the bound by noise level. While one
trains nothing else runs, so that runs of equal seconds can be compared; with --at_once several are
measured in parallel, which does not change the results. Words after `--` are flags for every
`partita train`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import Any

from verbs import asked, keep, partita, split_flags

from partita.devices import choose_device
from partita.errors import InputError
from partita.likelihood.profile import require_profiled
from partita.models.trained import load
from partita.provenance import environment

RESULTS = Path(__file__).parent / "results"
POINTS = 40  # points of a training curve
FEWER = 4  # the profile uses this many times fewer tokens


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipes", nargs="+", type=Path, help="recipes as YAML")
    parser.add_argument("--train", required=True, help="the text to train on")
    parser.add_argument("--valid", required=True, help="a text to measure, for model selection")
    parser.add_argument("--test", required=True, help="a text to measure, for reporting")
    parser.add_argument("--limit", type=int, default=1_000_000, help="tokens of each text")
    parser.add_argument("--replicates", type=int, default=4, help="draws of each bound")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the runs")
    parser.add_argument(
        "--stop_after",
        type=float,
        help="seconds after which training is stopped; the same command goes on from there",
    )
    parser.add_argument("--at_once", type=int, default=1, help="how many are measured in parallel")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where results go")
    own, flags = split_flags(sys.argv[1:] if words is None else words)
    chosen = parser.parse_args(own)
    chosen.flags, chosen.began = flags, monotonic()
    for recipe in chosen.recipes:
        if not recipe.is_file():
            parser.error(f"{recipe}: there is no such recipe")
    if chosen.at_once < 1:
        parser.error(f"--at_once: {chosen.at_once} is too few; give 1 or more")
    return chosen


def evaluated(
    run: Path, text: str, limit: int, replicates: int, *more: str | Path
) -> dict[str, Any]:
    """The results of `partita eval` on a text."""
    few = "--limit", str(limit), "--replicates", str(replicates)
    return asked("eval", run, text, *few, "--samples", "0", *more)


def bits(run: Path, text: str, chosen: argparse.Namespace) -> dict[str, Any]:
    """The bits of a text."""
    found: dict[str, Any] = evaluated(run, text, chosen.limit, chosen.replicates)["likelihood"]
    return found | {"replicates": chosen.replicates}


def profile(run: Path, method: object, chosen: argparse.Namespace) -> list[dict[str, Any]] | None:
    """The bound by noise level; None for methods whose bound has no such curve."""
    try:
        require_profiled(method)
    except InputError:
        return None
    some = max(1, chosen.limit // FEWER)  # every level evaluates the whole text
    picture = "--profile", run / "profile.png"
    curve: list[dict[str, Any]] = evaluated(run, chosen.valid, some, 2, *picture)["profile"]
    return curve


def curve(run: Path, step_tokens: int) -> dict[str, Any]:
    """The seconds of training, and its loss curve."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    reports = [line for line in lines if "loss" in line]
    spread = reports[:: max(1, len(reports) // POINTS)]
    return {
        "steps": reports[-1]["step"],
        "tokens": reports[-1]["step"] * step_tokens,
        "seconds": reports[-1]["seconds"],
        "tokens_per_second": statistics.median(r["tokens_per_second"] for r in reports),
        "epochs": reports[-1]["epoch"],
        "curve": [[r["step"] * step_tokens, r["seconds"], r["bits"]] for r in spread],
    }


def train(recipe: Path, chosen: argparse.Namespace) -> None:
    """Train a recipe to its end, or until the time limit."""
    words = "train", chosen.train, "--config", recipe, "--out", chosen.runs / recipe.stem
    left = None if chosen.stop_after is None else chosen.began + chosen.stop_after - monotonic()
    partita(*words, *chosen.flags, seconds=left)


def measured(recipe: Path, chosen: argparse.Namespace) -> dict[str, Any]:
    """The measurements of a run."""
    run = chosen.runs / recipe.stem
    model = load(str(run), device="cpu")
    made = model.recipe.to_dict()
    for place in ("path", "cache"):  # local folders of the user
        del made["data"][place]
    length = model.recipe.training.length or model.recipe.network.length
    return {
        "name": recipe.stem,
        "environment": environment(choose_device(model.recipe.run.device)),
        "parameters": sum(p.numel() for p in model.method.parameters()),
        "recipe": made,
        "training": curve(run, model.recipe.training.batch_size * length),
        "valid": bits(run, chosen.valid, chosen),
        "test": bits(run, chosen.test, chosen),
        "profile": profile(run, model.method, chosen),
    }


def report(recipe: Path, chosen: argparse.Namespace) -> None:
    """Save the measurements of a run, and print a line about them."""
    found = measured(recipe, chosen)
    keep(found, chosen.out / f"{recipe.stem}.json")
    of = {text: found[text]["bits_per_character"] for text in ("valid", "test")}
    tokens, seconds = found["training"]["tokens"], found["training"]["seconds"]
    print(
        f"{recipe.stem}: {of['valid']:.4f} bits per character of valid, {of['test']:.4f} "
        f"of test, after {tokens:,} tokens in {seconds:.0f} s",
        flush=True,
    )


def main(words: Sequence[str] | None = None) -> None:
    """Train and measure all recipes."""
    chosen = parsed(words)
    for recipe in chosen.recipes:
        train(recipe, chosen)
    with ThreadPoolExecutor(chosen.at_once) as workers:  # each waits for its own commands
        for _ in workers.map(lambda recipe: report(recipe, chosen), chosen.recipes):
            pass


if __name__ == "__main__":
    main()
