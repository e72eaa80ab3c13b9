"""Steps that are captured as graphs learn what plain ones learn."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from partita.config.training import RunOptions, TrainingOptions
from partita.data.batches import InMemory, Order, Packed, Padded
from partita.errors import InputError
from partita.methods import MDLM, METHODS
from partita.networks import TransformerOptions
from partita.parallel import World
from partita.processes.corruption import Subset, make_corruption
from partita.training.engine import Engine

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

LENGTH, VOCAB, ROWS = 32, 9, 8
CAPTURED = ["ar", "genmd4", "maskgit", "md4", "mdlm", "mdlm-complementary", "pgm"]


def engine(name, capture, precision="float32", compiled=False, **options):
    torch.manual_seed(0)
    sizes = {"length": LENGTH, "width": 64, "depth": 2, "heads": 2} | options
    method = METHODS[name].build(TransformerOptions(**sizes), VOCAB)
    for parameter in method.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    training = TrainingOptions(
        batch_size=ROWS, optimizer="muon", precision=precision, ema_decay=0.9
    )
    run = RunOptions(device="cuda", cuda_graph=capture, compile=compiled)
    return Engine(method, training, run, World(0, 1, torch.device("cuda")))


def batches(count=6, label=False):
    torch.manual_seed(1)
    order = Order(Packed(InMemory(torch.randint(VOCAB, (4096,))), LENGTH), ROWS, seed=0)
    found = [order.batch(step).to(torch.device("cuda")) for step in range(count)]
    labels = torch.randint(3, (count, ROWS), device="cuda")
    return [replace(b, label=x) if label else b for b, x in zip(found, labels, strict=True)]


def learned(machine, material):
    losses = [float(machine.advance(batch, 0.01).loss) for batch in material]
    return torch.tensor(losses), machine.averaged()


def assert_alike(ours, oracle, tolerance):
    torch.testing.assert_close(ours[0], oracle[0], atol=tolerance, rtol=tolerance)
    for name, weights in oracle[1].items():
        error = float((ours[1][name] - weights).norm())
        assert error <= tolerance * float(weights.norm()) + 1e-6, name


@pytest.mark.parametrize("name", CAPTURED)
def test_captured_steps_learn_what_plain_ones_do(name):
    """Masks differ from step to step: the graph reads which one it is."""
    ours, plain = engine(name, True), engine(name, False)
    found, oracle = learned(ours, batches()), learned(plain, batches())
    assert ours.captured is not None
    assert plain.captured is None
    assert_alike(found, oracle, 1e-3)


def compiled_steps_agree(name):
    ours = engine(name, True, "bfloat16", compiled=True, registers=2)
    plain = engine(name, False, "bfloat16", compiled=True, registers=2)
    found, oracle = learned(ours, batches()), learned(plain, batches())
    assert ours.captured is not None
    assert_alike(found, oracle, 0.05)


@pytest.mark.parametrize("name", ["mdlm", "pgm"])
def test_compiled_in_half_precision(name):
    """In a process of its own: the compiler cannot read functions with checks of their shapes."""
    program = f"from tests.execution.test_cuda_training import *; compiled_steps_agree({name!r})"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("name", ["maskgit", "pgm"])
def test_labels(name):
    """Which labels are hidden differs from step to step too."""
    ours, plain = engine(name, True, classes=3), engine(name, False, classes=3)
    found, oracle = learned(ours, batches(label=True)), learned(plain, batches(label=True))
    assert ours.captured is not None
    assert_alike(found, oracle, 1e-3)


def test_a_run_that_goes_on_and_validates():
    """Other work between steps, weights that are put back, batches of another size."""
    material = batches(8)
    order = Order(Packed(InMemory(torch.randint(VOCAB, (1024,))), LENGTH), ROWS, seed=0)
    states = []
    for capture in (True, False):
        machine = engine("pgm", capture)
        learned(machine, material[:3])
        averaged, state = machine.averaged(), machine.state()
        learned(machine, material[3:5])
        machine.validate(order, 16)
        machine.restore(averaged, state, 3, 0.0)
        smaller = replace(material[3].split(4)[0], size=4, count=4 * LENGTH)
        states.append(learned(machine, [*material[3:], smaller]))
    assert_alike(*states, 1e-3)


def test_what_is_not_captured():
    """Rows with padding, dropout, several parts, and heads that are asked where it is hidden."""
    cuda = torch.device("cuda")
    rows = Padded(InMemory(torch.randint(VOCAB, (100,))), LENGTH)
    padded = [Order(rows, 2, seed=0).batch(step).to(cuda) for step in range(2)]
    several = engine("pgm", True)
    several.run = replace(several.run, micro_batch=4)
    where_hidden = engine("mdlm", True)
    where_hidden.method.everywhere = False
    cases = [(engine("pgm", True), padded), (engine("pgm", True, dropout=0.1), batches(2))]
    cases += [(several, batches(2)), (where_hidden, batches(2)), (engine("sedd", True), batches(2))]
    for machine, material in cases:
        assert learned(machine, material)[0].isfinite().all()
        assert machine.captured is None


def test_a_loss_that_waits_after_all():
    """The message names what to do, and nothing is broken afterwards."""
    machine = engine("mdlm", True)
    loss = machine.method.loss

    def waiting(*given, **told):
        found = loss(*given, **told)
        assert float(found.objective) > 0
        return found

    machine.method.loss = waiting
    with pytest.raises(
        InputError, match=r"run.cuda_graph: the loss of MDLM waits.*cuda_graph false"
    ):
        machine.advance(batches(1)[0], 0.01)
    machine.method.loss = loss
    assert learned(machine, batches(2))[0].isfinite().all()
    assert machine.captured is not None


class Growing(MDLM):
    """Somebody's own: what it makes of the step would be lost in a recording."""

    def loss(self, batch, noise, step=0, **choices):
        found = super().loss(batch, noise, step, **choices)
        return replace(found, objective=found.objective * (1 + step))


class Fixed(MDLM):
    """Another, which says that it can be recorded."""

    recordable = True


@pytest.mark.parametrize(("kind", "captured"), [(Growing, False), (Fixed, True)])
def test_methods_of_somebody_s_own(kind, captured):
    machine = engine("mdlm", True)
    own = Engine(kind(machine.method.network), machine.options, machine.run, machine.world)
    learned(own, batches(2))
    assert (own.captured is not None) == captured


@pytest.mark.parametrize("law", ["continuous", "unweighted", "clipped", "own"])
def test_laws(law):
    """A law of somebody's own is not recorded either."""

    class Own(Subset):
        pass

    results = []
    for capture in (True, False):
        machine = engine("pgm", capture)
        chosen = Own() if law == "own" else make_corruption(law, machine.method.schedule)
        machine.method.corruption = chosen
        results.append(learned(machine, batches(4)))
        assert (machine.captured is not None) == (capture and law != "own")
    assert_alike(*results, 1e-3)


def test_recomputed_activations():
    results = []
    for capture in (True, False):
        machine = engine("pgm", capture)
        machine.method.network.recompute = True
        results.append(learned(machine, batches(4)))
    assert_alike(*results, 1e-3)


def test_nothing_is_kept_after_training():
    machine = engine("pgm", True)
    learned(machine, batches(2))
    machine.rest()
    assert machine.captured is None
    assert all(parameter.grad is None for parameter in machine.method.parameters())
