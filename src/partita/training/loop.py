"""The training loop: batches in order, a learning rate that follows the run, and what is done
between steps (reading losses, validating, saving). `fit` is the loop for tokens in memory."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from partita.config.training import RunOptions, TrainingOptions
from partita.contracts.estimate import Estimate
from partita.data.ahead import Ahead
from partita.data.batches import InMemory, Order, Packed
from partita.errors import InputError, require
from partita.parallel import World
from partita.training.callbacks import Callback, Callbacks, Progress, callbacks_of
from partita.training.ema import MovingAverage
from partita.training.engine import Advance, Engine

SHOWN_ROWS = 16  # rows to name of a batch whose loss is not finite


class Trainer:
    """Takes an engine through a run, from the engine's current step.

    Checkpoints and signals are handled by a subclass (`RunTrainer`), not here.
    """

    def __init__(
        self,
        engine: Engine,
        order: Order,
        validation: Order | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        """`order` has the training rows, `validation` those of the periodic validation."""
        self.engine, self.order, self.validation = engine, order, validation
        self.callbacks = Callbacks(callbacks)
        self._began = 0.0

    def stop_signal(self) -> int:
        """The number of the signal that stops the run early, or 0."""
        return 0

    def validated(self, bound: Estimate) -> bool:  # noqa: ARG002 - for subclasses
        """Called by all processes after a validation; returns whether to save the weights."""
        return False

    def save(self) -> None:
        """Write a checkpoint. All processes call this."""

    def last_checkpoint(self) -> str:
        """The newest checkpoint's name, for the message about a loss that is not finite."""
        return "none"

    def utilization(self, tokens_per_second: float) -> float | None:  # noqa: ARG002
        """Model FLOPs utilization at this speed; None if the device's peak is unknown."""
        return None

    def train(self) -> int:
        """Train until the run ends (returns 0) or a signal stops it (returns its number)."""
        engine, options, run = self.engine, self.engine.options, self.engine.run
        part = engine.world.share(options.batch_size, "training.batch_size")
        losses = _Losses(self)
        self._began = time.monotonic() - engine.seconds
        signal, share = self._agree()
        with Ahead(self.order, part, engine.world.device) as ahead:
            while share < 1 and not signal:
                batch = ahead.batch(engine.step)
                losses.add(engine.advance(batch, options.rate_at(share)), batch.count)
                signal, share = self._agree()
                over = share == 1 or bool(signal)
                if engine.step % run.log_every == 0 or over:
                    losses.report()
                wanted = engine.step % run.checkpoint_every == 0 or over
                if engine.step % run.validate_every == 0 or share == 1:
                    losses.check()  # fails more clearly than the validation of a broken model
                    with losses.paused():
                        wanted = self._validate() or wanted
                if wanted:
                    losses.report()  # a broken loss must not reach a checkpoint
                    self.save()
        engine.rest()
        return signal

    def _agree(self) -> tuple[int, float]:
        """A signal's number (or 0) and the fraction of the run done, agreed on by all processes.

        Time is measured by the first process.
        """
        engine = self.engine
        clock = time.monotonic() - self._began if engine.world.first else 0.0
        signal, engine.seconds = engine.world.largest(self.stop_signal(), clock)
        return int(signal), engine.options.share(engine.step, engine.seconds)

    def _validate(self) -> bool:
        order, engine = self.validation, self.engine
        bound = None if order is None else engine.validate(order, engine.run.validation_rows)
        if bound is None:
            return False
        self.callbacks.on_validate(self.engine.step, bound)
        return self.validated(bound)


class _Losses:
    """Losses on the device, read several steps at a time, since reading waits for the device."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.engine = trainer, trainer.engine
        self.waiting: list[Advance] = []
        self.tokens = 0
        self.since = time.monotonic()

    def add(self, advance: Advance, tokens: int) -> None:
        self.waiting.append(advance)
        self.tokens += tokens

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the time of other work out of the reported training speed."""
        began = time.monotonic()
        yield
        self.since += time.monotonic() - began

    def check(self) -> tuple[list[float], list[float]]:
        """Losses and gradient norms of the unread steps, all of which must be finite."""
        if not self.waiting:
            return [], []
        parts = torch.stack([advance.loss for advance in self.waiting])
        losses = self.engine.world.total(parts).tolist()
        norms = torch.stack([advance.norm for advance in self.waiting]).tolist()
        for advance, loss, norm in zip(self.waiting, losses, norms, strict=True):
            if not (math.isfinite(loss) and math.isfinite(norm)):
                raise self._broken(advance.step, loss, norm)
        return losses, norms

    def report(self) -> None:
        """Report the unread steps to the callbacks."""
        if not self.waiting:
            return
        engine, trainer = self.engine, self.trainer
        losses, norms = self.check()
        now = time.monotonic()
        speed = self.tokens / max(now - self.since, 1e-9)
        trainer.callbacks.on_log(
            Progress(
                step=engine.step,
                share=engine.options.share(engine.step, engine.seconds),
                loss=sum(losses) / len(losses),
                norm=norms[-1],
                rate=self.waiting[-1].rate,
                epoch=trainer.order.epoch(engine.step),
                tokens_per_second=speed,
                seconds=engine.seconds,
                mfu=trainer.utilization(speed),
            )
        )
        self.waiting.clear()
        self.tokens, self.since = 0, now

    def _broken(self, step: int, loss: float, norm: float) -> InputError:
        starts = self.trainer.order.batch(step).starts
        rows = ", ".join(map(str, starts[:SHOWN_ROWS]))
        more = f" and {len(starts) - SHOWN_ROWS} more" if len(starts) > SHOWN_ROWS else ""
        name, value = ("loss", loss) if not math.isfinite(loss) else ("gradient's norm", norm)
        problem = f"the {name} is {value} at step {step}, whose rows begin at tokens {rows}{more}"
        remedy = f"last good checkpoint: {self.trainer.last_checkpoint()}; lower "
        remedy += "training.learning_rate, or lengthen training.warmup"
        return InputError("training", problem, remedy)


def fit(
    method: nn.Module,
    stream: Int64[Tensor, "N"],
    options: TrainingOptions,
    callback: Callback | Callable[[Progress], None] | Sequence[Callback] | None = None,
) -> MovingAverage:
    """Train a method in place on a stream of tokens; afterwards it has its averaged weights.

    `callback` is a function of `Progress`, a `Callback`, or several of them.
    """
    device = next(method.parameters()).device
    run = RunOptions(device=str(device), log_every=1)
    engine = Engine(method, options, run, World(0, 1, device))
    length: int = method.length if options.length is None else options.length  # type: ignore[assignment]
    fits = isinstance(stream, Tensor) and stream.ndim == 1 and stream.dtype == torch.int64
    problem = "must be a one-dimensional int64 tensor of token ids"
    require(fits, "stream", problem, "torch.tensor(tokenizer.encode(text)) is one")
    problem = f"{stream.numel()} tokens do not fill one row of {length}"
    require(stream.numel() >= length, "stream", problem, "give more text or a smaller length")
    order = Order(Packed(InMemory(stream.cpu()), length), options.batch_size, options.seed)
    Trainer(engine, order, callbacks=callbacks_of(callback)).train()
    engine.average.copy_to(method)
    method.eval()
    return engine.average
