"""The display of a training run: progress while it trains, and a summary at its end."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from partita.commands import NOTHING_SAVED, program
from partita.commands.prepare import counter, summary
from partita.commands.terminal import Terminal, bar
from partita.config.recipe import Recipe
from partita.contracts.estimate import Estimate
from partita.errors import leaves
from partita.modalities import MODALITIES
from partita.models import checkpoints
from partita.plotting import NO_PLOTS, can_plot
from partita.training.callbacks import Callback, Progress, RunInfo
from partita.training.journal import CURVES


@contextmanager
def remembering(*folders: Path) -> Iterator[None]:
    """Add to the message of a run that is stopped at once what is in its folder or folders."""
    try:
        yield
    except KeyboardInterrupt as error:
        kept = [path for path in map(checkpoints.latest, folders) if path is not None]
        left = f"the same command goes on from {kept[-1]}" if kept else NOTHING_SAVED
        leaves(error, left)
        raise


def _size(number: int) -> str:
    return f"{number / 1e6:.1f} M" if number >= 100_000 else f"{number:,}"


class Display(Callback):
    """A callback that shows a run's progress."""

    measure = "validation"

    def __init__(self, console: Terminal, recipe: Recipe) -> None:
        self.console, self.recipe = console, recipe
        self.counter = counter(console, recipe.tokenizer.kind.unit)
        self.bar = bar(console, "step {task.fields[step]:,}", "{task.fields[numbers]}")
        self.task = self.bar.add_task("train", total=1.0, step=0, numbers="")
        self.info: RunInfo | None = None
        self.valid: Estimate | None = None
        self.texts: list[str] = []
        self.bits = math.nan

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        self.counter.__exit__()
        if self.bar.live.is_started:
            self.bar.stop()

    def on_prepare(self, characters: int) -> None:
        self.counter.on_prepare(characters)

    def on_check(self, done: int, total: int) -> None:
        self.counter.on_check(done, total)

    def on_preview(self, step: int, samples: list[str] | Tensor) -> None:  # noqa: ARG002
        if isinstance(samples, list):
            self.texts = samples

    def on_start(self, info: RunInfo) -> None:
        self.counter.__exit__()
        self.info = info
        self.console.say(summary(info.prepared))
        where = info.device if info.processes == 1 else f"{info.processes} processes"
        size = f"{self.recipe.method.name}, {_size(info.parameters)} parameters"
        self.console.say(f"{size}, on {where}. {self.aim(info)}")
        if info.left_out:
            longer = "longer than a row and left out"
            self.console.say(f"{info.left_out:,} documents are {longer}.")
        if len(info.prepared.valid) == 0 and self.recipe.data.validation_fraction > 0:
            finer = self.recipe.data.documents != "line"
            hint = ": --data.documents line makes more of them" if finer else ""
            self.console.say(f"No document is left for validation, curves and samples{hint}.")
        if self.recipe.distillation.round <= 1 and not can_plot():  # in one round of several
            self.console.say(f"{CURVES} is not drawn: {NO_PLOTS}")
        went_on = f", going on from {info.resumed.name}" if info.resumed else ""
        self.console.say(f"Run folder: {info.folder}{went_on}")

    def aim(self, info: RunInfo) -> str:
        """The number to compare the bits with."""
        if info.unigram_bits is None:
            return "Bits are those of whole texts, their ends included."
        entropy = f"Single tokens have an entropy of {info.unigram_bits:.3f} bits"
        if info.bounded:
            return f"{entropy}: a model must get below it."
        return (
            f"{entropy}: at validation a model must get below it. Bits in between are the loss of "
            "training, which has other weights and is no bound."
        )

    def on_log(self, progress: Progress) -> None:
        if not self.bar.live.is_started:
            self.bar.start()
        bits = progress.loss / math.log(2)
        self.bits = bits
        speed = f"{progress.tokens_per_second:,.0f} tokens/s"
        busy = "" if progress.mfu is None else f"  MFU {progress.mfu:.0%}"
        loss = f"loss {progress.loss:.3f}  {bits:.3f} bits/token"
        numbers = f"{loss}  {speed}{busy}  epoch {progress.epoch:.2f}"
        self.bar.update(self.task, completed=progress.share, step=progress.step, numbers=numbers)
        if not self.console.animates and progress.share < 1:
            line = f"step {progress.step:,} ({progress.share:.0%})  {numbers}"
            self.console.say(line)

    def on_validate(self, step: int, bound: Estimate) -> None:
        self.valid = bound
        self.console.print(
            f"step {step:,}: {self.measure} {bound.bits:.3f} ± {bound.bits_error:.3f} "
            "bits per token"
        )

    def farewell(self, stopped_by: int) -> None:
        """Print how to resume, or samples, and where the files are."""
        assert self.info is not None
        folder = self.info.folder
        if stopped_by:
            newest = checkpoints.latest(folder)
            saved = f"saved as {newest}. The same command goes on from there."
            left = saved if newest else "there was nothing to save yet."
            name = signal.Signals(stopped_by).name
            self.console.say(f"Stopped by {name}; {left}")
            return
        if math.isnan(self.bits):
            self.console.print("The run is finished: nothing was left to do.")
        for text in self.texts:
            self.console.rule("sample", align="left", style="dim")
            self.console.write((text, ""))
        if self.texts:
            self.console.rule(style="dim")
        drawn = f"  curves: {folder / CURVES}" if (folder / CURVES).exists() else ""
        self.console.say(f"Done. Model: {folder}{drawn}")
        flags = MODALITIES[self.recipe.tokenizer.kind.name].try_flags
        self.console.say(f"Try: {program()} sample {folder} {flags}")
