"""`partita demo`: train a small MDLM for a minute, watch it write, let it fill in a blank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from partita.commands.parsing import add_options, make_parser, parse
from partita.commands.show import animated, picture
from partita.data.blanks import infill_prompt
from partita.data.standard_library import reference_paragraphs
from partita.data.tokenizers import BPETokenizer
from partita.errors import naming, require, require_int, require_positive, require_seed
from partita.evaluation.likelihood import nelbo
from partita.methods import MDLM
from partita.networks import Transformer, TransformerConfig
from partita.samplers import Prompt, sample
from partita.training import loop
from partita.training.options import TrainingOptions

CHARACTERS = 8_000  # of text: little enough for a minute on two cores to leave an impression
VOCABULARY = 1024
LENGTH = 48
BLOCK = 8
EXAMPLE = "The value for the built-in ____ is determined when the ____ starts."


@dataclass(frozen=True, kw_only=True)
class Options:
    """The demonstration."""

    seconds: float = 60.0
    """Training time."""
    seed: int = 0
    """Seed of every draw; a run also depends on the machine's speed."""
    infill: str = EXAMPLE
    """A text whose blanks, written ____, are filled in."""
    blank_tokens: int = 1
    """Tokens that a blank holds."""

    def __post_init__(self) -> None:
        require_positive(self.seconds, "--seconds")
        require_seed(self.seed, "--seed")
        require_int(self.blank_tokens, "--blank_tokens")
        require("__" in self.infill, "--infill", "has no blank", "write one as ____")


def options(words: Sequence[str]) -> Options:
    """What the words ask for."""
    parser = make_parser(
        "demo",
        "Train a small masked diffusion model on the Python language reference that comes with\n"
        "every Python, then watch it unmask a text step by step and fill in a blank.",
        [
            "partita demo",
            "partita demo --seconds 20",
            "partita demo --infill 'A ____ is a list of items.'",
        ],
    )
    add_options(parser, Options)
    return parse(parser, words, Options)


def run(words: Sequence[str]) -> None:
    """Check everything first; then train, sample, fill in."""
    chosen = options(words)
    console = Console(highlight=False)
    texts = corpus(CHARACTERS)
    tokenizer = BPETokenizer.train(texts, VOCABULARY)
    prompt = blanks(tokenizer, chosen)
    torch.manual_seed(chosen.seed)
    method = build(tokenizer.vocab_size)
    stream = torch.tensor([i for text in texts for i in tokenizer.encode(text + "\n")])
    train(console, method, stream, chosen)
    report(console, method, stream, sum(len(text) + 1 for text in texts))
    write(console, method, tokenizer, chosen.seed)
    fill(console, method, tokenizer, prompt, chosen.seed)


def corpus(characters: int) -> list[str]:
    """The first paragraphs of the reference, about so many characters."""
    texts: list[str] = []
    for text in reference_paragraphs():
        if sum(map(len, texts)) >= characters:
            break
        texts.append(text)
    return texts


def blanks(tokenizer: BPETokenizer, options: Options) -> Prompt:
    """The text to fill in, which must not be longer than the model."""
    with naming({"text": "--infill", "blank_tokens": "--blank_tokens"}):
        prompt = infill_prompt(tokenizer, options.infill, options.blank_tokens)
    size = prompt.tokens.shape[1]
    require(
        size <= LENGTH, "--infill", f"has {size} tokens, the model takes {LENGTH}", "shorten it"
    )
    return prompt


def build(vocab_size: int) -> MDLM:
    """A model that a laptop trains in a minute."""
    config = TransformerConfig(
        vocab_size=vocab_size + 1, length=LENGTH, width=128, depth=2, heads=4, mlp="relu2"
    )
    return MDLM(Transformer(config))


def train(console: Console, method: MDLM, stream: Tensor, options: Options) -> None:
    """Train with a progress bar."""
    parameters = sum(p.numel() for p in method.parameters())
    console.print(
        f"[bold]Training[/] an MDLM of {parameters / 1e6:.1f} M parameters on {stream.numel():,} "
        f"tokens of the Python language reference, for {options.seconds:g} seconds."
    )
    training = TrainingOptions(
        seconds=options.seconds,
        batch_size=32,
        length=min(LENGTH, stream.numel()),
        optimiser="muon",
        learning_rate=0.03,
        ema=0.99,
        seed=options.seed,
    )
    bar = Progress(
        TextColumn("step {task.fields[step]}"),
        BarColumn(),
        TextColumn("loss {task.fields[loss]:.2f}"),
        TimeRemainingColumn(),
        console=console,
    )
    smooth = math.nan
    with bar:
        task = bar.add_task("train", total=1.0, step=0, loss=math.nan)

        def show(progress: loop.Progress) -> None:
            nonlocal smooth
            smooth = progress.loss if math.isnan(smooth) else 0.95 * smooth + 0.05 * progress.loss
            bar.update(task, completed=progress.share, step=progress.step, loss=smooth)

        loop.fit(method, stream, training, show)


def report(console: Console, method: MDLM, stream: Tensor, characters: int) -> None:
    """The likelihood bound of the text that was learned."""
    windows = stream[: stream.numel() // LENGTH * LENGTH].reshape(-1, LENGTH)
    bound = nelbo(method, windows)
    per_character = stream.numel() / characters
    console.print(
        f"It now needs at most [bold]{bound.bits * per_character:.2f} "
        f"± {bound.bits_error * per_character:.2f} bits per character[/] for this text "
        "(which it has seen; a fresh text would cost more).\n"
    )


def write(console: Console, method: MDLM, tokenizer: BPETokenizer, seed: int) -> None:
    """A text from nothing, step by step."""
    console.print(
        f"[bold]Writing[/] {LENGTH} tokens from nothing, in blocks of {BLOCK}, "
        "the surest token of a block first:"
    )
    with animated(console, tokenizer) as show:
        sample(
            method,
            1,
            sampler="blocks",
            block_length=BLOCK,
            inner="confidence",
            counts="linear",
            steps=BLOCK,
            temperature=0.3,
            seed=seed,
            callback=show,
        )
    console.print()


def fill(
    console: Console, method: MDLM, tokenizer: BPETokenizer, prompt: Prompt, seed: int
) -> None:
    """The blanks, filled in several times; the known tokens are never touched."""
    console.print("[bold]Filling in[/] the blanks, three times:")
    console.print("  ", picture(tokenizer, prompt.tokens[0], prompt.known[0], set()), sep="")
    drawn = sample(method, 3, prompt=prompt, sampler="first-hitting", temperature=0.7, seed=seed)
    places = set((~prompt.known[0]).nonzero()[:, 0].tolist())
    for tokens in drawn:
        shown = torch.ones_like(prompt.known[0])
        console.print("  ", picture(tokenizer, tokens, shown, places), sep="")
