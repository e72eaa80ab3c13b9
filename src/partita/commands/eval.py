"""`partita eval`: the likelihood of a file, and the quality of samples."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partita.commands.own_options import check_own, own_options, with_own
from partita.commands.parsing import MODEL, add_options, make_parser, parse
from partita.commands.sample import Manner
from partita.commands.terminal import Terminal, passing_bar, print_json
from partita.errors import naming, require, require_int, require_seed
from partita.evaluation.judging import load_any
from partita.files.atomic import check_file, parents_made, write_whole
from partita.modalities import modality_of
from partita.modalities.base import Evaluation
from partita.models.trained import TrainedModel
from partita.provenance import environment
from partita.samplers.front import fitting_samplers

OWN = "eval_options"


@dataclass(frozen=True, kw_only=True)
class Options(Manner):
    """Options of `partita eval`."""

    model: str
    file: str | None
    limit: int | None = None
    """Number of tokens of the file to score (flexmdm: up to the end of the text in which this
    number is reached). For images: number of test images."""
    replicates: int = 4
    """Number of independent estimates of the likelihood; their spread gives the error."""
    samples: int = 64
    """Texts or images to draw; 0 for none."""
    steps: int | None = None
    """Steps of the sampler; by default as in the model's recipe."""
    guidance: float | None = None
    """Classifier-free guidance weight (images); 0 is off."""
    seed: int = 0
    """Seed of all random numbers."""
    device: str = "auto"
    """cpu, cuda, or auto."""
    out: str | None = None
    """A JSON file to write the results to."""
    json: bool = False
    """Print JSON, for machines."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_int(self.replicates, "--replicates", 2)
        require_int(self.samples, "--samples", 0)
        require_seed(self.seed, "--seed")
        for name in ("limit", "steps"):
            if getattr(self, name) is not None:
                require_int(getattr(self, name), f"--{name}")
        require(
            self.file is not None or self.samples > 0,
            "file",
            "there is nothing to evaluate",
            "give a file, or --samples",
        )
        if self.out is not None:
            check_file(Path(self.out), "--out")

    def drawing(self) -> dict[str, Any]:
        """The sampling settings that were given; the model's own apply to the rest."""
        more = {name: getattr(self, name) for name in ("steps", "guidance")}
        return self.given() | {name: value for name, value in more.items() if value is not None}

    def asked(self) -> Evaluation:
        """The request, in the form that modalities take."""
        return Evaluation(
            file=self.file,
            limit=self.limit,
            replicates=self.replicates,
            samples=self.samples,
            how=self.drawing(),
            seed=self.seed,
            device=self.device,
            quiet=self.json,
        )


def options(words: Sequence[str]) -> Options:
    """Parse the command line."""
    parser = make_parser(
        "eval",
        "Evaluate a model. For a text (any that `partita train` reads): bits per character and\n"
        "perplexity per token, with the standard error of the estimate. For texts that the model\n"
        "writes: perplexity under a judge (an autoregressive model of yours), entropy, distinct\n"
        "n-grams, and the share of words that occur in the training text. For a model of images:\n"
        "bits per dimension of the test images of a set; and, for images that it draws, how often\n"
        "a classifier trained on the set recognizes their class, and the Fréchet distance of the\n"
        "classifier's features to those of test images.",
        [
            "partita eval runs/notes-mdlm test.txt",
            "partita eval default test.txt",
            "partita eval runs/notes-mdlm test.txt --judge runs/judge --samples 256",
            "partita eval runs/notes-mdlm --samples 64 --words notes.txt --out results.json",
            "partita eval runs/notes-mdlm test.txt --samples 0 --profile profile.png",
            "partita eval default test.txt --limit 2000 --samples 0 --order left-to-right",
            "partita eval runs/digits-pgm digits --samples 500 --guidance 2 --steps 16",
            "partita eval runs/digits-pgm digits --steps 8 --options.schedule linear",
        ],
    )
    every = with_own(Options, OWN)
    add_options(
        parser, every, model=MODEL, file="?a text or a set of images to measure the likelihood of"
    )
    return parse(parser, words, every)


def run(words: Sequence[str]) -> None:
    """Parse the command line and run the verb."""
    evaluate(options(words))


def evaluate(chosen: Options) -> None:
    """Load, measure, print."""
    check_own(chosen, OWN, chosen.asked())
    with naming({"device": "--device"}):
        loaded, identity = load_any(chosen.model, chosen.device)
    modality = modality_of(loaded)
    own = own_options(chosen, OWN, modality, chosen.asked())
    console = Terminal(stderr=chosen.json)
    results: dict[str, Any] = {
        "model": identity,
        "environment": environment(loaded.device),
        "seed": chosen.seed,
        "replicates": chosen.replicates,
        "manner": _sampling_settings(loaded, chosen) if chosen.samples else None,
    }
    bar = passing_bar(console)
    work = modality.evaluation(loaded, chosen.asked(), own)
    with bar, naming(chosen.names()):
        results |= work(bar)
    # Printed first, so that a full disk does not lose the results.
    if chosen.json:
        print_json(results)
    else:
        console.print(modality.table(results))
    if chosen.out is not None:
        path = Path(chosen.out)
        with parents_made(path):
            write_whole(path, json.dumps(results, indent=1))


def _sampling_settings(model: TrainedModel, chosen: Options) -> dict[str, Any]:
    """The settings that samples are drawn with: as given, else the recipe's, else the method's."""
    found = model.drawing(chosen.drawing())
    return found | {"sampler": found["sampler"] or fitting_samplers(str(model.method.family))[0]}
