"""`partita demo`: watch a model write texts and fill in blanks.

It uses the model in the installation. If there is none, or if --seconds is given, a small model is
trained first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from partita.commands import demo_training, program
from partita.commands.parsing import reader
from partita.commands.sample import print_texts
from partita.commands.show import animated, picture
from partita.commands.terminal import Terminal
from partita.contracts.prompt import Prompt
from partita.data.blanks import infill_prompt, opening_prompt
from partita.data.tokenizers import BPETokenizer, Tokenizer
from partita.errors import naming, require, require_int, require_positive, require_seed
from partita.execution.choice import sample
from partita.methods.contracts import Model
from partita.modalities.base import heading
from partita.models.default import ships_a_model
from partita.models.trained import load

EXAMPLE = "The ____ was built in the 19th century by the French ____."
OPENING = "The city lies on the river"
BLANK = "The river flows into the __ Sea."
# Small enough to take less than ten seconds on two cores.
SAMPLES = 3
SAMPLE_LENGTH = 64
FILM_LENGTH = 24  # tokens, each of which is a frame
BLOCK = 8


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of `partita demo`."""

    seconds: float | None = None
    """Train a small model for this many seconds, and show it; by default 60 if the library comes
    without a model."""
    seed: int = 1  # chosen after reading what the model writes with it
    """Seed of all random numbers; training also depends on the machine's speed."""
    infill: str | None = None
    """A text whose blanks, written ____, are filled in."""
    blank_tokens: int = 1
    """Number of tokens of a blank."""

    def __post_init__(self) -> None:
        if self.seconds is not None:
            require_positive(self.seconds, "--seconds")
        require_seed(self.seed, "--seed")
        require_int(self.blank_tokens, "--blank_tokens")
        if self.infill is not None:
            require("__" in self.infill, "--infill", "has no blank", "write one as ____")


options = reader(
    "demo",
    "Watch the model that comes with the library: it writes some texts, fills in the blanks\n"
    "of a sentence, and reveals a text step by step. With --seconds, or if there is no such\n"
    "model, a small masked diffusion model is trained first, on the Python language\n"
    "reference that comes with every Python.",
    [
        "partita demo",
        "partita demo --infill 'The river flows into the ____ Sea.'",
        "partita demo --seconds 60",
    ],
    Options,
)


def run(words: Sequence[str]) -> None:
    """Check the options, then show a model."""
    chosen = options(words)
    console = Terminal()
    if chosen.seconds is None and ships_a_model():
        show_shipped(console, chosen)
    else:
        show_trained(console, chosen)


def show_shipped(console: Terminal, chosen: Options) -> None:
    """Show the model in the installation: samples, blanks, step-by-step writing."""
    # Always on the CPU: starting a GPU takes longer than the whole demonstration.
    model = load(device="cpu")
    method, tokenizer = model.method, model.tokenizer
    prompt = blanks(tokenizer, chosen.infill or EXAMPLE, chosen.blank_tokens, model.length)
    console.print(
        "The model that comes with this installation:",
        heading(model.recipe.method.name) + f", {model.parameter_count / 1e6:.1f} M parameters.\n",
    )
    length = min(SAMPLE_LENGTH, model.length)
    console.print(heading("Texts"), f"of {length} tokens:")
    print_texts(console, model.sample(SAMPLES, length=length, seed=chosen.seed))
    console.print()
    stage = Stage(console, method, tokenizer, chosen.seed)  # type: ignore[arg-type]
    stage.fill(prompt)
    console.print()
    stage.go_on(model.length)
    console.say(f"Try: {program()} sample, or {program()} infill {BLANK!r}")


def show_trained(console: Terminal, chosen: Options) -> None:
    """Train a small model and show it: step-by-step writing, blanks."""
    texts = demo_training.corpus()
    tokenizer = BPETokenizer.train(texts, demo_training.VOCABULARY)
    text, length = chosen.infill or demo_training.EXAMPLE, demo_training.LENGTH
    prompt = blanks(tokenizer, text, chosen.blank_tokens, length)
    seconds = demo_training.SECONDS if chosen.seconds is None else chosen.seconds
    method = demo_training.trained(console, texts, tokenizer, seconds, chosen.seed)
    stage = Stage(console, method, tokenizer, chosen.seed)
    stage.write(length)
    stage.fill(prompt)


def blanks(tokenizer: Tokenizer, text: str, blank_tokens: int, length: int) -> Prompt:
    """The text to fill in, as a prompt; it must not be longer than the model."""
    with naming({"text": "--infill", "blank_tokens": "--blank_tokens"}):
        prompt = infill_prompt(tokenizer, text, blank_tokens)
    size = prompt.tokens.shape[1]
    problem = f"has {size} tokens, the model takes {length}"
    require(size <= length, "--infill", problem, "shorten it")
    return prompt


class Stage(NamedTuple):
    """A model that is shown, and where."""

    console: Terminal
    method: Model
    tokenizer: Tokenizer
    seed: int

    def write(self, length: int) -> None:
        """Write a text, step by step."""
        block = min(BLOCK, length)
        how = f"in blocks of {block}, the surest token of a block first:"
        self._film(
            f"{length} tokens from nothing, {how}",
            length=length,
            sampler="blocks",
            block_length=block,
            inner="confidence",
            steps=block,
            temperature=0.3,
        )

    def go_on(self, most: int) -> None:
        """Continue a text, step by step."""
        known = len(self.tokenizer.encode(OPENING))
        length = min(known + FILM_LENGTH, most)
        how = "one at a time, in an order that chance and the model choose:"
        self._film(
            f'{length - known} tokens after "{OPENING}", {how}',
            prompt=opening_prompt(self.tokenizer, OPENING, length),
            sampler="confidence",
            confidence="margin",
            noise_temperature=1.0,
            steps=length - known,
            temperature=0.7,
        )

    def _film(self, what: str, **how: Any) -> None:
        self.console.print(heading("Writing"), what)
        with animated(self.console, self.tokenizer) as show:
            sample(self.method, counts="linear", seed=self.seed, callback=show, **how)
        self.console.print()

    def fill(self, prompt: Prompt) -> None:
        """Fill in the blanks several times; the known tokens never change."""
        self.console.print(heading("Filling in"), "the blanks, three times:")
        how: dict[str, Any] = {"prompt": prompt, "sampler": "first-hitting", "temperature": 0.7}
        drawn = sample(self.method, 3, seed=self.seed, **how)
        known = prompt.known[0]
        self._show(prompt.tokens[0], known, set())
        for tokens in drawn:
            self._show(tokens, torch.ones_like(known), set((~known).nonzero()[:, 0].tolist()))

    def _show(self, tokens: Tensor, shown: Tensor, new: set[int]) -> None:
        parts = picture(self.tokenizer, tokens, shown, new)
        self.console.write(("  ", ""), *parts, soft_wrap=False)
