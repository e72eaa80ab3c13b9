"""`partita eval`: the likelihood of a file, and the quality of samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from partita.commands.parsing import MODEL, check_own, own_options, reader
from partita.commands.sample import SamplingFlags
from partita.commands.terminal import Terminal, deliver, passing_bar
from partita.errors import naming, require, require_ints
from partita.evaluation.quality import load_any
from partita.files.atomic import check_file
from partita.modalities import modality_of
from partita.modalities.base import Evaluation
from partita.provenance import environment
from partita.samplers.front import fitting_samplers

OWN = "eval_options"


@dataclass(frozen=True, kw_only=True)
class Options(SamplingFlags):
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
    out: str | None = None
    """A JSON file to write the results to."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_ints(self, "--", replicates=2, samples=0, limit=1, steps=1)
        some = self.file is not None or self.samples > 0
        require(some, "file", "there is nothing to evaluate", "give a file, or --samples")
        check_file(self.out, "--out")

    def drawing(self) -> dict[str, Any]:
        """The sampling settings that were given; the model's own apply to the rest."""
        return self.given() | self._given(("steps", "guidance"))

    def asked(self) -> Evaluation:
        """The request, in the form that modalities take."""
        names = ("file", "limit", "replicates", "samples", "seed", "device")
        same = {name: getattr(self, name) for name in names}
        return Evaluation(**same, how=self.drawing(), quiet=self.json)


options = reader(
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
    Options,
    own=OWN,
    model=MODEL,
    file="?a text or a set of images to measure the likelihood of",
)


def run(words: Sequence[str]) -> None:
    """Load, measure, print."""
    chosen = options(words)
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
        "sampling": None,
    }
    if chosen.samples:  # as given, else the recipe's, else the method's
        settings = loaded.drawing(chosen.drawing())
        usual = fitting_samplers(str(loaded.method.family))[0]
        results["sampling"] = settings | {"sampler": settings["sampler"] or usual}
    bar = passing_bar(console)
    work = modality.evaluation(loaded, chosen.asked(), own)
    with bar, naming(chosen.names()):
        results |= work(bar)
    deliver(console, results, modality.table, chosen.out, as_json=chosen.json)
