"""`partita sample`: texts that a trained model writes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from partita.commands.drawing import draw, report
from partita.commands.parsing import OPTIONAL_MODEL, add_options, flags_of, make_parser, parse
from partita.commands.show import animated
from partita.commands.terminal import Terminal, print_json
from partita.config.sampling import check_more
from partita.errors import naming, require, require_int, require_seed
from partita.files.atomic import check_file
from partita.models.default import NAME
from partita.models.image_model import ImageModel
from partita.models.text_model import as_text
from partita.models.trained import load as load_any


@dataclass(frozen=True, kw_only=True)
class Manner:
    """How tokens are chosen. The model's recipe fills in what is left out."""

    sampler: str | None = None
    """The sampler; `partita methods NAME` lists those that fit a method, its default first."""
    temperature: float | None = None
    """Divides the logits; 0 takes the most probable token."""
    top_k: int | None = None
    """Keep the k most probable tokens."""
    top_p: float | None = None
    """Keep the most probable tokens until their mass reaches p."""
    options: dict[str, Any] = field(default_factory=dict)
    """More options of the sampler, for example --options.counts cosine of confidence."""

    def __post_init__(self) -> None:
        check_more(self.options, "--options")

    def names(self) -> dict[str, str]:
        """Arguments of `TextModel.sample` as they are written here."""
        more = {name: f"--options.{name}" for name in self.options}
        return flags_of(type(self), "model", "models", "text", "file") | more

    def given(self) -> dict[str, Any]:
        """What was asked for, as arguments of `TextModel.sample`."""
        names = [field.name for field in fields(Manner) if field.name != "options"]
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None} | self.options


@dataclass(frozen=True, kw_only=True)
class Drawing(Manner):
    """What `sample` and `infill` have in common."""

    steps: int | None = None
    """Steps of a sampler that has them."""
    label: str | None = None
    """The class, by name, of a model that was trained with classes (`sample` of images also takes
    each)."""
    guidance: float | None = None
    """How much stronger the label shall pull than it does by itself; 0 for as it is."""
    guidance_schedule: str | None = None
    """How that grows as tokens are revealed: constant, linear or cosine."""
    precision: str | None = None
    """float32 or bfloat16; a GPU asks masked models in the precision of their training unless
    told, everything else is float32."""
    speed: str | None = None
    """plain, captured (a program of fixed shape, for GPUs), compiled (the same with compiled
    blocks, for many texts), or auto."""
    count: int = 1
    """How many texts or images."""
    seed: int = 0
    """Seed: the same seed gives the same texts."""
    device: str = "auto"
    """cpu, cuda, or auto."""
    json: bool = False
    """Print JSON, for machines."""
    show: bool = False
    """Watch the first text being written."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_int(self.count, "--count")
        require_seed(self.seed, "--seed")

    def given(self) -> dict[str, Any]:
        """What was asked for, as arguments of `TextModel.sample`."""
        names = ("steps", "label", "seed", "guidance", "guidance_schedule", "precision", "speed")
        values = {name: getattr(self, name) for name in names}
        return super().given() | {key: value for key, value in values.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Options(Drawing):
    """Sampling."""

    model: str | None = None
    length: int | None = None
    """Tokens of a text; the model's length unless given (more with --sampler blocks). The most
    that a text may have, if the model decides on its length (flexmdm)."""
    prompt: str = ""
    """A text to go on from."""
    out: str | None = None
    """Images: the PNG file to draw them in, in a square (one column for each label of `each`);
    samples.png unless given."""
    gif: str | None = None
    """Images: a GIF file that shows how they come out of their masks."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length is not None:
            require_int(self.length, "--length")
        for flag, file, kind in (("--out", self.out, ".png"), ("--gif", self.gif, ".gif")):
            if file is not None:
                check_file(Path(file), flag, kind)


def options(words: Sequence[str]) -> Options:
    """What the words ask for."""
    parser = make_parser(
        "sample",
        "Write texts with a trained model, or draw images with one of images (into --out).\n"
        "--label each draws --count images of each class. Without a model it is the one that this\n"
        "installation comes with, if it does.",
        [
            "partita sample",
            "partita sample --prompt 'The city lies on the river' --count 2 --length 64 --show",
            "partita sample runs/notes-mdlm --count 3",
            "partita sample runs/notes-mdlm --show --sampler confidence --steps 16",
            "partita sample runs/notes-mdlm --prompt 'Once upon a time' --temperature 0.7",
            "partita sample runs/notes-mdlm --sampler blocks --length 500 --json",
            "partita sample runs/digits-pgm --label each --count 8 --guidance 2 --out digits.png",
        ],
    )
    add_options(parser, Options, model=OPTIONAL_MODEL)
    return parse(parser, words, Options)


def run(words: Sequence[str]) -> None:
    """Load, sample, print."""
    chosen = options(words)
    console = Terminal(stderr=chosen.json)
    with naming(chosen.names()):
        loaded = load_any(chosen.model, device=chosen.device)
        if isinstance(loaded, ImageModel):
            _draw(loaded, chosen, console)
            return
        model = as_text(loaded, chosen.model or NAME)
        for name in ("out", "gif"):
            problem = "is for images, and this is a model of text"
            require(getattr(chosen, name) is None, name, problem, "leave it out")
        with animated(console, model.tokenizer) if chosen.show else nullcontext() as callback:
            texts = model.sample(
                chosen.count,
                prompt=chosen.prompt,
                length=chosen.length,
                callback=callback,
                **chosen.given(),
            )
    print_texts(console, texts, chosen.json, shown=chosen.show)


def _draw(model: ImageModel, chosen: Options, console: Terminal) -> None:
    """The same for images."""
    for name in ("prompt", "length", "show"):
        problem, remedy = "is for text, and this is a model of images", "leave it out; see --gif"
        require(not getattr(chosen, name), name, problem, remedy)
    options = {name: value for name, value in chosen.given().items() if name != "label"}
    facts = draw(model, chosen.count, chosen.label, options, out=chosen.out, gif=chosen.gif)
    report(console, facts, chosen.json)


def print_texts(console: Terminal, texts: list[str], as_json: bool, *, shown: bool = False) -> None:
    """Texts, apart by a rule if there are several; or as JSON.

    If the first was `shown` as it was written, it is on the screen already.
    """
    if as_json:
        print_json({"texts": texts})
        return
    for number, text in enumerate(texts):
        if number:
            console.rule(style="dim")
        if number or not shown:
            console.write((text, ""))
