"""`partita infill`: fill in the blanks of a text, or a part of an image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from partita.commands.declared import Parser
from partita.commands.parsing import (
    MODEL,
    OPTIONAL_MODEL,
    add_options,
    check_own,
    count_places,
    make_parser,
    own_options,
    parse,
    with_own,
)
from partita.commands.sample import Drawing, print_drawn, watched
from partita.commands.terminal import Terminal
from partita.errors import naming
from partita.modalities import MODALITIES, modality_of
from partita.modalities.base import SHIPPED, Infilling
from partita.models.trained import load

OWN = "infill_options"


@dataclass(frozen=True, kw_only=True)
class Options(Drawing):
    """Options of `partita infill`."""

    model: str | None = None
    text: str

    def asked(self) -> Infilling:
        """The request, in the form that modalities take."""
        how, named = self.given(), self.model is not None
        label = how.pop("label", None)
        return Infilling(given=self.text, named=named, count=self.count, label=label, how=how)


def options(words: Sequence[str]) -> Options:
    """Parse the command line: one word is the text, two are the model and the text."""
    parser = _parser(OPTIONAL_MODEL)
    if count_places(parser, words) > 1:
        # Flags may stand between the two: a parser whose first argument is optional fails then.
        parser = _parser(MODEL)
    return parse(parser, words, with_own(Options, OWN))


def _parser(model: str) -> Parser:
    parser = make_parser(
        "infill",
        "Fill in the blanks of a text. The text around them is never changed (but in bpe, where\n"
        "words begin with a space, a blank includes the space before it).\n"
        "A run of two or more underscores is a blank of that many tokens; __12__ is a blank of\n"
        "twelve. With --flexible, a run of underscores is a blank of any number of tokens,\n"
        "including none; __12__ is still a blank of twelve. A model of images draws a part of a\n"
        "picture anew (--hide). The picture is a file, or the number of a test image; --out shows\n"
        "it, then the picture without the part, then the results. Without the name of a model,\n"
        "the one that comes with the library is used, if there is one.",
        [
            "partita infill 'The river flows into the __ Sea.'",
            "partita infill runs/notes-mdlm 'The capital of ____ is Paris.'",
            "partita infill runs/notes-mdlm 'The __8__ of __6__ is Paris.' --count 3",
            "partita infill runs/notes-mdlm 'The ____ is Paris.' --blank_tokens 2 --json",
            "partita infill runs/notes-flexmdm 'The ____ is Paris.' --flexible",
            "partita infill runs/digits-pgm 5 --hide right --count 8 --out halves.png",
        ],
    )
    every = with_own(Options, OWN)
    add_options(parser, every, model=model, text="a text with blanks, or a picture")
    return parser


def run(words: Sequence[str]) -> None:
    """Load, fill in, print."""
    chosen = options(words)
    known = MODALITIES if chosen.model is not None else [SHIPPED]
    check_own(chosen, OWN, chosen.asked(), known)
    console = Terminal(stderr=chosen.json)
    with naming(chosen.names() | {"prompt": "text"}):
        model = load(chosen.model, device=chosen.device)
        modality = modality_of(model)
        own = own_options(chosen, OWN, modality, chosen.asked())
        with watched(console, model, chosen) as callback:
            drawn = modality.infill(model, replace(chosen.asked(), callback=callback), own)
    print_drawn(console, drawn, chosen.json, shown=chosen.show)
