"""Files that anybody may have written: loading them gives a model or an `InputError`.

Five hundred damaged checkpoints are loaded and resumed from. Half of them have their checksums
corrected afterwards, so that the damage reaches what stands behind the checksums. No other error,
no hang, no absurd amount of memory, nothing imported, opened elsewhere or run.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import shutil
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.config.data import DataOptions, TokenizerOptions
from partita.config.method import MethodOptions
from partita.config.recipe import Recipe
from partita.config.training import TrainingOptions
from partita.contracts.batch import Batch
from partita.data.batches import Order
from partita.data.documents import Corpus
from partita.data.prepare import Prepared, prepare
from partita.errors import InputError
from partita.files import format
from partita.models import checkpoints
from partita.models.text_model import TextModel
from partita.models.trained import load
from partita.networks.options import TransformerOptions
from partita.parallel import World
from partita.training.engine import Engine
from partita.training.run_folder import RECIPE, RunFolder
from tests.support.models import seal
from tests.support.mutation import damage
from tests.support.supervision import note, outcome

WORLD = World(0, 1, torch.device("cpu"))
CHECKPOINT = checkpoints.folder_of(Path(), 1)
KEPT = (*format.REQUIRED, format.TRAINING, format.STATE, format.MANIFEST)
FILES = [RECIPE, *(str(CHECKPOINT / name) for name in KEPT)]
# What has more parsers behind it is damaged more often.
WEIGHTS = [1, 4, 2, 2, 2, 1, 1]


@dataclass(frozen=True, repr=False)
class Run:
    """A run of one step, and what it takes to go on with it."""

    folder: Path
    recipe: Recipe
    prepared: Prepared

    def engine(self) -> Engine:
        torch.manual_seed(0)
        method = self.recipe.method.build(self.recipe.network, self.prepared.tokenizer.vocab_size)
        return Engine(method, self.recipe.training, self.recipe.run, WORLD)

    def batch(self) -> Batch:
        rows = self.recipe.data.row_source(self.prepared.train, self.recipe.network.length)
        return Order(rows, 2, 0).batch(0)


def make_run(place: Path, method: str, tokenizer: str, optimiser: str) -> Run:
    (place / "text.txt").write_text("pack my box with five dozen liquor jugs. " * 9)
    recipe = Recipe(
        data=DataOptions("text.txt"),
        tokenizer=TokenizerOptions(tokenizer, 300),
        method=MethodOptions(method),
        network=TransformerOptions(length=8, width=8, depth=1, heads=2),
        training=TrainingOptions(steps=2, batch_size=2, optimizer=optimiser),
    )
    options = recipe.tokenizer.preparation(recipe.data)
    prepared = prepare(Corpus(place / "text.txt"), place / "prepared", options)
    run = Run(place / "run", recipe, prepared)
    engine, folder = run.engine(), RunFolder(run.folder, recipe, prepared)
    engine.advance(run.batch(), 0.01)
    folder.metrics = {"valid_bits": 3.0, "valid_bits_error": 0.1}
    folder.open()
    folder.save(engine)
    return run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    choices = [
        ("mdlm", "bytes", "adamw"),
        ("md4", "characters", "muon"),
        ("ar", "bpe", "adamw"),
    ]
    return [make_run(tmp_path_factory.mktemp("run"), *choice) for choice in choices]


# Runs and their checksums ------------------------------------------------------------------------


def try_everything(run: Run, folder: Path) -> tuple[bool, bool]:
    """Load the run and go on with it: which of both was possible."""
    model = outcome(folder, lambda: load(folder, device="cpu"))
    assert model is None or isinstance(model, TextModel)
    if model is not None:
        assert model.card()
        assert sum(format.shapes(folder / CHECKPOINT / format.WEIGHTS).values())
    engine, opened = run.engine(), RunFolder(folder, run.recipe, run.prepared)
    resumed = outcome(folder, lambda: opened.resume(engine))
    assert engine.step == (resumed is not None)
    if resumed is not None:
        engine.advance(run.batch(), 0.01)
    with contextlib.suppress(InputError):
        opened.open()
    return model is not None, resumed is not None


@pytest.fixture
def copied(runs, tmp_path):
    """The first run, to be damaged."""
    shutil.copytree(runs[0].folder, tmp_path / "run")
    return Run(tmp_path / "run", runs[0].recipe, runs[0].prepared)


def refused(run: Run, *words: str) -> None:
    seal(run.folder / CHECKPOINT)
    engine = run.engine()
    before = engine.state()
    with pytest.raises(InputError) as caught:
        RunFolder(run.folder, run.recipe, run.prepared).resume(engine)
    for word in words:
        assert word in str(caught.value)
    assert (engine.step, engine.seconds) == (0, 0.0)
    assert all(torch.equal(tensor, before[name]) for name, tensor in engine.state().items())


HEAD = "network.head.weight"


@pytest.mark.parametrize("file", [format.WEIGHTS, format.TRAINING])
@pytest.mark.parametrize(
    "change",
    [
        lambda tensors, name: tensors.pop(name),
        lambda tensors, name: tensors.update({name: tensors[name][None].clone()}),
        lambda tensors, name: tensors.update({name: tensors[name].double()}),
        lambda tensors, name: tensors.update({name: tensors[name].int()}),
    ],
)
@pytest.mark.parametrize("kept", ["weights", "optimiser.0.exp_avg", "optimiser.0.step"])
def test_tensors_to_go_on_from_must_be_the_runs_own(copied, file, change, kept):
    name = HEAD if file == format.WEIGHTS else f"{kept}.{HEAD}"
    path = copied.folder / CHECKPOINT / file
    tensors = safetensors.torch.load_file(path)
    change(tensors, name)
    safetensors.torch.save_file(tensors, path)
    refused(copied, str(path), name)


@pytest.mark.parametrize(
    "name", ["weights.x", "optimiser.0.x.network.head.weight", "optimiser.9.x"]
)
def test_unknown_tensors_to_go_on_from_are_refused(copied, name):
    path = copied.folder / CHECKPOINT / format.TRAINING
    safetensors.torch.save_file({**safetensors.torch.load_file(path), name: torch.zeros(1)}, path)
    refused(copied, str(path), name)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("step", None),
        ("step", 1.0),
        ("step", "1"),
        ("step", True),
        ("step", -1),
        ("step", 2),
        ("step", 10**400),
        ("seconds", "1"),
        ("seconds", -1.0),
        ("seconds", math.nan),
        ("seconds", math.inf),
        ("seconds", 10**400),
        ("metrics", None),
        ("metrics", [["valid_bits", 1.0]]),
        ("metrics", {"valid_bits": "1"}),
    ],
)
def test_a_state_to_go_on_from_must_make_sense(copied, key, value):
    path = copied.folder / CHECKPOINT / format.STATE
    state = json.loads(path.read_text())
    path.write_text(json.dumps(state | {key: value}))
    refused(copied, str(path), key)


def test_a_model_alone_is_nothing_to_go_on_from(copied):
    manifest = copied.folder / CHECKPOINT / format.MANIFEST
    content = json.loads(manifest.read_text())
    del content["checksums"][format.TRAINING]
    manifest.write_text(json.dumps(content))
    refused(copied, str(copied.folder / CHECKPOINT), "without the state")


def test_optimisers_of_others_keep_what_they_like(runs, tmp_path):
    run = Run(tmp_path / "run", runs[0].recipe, runs[0].prepared)
    folder = RunFolder(run.folder, run.recipe, run.prepared)
    before, after = run.engine(), run.engine()
    for engine in (before, after):
        engine.optimizers = [torch.optim.SGD(engine.method.parameters(), lr=0.1, momentum=0.9)]
    before.advance(run.batch(), 0.1)
    folder.save(before)
    assert folder.resume(after) == run.folder / CHECKPOINT
    assert any("momentum_buffer" in name for name in after.state())
    for name, tensor in before.state().items():
        assert torch.equal(after.state()[name], tensor)


@pytest.fixture(scope="module")
def auditing(runs, tmp_path_factory):
    """The hook, which cannot be taken off again; modules that load on first use are loaded."""
    for run in runs:
        folder = tmp_path_factory.mktemp("first") / "run"
        shutil.copytree(run.folder, folder)
        load(folder, device="cpu")
        RunFolder(folder, run.recipe, run.prepared).resume(run.engine())
    sys.addaudithook(note)


@pytest.mark.usefixtures("auditing")
def test_damaged_files_are_refused_or_harmless(runs, tmp_path):
    outcomes = Counter()

    @settings(max_examples=500, deadline=None, derandomize=True)
    @given(st.randoms(use_true_random=True))
    def check(random):
        run = random.choice(runs)
        folder = tmp_path / "run"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(run.folder, folder)
        name = random.choices(FILES, WEIGHTS)[0]
        changed = damage(random, folder / name)
        checked = Path(name).name in format.KNOWN
        sealed = checked and random.random() < 0.7
        if sealed:
            seal(folder / CHECKPOINT)
        loaded, resumed = try_everything(run, folder)
        if changed and checked and not sealed:
            assert not loaded
            assert not resumed
        outcomes[sealed, "loaded", loaded] += 1
        outcomes[sealed, "resumed", resumed] += 1

    check()
    for kind in itertools.product([True, False], ["loaded", "resumed"], [True, False]):
        assert outcomes[kind] > 20  # the damage is neither hopeless nor harmless
