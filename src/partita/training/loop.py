"""The training loop: batches in order, a learning rate that follows the run, and what is done
between steps (reading losses, validating, saving). `fit` is the loop for tokens in memory."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from partita.config.training import RunOptions, TrainingOptions
from partita.contracts.estimate import Estimate
from partita.data.ahead import Ahead
from partita.data.batches import InMemory, Order, Packed
from partita.errors import InputError, require
from partita.parallel import World
from partita.training.ema import MovingAverage
from partita.training.engine import Advance, Engine

SHOWN_ROWS = 16  # of a batch that broke the run


@dataclass(frozen=True)
class Progress:
    """What a callback sees after steps: the newest of them, and how far the run is."""

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


@dataclass
class Hooks:
    """What happens between steps. Everything is optional."""

    progress: Callable[[Progress], None] | None = None
    """After every `log_every` steps."""
    validated: Callable[[int, Estimate], bool] | None = None
    """After a validation: the step and the bound. Whether the weights shall be kept."""
    save: Callable[[], None] | None = None
    """Writes a checkpoint. All processes call it."""
    stop_signal: Callable[[], int] = field(default=lambda: 0)
    """The number of a signal that asks for an early end, or 0."""
    last_good: Callable[[], str] = field(default=lambda: "none")
    """The last checkpoint, for the message that a broken run leaves."""


def train(
    engine: Engine, order: Order, valid: Order | None = None, hooks: Hooks | None = None
) -> int:
    """Train until the run's end (0) or until a signal (its number)."""
    hooks = hooks or Hooks()
    options, run, world = engine.options, engine.run, engine.world
    part = world.share(options.batch_size, "training.batch_size")
    reader = _Reader(engine, order, hooks)
    began = time.monotonic() - engine.seconds
    signal, share = _agree(engine, hooks, began)
    with Ahead(order, part, world.device) as ahead:
        while share < 1 and not signal:
            batch = ahead.batch(engine.step)
            reader.add(engine.advance(batch, options.rate_at(share)), batch.count)
            signal, share = _agree(engine, hooks, began)
            if engine.step % run.log_every == 0 or share == 1 or signal:
                reader.read()
            keep = engine.step % run.checkpoint_every == 0 or share == 1 or signal
            if engine.step % run.validate_every == 0 or share == 1:
                reader.check()  # a broken loss explains itself, a broken model does not
                with reader.paused():
                    keep = _validate(engine, valid, hooks) or keep
            if keep and hooks.save:
                reader.read()  # a broken loss must not reach a checkpoint
                hooks.save()
    engine.rest()
    return signal


def _agree(engine: Engine, hooks: Hooks, began: float) -> tuple[int, float]:
    """A signal's number, or 0, and the share of the run that is done: the same for everybody."""
    clock = time.monotonic() - began if engine.world.first else 0.0
    signal, engine.seconds = engine.world.largest(hooks.stop_signal(), clock)
    return int(signal), engine.options.share(engine.step, engine.seconds)


def _validate(engine: Engine, valid: Order | None, hooks: Hooks) -> bool:
    """Look at the validation text; whether the weights are worth keeping."""
    if valid is None or hooks.validated is None:
        return False
    estimate = engine.validate(valid, engine.run.validation_rows)
    return estimate is not None and hooks.validated(engine.step, estimate)


class _Reader:
    """Losses wait on the device and are read some steps at a time: reading one waits for it."""

    def __init__(self, engine: Engine, order: Order, hooks: Hooks) -> None:
        self.engine, self.order, self.hooks = engine, order, hooks
        self.waiting: list[Advance] = []
        self.tokens = 0
        self.since = time.monotonic()

    def add(self, advance: Advance, tokens: int) -> None:
        self.waiting.append(advance)
        self.tokens += tokens

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What is reported is the speed of training: other work is left out of its time."""
        began = time.monotonic()
        yield
        self.since += time.monotonic() - began

    def check(self) -> tuple[list[float], list[float]]:
        """Losses and norms of the steps that wait, each of which must be finite."""
        if not self.waiting:
            return [], []
        parts = torch.stack([advance.loss for advance in self.waiting])
        losses = self.engine.world.total(parts).tolist()
        norms = torch.stack([advance.norm for advance in self.waiting]).tolist()
        for advance, loss, norm in zip(self.waiting, losses, norms, strict=True):
            if not (math.isfinite(loss) and math.isfinite(norm)):
                raise self._broken(advance.step, loss, norm)
        return losses, norms

    def read(self) -> None:
        if not self.waiting:
            return
        engine = self.engine
        losses, norms = self.check()
        now = time.monotonic()
        if self.hooks.progress:
            self.hooks.progress(
                Progress(
                    step=engine.step,
                    share=engine.options.share(engine.step, engine.seconds),
                    loss=sum(losses) / len(losses),
                    norm=norms[-1],
                    rate=self.waiting[-1].rate,
                    epoch=self.order.epoch(engine.step),
                    tokens_per_second=self.tokens / max(now - self.since, 1e-9),
                    seconds=engine.seconds,
                )
            )
        self.waiting.clear()
        self.tokens, self.since = 0, now

    def _broken(self, step: int, loss: float, norm: float) -> InputError:
        starts = self.order.batch(step).starts
        rows = ", ".join(map(str, starts[:SHOWN_ROWS]))
        more = f" and {len(starts) - SHOWN_ROWS} more" if len(starts) > SHOWN_ROWS else ""
        name, value = ("loss", loss) if not math.isfinite(loss) else ("gradient's norm", norm)
        return InputError(
            "training",
            f"the {name} is {value} at step {step}, whose rows begin at tokens {rows}{more}",
            f"last good checkpoint: {self.hooks.last_good()}; lower training.learning_rate, or "
            "lengthen training.warmup",
        )


def fit(
    method: nn.Module,
    stream: Int64[Tensor, "N"],
    options: TrainingOptions,
    callback: Callable[[Progress], None] | None = None,
) -> MovingAverage:
    """Train a method in place on a stream of tokens; its averaged weights are in it afterwards.

    The callback sees every step.
    """
    device = next(method.parameters()).device
    run = RunOptions(device=str(device), log_every=1)
    engine = Engine(method, options, run, World(0, 1, device))
    length: int = method.length if options.length is None else options.length  # type: ignore[assignment]
    _check_stream(stream, length)
    rows = Packed(InMemory(stream.cpu()), length)
    train(engine, Order(rows, options.batch_size, options.seed), hooks=Hooks(progress=callback))
    engine.average.copy_to(method)
    method.eval()
    return engine.average


def _check_stream(stream: Tensor, length: int) -> None:
    require(
        isinstance(stream, Tensor) and stream.ndim == 1 and stream.dtype == torch.int64,
        "stream",
        "must be a one-dimensional int64 tensor of token ids",
        "torch.tensor(tokenizer.encode(text)) is one",
    )
    require(
        stream.numel() >= length,
        "stream",
        f"{stream.numel()} tokens do not fill one row of {length}",
        "give more text or a smaller length",
    )
