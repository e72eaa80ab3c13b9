"""One step at a time: what an engine computes, and what it needs to go on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from partita.config.training import RunOptions, TrainingOptions
from partita.data.batches import InMemory, Order, Packed
from partita.errors import InputError
from partita.methods import AR, MDLM
from partita.networks import CausalTransformer, Transformer, TransformerConfig
from partita.optim.optimizers import take_step
from partita.parallel import World
from partita.training.engine import Engine
from partita.training.throughput import flops_per_token, network_of

TEXT = torch.tensor([0, 1, 2, 3, 4] * 40)
LENGTH, ROWS = 8, 6
ALONE = World(0, 1, torch.device("cpu"))
ORDER = Order(Packed(InMemory(TEXT), LENGTH), ROWS, 0)
CAUSAL = {AR: CausalTransformer}


def engine(kind=MDLM, *, dropout=0.0, run=None, **options):
    torch.manual_seed(0)
    config = TransformerConfig(
        vocab_size=6, length=LENGTH, width=16, depth=2, heads=2, dropout=dropout
    )
    method = kind(CAUSAL.get(kind, Transformer)(config))
    training = TrainingOptions(batch_size=ROWS, ema_decay=0.9, **options)
    return Engine(method, training, run or RunOptions(device="cpu"), ALONE)


def advanced(machine, steps, first=0):
    return [machine.advance(ORDER.batch(step), 0.01) for step in range(first, first + steps)]


def tensors(machine):
    return machine.state() | {f"averaged.{k}": v for k, v in machine.averaged().items()}


def same(one, other):
    one, other = tensors(one), tensors(other)
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_a_step_counts_and_moves_every_weight():
    machine = engine()
    before = machine.state()
    (step,) = advanced(machine, 1)
    assert (step.step, machine.step, step.rate) == (0, 1, 0.01)
    assert float(step.loss) == pytest.approx(torch.tensor(5.0).log().item(), rel=0.3)
    assert float(step.norm) > 0
    assert not torch.equal(
        before["weights.network.head.weight"], machine.method.network.head.weight
    )


def test_a_loss_is_that_of_all_tokens_however_a_batch_is_parted():
    whole, parted = engine(), engine(run=RunOptions(device="cpu", micro_batch=4))
    for one, other in zip(advanced(whole, 3), advanced(parted, 3), strict=True):
        assert float(one.loss) == pytest.approx(float(other.loss), rel=1e-5)
        assert float(one.norm) == pytest.approx(float(other.norm), rel=1e-4)


def test_activations_that_are_computed_twice_are_the_same():
    usual = engine()
    twice = engine(run=RunOptions(device="cpu", activation_checkpointing=True))
    assert twice.method.network.recompute
    for one, other in zip(advanced(usual, 3), advanced(twice, 3), strict=True):
        assert float(one.loss) == pytest.approx(float(other.loss), rel=1e-6)


@pytest.mark.parametrize(("optimizer", "kind"), [("adamw", MDLM), ("muon", MDLM), ("adamw", AR)])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_restored_engine_goes_on_bit_by_bit(kind, optimizer, dropout):
    first = engine(kind, dropout=dropout, optimizer=optimizer)
    assert first.drops == (dropout > 0)
    advanced(first, 2)
    second = engine(kind, dropout=dropout, optimizer=optimizer)
    second.restore(first.averaged(), first.state(), first.step, 3.0)
    assert (second.step, second.seconds) == (2, 3.0)
    assert same(first, second)
    ours, theirs = advanced(first, 2, first=2), advanced(second, 2, first=2)
    assert [float(step.loss) for step in ours] == [float(step.loss) for step in theirs]
    assert same(first, second)


def test_what_does_not_fit_is_not_restored():
    machine = engine()
    advanced(machine, 1)
    averaged, state = machine.averaged(), machine.state()
    less = {name: tensor for name, tensor in state.items() if name != "weights.network.head.weight"}
    with pytest.raises(InputError, match="checkpoint: lacks the tensor"):
        engine().restore(averaged, less, 1, 0.0)
    with pytest.raises(InputError, match=r"checkpoint: holds unknown tensors such as 'more'"):
        engine().restore(averaged, state | {"more": torch.zeros(1)}, 1, 0.0)
    wide = state | {"weights.network.head.weight": torch.zeros(1)}
    with pytest.raises(InputError, match="checkpoint: a tensor of shape"):
        engine().restore(averaged, wide, 1, 0.0)


def test_names_of_saved_tensors_stay():
    """Checkpoints of every version have them."""
    machine = engine(optimizer="muon")
    advanced(machine, 1)
    names = {name.partition(".network.")[0] for name in machine.state()}
    adam = {f"optimiser.1.{key}" for key in ("step", "exp_avg", "exp_avg_sq")}
    assert names == {"weights", "optimiser.0.momentum_buffer", *adam}


@pytest.mark.parametrize("kind", [MDLM, AR])
def test_validation_uses_averaged_weights_and_leaves_training_alone(kind):
    machine, other = engine(kind), engine(kind)
    advanced(machine, 3)
    advanced(other, 3)
    bound = machine.validate(ORDER, 16)
    assert machine.validate(ORDER, 16) == bound  # always the same draws
    assert same(machine, other)
    machine.average.copy_to(machine.method)
    assert machine.validate(ORDER, 16).nats == pytest.approx(bound.nats, rel=1e-6)
    assert (bound.nats_error == 0) == (kind is AR)
    assert [float(step.loss) for step in advanced(other, 1, first=3)]


def test_gradients_are_clipped_together():
    weights = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1))]
    weights[0].grad, weights[1].grad = torch.tensor([3.0, 0.0]), torch.tensor([4.0])
    optimizers = [torch.optim.SGD([weight], lr=9.0) for weight in weights]
    assert float(take_step(optimizers, weights, 0.5, 1.0)) == pytest.approx(5.0)
    torch.testing.assert_close(weights[0].detach(), torch.tensor([-0.3, 0.0]))
    torch.testing.assert_close(weights[1].detach(), torch.tensor([-0.4]))


def test_work_is_that_of_matrices_and_attention():
    machine = engine()
    named = machine.method.named_parameters()
    matrices = sum(p.numel() for name, p in named if p.ndim == 2 and "embed" not in name)
    assert flops_per_token(machine.method, LENGTH) == 6 * matrices + 12 * LENGTH * 2 * 16
    nothing = network_of(nn.Linear(2, 2))  # a method without a network of ours
    assert (nothing.tokens_each, nothing.attended_width) == (1, 0)


def test_a_network_is_no_method():
    with pytest.raises(InputError, match="method: Linear has no loss"):
        Engine(nn.Linear(2, 2), TrainingOptions(), RunOptions(device="cpu"), ALONE)
