"""What a training run tells whoever listens: one class, whose methods are the run's events.

    on_prepare, on_check     a text becomes tokens; tokens are checked
    on_start                 the run begins, or goes on
    on_log                   losses of some steps are known
    on_validate              the validation text has been looked at
    on_preview               samples have been drawn
    on_checkpoint            a checkpoint is on the disk
    on_end                   the run is over, or stops

The metrics file, TensorBoard, Weights & Biases and the command line are such callbacks. Of several
processes the first one alone calls them. They only listen: when to stop and what to keep is the
run's own business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from partita.contracts.estimate import Estimate
from partita.data.prepared import Prepared


@dataclass(frozen=True)
class Progress:
    """The newest of some steps, and how far the run is."""

    step: int
    """Steps done."""
    share: float
    """How much of the run is done, from 0 to 1."""
    loss: float
    """Nats per token, the mean of the steps since the last report."""
    norm: float
    """Norm of the newest gradient before clipping."""
    rate: float
    """The newest learning rate."""
    epoch: float
    """How often the corpus has been seen."""
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
    """Entropy of single tokens of the training text: what a model that looks at nothing needs.

    None where bits are those of a divergence, or of texts with their ends."""
    resumed: Path | None
    """The checkpoint that the run goes on from."""
    device: str
    processes: int
    left_out: int
    """Documents that are longer than a row and skipped."""
    bounded: bool = True
    """Whether the loss of training is a bound, as that of validation is."""


class Callback:
    """Listens to a run. Every method does nothing until a subclass says otherwise."""

    def on_prepare(self, characters: int) -> None:
        """So many characters of the text have been read."""

    def on_check(self, done: int, total: int) -> None:
        """So many bytes of all tokens have been checked."""

    def on_start(self, info: RunInfo) -> None:
        """The run is about to take its first step, or to go on."""

    def on_log(self, progress: Progress) -> None:
        """Every `run.log_every` steps."""

    def on_validate(self, step: int, bound: Estimate) -> None:
        """The likelihood bound of the validation text."""

    def on_preview(self, step: int, samples: list[str] | Tensor) -> None:
        """Some texts or images, drawn after a validation."""

    def on_checkpoint(self, step: int, folder: Path) -> None:
        """A checkpoint has been written."""

    def on_end(self, stopped_by: int) -> None:
        """The run is finished (0), or stopped by a signal (its number)."""


class Callbacks(Callback):
    """Several callbacks as one: each hears of everything, in their order."""

    def __init__(self, callbacks: Sequence[Callback] = ()) -> None:
        self.callbacks = list(callbacks)

    def on_prepare(self, characters: int) -> None:
        for callback in self.callbacks:
            callback.on_prepare(characters)

    def on_check(self, done: int, total: int) -> None:
        for callback in self.callbacks:
            callback.on_check(done, total)

    def on_start(self, info: RunInfo) -> None:
        for callback in self.callbacks:
            callback.on_start(info)

    def on_log(self, progress: Progress) -> None:
        for callback in self.callbacks:
            callback.on_log(progress)

    def on_validate(self, step: int, bound: Estimate) -> None:
        for callback in self.callbacks:
            callback.on_validate(step, bound)

    def on_preview(self, step: int, samples: list[str] | Tensor) -> None:
        for callback in self.callbacks:
            callback.on_preview(step, samples)

    def on_checkpoint(self, step: int, folder: Path) -> None:
        for callback in self.callbacks:
            callback.on_checkpoint(step, folder)

    def on_end(self, stopped_by: int) -> None:
        for callback in self.callbacks:
            callback.on_end(stopped_by)


class EachStep(Callback):
    """A function that is called with each report of progress."""

    def __init__(self, function: Callable[[Progress], None]) -> None:
        self.function = function

    def on_log(self, progress: Progress) -> None:
        self.function(progress)


def callbacks_of(
    given: Callback | Callable[[Progress], None] | Sequence[Callback] | None,
) -> list[Callback]:
    """What a user hands over as a list: a callback, several, a function of progress, or nothing."""
    if given is None:
        return []
    if isinstance(given, Callback):
        return [given]
    return [EachStep(given)] if callable(given) else list(given)
