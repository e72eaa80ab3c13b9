"""Training: the loop learns, repeats itself exactly, and averages its weights."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from partita.config.training import RunOptions, TrainingOptions
from partita.data.batches import InMemory, Order, Packed
from partita.likelihood.bounds import nelbo
from partita.methods import AR, MD4, MDLM, PGM
from partita.networks import (
    CausalTransformer,
    PartitionTransformer,
    Transformer,
    TransformerConfig,
)
from partita.optim.muon import StackedMuon
from partita.optim.optimizers import OPTIMIZERS
from partita.parallel import World
from partita.training import loop
from partita.training.callbacks import EachStep
from partita.training.ema import MovingAverage
from partita.training.engine import Engine
from partita.training.loop import fit

TEXT = torch.tensor([0, 1, 2, 3, 4] * 60)  # fully predictable: entropy log 5 once, then 0
LENGTH = 12  # no multiple of the period: rows begin at every token


def build(kind, seed=0, **options):
    torch.manual_seed(seed)
    config = TransformerConfig(
        vocab_size=6, length=LENGTH + 1, width=32, depth=2, heads=2, **options
    )
    network = {AR: CausalTransformer}.get(kind, Transformer)(config)
    return kind(network)


@pytest.mark.parametrize("optimiser", list(OPTIMIZERS))
@pytest.mark.parametrize(("kind", "options"), [(MDLM, {}), (MD4, {"time": True}), (AR, {})])
def test_every_method_learns(kind, options, optimiser):
    method = build(kind, **options)
    losses = []
    rate = 0.02 if optimiser == "muon" else 0.01
    fit(
        method,
        TEXT,
        TrainingOptions(
            steps=200, length=LENGTH, optimizer=optimiser, learning_rate=rate, ema_decay=0.9
        ),
        lambda progress: losses.append(progress.loss),
    )
    # A window costs log 5 nats at least (where it starts); over 12 tokens that is 0.13.
    assert losses[0] > 1.2
    assert sum(losses[-10:]) / 10 < 0.5
    assert not method.training


def test_the_same_options_give_the_same_run():
    weights = []
    for _ in range(2):
        method = build(MDLM)
        fit(method, TEXT, TrainingOptions(steps=12, length=LENGTH, seed=3))
        weights.append(torch.cat([p.flatten() for p in method.parameters()]))
    assert torch.equal(*weights)


def test_the_speed_of_training_leaves_validation_out(monkeypatch):
    """By a clock on which a step takes one second and a look at the validation text a hundred."""
    now, speeds = [0.0], []
    monkeypatch.setattr(loop.time, "monotonic", lambda: now[0])

    class Timed(Engine):
        def advance(self, *given):
            now[0] += 1
            return super().advance(*given)

        def validate(self, *given):
            now[0] += 100
            return super().validate(*given)

    options = TrainingOptions(steps=12, length=LENGTH, batch_size=5)
    run = RunOptions(log_every=4, validate_every=3, validation_rows=2)
    engine = Timed(build(MDLM), options, run, World(0, 1, torch.device("cpu")))
    rows = Order(Packed(InMemory(TEXT), LENGTH), 5, 0)
    seen = EachStep(lambda progress: speeds.append(progress.tokens_per_second))
    loop.Trainer(engine, rows, rows, [seen]).train()
    assert speeds == pytest.approx([5 * LENGTH] * 3)
    assert now[0] == 12 + 4 * 100


def test_a_wall_clock_budget_ends_the_run():
    shares = []
    fit(
        build(MDLM),
        TEXT,
        TrainingOptions(seconds=0.3, length=LENGTH),
        lambda progress: shares.append(progress.share),
    )
    assert shares[-1] == 1
    assert shares == sorted(shares)


@pytest.mark.parametrize(
    ("name", "shares"),
    [
        ("cosine", {0.05: 0.5, 0.1: 1, 0.55: 0.5, 1.0: 0}),
        ("wsd", {0.05: 0.5, 0.1: 1, 0.8: 1, 0.9: 0.5, 1.0: 0}),
        ("constant", {0.05: 0.5, 0.1: 1, 1.0: 1}),
    ],
)
def test_courses_of_the_learning_rate(name, shares):
    options = TrainingOptions(lr_schedule=name, warmup=0.1, learning_rate=2.0)
    assert options.rate_at(0.0) == 0
    for share, factor in shares.items():
        assert options.rate_at(share) == pytest.approx(2 * factor, abs=1e-12)


def test_a_run_has_a_length_in_steps_or_seconds():
    assert TrainingOptions().share(500, 9.0) == 0.5
    assert TrainingOptions(steps=10).share(5, 9.0) == 0.5
    assert TrainingOptions(seconds=10.0).share(5, 9.0) == 0.9
    assert TrainingOptions(seconds=10.0).share(5, 99.0) == 1


def test_stacked_matrices_get_torch_s_updates():
    """A step shape by shape, against torch's, matrix by matrix."""
    shapes = [(24, 8), (8, 24), (16, 16)] * 3 + [(5, 7)]
    torch.manual_seed(0)
    first = [torch.randn(shape) for shape in shapes]
    mine, torchs = ([torch.nn.Parameter(x.clone()) for x in first] for _ in range(2))
    stacked = StackedMuon(mine, 0.1, 0.01)
    plain = torch.optim.Muon(torchs, 0.1, 0.01, adjust_lr_fn="match_rms_adamw")
    for _ in range(4):
        for x, y in zip(mine, torchs, strict=True):
            x.grad = torch.randn(x.shape)
            y.grad = x.grad.clone()
        mine[-1].grad = torchs[-1].grad = None  # a matrix that nothing has used
        stacked.step()
        plain.step()
    for x, y, begin in zip(mine, torchs, first, strict=True):
        moved = float((y - begin).detach().abs().max())
        assert float((x - y).detach().abs().max()) <= 0.01 * moved  # orders of sums in bfloat16
    state = stacked.state_dict()
    plain.load_state_dict(state)
    assert torch.equal(
        plain.state[torchs[0]]["momentum_buffer"], stacked.state[mine[0]]["momentum_buffer"]
    )


