"""`partita eval`: likelihood of a file, and quality of what a model writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partita.commands import eval_images, eval_texts
from partita.commands.judging import load_any
from partita.commands.parsing import MODEL, add_options, make_parser, parse
from partita.commands.sample import Manner
from partita.commands.terminal import Terminal, passing_bar, print_json
from partita.errors import naming, require, require_int, require_seed
from partita.files.atomic import check_file, parents_made, write_whole
from partita.models.image_model import ImageModel
from partita.models.text_model import as_text
from partita.models.trained import TrainedModel
from partita.plotting import require_plots
from partita.provenance import environment
from partita.samplers.front import fitting_samplers
from partita.samplers.planned import ORDERS


@dataclass(frozen=True, kw_only=True)
class Options(Manner):
    """Evaluation."""

    model: str
    file: str | None
    limit: int | None = None
    """Score so many tokens of the file; of whole texts (flexmdm), up to the end of one. Of images:
    look at so many test images."""
    replicates: int = 4
    """Draws of the likelihood's estimate."""
    profile: str | None = None
    """Text, and masked models: a PNG file that shows where the bound comes from, by the share of
    hidden tokens. It takes sixteen times as long as the bound."""
    order: str | None = None
    """Text, and masked models: left-to-right or random. Beside the bound, what the text costs
    exactly if it is written one token at a time in that order. The network runs for every token:
    on two cores, 2,000 tokens of the model in the package take half a minute."""
    samples: int = 64
    """Texts or images to draw; 0 for none."""
    judge: str | None = None
    """An autoregressive model that judges the samples."""
    classifier: str | None = None
    """Images: folder of the classifier that looks at them; one that is not there is trained on
    the training images, and kept there."""
    steps: int | None = None
    """Steps of the sampler; the model's own unless given."""
    guidance: float | None = None
    """How much stronger labels shall pull (images)."""
    words: str | None = None
    """A text whose words count as words; the training text unless given."""
    seed: int = 0
    """Seed of every draw."""
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
        for flag, given in (("--judge", self.judge), ("--words", self.words)):
            needed = given is None or self.samples > 0
            require(needed, flag, "there are no samples to look at", "give --samples")
        for flag, given in (("--profile", self.profile), ("--order", self.order)):
            shown = given is None or self.file is not None
            require(shown, flag, "there is no likelihood without a file", "give a file")
        known = self.order is None or self.order in ORDERS
        require(known, "--order", f"unknown name {self.order!r}", f"known: {', '.join(ORDERS)}")
        for flag, file, kind in (("--out", self.out, None), ("--profile", self.profile, ".png")):
            if file is not None:
                check_file(Path(file), flag, kind)
        if self.profile is not None:
            require_plots("--profile")

    def drawing(self) -> dict[str, Any]:
        """What the samples are drawn with, where it is not the model's own way."""
        more = {name: getattr(self, name) for name in ("steps", "guidance")}
        return self.given() | {name: value for name, value in more.items() if value is not None}


def options(words: Sequence[str]) -> Options:
    """What the words ask for."""
    parser = make_parser(
        "eval",
        "Evaluate a model. On a text (any that `partita train` reads): bits per character and\n"
        "perplexity per token, with the standard error of the estimate. On texts that the model\n"
        "writes: perplexity under a judge (an autoregressive model of yours), entropy, distinct\n"
        "n-grams, and the share of words that the training text has. A model of images: bits per\n"
        "dimension of the test images of a set; of images that it draws the share that a\n"
        "classifier trained on the set takes for their class, and the Fréchet distance by its\n"
        "features.",
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
    add_options(
        parser, Options, model=MODEL, file="?a text or a set of images to measure the likelihood of"
    )
    return parse(parser, words, Options)


def run(words: Sequence[str]) -> None:
    """Load, measure, print."""
    chosen = options(words)
    with naming({"device": "--device"}):
        loaded, identity = load_any(chosen.model, chosen.device)
    if isinstance(loaded, ImageModel):
        _refuse(
            chosen,
            ("judge", "words", "profile", "order"),
            "is for text, and this is a model of images",
        )
    else:
        _refuse(chosen, ("classifier",), "is for images, and this is a model of text")
    console = Terminal(stderr=chosen.json)
    results: dict[str, Any] = {
        "model": identity,
        "environment": environment(loaded.device),
        "seed": chosen.seed,
        "replicates": chosen.replicates,
        "manner": _manner(loaded, chosen) if chosen.samples else None,
    }
    bar = passing_bar(console)
    if isinstance(loaded, ImageModel):
        work, table = eval_images.prepared(loaded, chosen), eval_images.table
    else:
        work, table = eval_texts.prepared(as_text(loaded, chosen.model), chosen), eval_texts.table
    with bar, naming(chosen.names()):
        results |= work(bar)
    # Printed first: a disk that is full must not cost the results.
    if chosen.json:
        print_json(results)
    else:
        console.print(table(results))
    if chosen.out is not None:
        path = Path(chosen.out)
        with parents_made(path):
            write_whole(path, json.dumps(results, indent=1))


def _manner(model: TrainedModel, chosen: Options) -> dict[str, Any]:
    """How samples are drawn: as asked for, as the recipe says, or as the method does by itself."""
    manner = model.drawing(chosen.drawing())
    return manner | {"sampler": manner["sampler"] or fitting_samplers(str(model.method.family))[0]}


def _refuse(chosen: Options, names: Sequence[str], problem: str) -> None:
    for name in names:
        require(getattr(chosen, name) is None, f"--{name}", problem, "leave it out")
