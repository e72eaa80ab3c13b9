"""The small model that `partita demo` trains: an MDLM on the language reference of Python."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from partita.commands.terminal import Terminal, bar
from partita.config.training import TrainingOptions
from partita.data.standard_library import reference_paragraphs
from partita.data.tokenizers import BPETokenizer
from partita.likelihood.bounds import nelbo
from partita.methods import MDLM
from partita.modalities.base import heading
from partita.networks import Transformer, TransformerConfig
from partita.training.callbacks import Progress
from partita.training.loop import fit

SECONDS = 60.0
CHARACTERS = 8_000  # of text: little enough to learn something in a minute on two cores
VOCABULARY = 1024
LENGTH = 48
EXAMPLE = "The value for the built-in ____ is determined when the ____ starts."


def corpus(characters: int = CHARACTERS) -> list[str]:
    """The first paragraphs of the reference, about `characters` long in total."""
    texts: list[str] = []
    for text in reference_paragraphs():
        if sum(map(len, texts)) >= characters:
            break
        texts.append(text)
    return texts


def trained(
    console: Terminal, texts: list[str], tokenizer: BPETokenizer, seconds: float, seed: int
) -> MDLM:
    """Train a model on some texts, and print what it has learned."""
    torch.manual_seed(seed)
    config = TransformerConfig(
        vocab_size=tokenizer.vocab_size + 1, length=LENGTH, width=128, depth=2, heads=4, mlp="relu2"
    )
    method = MDLM(Transformer(config))
    stream = torch.tensor([i for text in texts for i in tokenizer.encode(text + "\n")])
    parameters = sum(p.numel() for p in method.parameters())
    console.print(
        heading("Training"),
        f"an MDLM of {parameters / 1e6:.1f} M parameters on {stream.numel():,} "
        f"tokens of the Python language reference, for {seconds:g} seconds.",
    )
    train(console, method, stream, seconds, seed)
    windows = stream[: stream.numel() // LENGTH * LENGTH].reshape(-1, LENGTH)
    bound, characters = nelbo(method, windows), sum(len(text) + 1 for text in texts)
    bits, error = (each * stream.numel() / characters for each in (bound.bits, bound.bits_error))
    console.print(
        "It now needs at most",
        heading(f"{bits:.2f} ± {error:.2f} bits per character"),
        "for this text (which it has seen; a fresh text would cost more).\n",
    )
    return method


def train(console: Terminal, method: MDLM, stream: Tensor, seconds: float, seed: int) -> None:
    """Train with a progress bar."""
    training = TrainingOptions(
        seconds=seconds,
        batch_size=32,
        length=min(LENGTH, stream.numel()),
        optimizer="muon",
        learning_rate=0.03,
        ema_decay=0.99,
        seed=seed,
    )
    smooth = math.nan
    with bar(console, "step {task.fields[step]}", "loss {task.fields[loss]:.2f}") as shown:
        task = shown.add_task("train", total=1.0, step=0, loss=math.nan)

        def show(progress: Progress) -> None:
            nonlocal smooth
            smooth = progress.loss if math.isnan(smooth) else 0.95 * smooth + 0.05 * progress.loss
            shown.update(task, completed=progress.share, step=progress.step, loss=smooth)

        fit(method, stream, training, show)