def test_parts_of_a_projection_are_orthogonalised_apart():
    """Three matrices, one below the other, move as they would alone, however small one is."""
    torch.manual_seed(0)
    alone = [torch.nn.Parameter(torch.randn(8, 8)) for _ in range(3)]
    joined = torch.nn.Parameter(torch.cat([x.detach() for x in alone]))
    for x, size in zip(alone, (1.0, 0.01, 30.0), strict=True):
        x.grad = size * torch.randn(8, 8)
    joined.grad = torch.cat([x.grad for x in alone])
    StackedMuon(alone, 0.1, 0.01).step()
    StackedMuon([joined], 0.1, 0.01, {joined: 3}).step()
    torch.testing.assert_close(joined, torch.cat([x.detach() for x in alone]))


@pytest.mark.parametrize(
    ("kind", "network", "mlp", "several"),
    [
        (MDLM, Transformer, "relu2", {3: 2, 1: 6}),
        (MDLM, Transformer, "swiglu", {3: 2, 2: 2, 1: 4}),
        (PGM, PartitionTransformer, "relu2", {3: 1, 2: 2, 1: 9}),
    ],
)
def test_muon_knows_the_projections_that_are_several(kind, network, mlp, several):
    sizes = {"vocab_size": 6, "length": 12, "width": 32, "depth": 2, "heads": 2, "mlp": mlp}
    hidden, _ = OPTIMIZERS["muon"](kind(network(TransformerConfig(**sizes))), 0.1, 0.0)
    assert Counter(hidden._parts.values()) == several
    for matrix, parts in hidden._parts.items():
        assert matrix.shape[0] % parts == 0


def test_muon_takes_the_matrices_inside_blocks_alone():
    method = build(MDLM)
    hidden, rest = OPTIMIZERS["muon"](method, 0.1, 0.0)
    count = sum(len(group["params"]) for o in (hidden, rest) for group in o.param_groups)
    assert count == len(list(method.parameters()))
    assert all(p.ndim == 2 for group in hidden.param_groups for p in group["params"])
    assert any(p is method.network.head.weight for g in rest.param_groups for p in g["params"])


def test_moving_average_follows_its_recursion_and_steps_aside():
    module = torch.nn.Linear(2, 1, bias=False)
    average, expected = MovingAverage(module, decay=0.5), module.weight.detach().clone()
    for n in range(1, 6):
        torch.nn.init.constant_(module.weight, float(n))
        average.update(module)
        decay = min(0.5, (1 + n) / (10 + n))
        expected = decay * expected + (1 - decay) * n
    torch.testing.assert_close(average.shadow["weight"], expected)
    with average.applied_to(module):
        torch.testing.assert_close(module.weight.detach(), expected)
    assert torch.equal(module.weight.detach(), torch.full((1, 2), 5.0))


def test_weights_returned_are_the_averaged_ones():
    method = build(MDLM)
    average = fit(method, TEXT, TrainingOptions(steps=5, length=LENGTH))
    for name, parameter in method.named_parameters():
        assert torch.equal(parameter, average.shadow[name])


def test_two_halves_of_a_batch_share_one_set_of_times():
    """Global batches: the rows of two processes together equal those of one."""
    from partita.processes.corruption import Continuous
    from partita.randomness import Noise

    law, valid = Continuous(build(MDLM).schedule), torch.ones(8, 5, dtype=torch.bool)
    whole = law.draw(valid, Noise.for_batch(1, 8), 2, 8)
    halves = [law.draw(valid[:4], Noise.for_batch(1, 4, first=f), 2, 8) for f in (0, 4)]
    assert torch.equal(whole.masked, torch.cat([half.masked for half in halves]))
    assert torch.equal(whole.times, torch.cat([half.times for half in halves]))
    assert torch.allclose(whole.times.sort().values.diff(), torch.full((7,), 1 / 8).double())


def test_nelbo_of_an_untrained_model_is_uniform():
    estimate = nelbo(build(MDLM), TEXT.reshape(-1, LENGTH))
    assert estimate.nats == pytest.approx(torch.tensor(5.0).log().item(), rel=1e-5)
    assert estimate.perplexity == pytest.approx(5, rel=1e-5)
    assert estimate.bits == pytest.approx(estimate.nats / 0.6931472, rel=1e-6)
    assert estimate.perplexity_error == pytest.approx(5 * estimate.nats_error, rel=1e-5)
    assert "perplexity 5.000" in str(estimate)
