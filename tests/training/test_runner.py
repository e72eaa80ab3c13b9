"""Runs from beginning to end on tiny models: what happens in which order, and what is checked."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from partita.config.data import DataOptions
from partita.config.recipe import Recipe
from partita.config.training import RunOptions, TrainingOptions
from partita.errors import InputError
from partita.models import checkpoints
from partita.networks.options import TransformerOptions
from partita.parallel import World
from partita.training import checks, runner
from partita.training.callbacks import Callback
from partita.training.checks import check_run
from partita.training.data_pipeline import left_out, orders, row_length, tokens_of
from partita.training.runner import train
from partita.training.signals import Signals
from tests.support.kill_and_resume import corpus
from tests.support.preparing import calling

ALONE = World(0, 1, torch.device("cpu"))


@pytest.fixture
def recipe(tmp_path):
    return Recipe(
        data=DataOptions(path=str(corpus(tmp_path)), cache=str(tmp_path / "tokens")),
        network=TransformerOptions(length=8, width=8, depth=1, heads=2),
        training=TrainingOptions(steps=4, batch_size=4),
        run=RunOptions(device="cpu", validate_every=2, checkpoint_every=2, log_every=2),
    ).resolved()


def changed(recipe, **sections):
    parts = {name: replace(getattr(recipe, name), **keys) for name, keys in sections.items()}
    return replace(recipe, **parts)


class Notes(Callback):
    """Writes down what it hears, and lets a signal in when it is told to."""

    def __init__(self, signals=None):
        self.heard, self.info, self.signals = [], None, signals

    def on_prepare(self, characters):
        self.heard.append(("prepare", characters > 0))

    def on_start(self, info):
        self.info = info
        self.heard.append(("start",))

    def on_log(self, progress):
        self.heard.append(("log", progress.step))
        if self.signals is not None:
            self.signals.received = 15

    def on_validate(self, step, bound):
        assert bound.bits > 0
        self.heard.append(("validate", step))

    def on_preview(self, step, samples):
        self.heard.append(("preview", step, len(samples)))

    def on_checkpoint(self, step, folder):
        assert checkpoints.latest(folder.parents[1]) == folder
        self.heard.append(("checkpoint", step))

    def on_end(self, stopped_by):
        self.heard.append(("end", stopped_by))


def test_a_run_tells_what_happens_in_order(tmp_path, recipe):
    notes = Notes()
    assert train(recipe, tmp_path / "run", notes) == 0
    told = [event for event in notes.heard if event[0] != "prepare"]
    each = [("log", 2), ("validate", 2), ("preview", 2, 2), ("checkpoint", 2)]
    last = [(name, 4, *rest) for name, _, *rest in each]
    assert told == [("start",), *each, *last, ("end", 0)]
    info = notes.info
    assert (info.folder, info.resumed, info.processes) == (tmp_path / "run", None, 1)
    assert info.bounded
    assert 3 < info.unigram_bits < 8


def test_a_stopped_run_goes_on_as_if_nothing_had_been(tmp_path, recipe):
    recipe = changed(recipe, run={"previews": 0, "log_every": 1})
    train(recipe, tmp_path / "calm")
    with Signals() as signals:
        stopped = Notes(signals)
        assert train(recipe, tmp_path / "run", stopped, signals) == 15
    rest = [("log", 2), ("validate", 2), ("checkpoint", 2), ("end", 15)]  # after one more step
    assert stopped.heard[-5:] == [("log", 1), *rest]
    goes_on = Notes()
    assert train(recipe, tmp_path / "run", [goes_on]) == 0
    assert goes_on.info.resumed.name == "step-00000002"
    ends = [checkpoints.latest(tmp_path / name) for name in ("calm", "run")]
    weights = [(end / "training.safetensors").read_bytes() for end in ends]
    assert weights[0] == weights[1]


def test_checks_come_before_anything_is_written(tmp_path, recipe, monkeypatch):
    """In their order, from the cheap ones to a dry run; a refused run leaves nothing."""
    order = ["check_data", "check_rows", "check_machine", "check_folders", "dry_run"]
    order += ["with_teacher", "check_resume"]
    called = []

    def noting(name, real):
        return lambda *given: (called.append(name), real(*given))[1]

    for name in order:
        monkeypatch.setattr(checks, name, noting(name, getattr(checks, name)))
    before = sorted(tmp_path.rglob("*"))
    assert check_run(recipe, tmp_path / "run", ALONE) == recipe
    assert called == order
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"data": {"path": "nowhere.txt"}}, "data.path"),
        ({"data": {"path": "digits"}}, "tokenizer.name"),
        ({"training": {"length": 99}}, "training.length"),
        ({"data": {"label": "kind"}}, "data.rows"),
        ({"data": {"rows": "whole"}}, "data.rows"),
        ({"data": {"longer": "skip"}}, "data.longer"),
        ({"tokenizer": {"levels": 4}}, "tokenizer.levels"),
        ({"method": {"name": "flexmdm"}}, "data.rows"),
        ({"network": {"width": 1 << 20, "depth": 64}}, "network"),
        ({"data": {"cache": "corpus.txt/cache"}}, "data.cache"),
        ({"sampling": {"sampler": "insertion"}}, "sampling.sampler"),
        ({"sampling": {"options": {"grid": "x"}}}, "sampling.options.grid"),
        ({"distillation": {"round": 1}}, "distillation.round"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused(change, argument, tmp_path, recipe, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError) as caught:
        train(changed(recipe, **change), tmp_path / "run")
    assert caught.value.argument == argument
    assert sorted(tmp_path.rglob("*")) == before


def test_a_batch_must_be_shared_evenly(recipe):
    with pytest.raises(InputError, match=r"training.batch_size: 4 rows .* by 3 processes"):
        checks.check_machine(recipe, World(0, 3, torch.device("cpu")))


def test_a_folder_belongs_to_one_recipe_and_one_text(tmp_path, recipe):
    run, recipe = tmp_path / "run", changed(recipe, run={"previews": 0})
    train(recipe, run)
    other = changed(recipe, training={"seed": 5})
    with pytest.raises(InputError, match=r"out: .* another recipe[^$]*training.seed: 0 -> 5"):
        checks.check_resume(run, other)
    checks.check_resume(run, changed(recipe, run={"previews": 3}))
    with pytest.raises(InputError, match=r"out: .* another text"):
        checks.check_resume(run, recipe, "other tokens")
    (run / "recipe.json").unlink()
    with pytest.raises(InputError, match=r"out: .* holds checkpoints but no recipe.json"):
        checks.check_resume(run, recipe)
    shutil.rmtree(run / "checkpoints")
    checks.check_resume(run, recipe)  # nothing to go on with


# The data pipeline -------------------------------------------------------------------------------


def test_rows_of_a_recipe(recipe):
    notes = Notes()
    checked = checks.CheckedTokens(recipe, Path("nowhere"), notes)
    prepared = tokens_of(recipe, callback=checked)
    assert notes.heard
    train_order, valid_order = orders(recipe, prepared)
    batch = train_order.batch(0)
    assert tuple(batch.tokens.shape) == (4, row_length(recipe))
    assert batch.count == 32
    text = Path(recipe.data.path).read_text()
    assert prepared.tokenizer.decode(batch.tokens[0].tolist()) in text
    assert len(valid_order.rows) * 8 <= len(prepared.valid)
    assert orders(recipe, tokens_of(changed(recipe, data={"validation_fraction": 0.0})))[1] is None
    assert row_length(changed(recipe, training={"length": 5})) == 5


def test_tokens_may_be_refused_before_they_are_made_or_kept(recipe):
    def refuse(*_given):
        raise InputError("out", "no")

    for name in ("on_name", "on_tokens"):
        with pytest.raises(InputError, match="out: no"):
            tokens_of(recipe, callback=calling(**{name: refuse}))
        assert not list(Path(recipe.data.cache).glob("*"))
    names = []
    notes = calling(on_name=names.append, on_tokens=lambda made: names.append(len(made.train)))
    prepared = tokens_of(recipe, callback=notes)
    assert names == [prepared.folder.name, len(prepared.train)]


def test_long_documents_are_counted_or_refused(recipe):
    padded = changed(recipe, data={"rows": "padded", "longer": "skip"})
    prepared = tokens_of(padded)
    assert left_out(recipe, prepared) == 0
    assert left_out(padded, prepared) == 200  # every document has more than eight characters
    with pytest.raises(InputError, match=r"data.longer: skip leaves nothing"):
        checks.check_tokens(padded, prepared)
    refusing = changed(padded, data={"longer": "refuse"})
    with pytest.raises(InputError, match=r"network.length: 200 of 200 documents have more than 8"):
        checks.check_tokens(refusing, prepared)
    with pytest.raises(InputError, match=r"network.classes: is 3, but none of the documents"):
        checks.check_tokens(changed(recipe, network={"classes": 3}), prepared)


def test_folders_are_named_after_the_text(recipe):
    assert runner.default_folder(recipe) == Path("runs/corpus-mdlm")
