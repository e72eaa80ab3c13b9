"""Callbacks of a training run: one class, with a method for each event.

    on_prepare, on_check     a text is being tokenized; tokens are being checked
    on_start                 the run starts or resumes
    on_log                   the losses of some steps are known
    on_validate              the validation bound has been computed
    on_preview               samples have been drawn
    on_checkpoint            a checkpoint has been written
    on_end                   the run is finished, or has been stopped

The metrics file, TensorBoard, Weights & Biases and the command line are such callbacks. With
several processes, only the first one calls them. They observe: a callback cannot stop the run or
choose what it keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from partita.contracts.estimate import Estimate
from partita.data.prepared import Prepared


@dataclass(frozen=True)
class Progress:
    """Progress of a run at its newest step."""

    step: int
    """Steps done."""
    share: float
    """Fraction of the run that is done, from 0 to 1."""
    loss: float
    """Nats per token, the mean of the steps since the last report."""
    norm: float
    """Norm of the newest gradient before clipping."""
    rate: float
    """The newest learning rate."""
    epoch: float
    """How many times the run has gone through the corpus."""
    tokens_per_second: float
    """Over the steps since the last report."""
    seconds: float
    """Time spent training, over all resumes."""
    mfu: float | None = None
    """Model FLOPs utilization: the share of the device's peak; None where that is unknown."""


@dataclass(frozen=True)
class RunInfo:
    """A run that is about to start."""

    folder: Path
    prepared: Prepared
    parameters: int
    unigram_bits: float | None
    """Unigram entropy of the training text: the bits of guessing by frequency alone.

    None if the loss is a divergence, or if it includes the ends of texts."""
    resumed: Path | None
    """The checkpoint from which the run resumes."""
    device: str
    processes: int
    left_out: int
    """Number of documents that are skipped because they are longer than a row."""
    bounded: bool = True
    """Whether the training loss is a bound, as the validation loss is."""


class Callback:
    """Base class of callbacks: every method does nothing unless a subclass overrides it."""

    def on_prepare(self, characters: int) -> None:
        """`characters` of the text have been read so far."""

    def on_check(self, done: int, total: int) -> None:
        """`done` of `total` bytes of tokens have been checked."""

    def on_start(self, info: RunInfo) -> None:
        """The run is about to start or to resume."""

    def on_log(self, progress: Progress) -> None:
        """Called every `run.log_every` steps."""

    def on_validate(self, step: int, bound: Estimate) -> None:
        """The likelihood bound of the validation text."""

    def on_preview(self, step: int, samples: list[str] | Tensor) -> None:
        """Some texts or images have been drawn after a validation."""

    def on_checkpoint(self, step: int, folder: Path) -> None:
        """A checkpoint has been written."""

    def on_end(self, stopped_by: int) -> None:
        """The run is finished (0), or stopped by a signal (its number)."""


def _each(event: str) -> Callable[..., None]:
    """A method of `Callbacks` that passes an event on."""

    def call(self: Callbacks, *facts: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(*facts)

    return call


class Callbacks(Callback):
    """Several callbacks as one: each event goes to all of them, in order."""

    def __init__(self, callbacks: Sequence[Callback] = ()) -> None:
        self.callbacks = list(callbacks)

    on_prepare, on_check = _each("on_prepare"), _each("on_check")
    on_start, on_end = _each("on_start"), _each("on_end")
    on_log, on_validate = _each("on_log"), _each("on_validate")
    on_preview, on_checkpoint = _each("on_preview"), _each("on_checkpoint")


class EachStep(Callback):
    """A function that is called with each report of progress."""

    def __init__(self, function: Callable[[Progress], None]) -> None:
        self.function = function

    def on_log(self, progress: Progress) -> None:
        self.function(progress)


def callbacks_of(
    given: Callback | Callable[[Progress], None] | Sequence[Callback] | None,
) -> list[Callback]:
    """A list of callbacks, from a callback, several, a function of progress, or None."""
    if given is None:
        return []
    if isinstance(given, Callback):
        return [given]
    return [EachStep(given)] if callable(given) else list(given)
