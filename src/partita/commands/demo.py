"""`partita demo`: watch a model write texts and fill in blanks.

It uses the model in the installation. If there is none, or if --seconds is given, a small model is
trained first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from partita.commands import demo_training, program
from partita.commands.parsing import add_options, make_parser, parse
from partita.commands.sample import print_texts
from partita.commands.show import animated, picture
from partita.commands.terminal import Terminal, heading
from partita.contracts.prompt import Prompt
from partita.data.blanks import infill_prompt, opening_prompt
from partita.data.tokenizers import BPETokenizer, Tokenizer
from partita.errors import naming, require, require_int, require_positive, require_seed
from partita.execution.choice import sample
from partita.methods.contracts import Model
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


def options(words: Sequence[str]) -> Options:
    """Parse the command line."""
    parser = make_parser(
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
    )
    add_options(parser, Options)
    return parse(parser, words, Options)


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
    fill(console, method, tokenizer, prompt, chosen.seed)  # type: ignore[arg-type]
    console.print()
    go_on(console, method, tokenizer, model.length, chosen.seed)  # type: ignore[arg-type]
    console.print(f"Try: {program()} sample, or {program()} infill {BLANK!r}", soft_wrap=True)


def show_trained(console: Terminal, chosen: Options) -> None:
    """Train a small model and show it: step-by-step writing, blanks."""
    texts = demo_training.corpus()
    tokenizer = BPETokenizer.train(texts, demo_training.VOCABULARY)
    text, length = chosen.infill or demo_training.EXAMPLE, demo_training.LENGTH
    prompt = blanks(tokenizer, text, chosen.blank_tokens, length)
    seconds = demo_training.SECONDS if chosen.seconds is None else chosen.seconds
    method = demo_training.trained(console, texts, tokenizer, seconds, chosen.seed)
    write(console, method, tokenizer, length, chosen.seed)
    fill(console, method, tokenizer, prompt, chosen.seed)


def blanks(tokenizer: Tokenizer, text: str, blank_tokens: int, length: int) -> Prompt:
    """The text to fill in, as a prompt; it must not be longer than the model."""
    with naming({"text": "--infill", "blank_tokens": "--blank_tokens"}):
        prompt = infill_prompt(tokenizer, text, blank_tokens)
    size = prompt.tokens.shape[1]
    problem = f"has {size} tokens, the model takes {length}"
    require(size <= length, "--infill", problem, "shorten it")
    return prompt


def write(console: Terminal, method: Model, tokenizer: Tokenizer, length: int, seed: int) -> None:
    """Write a text, step by step."""
    block = min(BLOCK, length)
    console.print(
        heading("Writing"),
        f"{length} tokens from nothing, in blocks of {block}, the surest token of a block first:",
    )
    with animated(console, tokenizer) as show:
        sample(
            method,
            1,
            length=length,
            sampler="blocks",
            block_length=block,
            inner="confidence",
            counts="linear",
            steps=block,
            temperature=0.3,
            seed=seed,
            callback=show,
        )
    console.print()


def go_on(console: Terminal, method: Model, tokenizer: Tokenizer, most: int, seed: int) -> None:
    """Continue a text, step by step."""
    known = len(tokenizer.encode(OPENING))
    length = min(known + FILM_LENGTH, most)
    console.print(
        heading("Writing"),
        f'{length - known} tokens after "{OPENING}", one at a time, in an order that chance and '
        "the model choose:",
    )
    with animated(console, tokenizer) as show:
        sample(
            method,
            prompt=opening_prompt(tokenizer, OPENING, length),
            sampler="confidence",
            confidence="margin",
            noise_temperature=1.0,
            counts="linear",
            steps=length - known,
            temperature=0.7,
            seed=seed,
            callback=show,
        )
    console.print()


def fill(console: Terminal, method: Model, tokenizer: Tokenizer, prompt: Prompt, seed: int) -> None:
    """Fill in the blanks several times; the known tokens never change."""
    console.print(heading("Filling in"), "the blanks, three times:")
    indent = ("  ", "")
    blank = picture(tokenizer, prompt.tokens[0], prompt.known[0], set())
    console.write(indent, *blank, soft_wrap=False)
    drawn = sample(method, 3, prompt=prompt, sampler="first-hitting", temperature=0.7, seed=seed)
    places = set((~prompt.known[0]).nonzero()[:, 0].tolist())
    for tokens in drawn:
        shown = torch.ones_like(prompt.known[0])
        console.write(indent, *picture(tokenizer, tokens, shown, places), soft_wrap=False)
