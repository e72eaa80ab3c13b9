"""`partita infill`: the blanks of a text, filled in."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from partita.commands.declared import Parser
from partita.commands.drawing import PARTS, fill_in, report
from partita.commands.parsing import (
    MODEL,
    OPTIONAL_MODEL,
    add_options,
    count_places,
    make_parser,
    parse,
)
from partita.commands.sample import Drawing, print_texts
from partita.commands.show import animated
from partita.commands.terminal import Terminal
from partita.errors import naming, require, require_int
from partita.files.atomic import check_file
from partita.models.default import NAME
from partita.models.image_model import ImageModel
from partita.models.text_model import as_text
from partita.models.trained import load as load_any


@dataclass(frozen=True, kw_only=True)
class Options(Drawing):
    """Infilling."""

    model: str | None = None
    text: str
    hide: str | None = None
    """Images: the part that is drawn anew: left, right, top, bottom or middle."""
    out: str | None = None
    """Images: the PNG file to draw them in; filled.png unless given."""
    blank_tokens: int | None = None
    """Tokens of every blank that does not say its own number."""
    flexible: bool = False
    """Let the model decide how many tokens such a blank takes, also none (flexmdm)."""
    length: int | None = None
    """With --flexible: the most tokens that a text may have; the model's length unless given."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model is None and self.hide is None:  # it may be a model whose text was forgotten
            remedy = "write one as ____; a model comes before the text"
            require("__" in self.text, "text", "has no blank", remedy)
        if self.length is not None:
            require_int(self.length, "--length")
            problem = "blanks of given sizes leave nothing to say about the length"
            require(self.flexible, "--length", problem, "leave it out, or give --flexible")
        if self.hide is not None:
            known = f"known: {', '.join(PARTS)}"
            require(self.hide in PARTS, "--hide", f"unknown name {self.hide!r}", known)
        if self.out is not None:
            check_file(Path(self.out), "--out", ".png")


def options(words: Sequence[str]) -> Options:
    """What the words ask for: of one word the text, of two the model and the text."""
    parser = _parser(OPTIONAL_MODEL)
    if count_places(parser, words) > 1:
        # Flags may stand between the two, where a parser that may do without the first goes wrong.
        parser = _parser(MODEL)
    return parse(parser, words, Options)


def _parser(model: str) -> Parser:
    parser = make_parser(
        "infill",
        "Fill in the blanks of a text. What stands around them is never changed (but where words\n"
        "begin with their spaces, as in bpe, a blank takes the space before it along).\n"
        "A run of two or more underscores is a blank of that many tokens, __12__ one of twelve.\n"
        "Of a model of images: draw a part of a picture anew (--hide). The picture is a file, or\n"
        "the number of a test image; --out has it, then without the part, then the results.\n"
        "With --flexible a run of underscores stands for any number of tokens, also none; __12__\n"
        "still is a blank of twelve. Without a model it is the one that this installation comes\n"
        "with, if it does.",
        [
            "partita infill 'The river flows into the __ Sea.'",
            "partita infill runs/notes-mdlm 'The capital of ____ is Paris.'",
            "partita infill runs/notes-mdlm 'The __8__ of __6__ is Paris.' --count 3",
            "partita infill runs/notes-mdlm 'The ____ is Paris.' --blank_tokens 2 --json",
            "partita infill runs/notes-flexmdm 'The ____ is Paris.' --flexible",
            "partita infill runs/digits-pgm 5 --hide right --count 8 --out halves.png",
        ],
    )
    add_options(parser, Options, model=model, text="a text with blanks, or a picture")
    return parser


def run(words: Sequence[str]) -> None:
    """Load, fill in, print."""
    chosen = options(words)
    console = Terminal(stderr=chosen.json)
    with naming(chosen.names() | {"prompt": "text"}):
        loaded = load_any(chosen.model, device=chosen.device)
        if isinstance(loaded, ImageModel):
            _draw(loaded, chosen, console)
            return
        model = as_text(loaded, chosen.model or NAME)
        for name in ("hide", "out"):
            problem = "is for images, and this is a model of text"
            require(getattr(chosen, name) is None, name, problem, "leave it out")
        with animated(console, model.tokenizer) if chosen.show else nullcontext() as callback:
            texts = model.infill(
                chosen.text,
                chosen.count,
                blank_tokens=chosen.blank_tokens,
                flexible=chosen.flexible,
                callback=callback,
                **({} if chosen.length is None else {"length": chosen.length}),
                **chosen.given(),
            )
    print_texts(console, texts, chosen.json, shown=chosen.show)


def _draw(model: ImageModel, chosen: Options, console: Terminal) -> None:
    """The same for images."""
    for name in ("blank_tokens", "flexible", "length", "show"):
        problem = "is for text, and this is a model of images"
        require(not getattr(chosen, name), name, problem, "leave it out")
    part = chosen.hide or ""
    require(bool(part), "hide", "must be given", f"say which part: {', '.join(PARTS)}")
    facts = fill_in(model, chosen.text, part, chosen.count, chosen.given(), out=chosen.out)
    report(console, facts, chosen.json)
