"""What a recorded step of training may and may not do, seen without a GPU.

A recording reads the batch and the number of the step from memory, and waits for no value. The
first is tested by replays on the CPU, which do the work again out of that memory. The second is
tested on torch's device "meta", whose tensors have shapes and no values: whoever looks at one
fails, and the code takes the branches that it takes on a GPU. What is left to `test_cuda_training`
are the graphs themselves.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from partita.config.training import RunOptions, TrainingOptions
from partita.contracts.batch import Batch
from partita.data.batches import InMemory, Order, Packed
from partita.execution.captured_pass import CapturedPass
from partita.execution.program import GraphBuffers, Sizes, _slots
from partita.execution.step_forward import StepForward
from partita.methods import METHODS
from partita.methods.inference import can_be_recorded
from partita.networks import TransformerOptions
from partita.parallel import World
from partita.processes.corruption import make_corruption
from partita.randomness import Noise
from partita.training.engine import Engine

LENGTH, VOCAB, ROWS, CLASSES = 16, 9, 4, 3
RECORDED = ["ar", "genmd4", "maskgit", "md4", "mdlm", "mdlm-complementary", "pgm"]
VARIANTS = {
    "plain": {},
    "registers and labels": {"registers": 2, "classes": CLASSES},
}
every_recorded = pytest.mark.parametrize("name", RECORDED)


def build(name, **options):
    torch.manual_seed(0)
    sizes = {"length": LENGTH, "width": 64, "depth": 2, "heads": 2}
    method = METHODS[name].build(TransformerOptions(**sizes | options), VOCAB)
    for parameter in method.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return method


def engine(name, **options):
    method = build(name, **options)
    method.everywhere = True  # as on a GPU, where the head is small
    run, world = RunOptions(device="cpu"), World(0, 1, torch.device("cpu"))
    return Engine(method, TrainingOptions(batch_size=ROWS, label_dropout=0.3), run, world)


def batches(count, label):
    torch.manual_seed(1)
    order = Order(Packed(InMemory(torch.randint(VOCAB, (512,))), LENGTH), ROWS, seed=0)
    labels = torch.randint(CLASSES, (count, ROWS)) if label else [None] * count
    return [replace(order.batch(step), label=labels[step]) for step in range(count)]


def gradients(machine):
    return [None if p.grad is None else p.grad.clone() for p in machine.method.parameters()]


@every_recorded
@pytest.mark.parametrize("variant", ["plain", "registers and labels"])
def test_a_replay_finds_all_that_it_needs_in_memory(name, variant):
    """Every step has other masks, times and labels; none of them is left of the step before."""
    options = {} if name == "ar" else VARIANTS[variant]
    machine = engine(name, **options)
    machine.method.train()
    for step, batch in enumerate(batches(4, label="classes" in options)):
        machine.step = step
        plain = machine._gradients([batch])
        oracle = gradients(machine)
        assert torch.equal(machine._replayed(batch), plain)
        for ours, theirs in zip(gradients(machine), oracle, strict=True):
            assert (ours is None) == (theirs is None)
            assert ours is None or torch.equal(ours, theirs)


def test_steps_differ():
    """Otherwise the test above would pass with a number of the step that is never read."""
    machine = engine("pgm")
    (batch,) = batches(1, label=False)
    first = machine._replayed(batch)
    machine.step = 1
    assert not torch.equal(machine._replayed(batch), first)


def test_batches_of_another_shape_are_not_taken():
    plain, labelled = batches(1, label=False)[0], batches(1, label=True)[0]
    machine = engine("pgm", classes=CLASSES)
    machine._replayed(plain)
    captured = machine.captured
    assert captured.takes(plain)
    padded = replace(plain, is_token=torch.ones_like(plain.tokens, dtype=torch.bool))
    documents = replace(plain, ends=torch.zeros_like(plain.tokens, dtype=torch.bool))
    for other in (labelled, padded, documents, replace(plain, size=9), plain.split(2)[0]):
        assert not captured.takes(other)
    assert not CapturedPass.fits(padded)


def test_a_cpu_records_nothing():
    machine = engine("pgm")
    machine.advance(batches(1, label=False)[0], 0.01)
    assert machine.captured is None


# Nothing is waited for ---------------------------------------------------------------------------


def without_values(method, label=False):
    """One pass of a loss over tensors that have no values."""
    method.to("meta")
    tokens = torch.randint(VOCAB, (ROWS, LENGTH), device="meta")
    numbers = torch.arange(ROWS, device="meta")
    noise = Noise(0, numbers, since=torch.zeros((), dtype=torch.int64, device="meta"))
    told = {"label": numbers % CLASSES} if label else {}
    assert can_be_recorded(method, tokens)
    method.loss(Batch.of(tokens, **told), noise).objective.backward()


@every_recorded
@pytest.mark.parametrize("variant", VARIANTS)
def test_losses_look_at_no_value(name, variant):
    options = {} if name == "ar" else VARIANTS[variant]
    without_values(build(name, **options).train(), label="classes" in options)


@pytest.mark.parametrize("queries", ["logsumexp", "mean", "learned"])
def test_partitions_of_all_queries_look_at_no_value(queries):
    without_values(build("pgm", options={"queries": queries}))


@pytest.mark.parametrize("law", ["continuous", "discrete", "subset", "unweighted", "clipped"])
@pytest.mark.parametrize("name", ["mdlm", "pgm"])
def test_laws_look_at_no_value(name, law):
    method = build(name)
    method.corruption = make_corruption(law, method.schedule)
    without_values(method)


def test_a_loss_that_looks_is_noticed():
    """It looks for the hidden tokens, and says so."""
    method = build("mdlm").to("meta")
    method.everywhere = False
    tokens = torch.randint(VOCAB, (ROWS, LENGTH), device="meta")
    assert not can_be_recorded(method, tokens)
    with pytest.raises(NotImplementedError, match="nonzero"):
        method.loss(Batch.of(tokens), Noise.for_batch(0, ROWS, device="meta"))


@pytest.mark.parametrize("name", ["mdlm", "md4", "maskgit", "pgm"])
def test_steps_of_samplers_look_at_no_value(name):
    """Neither where a step finds what it reads, nor in the network."""
    method = build(name, grid=4).to("meta").eval()
    buffers, size = GraphBuffers.blank(ROWS, LENGTH, 8, torch.device("meta")), Sizes(LENGTH, 8)
    with torch.no_grad():
        visible, asked = _slots(buffers.order, buffers.known, buffers.now, size.read, size.queried)
        forward = StepForward(method.timed, method.network, method.network.head.weight, None)
        assert forward(visible, asked, buffers).shape[0] == size.queried
