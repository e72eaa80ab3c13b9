"""`partita sample`: write texts or draw images with a trained model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from partita.commands.parsing import (
    OPTIONAL_MODEL,
    Shared,
    check_own,
    flags_of,
    own_options,
    reader,
)
from partita.commands.show import animated
from partita.commands.terminal import Terminal, print_json
from partita.config.sampling import check_more
from partita.errors import InputError, naming, require_int
from partita.modalities import modality_of
from partita.modalities.base import Drawn, Sampling
from partita.models.trained import TrainedModel, load
from partita.samplers.base import Callback

OWN = "sample_options"


@dataclass(frozen=True, kw_only=True)
class SamplingFlags(Shared):
    """Sampling settings: how tokens are chosen. Those left out come from the model's recipe."""

    sampler: str | None = None
    """The sampler; `partita methods NAME` lists those that fit a method, its default first."""
    temperature: float | None = None
    """Divides the logits; 0 takes the most probable token."""
    top_k: int | None = None
    """Keep the k most probable tokens."""
    top_p: float | None = None
    """Keep the most probable tokens until their mass reaches p."""
    options: dict[str, Any] = field(default_factory=dict)
    """More options of the sampler, for example --options.counts cosine for confidence."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_more(self.options, "--options")

    def names(self) -> dict[str, str]:
        """The arguments of a model's `sample`, as the flags that set them."""
        more = {name: f"--options.{name}" for name in self.options}
        return flags_of(type(self), "model", "models", "text", "file") | more

    def given(self) -> dict[str, Any]:
        """The given settings, as arguments of a model's `sample`."""
        return self._given(name for name in SamplingFlags.__annotations__ if name != "options")

    def _given(self, names: Iterable[str]) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None} | self.options


@dataclass(frozen=True, kw_only=True)
class Drawing(SamplingFlags):
    """Options that `sample` and `infill` share."""

    steps: int | None = None
    """Number of steps, for samplers that have this option."""
    label: str | None = None
    """The name of a class, for models trained with classes; each draws images of every class
    (`sample`)."""
    guidance: float | None = None
    """Classifier-free guidance weight; 0 is off."""
    guidance_schedule: str | None = None
    """How the weight grows as tokens are revealed: constant, linear or cosine."""
    precision: str | None = None
    """float32 or bfloat16. By default, masked models on a GPU run in the precision of their
    training, and all others in float32."""
    speed: str | None = None
    """eager, cudagraph (replays a recorded step), compile (also compiles parts of the network; pays
    off for many texts), or auto."""
    count: int = 1
    """Number of texts or images."""
    show: bool = False
    """Show the first text while it is written."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_int(self.count, "--count")

    def given(self) -> dict[str, Any]:
        """The given settings, as arguments of a model's `sample`."""
        names = ("steps", "label", "seed", "guidance", "guidance_schedule", "precision", "speed")
        return super().given() | self._given(names)

    def asked(self) -> Sampling:
        """The request, in the form that modalities take."""
        how = self.given()
        return Sampling(count=self.count, label=how.pop("label", None), how=how)


@dataclass(frozen=True, kw_only=True)
class Options(Drawing):
    """Options of `partita sample`."""

    model: str | None = None


options = reader(
    "sample",
    "Write texts with a trained model. A model of images draws images to the file --out;\n"
    "--label each draws --count images of each class. Without the name of a model, the one\n"
    "that comes with the library is used, if there is one.",
    [
        "partita sample",
        "partita sample --prompt 'The city lies on the river' --count 2 --length 64 --show",
        "partita sample runs/notes-mdlm --count 3",
        "partita sample runs/notes-mdlm --show --sampler confidence --steps 16",
        "partita sample runs/notes-mdlm --prompt 'Once upon a time' --temperature 0.7",
        "partita sample runs/notes-mdlm --sampler blocks --length 500 --json",
        "partita sample runs/digits-pgm --label each --count 8 --guidance 2 --out digits.png",
    ],
    Options,
    own=OWN,
    model=OPTIONAL_MODEL,
)


def run(words: Sequence[str]) -> None:
    """Load, sample, print."""
    chosen = options(words)
    check_own(chosen, OWN, chosen.asked())
    console = Terminal(stderr=chosen.json)
    with naming(chosen.names()):
        model = load(chosen.model, device=chosen.device)
        modality = modality_of(model)
        own = own_options(chosen, OWN, modality, chosen.asked())
        with watched(console, model, chosen) as callback:
            drawn = modality.sample(model, replace(chosen.asked(), callback=callback), own)
    print_drawn(console, drawn, chosen.json, shown=chosen.show)


def watched(
    console: Terminal, model: TrainedModel, chosen: Drawing
) -> AbstractContextManager[Callback | None]:
    """A callback that shows a sample while it is drawn, with --show."""
    if not chosen.show:
        return nullcontext()
    tokenizer, name = model.tokenizer, modality_of(model).name
    if not modality_of(model).watchable:
        raise InputError("show", f"shows texts, and this is a model of {name}", "leave it out")
    return animated(console, tokenizer)  # type: ignore[arg-type] # it decodes to text


def print_drawn(console: Terminal, drawn: Drawn, as_json: bool, *, shown: bool = False) -> None:
    """Print samples as text or JSON; the first text may be `shown` already."""
    if as_json:
        print_json(dict(drawn.facts))
        return
    print_texts(console, drawn.texts, shown=shown)
    for line in drawn.lines:
        console.say(line)


def print_texts(console: Terminal, texts: Sequence[str], *, shown: bool = False) -> None:
    """Print texts, separated by a rule if there are several.

    If the first was `shown` while it was written, it is on the screen already.
    """
    for number, text in enumerate(texts):
        if number:
            console.rule(style="dim")
        if number or not shown:
            console.write((text, ""))
