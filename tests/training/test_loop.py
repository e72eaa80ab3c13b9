"""The loop around an engine: when it reports, validates and saves, and when it ends."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from partita.config.training import RunOptions, TrainingOptions
from partita.contracts.estimate import Estimate
from partita.data.batches import InMemory, Order, Packed
from partita.errors import InputError
from partita.methods import MDLM
from partita.networks import Transformer, TransformerConfig
from partita.parallel import World
from partita.training.callbacks import Callback, Callbacks, EachStep, Progress, callbacks_of
from partita.training.engine import Engine
from partita.training.loop import Trainer, fit

TEXT = torch.tensor([0, 1, 2, 3, 4] * 40)
LENGTH, ROWS = 8, 4
ORDER = Order(Packed(InMemory(TEXT), LENGTH), ROWS, 0)


def model():
    torch.manual_seed(0)
    return MDLM(Transformer(TransformerConfig(vocab_size=6, length=8, width=8, depth=1, heads=2)))


def engine(steps=10, learning_rate=0.01, **run):
    training = TrainingOptions(steps=steps, batch_size=ROWS, learning_rate=learning_rate)
    options = RunOptions(device="cpu", validation_rows=8, **run)
    return Engine(model(), training, options, World(0, 1, torch.device("cpu")))


class Notes(Callback):
    """Writes down what it hears."""

    def __init__(self):
        self.heard = []

    def on_log(self, progress):
        self.heard.append(("log", progress.step))

    def on_validate(self, step, bound):
        assert math.isfinite(bound.bits)
        self.heard.append(("validate", step))


class Saving(Trainer):
    """A trainer that notes when it is asked for a checkpoint, and is stopped at some step."""

    stop_at, wanted = None, False

    def stop_signal(self):
        return 15 if self.engine.step == self.stop_at else 0

    def validated(self, bound):
        return self.wanted and math.isfinite(bound.bits)

    def save(self):
        (notes,) = self.callbacks.callbacks
        notes.heard.append(("save", self.engine.step))


def events(machine, **settings):
    notes = Notes()
    trainer = Saving(machine, ORDER, ORDER, [notes])
    vars(trainer).update(settings)
    return trainer.train(), notes.heard


def test_reports_validations_and_checkpoints_come_when_they_are_due():
    ended, heard = events(engine(log_every=4, validate_every=6, checkpoint_every=5))
    assert ended == 0
    assert heard == [
        ("log", 4),
        ("log", 5),  # losses are read before a checkpoint
        ("save", 5),
        ("validate", 6),
        ("log", 8),
        ("log", 10),
        ("validate", 10),
        ("save", 10),
    ]


def test_a_validation_may_ask_for_a_checkpoint():
    _, heard = events(engine(log_every=2, validate_every=6, checkpoint_every=50), wanted=True)
    assert [step for name, step in heard if name == "save"] == [6, 10]


def test_a_signal_saves_and_ends():
    machine = engine(log_every=50, validate_every=50, checkpoint_every=50)
    assert events(machine, stop_at=3) == (15, [("log", 3), ("save", 3)])
    assert events(machine, stop_at=3) == (15, [])  # it still asks for an end
    assert events(machine) == (0, [("log", 10), ("validate", 10), ("save", 10)])
    assert events(machine) == (0, [])  # nothing is left to do


def test_reports_say_how_far_a_run_is():
    reports = []
    machine = engine(log_every=4)
    Trainer(machine, ORDER, callbacks=[EachStep(reports.append)]).train()
    assert [report.step for report in reports] == [4, 8, 10]
    assert [report.share for report in reports] == [0.4, 0.8, 1.0]
    rows = len(ORDER.rows)
    assert [report.epoch for report in reports] == [step * ROWS / rows for step in (4, 8, 10)]
    assert reports[0].rate == machine.options.rate_at(0.3)
    assert reports[0].mfu is None


def test_losses_do_not_depend_on_how_often_they_are_read():
    means = []
    for every in (1, 5):
        reports = []
        Trainer(engine(log_every=every), ORDER, callbacks=[EachStep(reports.append)]).train()
        losses = [report.loss for report in reports]
        means.append(sum(losses) / len(losses))
    assert means[0] == pytest.approx(means[1], rel=1e-6)


def test_a_broken_loss_names_its_rows_and_is_not_saved():
    machine, notes = engine(learning_rate=1e30, log_every=5, checkpoint_every=2), Notes()
    trainer = Saving(machine, ORDER, None, [notes])
    with pytest.raises(InputError) as caught:
        trainer.train()
    error = caught.value
    assert error.argument == "training"
    assert "whose rows begin at tokens" in error.problem
    assert error.remedy.startswith("last good checkpoint: none; lower training.learning_rate")
    assert ("save", 4) not in notes.heard


def test_callbacks_are_handed_over_in_several_ways():
    steps, notes = [], [Notes(), Notes()]
    options = TrainingOptions(steps=3, batch_size=ROWS)
    fit(model(), TEXT, options, lambda progress: steps.append(progress.step))
    fit(model(), TEXT, options, notes[0])
    fit(model(), TEXT, options, notes)
    fit(model(), TEXT, options)
    assert steps == [1, 2, 3]
    assert notes[1].heard == [("log", 1), ("log", 2), ("log", 3)]
    assert notes[0].heard == notes[1].heard * 2
    assert callbacks_of(None) == []


PROGRESS = Progress(1, 0.5, 1.0, 1.0, 0.1, 0.5, 10.0, 1.0)
EVENTS = {
    "on_prepare": (3,),
    "on_check": (1, 2),
    "on_log": (PROGRESS,),
    "on_validate": (1, Estimate(1.0, 0.1, 8)),
    "on_preview": (1, ["a text"]),
    "on_checkpoint": (1, Path("run")),
    "on_end": (0,),
}


class Everything(Callback):
    def __init__(self, name, heard):
        self.name, self.heard = name, heard


for _event in EVENTS:
    setattr(
        Everything,
        _event,
        lambda self, *given, event=_event: self.heard.append((self.name, event, *given)),
    )


@pytest.mark.parametrize("event", EVENTS)
def test_several_callbacks_hear_of_every_event_in_their_order(event):
    heard = []
    every = Callbacks([Everything(name, heard) for name in "ab"])
    getattr(every, event)(*EVENTS[event])
    assert heard == [("a", event, *EVENTS[event]), ("b", event, *EVENTS[event])]
    getattr(Callback(), event)(*EVENTS[event])  # which does nothing


def test_no_event_is_forgotten():
    names = {name for name in vars(Callback) if name.startswith("on_")}
    assert names == {name for name in vars(Callbacks) if name.startswith("on_")}
    assert names == {*EVENTS, "on_start"}  # which runs of `test_runner.py` hear
