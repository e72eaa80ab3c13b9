"""GenMD4 by enumeration: its bounds, its reverse process, and the gradient of its exponents."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from partita.config.method import MethodOptions
from partita.contracts.batch import Batch
from partita.contracts.layouts import PackedLayout
from partita.errors import InputError
from partita.likelihood.bounds import nelbo
from partita.methods import METHODS
from partita.methods.contracts import Chain
from partita.methods.genmd4 import SECOND_MASK, GenMD4, MaskedTwice, surplus
from partita.networks import CausalTransformer, Transformer, TransformerConfig
from partita.networks.options import TransformerOptions
from partita.processes.corruption import Corrupted
from partita.processes.masked import posterior, reverse
from partita.randomness import Noise
from partita.samplers import Prompt, sample
from partita.schedules import make_schedule, sampling_grid
from tests.laws.tables import (
    MASK,
    VOCAB,
    TableNetwork,
    all_sequences,
    all_states,
    assert_law,
    random_logits,
    table_md4,
)
from tests.support.genmd4_laws import (
    POWERS,
    all_masks,
    chain_law,
    continuous_bound,
    losses_at,
    quadrature,
    step_table,
    table_genmd4,
    transition,
)

SAMPLES = 30_000


def polynomial(power):
    return make_schedule("polynomial", exponent=float(power))


def discrete_bound(model, x, grid):
    """sum of E KL(q(z_s | z_t, x) || p(z_s | z_t)): x_l has the posterior of its own schedule."""
    states, total = all_states(x.numel()), 0.0
    w = model.exponents.detach()
    fits = states[((states == MASK) | (states == x)).all(-1)]
    truth, masked = x.expand(len(fits), -1), fits == MASK
    for t, s in itertools.pairwise(grid.tolist()):
        before, after = (torch.full((len(fits),), v, dtype=torch.float64) for v in (t, s))
        chance = model.log_mask(truth, masked, before.log(), torch.ones_like(masked)).exp().detach()
        p = step_table(model, fits, s, t)
        for place, token in enumerate(x.tolist()):
            own = slice(place, place + 1)
            schedule = polynomial(w[token])
            q = posterior(truth[:, own], fits[:, own], after, before, schedule, MASK, VOCAB + 1)
            divergence = torch.special.xlogy(q, q / p[:, own]).nan_to_num().sum((-1, -2))
            total += float((chance * divergence).sum())
    return total


# Bounds ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("power", [0.6, 1.0, 2.5])
def test_equal_exponents_give_md4(power):
    """The loss at every time, and the reverse step, of MD4 with that polynomial (1 is linear)."""
    schedule = make_schedule("linear") if power == 1 else polynomial(power)
    model, md4 = table_genmd4(powers=(power,) * 3), table_md4(random_logits(2), schedule=schedule)
    masks, t = all_masks(2), torch.tensor([1e-3, 0.2, 0.7, 0.99], dtype=torch.float64)
    masked, times = masks.repeat(len(t), 1), t.repeat_interleave(len(masks))
    for x in all_sequences(2):
        tokens, valid = x.expand(len(masked), -1), torch.ones_like(masked)
        weights = schedule.weight(times)[:, None].expand(masked.shape)
        theirs = md4.loss_given(Batch.of(tokens, is_token=valid), Corrupted(masked, weights, times))
        ours = model.loss_given(
            Batch.of(tokens, is_token=valid), MaskedTwice((masked, masked), times)
        )
        torch.testing.assert_close(ours.per_token, theirs.per_token)
        torch.testing.assert_close(ours.cross_entropy, theirs.cross_entropy)
        torch.testing.assert_close(ours.objective, theirs.objective)
        assert torch.equal(ours.counted, theirs.counted)
    states = all_states(2)
    batch = torch.ones(len(states), dtype=torch.float64)
    for s, end in ((0.0, 0.4), (0.25, 0.3), (0.5, 1.0)):
        with torch.no_grad():
            log_mean = model.log_mean(states, end * batch)
            ours = model.step(log_mean, states, s * batch, end * batch)
        theirs = reverse(log_mean.exp(), states, s * batch, end * batch, schedule, MASK)
        torch.testing.assert_close(ours, theirs)


def test_the_two_masks_are_independent():
    """Given t, each hides a token with probability t^w, whatever the other does."""
    rows = 20_000
    seen = []

    class Spy(GenMD4):
        def loss_given(self, batch, drawn):
            seen.append((drawn.masks, drawn.t))
            return super().loss_given(batch, drawn)

    tokens = torch.ones(rows, 2, dtype=torch.int64)
    Spy(TableNetwork(random_logits(2))).loss(Batch.of(tokens), Noise.for_batch(3, rows), 5)
    (first, second), t = seen[0]
    for a, b in itertools.product(range(2), repeat=2):
        both, alone = t**2, t
        surplus = (first[:, a] & second[:, b]).double() - both
        assert abs(float(surplus.sum())) < 4 * float((both * (1 - both)).sum()) ** 0.5
        surplus = first[:, a].double() - alone
        assert abs(float(surplus.sum())) < 4 * float((alone * (1 - alone)).sum()) ** 0.5


@pytest.mark.parametrize("t1", [0.0, 0.01])
@pytest.mark.parametrize("powers", [(0.05, 1.0, 3.0), (1.0, 1.0, 1.0), (0.7, 0.9, 2.0)])
def test_times_have_the_density_that_weighs_them(powers, t1):
    """Uniform numbers become times whose distribution function is the integral of the density."""
    model = table_genmd4(powers=powers, t1=t1)
    u = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    with torch.no_grad():
        t, _, share = model.times(u)
    assert float(t.min()) > 0
    assert float(t.min()) >= t1
    assert float(t.max()) <= 1
    c = min(powers) / 2
    for end in (0.02, 0.1, 0.5, 0.9):
        even, near = (end - t1) / (1 - t1), (end**c - t1**c) / (1 - t1**c)
        assert float((t < end).double().mean()) == pytest.approx((even + near) / 2, abs=1e-3)
    # The mean of 1 / density is the length of the interval; that of t^(w-1) / density is known too.
    assert float((t / share).mean()) == pytest.approx(1 - t1, rel=1e-3)
    for w in powers:
        exact = (1 - t1**w) / w
        assert float((t**w / share).mean()) == pytest.approx(exact, rel=2e-3)


@pytest.mark.parametrize("power", [0.05, 0.3, 1.0])
def test_estimates_hold_for_small_exponents(power):
    """With no knowledge of the data the bound is ln V whatever the exponents are.

    Uniform times would miss most of it for small exponents, with an error that looks small.
    """
    model = GenMD4(TableNetwork(torch.zeros_like(random_logits(2))), exponent=power)
    x, rows, runs = torch.tensor([2, 0]), 256, 50
    drawn = torch.stack(
        [
            model.loss(
                Batch.of(x.expand(rows, -1)), Noise.for_batch(7, rows), step
            ).per_sequence.mean()
            for step in range(runs)
        ]
    ).detach()
    error = float(drawn.std()) / runs**0.5
    assert abs(float(drawn.mean()) - 2 * math.log(VOCAB)) < 4 * error
    assert error < 0.03


@pytest.mark.parametrize("power", [1e-2, 1e-3, 1e-6, 1e-30, 1e-300])
def test_estimates_hold_where_times_are_too_small_for_numbers(power):
    """One token of two and a network without any knowledge: the bound is ln 2, near t = 0."""
    network = TableNetwork(torch.zeros(3, 1, 2))
    model, rows, runs = GenMD4(network, exponent=power), 1024, 120
    estimate = nelbo(
        model, torch.ones(rows, 1, dtype=torch.int64), replicates=runs, batch_size=rows
    )
    assert estimate.nats_error < 0.005
    assert abs(estimate.nats - math.log(2)) < 3 * estimate.nats_error


@pytest.mark.parametrize("scale", [1e-3, 1e-6, 1e-30])
@pytest.mark.parametrize("token", range(VOCAB))
def test_small_exponents_that_differ_have_their_bound_and_its_gradient(token, scale):
    """With no knowledge of the data a token's bound is ln V + mean(w) / w_x - 1.

    The gradient of raw is that of log w, as softplus is the exponential function here.
    """
    model = table_genmd4(length=1, powers=[scale * p for p in (1, 1.5, 2)])
    torch.nn.init.zeros_(model.network.table)
    w = model.exponents.detach()
    exact = math.log(VOCAB) + w.mean() / w[token] - 1
    slope = w / w[token] / VOCAB
    slope[token] = 1 / VOCAB - w.mean() / w[token]
    rows, runs = 1024, 100
    x, drawn = torch.full((rows, 1), token), []
    for step in range(runs):
        loss = model.loss(Batch.of(x), Noise.for_batch(5, rows), step)
        slopes = torch.autograd.grad(loss.objective, model.raw)[0]
        drawn.append(torch.cat([loss.per_token.mean()[None], slopes]).detach())
    values = torch.stack(drawn)
    error = values.std(0) / runs**0.5
    wanted = torch.cat([exact[None], slope])
    assert bool(((values.mean(0) - wanted).abs() < 4 * error).all())
    assert float(error.max()) < 0.03


def test_streams_of_training_and_validation_do_not_meet():
    noise = Noise.for_batch(0, 1)
    used = {stream ^ bit for stream in range(8) for bit in (0, SECOND_MASK)}
    assert len(used) == 16
    assert all(noise.fork(stream).stream == stream for stream in used)


@pytest.mark.parametrize("powers", [POWERS, (1.3, 3.0, 1.1)])
def test_discrete_bound_converges_to_the_continuous_one(powers):
    model, x = table_genmd4(powers=powers), torch.tensor([2, 0])  # told the time
    exact = float(continuous_bound(model, x).detach())
    errors = [
        abs(discrete_bound(model, x, sampling_grid("uniform", steps)) - exact)
        for steps in (64, 256, 512)
    ]
    assert errors[2] < errors[1] < errors[0]
    assert errors[1] / errors[2] > 0.8 * 2 ** min(*powers, 1)  # in the end as T^-min(w, 1)
    assert errors[2] < 0.01 * exact


@pytest.mark.parametrize("steps", [1, 2, 4, 8])
def test_discrete_bound_is_above_the_exact_likelihood(steps):
    model, grid = table_genmd4(), sampling_grid("uniform", steps)
    law = chain_law(model, [MASK, MASK], grid)
    torch.testing.assert_close(law.sum(), torch.ones((), dtype=law.dtype))
    for x, p in zip(all_sequences(2), law, strict=True):
        assert discrete_bound(model, x, grid) >= -float(p.log()) - 1e-12


def test_continuous_bound_is_above_the_likelihood_of_many_steps():
    model = table_genmd4()
    law = chain_law(model, [MASK, MASK], sampling_grid("uniform", 400))
    for x, p in zip(all_sequences(2), law, strict=True):
        assert float(continuous_bound(model, x).detach()) > -float(p.log()) - 1e-3


def test_the_reference_s_ends_stay_a_bound():
    """From the prior that shows a token with eps, to t1, where the schedules alone guess."""
    eps, t1 = 0.05, 0.1
    model, states = table_genmd4(eps=eps, t1=t1), all_states(2)
    grid = t1 + (1 - t1) * sampling_grid("uniform", 3)
    prior = model.prior(states[:1])[0, 0].double()
    torch.testing.assert_close(prior.sum(), torch.ones((), dtype=prior.dtype))
    law = prior[states].prod(-1)
    for t, s in itertools.pairwise(grid.tolist()):
        law = law @ transition(model, 2, s, t)
    guess = torch.eye(VOCAB + 1, VOCAB, dtype=torch.float64)
    guess[MASK] = (model.exponents.detach() * np.log(t1)).softmax(-1)
    for x in all_sequences(2):
        likelihood = float((law * guess[states, x].prod(-1)).sum())
        ends = model.ends(x[None], torch.ones(1, 2, dtype=torch.bool)).sum().detach()
        assert discrete_bound(model, x, grid) + float(ends) >= -np.log(likelihood)


# The gradient ------------------------------------------------------------------------------------


def test_the_objective_s_gradient_is_that_of_the_bound():
    """All pairs of masks, quadrature over t: exponents and network at once.

    The exact gradient comes from finite differences of the bound (exponents), and from the bound
    itself (network), by the same quadrature.
    """
    model, x = table_genmd4(), torch.tensor([2, 0])
    times, shares = quadrature(10)
    raw, table = model.raw, model.network.table
    valid = torch.ones(1, 2, dtype=torch.bool)
    expected, expected_table = torch.zeros_like(raw), torch.zeros_like(table)
    for t, share in zip(times[:, None], shares, strict=True):
        for masks in itertools.product(all_masks(2)[:, None], repeat=2):
            loss = model.loss_given(Batch.of(x[None], is_token=valid), MaskedTwice(masks, t))
            parts = torch.autograd.grad(
                loss.objective * loss.tokens,
                (raw, table),
                allow_unused=True,
                materialize_grads=True,
            )
            chance = sum(model.log_mask(x[None], z, t.log(), valid) for z in masks).exp().detach()
            expected += share * chance * parts[0]
            expected_table += share * chance * parts[1]

    def bound():
        return (shares * losses_at(model, x, times)).sum()

    exact = torch.zeros_like(raw)
    with torch.no_grad():
        for index in range(VOCAB):
            for sign in (1, -1):
                raw[index] += sign * 1e-5
                exact[index] += sign * bound() / 2e-5
                raw[index] -= sign * 1e-5
    torch.testing.assert_close(expected.detach(), exact, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(expected_table, torch.autograd.grad(bound(), table)[0])
    pathwise = torch.autograd.grad(bound(), raw)[0]  # through the law of the masks as well
    torch.testing.assert_close(expected.detach(), pathwise)


@pytest.mark.parametrize("powers", [(1.6, 1.2, 2.2), (0.4, 1.2, 0.3)])
def test_drawn_losses_and_gradients_average_to_the_enumerated_ones(powers):
    model, x = table_genmd4(powers=powers), torch.tensor([2, 0])
    exact = continuous_bound(model, x)
    gradient = torch.autograd.grad(exact, model.raw)[0]
    rows, runs = 256, 200
    values, slopes = [], []
    for step in range(runs):
        loss = model.loss(Batch.of(x.expand(rows, -1)), Noise.for_batch(7, rows), step)
        values.append(loss.per_sequence.mean().detach())
        assert float(loss.objective.detach()) == pytest.approx(float(values[-1]) / 2, rel=1e-9)
        slopes.append(torch.autograd.grad(loss.objective * 2, model.raw)[0])
    for drawn, truth in ((torch.stack(values), exact.detach()), (torch.stack(slopes), gradient)):
        score = (drawn.mean(0) - truth) / (drawn.std(0) / runs**0.5)
        assert float(score.abs().max()) < 4


def test_per_token_lacks_the_gradient_of_the_masks():
    """What is differentiated must be the objective: the rest alone is biased, and falls with w."""
    model, x, rows = table_genmd4(powers=(1.6, 1.2, 2.2)), torch.tensor([2, 0]), 4096
    loss = model.loss(Batch.of(x.expand(rows, -1)), Noise.for_batch(7, rows))
    part = torch.autograd.grad(loss.per_token.sum() / loss.tokens, model.raw, retain_graph=True)[0]
    whole = torch.autograd.grad(loss.objective, model.raw)[0]
    assert bool((part[x] > 0).all())
    assert bool((whole[x] < part[x]).all())


# Sampling ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("steps", "grid"), [(1, "uniform"), (3, "uniform"), (4, "cosine")])
def test_reverse_follows_the_enumerated_law(steps, grid):
    model = table_genmd4(length=3, drift=1.5)
    law = chain_law(model, [MASK] * 3, sampling_grid(grid, steps))
    assert_law(sample(model, SAMPLES, steps=steps, grid=grid, seed=steps), law)


def test_reverse_with_a_prompt():
    model = table_genmd4(length=3, drift=1.5)
    prompt = Prompt(torch.tensor([[MASK, 1, MASK]]), torch.tensor([[False, True, False]]))
    law = chain_law(model, [MASK, 1, MASK], sampling_grid("uniform", 3))
    drawn = sample(model, SAMPLES, prompt=prompt, steps=3, seed=11)
    assert bool((drawn[:, 1] == 1).all())
    assert_law(drawn, law)


def test_reverse_takes_the_options_of_decoding():
    model = table_genmd4(length=3)
    best = sample(model, 20, steps=1, temperature=0.0, seed=1)
    blank = torch.full((1, 3), MASK)
    top = model.log_mean(blank, torch.ones(1, dtype=torch.float64)).argmax(-1)
    assert torch.equal(best, top.expand(20, -1))
    assert int(sample(model, 50, steps=4, top_k=2, seed=2).max()) < MASK


def test_visible_tokens_are_known_and_stay():
    model, states = table_genmd4(), all_states(2)
    batch = torch.full((len(states),), 0.5, dtype=torch.float64)
    mean = model.log_mean(states, batch).exp()
    visible = states != MASK
    assert torch.equal(mean[visible].argmax(-1), states[visible])
    assert bool((mean[visible].max(-1).values == 1).all())
    step = model.step(mean.log(), states, batch / 2, batch)
    torch.testing.assert_close(step.sum(-1), torch.ones_like(step[..., 0]))
    kept = step.gather(-1, states[..., None])[..., 0]
    assert bool((kept[visible] == 1).all())
    at_end = model.step(mean.log(), states, batch * 0, batch)
    assert not at_end[..., MASK].any()


# Numbers, padding and input ----------------------------------------------------------------------


def small(tokens=VOCAB, **options) -> GenMD4:
    torch.manual_seed(0)
    sizes = TransformerOptions(length=4, width=16, depth=1, heads=2)
    return MethodOptions(name="genmd4", **options).build(sizes, tokens)


@pytest.mark.parametrize("time", [2.0**-53, 1e-8, 1.0])
def test_float32_is_finite_at_the_ends_of_time(time):
    model = small(5)
    with torch.no_grad():
        model.raw.copy_(torch.tensor([-9.0, -1.0, 0.5, 3.0, 40.0]))
    tokens = torch.tensor([[0, 1, 2, 3], [4, 3, 2, 1]])
    everything = torch.ones_like(tokens, dtype=torch.bool)
    some = everything if time == 1 else tokens % 2 == 0
    t = torch.full((2,), time, dtype=torch.float64)
    loss = model.loss_given(
        Batch.of(tokens, is_token=everything), MaskedTwice((everything, some), t)
    )
    loss.objective.backward()
    assert bool(torch.isfinite(loss.objective))
    assert all(bool(torch.isfinite(p.grad).all()) for p in model.parameters())


def test_the_surplus_of_equal_exponents_is_exactly_zero():
    log_mean = torch.randn(50, 1000).log_softmax(-1)
    x = torch.arange(50)
    for power in (0.3, 1.0, 7.7):
        assert not surplus(log_mean, x, torch.full((1000,), power)).any()


def test_exponents_start_as_asked():
    for power in (0.01, 1.0, 3.0, 500.0):
        w = small(schedule_options={"exponent": power}).exponents
        torch.testing.assert_close(w, torch.full_like(w, power))
    assert GenMD4.undecayed == ("raw",)
    assert set(GenMD4.undecayed) <= {name for name, _ in small().named_parameters()}


def test_padding_is_never_hidden_and_never_counts():
    model, tokens = table_genmd4(length=3, t1=0.01, eps=0.01), all_sequences(3)
    valid = torch.ones_like(tokens, dtype=torch.bool)
    valid[:, 2] = False
    valid[0] = False  # a row of padding alone
    noise = Noise.for_batch(3, len(tokens))
    loss = model.loss(Batch.of(tokens, is_token=valid), noise)
    assert int(loss.tokens) == int(valid.sum())
    assert not bool((loss.counted & ~valid).any())
    assert not loss.per_token[~valid].any()
    other = model.loss(Batch.of(torch.where(valid, tokens, 999), is_token=valid), noise)
    torch.testing.assert_close(loss.objective, other.objective, rtol=0, atol=0)


def test_rows_are_the_same_in_any_batch():
    model, tokens = table_genmd4(), all_sequences(2)
    noise = Noise.for_batch(3, len(tokens))
    whole = model.loss(Batch.of(tokens), noise, 4)
    part = model.loss(Batch.of(tokens[4:], size=9), noise.select(torch.arange(4, 9)), 4)
    torch.testing.assert_close(part.per_token, whole.per_token[4:])


def test_a_layout_keeps_documents_apart():
    """A document has the same loss beside any neighbour of its row."""
    model = small()
    ends = torch.tensor([[False, True, False, True]])
    full = torch.ones(1, 4, dtype=torch.bool)
    t = torch.tensor([0.5], dtype=torch.float64)
    found = [
        model.loss_given(
            Batch.of(
                torch.tensor([[0, 1, *rest]]), is_token=full, layout=PackedLayout.of_documents(ends)
            ),
            MaskedTwice((full, full), t),
        ).per_token[:, :2]
        for rest in ([0, 2], [2, 1])
    ]
    torch.testing.assert_close(*found)


def test_it_is_a_chain_by_name():
    model = small(schedule_options={"exponent": 2.0, "eps": 1e-4, "t1": 1e-3})
    assert METHODS["genmd4"] is GenMD4
    assert isinstance(model, GenMD4)
    assert isinstance(model, Chain)
    assert (model.vocab_size, model.mask_id, model.length) == (VOCAB + 1, VOCAB, 4)
    assert model.network.config.outputs == VOCAB
    assert model.network.config.time
    with torch.device("meta"):
        assert small().raw.is_meta
    prior = model.prior(torch.zeros(2, 4, dtype=torch.int64))
    torch.testing.assert_close(prior.sum(-1), torch.ones(2, 4))
    assert torch.equal(small().prior(torch.zeros(1, 1, dtype=torch.int64))[0, 0] > 0, _at(MASK))


def _at(place):
    return torch.arange(VOCAB + 1) == place


SIZES = {"length": 4, "width": 16, "depth": 1, "heads": 2, "vocab_size": 4}
BAD_NETWORKS = {
    "takes no time as an input": lambda: Transformer(TransformerConfig(**SIZES, output_size=3)),
    "the mask's included": lambda: Transformer(TransformerConfig(**SIZES, time=True)),
    "what follows": lambda: CausalTransformer(TransformerConfig(**SIZES, output_size=3, time=True)),
}


@pytest.mark.parametrize("problem", BAD_NETWORKS)
def test_networks_that_do_not_fit_are_refused(problem):
    with pytest.raises(InputError, match=problem):
        GenMD4(BAD_NETWORKS[problem]())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schedule_options": {"exponent": 0.0}}, r"method\.schedule_options\.exponent: must be"),
        ({"schedule_options": {"eps": 1.0}}, r"method\.schedule_options\.eps: must lie in"),
        ({"schedule_options": {"t1": -0.1}}, r"method\.schedule_options\.t1: must lie in"),
        ({"schedule_options": {"rate": 1.0}}, "has rate; genmd4's schedules take: exponent"),
        ({"schedule": "linear"}, r"method\.schedule: genmd4 has no such"),
        ({"corruption": "subset"}, r"method\.corruption: genmd4 has no such"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        small(**options)


def test_masks_in_the_data_are_refused():
    with pytest.raises(InputError, match="holds the mask token"):
        table_genmd4().loss(Batch.of(torch.full((1, 2), MASK)), Noise.for_batch(0, 1))
