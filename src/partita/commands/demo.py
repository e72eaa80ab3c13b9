"""`partita demo`: train a small MDLM for a minute, watch it write, let it fill in a blank."""

from __future__ import annotations

import argparse
import math
import time

import torch
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text
from torch import Tensor

from partita.data.standard_library import reference_paragraphs
from partita.data.tokenizers import BPETokenizer
from partita.errors import require
from partita.evaluation.likelihood import nelbo
from partita.methods import MDLM
from partita.networks import Transformer, TransformerConfig
from partita.samplers import Prompt, Step, sample
from partita.training import loop

CHARACTERS = 8_000  # of text: little enough for a minute on two cores to leave an impression
VOCABULARY = 1024
LENGTH = 48
BLOCK = 8
FRAME_SECONDS = 0.1  # so that eyes can follow
BLANK = "____"
HIDDEN = "▒▒▒"
EXAMPLE = "The value for the built-in ____ is determined when the ____ starts."


def parser() -> argparse.ArgumentParser:
    """The options of the verb."""
    result = argparse.ArgumentParser(
        prog="partita demo",
        description="Train a small masked diffusion model on the Python language reference that "
        "comes with every Python, then watch it unmask a text step by step and fill in a blank.",
        epilog="examples: partita demo; partita demo --seconds 20; "
        f"partita demo --infill 'A {BLANK} is a list of items.'",
        allow_abbrev=False,
    )
    result.add_argument("--seconds", type=float, default=60, help="training time (default: 60)")
    result.add_argument(
        "--seed",
        type=int,
        default=0,
        help="seed of every draw (default: 0); a run also depends on the machine's speed",
    )
    result.add_argument(
        "--infill",
        default=EXAMPLE,
        metavar="TEXT",
        help=f"a text whose blanks, written {BLANK}, are filled in (default: %(default)r)",
    )
    result.add_argument(
        "--blank-tokens", type=int, default=1, help="tokens that a blank holds (default: 1)"
    )
    return result


def run(options: argparse.Namespace) -> None:
    """Check everything first; then train, sample, fill in."""
    require(options.seconds > 0, "--seconds", f"must be positive, got {options.seconds}")
    require(0 <= options.seed < 2**63, "--seed", f"must not be negative, got {options.seed}")
    require(options.blank_tokens >= 1, "--blank-tokens", "must be at least 1")
    require(BLANK in options.infill, "--infill", f"has no blank; write one as {BLANK}")
    console = Console(highlight=False)
    texts = corpus(CHARACTERS)
    tokenizer = BPETokenizer.train(texts, VOCABULARY)
    prompt = infill_prompt(tokenizer, options.infill, options.blank_tokens)
    torch.manual_seed(options.seed)
    method = build(tokenizer.vocab_size)
    stream = torch.tensor([i for text in texts for i in tokenizer.encode(text + "\n")])
    train(console, method, stream, options.seconds, options.seed)
    report(console, method, stream, sum(len(text) + 1 for text in texts))
    write(console, method, tokenizer, options.seed)
    fill(console, method, tokenizer, prompt, options.seed)


def corpus(characters: int) -> list[str]:
    """The first paragraphs of the reference, about so many characters."""
    texts: list[str] = []
    for text in reference_paragraphs():
        if sum(map(len, texts)) >= characters:
            break
        texts.append(text)
    return texts


def build(vocab_size: int) -> MDLM:
    """A model that a laptop trains in a minute."""
    config = TransformerConfig(
        vocab_size=vocab_size + 1, length=LENGTH, width=128, depth=2, heads=4, mlp="relu2"
    )
    return MDLM(Transformer(config))


def train(console: Console, method: MDLM, stream: Tensor, seconds: float, seed: int) -> None:
    """Train with a progress bar."""
    parameters = sum(p.numel() for p in method.parameters())
    console.print(
        f"[bold]Training[/] an MDLM of {parameters / 1e6:.1f} M parameters on {stream.numel():,} "
        f"tokens of the Python language reference, for {seconds:g} seconds."
    )
    options = loop.TrainingOptions(
        seconds=seconds,
        batch_size=32,
        length=min(LENGTH, stream.numel()),
        optimiser="muon",
        learning_rate=0.03,
        ema=0.99,
        seed=seed,
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

        loop.fit(method, stream, options, show)


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


def picture(tokenizer: BPETokenizer, tokens: Tensor, shown: Tensor, new: set[int]) -> Text:
    """One sequence: hidden positions as blocks, what is new in colour."""
    text = Text()
    for position, (token, visible) in enumerate(zip(tokens.tolist(), shown.tolist(), strict=True)):
        if visible:
            text.append(tokenizer.decode([token]), style="bold green" if position in new else "")
        else:
            text.append(f" {HIDDEN}", style="dim")
    return text


def write(console: Console, method: MDLM, tokenizer: BPETokenizer, seed: int) -> None:
    """A text from nothing, step by step: animated in a terminal, frame by frame elsewhere."""
    console.print(
        f"[bold]Writing[/] {LENGTH} tokens from nothing, in blocks of {BLOCK}, "
        "the surest token of a block first:"
    )
    with Live(console=console, auto_refresh=False) as live:

        def show(step: Step) -> None:
            canvas, new = step.canvas, set(step.positions.tolist())
            frame = picture(tokenizer, canvas.tokens[0], canvas.revealed[0], new)
            if console.is_terminal:
                live.update(frame, refresh=True)
                time.sleep(FRAME_SECONDS)
            elif int(canvas.revealed.sum()) % (LENGTH // 3) == 0:
                console.print(frame)

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


def infill_prompt(tokenizer: BPETokenizer, text: str, blank_tokens: int) -> Prompt:
    """A text with blanks as a prompt."""
    ids: list[int] = []
    known: list[bool] = []
    for index, part in enumerate(text.split(BLANK)):
        if index:
            ids += [0] * blank_tokens
            known += [False] * blank_tokens
        # A blank takes the space before it: the tokens of words begin with their space.
        encoded = tokenizer.encode(part.rstrip(" "))
        ids += encoded
        known += [True] * len(encoded)
    require(
        len(ids) <= LENGTH,
        "--infill",
        f"has {len(ids)} tokens, the model takes {LENGTH}",
        "shorten it",
    )
    return Prompt(torch.tensor([ids]), torch.tensor([known]))


def fill(
    console: Console, method: MDLM, tokenizer: BPETokenizer, prompt: Prompt, seed: int
) -> None:
    """The blanks, filled in several times; the known tokens are never touched."""
    console.print("[bold]Filling in[/] the blanks, three times:")
    console.print("  ", picture(tokenizer, prompt.tokens[0], prompt.known[0], set()), sep="")
    drawn = sample(method, 3, prompt=prompt, sampler="first-hitting", temperature=0.7, seed=seed)
    blanks = set((~prompt.known[0]).nonzero()[:, 0].tolist())
    for tokens in drawn:
        shown = torch.ones_like(prompt.known[0])
        console.print("  ", picture(tokenizer, tokens, shown, blanks), sep="")
