"""Models and half-finished runs of earlier formats: they compute what they computed, and go on.

The runs in `data/registers_of_both_groups` are of format 1, after 3 of their 6 steps; the numbers
below are what the version that wrote them computed.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch

import partita
from partita.commands import main
from partita.config.migration import KEY
from partita.files import format
from partita.models import checkpoints
from partita.models.default import WEIGHTS
from partita.models.tensor_migration import STEPS, migrated
from partita.training.run_folder import RECIPE

RUNS = Path(__file__).parent / "data" / "registers_of_both_groups"
REGISTERS = "network.registers"
COUNT = 2  # registers of a group
NATS = {"adamw": 2.6648699045181274, "muon": 2.661206066608429}
KEPT = {"adamw": ("optimiser.0.exp_avg", "optimiser.0.exp_avg_sq")}
KEPT["muon"] = ("optimiser.0.momentum_buffer",)
WRITTEN = [
    " connection by the Columbia River, traversing the Columbia River with the Columbia River to "
    "the watershed.",
    " A cycle is combined with the way out into a cycle that can move through a spontaneous breakd",
]
both = pytest.mark.parametrize("run", ["adamw", "muon"])


def stored(folder, file):
    return safetensors.torch.load_file(folder / file)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Copies of the runs and of their text, as the working directory."""
    shutil.copytree(RUNS, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")


def test_every_format_but_the_last_has_a_step():
    assert list(STEPS) == list(range(format.OLDEST, format.FORMAT))


def test_what_is_of_today_stays():
    recipe = partita.load(RUNS / "adamw", device="cpu").recipe
    tensors = {REGISTERS: torch.zeros(COUNT, 8), "network.embed.weight": torch.zeros(2 * COUNT, 8)}
    for version in range(format.OLDEST, format.FORMAT + 1):
        after = migrated(tensors, recipe, version)
        assert {name: x.shape for name, x in after.items()} == {
            name: x.shape for name, x in tensors.items()
        }


@both
def test_a_model_of_before_writes_and_scores_what_it_did(run):
    model = partita.load(RUNS / run, device="cpu")
    before = stored(checkpoints.latest(RUNS / run), format.WEIGHTS)
    assert torch.equal(model.method.network.registers, before[REGISTERS][:COUNT])
    assert model.sample(2, length=12, seed=3) == ["\ntttdh  ehtt", "r\nhthnoeodn "]
    rows = torch.arange(32).view(2, 16) % model.tokenizer.vocab_size
    found = partita.nelbo(model.method, rows, replicates=4).nats
    assert found == pytest.approx(NATS[run], abs=1e-6)


@both
@pytest.mark.usefixtures("here")
def test_a_model_of_before_is_saved_in_the_format_of_today(run):
    model = partita.load(run, device="cpu")
    model.save("copy")
    again = partita.load("copy", device="cpu")
    assert format.version_of(Path("copy")) == format.FORMAT
    assert torch.equal(again.method.network.registers, model.method.network.registers)


@both
@pytest.mark.usefixtures("here")
def test_a_run_of_before_goes_on(run, capsys):
    """With the half of what its optimizer kept; what it saves is of today."""
    content = json.loads(Path(run, RECIPE).read_text())
    Path("recipe.yaml").write_text(json.dumps({KEY: content[KEY]} | content["recipe"]))
    assert main(["train", "--config", "recipe.yaml", "--out", run]) == 0
    assert "nothing was left to do" not in capsys.readouterr().out
    newest = checkpoints.latest(Path(run))
    assert newest.name == "step-00000006"
    assert format.version_of(newest) == format.FORMAT
    training = stored(newest, format.TRAINING)
    for name in ("weights", *KEPT[run]):
        assert training[f"{name}.{REGISTERS}"].shape == (COUNT, 8)
    assert stored(newest, format.WEIGHTS)[REGISTERS].shape == (COUNT, 8)
    lines = map(json.loads, Path(run, "metrics.jsonl").read_text().splitlines())
    losses = [line["loss"] for line in lines if "loss" in line]
    assert len(losses) == 6
    assert max(losses[3:]) < losses[0]


@both
def test_what_an_optimizer_kept_of_the_first_group_is_kept(run):
    recipe = partita.load(RUNS / run, device="cpu").recipe
    training = stored(checkpoints.latest(RUNS / run), format.TRAINING)
    after = migrated(training, recipe, format.OLDEST)
    assert after.keys() == training.keys()
    for name, tensor in training.items():
        expected = tensor[:COUNT] if name.endswith(REGISTERS) and tensor.ndim else tensor
        assert torch.equal(after[name], expected)


def test_the_model_in_the_package_has_the_registers_that_it_wrote_with():
    model = partita.load(device="cpu")
    before = stored(WEIGHTS, format.WEIGHTS)[REGISTERS].float()
    count = model.recipe.network.registers
    assert len(before) == 2 * count
    assert torch.equal(model.method.network.registers, before[:count])
    assert model.sample(2, length=24, seed=1) == WRITTEN
