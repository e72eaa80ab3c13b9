"""PGM asks for a partition network by what it can do: another one goes all the way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

CHECKS = """
import torch, partita
from partita.execution.sampling import has_program
from partita.methods.inference import can_be_recorded
from partita.training.throughput import flops_per_token
from tests.support.second_partition import Twice

torch.manual_seed(0)
options = partita.TransformerOptions(kind="twice", length=4, width=8, depth=1, heads=1)
model = partita.PGM.build(options, 3)
assert isinstance(model.network, Twice)
for parameter in model.parameters():
    torch.nn.init.normal_(parameter, std=0.3)
rows = torch.randint(3, (6, 4))
bound = partita.nelbo(model, rows, replicates=64)
one = partita.nelbo(model, rows, replicates=64, groups=1)
exact = -sum(partita.exact_log_likelihood(model, row) for row in rows) / rows.numel()
assert bound.nats + 4 * bound.nats_error > exact, (bound, exact)
assert abs(bound.nats - one.nats) < 5 * (bound.nats_error + one.nats_error), (bound, one)
assert flops_per_token(model, 4) > 0
assert not has_program(model) and not can_be_recorded(model, rows)  # nobody promised it
partita.fit(model, torch.randint(3, (400,)), partita.TrainingOptions(steps=3, batch_size=4))
"""


def run(folder, *words):
    """A process of its own, since it registers a network."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    command, environment = [sys.executable, *words], {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_goes_from_training_to_an_evaluation(tmp_path):
    told = run(tmp_path, "-m", "tests.support.second_partition")
    assert '"kind": "twice"' in told
    assert (tmp_path / "model").is_dir()


def test_its_bound_is_one(tmp_path):
    run(tmp_path, "-c", CHECKS)
