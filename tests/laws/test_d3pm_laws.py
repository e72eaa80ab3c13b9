"""D3PM by enumeration: matrices multiplied out, bounds summed up, samplers against exact laws.

The explicit matrices here are written from their definitions and multiplied one by one; the
library's closed forms, losses and samplers are compared with what follows from those alone.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys

import pytest
import torch

from partita.contracts.batch import Batch
from partita.errors import InputError
from partita.methods.base import METHODS
from partita.methods.contracts import Chain
from partita.methods.d3pm import D3PM, posterior, reverse
from partita.networks import CausalTransformer, Transformer, TransformerConfig
from partita.networks.options import TransformerOptions
from partita.processes.betas import BETAS, betas_of, make_betas
from partita.processes.draws import Noised
from partita.processes.matrices import Own, make_transition
from partita.processes.transitions import TRANSITIONS
from partita.randomness import Noise
from partita.samplers import Prompt, sample
from partita.schedules import SCHEDULES, make_schedule
from tests.laws.tables import (
    MASK,
    VOCAB,
    TableNetwork,
    all_sequences,
    assert_law,
    data_law,
    random_logits,
    state_index,
    table_md4,
    table_mdlm,
)
from tests.support.chain_laws import (
    BETA_ROWS,
    TimedTable,
    both,
    explicit,
    naive_law,
    naive_step,
    product,
    random_matrices,
    states_of,
    timed_logits,
)

SAMPLES = 30_000
EXACT = [name for name in SCHEDULES if ":" not in name]
KINDS = ["absorbing", "uniform", "gaussian", "own", "own-mask"]


def pairs(steps):
    return [(s, t) for t in range(1, steps + 1) for s in range(t)]


closed = pytest.mark.parametrize(
    ("kind", "betas"),
    [
        *itertools.product(["absorbing", "uniform"], BETA_ROWS),
        ("gaussian", "falling"),
        ("own", "falling"),
        ("own-mask", "falling"),
    ],
)


def enumerated_bound(method, x):
    """E of the loss over all steps and all states, each with its probability."""
    steps, chain = method.steps, method.transition
    states, total = states_of(chain.size, len(x)), 0.0
    for t in range(1, steps + 1):
        chance = chain.matrix(0, t)[x, states].prod(-1)
        seen = chance > 0
        rows = int(seen.sum())
        loss = method.loss_given(
            Batch.of(x.expand(rows, -1), is_token=torch.ones(rows, len(x), dtype=torch.bool)),
            Noised(states[seen], torch.full((rows,), t)),
        )
        total += float((chance[seen] * loss.per_sequence).sum().detach()) / steps
    return total


# The process -------------------------------------------------------------------------------------


@closed
def test_closed_forms_equal_products_of_matrices(kind, betas):
    chain, matrices = both(kind, betas)
    x = torch.arange(chain.size)[None]
    mean = torch.tensor([[[0.2, 0.5, 0.3]]], dtype=torch.float64)
    for s, t in pairs(chain.steps):
        between, start = product(matrices, s, t), torch.tensor([s])
        end = torch.tensor([t])
        torch.testing.assert_close(chain.matrix(s, t), between)
        torch.testing.assert_close(chain.rows(x, start, end)[0], between)
        torch.testing.assert_close(chain.columns(x, start, end)[0], between.T)
        for z in range(chain.size):
            entries = chain.entries(x, torch.full_like(x, z), start, end)[0]
            torch.testing.assert_close(entries, between[:, z])
        pushed = mean[0] @ product(matrices, 0, t)[:VOCAB]
        torch.testing.assert_close(chain.push(mean, end)[0], pushed)
    last = product(matrices, 0, chain.steps)[:VOCAB]
    torch.testing.assert_close(chain.prior(), last.mean(0))
    nats = torch.special.xlogy(last, last / chain.prior()).nan_to_num().sum(-1)
    torch.testing.assert_close(chain.prior_nats(x[:, :VOCAB])[0], nats)


@closed
def test_posteriors_are_those_of_bayes(kind, betas):
    """q(z_s | z_t, x) q(z_t | x) = q(z_s | x) q(z_t | z_s), for all steps and states."""
    chain, matrices = both(kind, betas)
    for s, t in pairs(chain.steps):
        for x, z in itertools.product(range(VOCAB), range(chain.size)):
            reached = product(matrices, 0, t)[x, z]
            if reached == 0:
                continue
            at, to = torch.tensor([[x]]), torch.tensor([[z]])
            ours = posterior(chain, at, to, torch.tensor([s]), torch.tensor([t]))[0, 0]
            joint = product(matrices, 0, s)[x] * product(matrices, s, t)[:, z]
            torch.testing.assert_close(ours * reached, joint)
            torch.testing.assert_close(ours.sum(), torch.ones_like(ours[0]))


@closed
@pytest.mark.parametrize("precision", [torch.float64, torch.float32])
def test_divergences_are_those_of_the_distributions(kind, betas, precision):
    """KL(q(z_s | z_t, x) || p(z_s | z_t)) from the two vectors, and its gradient."""
    chain, matrices = both(kind, betas)
    generator = torch.Generator().manual_seed(3)
    for s, t in pairs(chain.steps):
        x, z = states_of(chain.size, 2).T[:, None]
        reached = product(matrices, 0, t)[x[0], z[0]] > 0
        real = reached & (x[0] < VOCAB)
        x, z = x[:, real], z[:, real]
        logits = 2 * torch.randn(*x.shape, VOCAB, generator=generator, dtype=torch.float64)
        logits = logits.to(precision).requires_grad_()
        start, end = torch.tensor([s]), torch.tensor([t])
        ours = chain.divergence(logits.log_softmax(-1), x, z, start, end)
        (gradient,) = torch.autograd.grad(ours.sum(), logits)
        wide = logits.detach().double().requires_grad_()
        q = posterior(chain, x, z, start, end)
        p = reverse(chain, wide.softmax(-1), z, start, end)
        p = torch.where(q > 0, p, 1)  # 0 log 0 has no gradient
        exact = (torch.special.xlogy(q, q) - q * p.log()).sum(-1)
        (expected,) = torch.autograd.grad(exact.sum(), wide)
        close = {} if precision == torch.float64 else {"rtol": 1e-5, "atol": 1e-6}
        torch.testing.assert_close(ours.double(), exact, **(close or {"rtol": 1e-9, "atol": 1e-12}))
        torch.testing.assert_close(
            gradient.double(), expected, **(close or {"rtol": 1e-8, "atol": 1e-10})
        )


@pytest.mark.parametrize("kind", ["absorbing", "uniform"])
def test_closed_forms_keep_their_digits_over_a_thousand_steps(kind):
    """One step of many: the divergence is small, and float32 predictions still give it."""
    tokens, steps = 50, 1000
    chain = make_transition(kind, tokens, "mutual-information", steps)
    generator = torch.Generator().manual_seed(0)
    t = torch.tensor([1, 2, 10, 500, 999, 1000])
    x = torch.randint(tokens, (6, 40), generator=generator)
    z = chain.draw(x, t, torch.rand(6, 40, generator=generator, dtype=torch.float64))
    log_mean = 3 * torch.randn(6, 40, tokens, generator=generator, dtype=torch.float64)
    log_mean = log_mean.log_softmax(-1)
    exact = Own(
        torch.stack([chain.matrix(k - 1, k) for k in range(1, steps + 1)]),
        masks=kind == "absorbing",
    ).divergence(log_mean, x, z, t - 1, t)
    ours = chain.divergence(log_mean, x, z, t - 1, t)
    torch.testing.assert_close(steps * ours, steps * exact, rtol=1e-7, atol=1e-7)
    single = chain.divergence(log_mean.float(), x, z, t - 1, t)
    torch.testing.assert_close(steps * single.double(), steps * ours, rtol=1e-4, atol=1e-4)


@closed
def test_draws_follow_the_one_shot_law(kind, betas):
    chain, matrices = both(kind, betas)
    if kind == "absorbing" and betas == "forgets":
        return  # nothing is left to test: all masks
    count, t = 3_000, torch.tensor([2])
    u = (torch.arange(count, dtype=torch.float64) + 0.5)[None] / count  # every quantile once
    for x in range(VOCAB):
        drawn = chain.draw(torch.full((1, count), x), t, u)
        share = torch.bincount(drawn[0], minlength=chain.size).double() / count
        torch.testing.assert_close(share, product(matrices, 0, 2)[x], atol=1.5 / count, rtol=0)


@pytest.mark.parametrize("name", EXACT)
def test_betas_of_a_schedule_leave_its_alpha(name):
    schedule, steps = make_schedule(name), 12
    chain = make_transition("absorbing", VOCAB, schedule, steps)
    for t in range(1, steps + 1):
        alpha = schedule.alpha(torch.tensor(t / steps, dtype=torch.float64))
        torch.testing.assert_close(chain.matrix(0, t)[0, 0], alpha)
    if name == "linear":
        torch.testing.assert_close(betas_of(schedule, steps), make_betas("jsd", steps, steps))


# Bounds ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXACT)
def test_absorbing_is_mdlm_of_the_same_steps(name):
    """Same noise, same betas: the same tokens are hidden, and each costs the same."""
    steps, tokens = 7, all_sequences(3)
    noise, logits = Noise.for_batch(5, len(tokens)), random_logits(3)
    schedule = make_schedule(name)
    untimed = table_mdlm(logits, schedule=schedule, corruption="discrete", steps=steps)
    timed = table_md4(logits, 0.7, schedule=schedule, corruption="discrete", steps=steps)
    for reference, drift in ((untimed, 0.0), (timed, 0.7)):
        ours = D3PM(TableNetwork(logits, drift), betas=schedule, steps=steps, hybrid=0)
        for step in range(3):
            expected = reference.loss(Batch.of(tokens), noise, step)
            loss = ours.loss(Batch.of(tokens), noise, step)
            torch.testing.assert_close(loss.per_token, expected.per_token)
            torch.testing.assert_close(loss.objective, expected.objective)
    named = D3PM(TableNetwork(logits), steps=steps, hybrid=0)
    if name == "linear":  # mutual-information, the default
        expected = untimed.loss(Batch.of(tokens), noise)
        torch.testing.assert_close(
            named.loss(Batch.of(tokens), noise).per_token, expected.per_token
        )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [2, 3])
@pytest.mark.parametrize("last_step", ["posterior", "prediction"])
def test_bound_is_a_sum_of_divergences_and_above_the_exact_value(kind, length, last_step):
    """L_vb from the distributions of whole sequences; -log p of the chain's own law is below."""
    chain, matrices = both(kind)
    if kind == "own-mask":  # its last step could leave a mask: let the first one make none
        matrices[0] = torch.block_diag(random_matrices(VOCAB, 1)[0], torch.ones(1, 1)).double()
        chain = Own(matrices, masks=True)
    steps = chain.steps
    logits = timed_logits(steps, length)
    method = D3PM(TimedTable(logits), transition=chain, last_step=last_step)
    states = states_of(chain.size, length)
    law = naive_law(logits, matrices, range(steps, -1, -1), last_step)
    torch.testing.assert_close(law.sum(), torch.ones_like(law[0]))
    clean = all_sequences(length)
    for x in clean[:: VOCAB + 1]:
        q_end = product(matrices, 0, steps)[x[None], states].prod(-1)
        prior = product(matrices, 0, steps)[:VOCAB].mean(0)[states].prod(-1)
        total = float(torch.special.xlogy(q_end, q_end / prior).nan_to_num().sum())
        for t in range(1, steps + 1):
            reached = product(matrices, 0, t)[x[None], states].prod(-1)
            earlier = product(matrices, 0, t - 1)[x[None], states].prod(-1)
            one = matrices[t - 1]
            forward = one[states[:, None], states[None]].prod(-1)  # [z_s, z_t]
            p = naive_step(logits, matrices, t - 1, t, last_step)  # [z_t, z_s]
            q = (earlier[:, None] * forward).T / reached[:, None]
            nats = torch.special.xlogy(q, q / p).nan_to_num().sum(-1)
            total += float((reached * nats)[reached > 0].sum())
        assert enumerated_bound(method, x) == pytest.approx(total, rel=1e-9)
        index = int((clean == x).all(-1).nonzero())
        assert total >= -math.log(float(law[index])) - 1e-12


@pytest.mark.parametrize("kind", ["absorbing", "uniform", "gaussian"])
def test_drawn_losses_average_to_the_enumerated_bound(kind):
    chain, _ = both(kind)
    method = D3PM(TimedTable(timed_logits(chain.steps, 3)), transition=chain)
    x, rows = torch.tensor([2, 0, 1]), 64
    exact = enumerated_bound(method, x)
    with torch.no_grad():
        means = torch.stack(
            [
                method.loss(
                    Batch.of(x.expand(rows, -1)), Noise.for_batch(9, rows), step
                ).per_sequence.mean()
                for step in range(300)
            ]
        )
    error = float(means.std()) / len(means) ** 0.5
    assert abs(float(means.mean()) - exact) < 4 * error
    assert error < 0.02 * exact


def test_the_second_term_is_in_the_objective_alone():
    chain, _ = both("uniform")
    table = TimedTable(timed_logits(chain.steps, 2))
    tokens, noise = all_sequences(2), Noise.for_batch(1, 9)
    plain = D3PM(table, transition=chain, hybrid=0).loss(Batch.of(tokens), noise)
    mixed = D3PM(table, transition=chain, hybrid=0.3).loss(Batch.of(tokens), noise)
    torch.testing.assert_close(plain.per_token, mixed.per_token)
    torch.testing.assert_close(plain.objective, plain.per_token.mean())
    second = 0.3 * chain.steps * mixed.cross_entropy.mean()
    torch.testing.assert_close(mixed.objective, plain.objective + second)


@pytest.mark.parametrize("kind", ["absorbing", "uniform", "gaussian"])
def test_padding_never_counts_and_is_never_read(kind):
    chain, _ = both(kind)
    method = D3PM(TimedTable(timed_logits(chain.steps, 3)), transition=chain)
    tokens, noise = all_sequences(3), Noise.for_batch(3, 27)
    valid = torch.ones_like(tokens, dtype=torch.bool)
    valid[:, 2] = False
    valid[0] = False
    loss = method.loss(Batch.of(tokens, is_token=valid), noise)
    assert int(loss.tokens) == int(valid.sum())
    assert not bool(loss.per_token[~valid].any())
    assert not bool(loss.cross_entropy[~valid].any())
    other = torch.where(valid, tokens, 99)
    torch.testing.assert_close(
        method.loss(Batch.of(other, is_token=valid), noise).per_token, loss.per_token
    )
    loss.objective.backward()
    assert bool(torch.isfinite(method.network.table.grad).all())


# Sampling ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["absorbing", "uniform", "gaussian", "own"])
def test_sampler_follows_the_law_of_the_chain(kind):
    chain, matrices = both(kind)
    logits = timed_logits(chain.steps, 3)
    method = D3PM(TimedTable(logits), transition=chain)
    assert isinstance(method, Chain)
    law = naive_law(logits, matrices, range(chain.steps, -1, -1))
    assert_law(sample(method, SAMPLES, steps=chain.steps, seed=1), law)


@pytest.mark.parametrize("kind", ["absorbing", "uniform"])
@pytest.mark.parametrize(("steps", "grid"), [(2, [4, 2, 0]), (3, [4, 3, 1, 0]), (1, [4, 0])])
def test_fewer_steps_go_through_the_posterior_between_them(kind, steps, grid):
    chain, matrices = both(kind)
    logits = timed_logits(chain.steps, 2)
    method = D3PM(TimedTable(logits), transition=chain)
    drawn = sample(method, SAMPLES, steps=steps, seed=2)
    assert_law(drawn, naive_law(logits, matrices, grid))


@pytest.mark.parametrize("kind", ["absorbing", "uniform"])
def test_more_steps_than_the_chain_has_change_nothing(kind):
    chain, matrices = both(kind)
    logits = timed_logits(chain.steps, 2)
    method = D3PM(TimedTable(logits), transition=chain)
    law = naive_law(logits, matrices, range(chain.steps, -1, -1))
    assert_law(sample(method, SAMPLES, steps=11, seed=3), law)


def test_last_step_by_the_prediction():
    chain, matrices = both("uniform")
    logits = timed_logits(chain.steps, 2)
    method = D3PM(TimedTable(logits), transition=chain, last_step="prediction")
    law = naive_law(logits, matrices, range(chain.steps, -1, -1), "prediction")
    assert_law(sample(method, SAMPLES, steps=chain.steps, seed=4), law)
    assert float((law - naive_law(logits, matrices, range(4, -1, -1))).abs().sum()) > 0.05


@pytest.mark.parametrize("kind", ["absorbing", "uniform"])
def test_known_tokens_stay(kind):
    chain, _ = both(kind)
    method = D3PM(TimedTable(timed_logits(chain.steps, 3)), transition=chain)
    prompt = Prompt(torch.tensor([[0, 1, 0]]), torch.tensor([[False, True, False]]))
    drawn = sample(method, 50, prompt=prompt, steps=4, temperature=0.5, top_k=2)
    assert bool((drawn[:, 1] == 1).all())
    assert int(drawn.max()) < VOCAB


def exact_logits(law, matrices, length):
    """log p(x_l | the other tokens of z_t) under a data law, for every step and state.

    Equation 4 brings in the token's own noisy value, so the best prediction leaves it out.
    """
    states, clean = states_of(VOCAB + 1, length), all_sequences(length)
    size, steps = matrices.shape[-1], len(matrices)
    table = torch.zeros(steps + 1, (VOCAB + 1) ** length, length, VOCAB, dtype=torch.float64)
    known = (states < size).all(-1)
    for t in range(1, steps + 1):
        reach = torch.zeros(VOCAB, VOCAB + 1, dtype=torch.float64)
        reach[:, :size] = product(matrices, 0, t)[:VOCAB]
        each = reach[clean[None], states[:, None]]  # [state, x, position]
        for position in range(length):
            others = [l for l in range(length) if l != position]  # noqa: E741
            weight = law * each[..., others].prod(-1)
            for v in range(VOCAB):
                mass = weight[:, clean[:, position] == v].sum(-1)
                table[t, state_index(states), position, v] = mass.clamp(min=1e-300).log()
        table[t, state_index(states[~known])] = 0
    return table


@pytest.mark.parametrize("kind", ["absorbing", "uniform"])
def test_with_an_exact_denoiser_the_law_converges_to_that_of_the_data(kind):
    law, gaps = data_law(2), []
    for steps in (1, 2, 4, 8, 16, 32):
        matrices = explicit(kind, [1 / (steps - t + 1) for t in range(1, steps + 1)])
        logits = exact_logits(law, matrices, 2)
        ours = naive_law(logits, matrices, range(steps, -1, -1))
        gaps.append(float((ours - law).abs().sum()) / 2)
        if steps == 16:
            method = D3PM(TimedTable(logits), transition=kind, betas="jsd", steps=steps)
            assert_law(sample(method, SAMPLES, steps=steps, seed=5), ours)
            bounds = [enumerated_bound(method, x) for x in all_sequences(2)]
            mean = float((law * torch.tensor(bounds, dtype=torch.float64)).sum())
            assert mean >= float(-(law * law.log()).sum())
    assert all(b < 0.7 * a for a, b in itertools.pairwise(gaps))
    assert gaps[-1] < 0.02


# The method --------------------------------------------------------------------------------------


@pytest.mark.parametrize("transition", list(TRANSITIONS))
def test_build_trains_and_samples_with_a_transformer(transition):
    torch.manual_seed(0)
    options = TransformerOptions(length=6, width=16, depth=1, heads=2)
    method = METHODS["d3pm"].build(options, 5, transition=transition, steps=20)
    assert (method.mask_id, method.vocab_size, method.length) == (5, 6, 6)
    tokens = torch.randint(5, (4, 6))
    valid = torch.ones_like(tokens, dtype=torch.bool)
    valid[1, 3:] = False
    loss = method.loss(Batch.of(tokens, is_token=valid), Noise.for_batch(0, 4))
    loss.objective.backward()
    gradients = [p.grad for p in method.parameters() if p.grad is not None]
    assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
    assert loss.objective.dtype == torch.float32
    drawn = sample(method, 3, steps=5)
    assert drawn.shape == (3, 6)
    assert 0 <= int(drawn.min()) <= int(drawn.max()) < 5


def network(**options):
    sizes = {"vocab_size": VOCAB + 1, "length": 4, "width": 8, "depth": 1, "heads": 1, "time": True}
    return Transformer(TransformerConfig(**(sizes | options)))


def test_a_logit_for_the_mask_is_removed():
    torch.manual_seed(0)
    method = D3PM(network(), steps=4)
    mean = method.log_mean(torch.full((2, 4), MASK), torch.ones(2))
    assert mean.shape == (2, 4, VOCAB)
    torch.testing.assert_close(mean.exp().sum(-1), torch.ones(2, 4))


@pytest.mark.parametrize(
    ("argument", "options"),
    [
        ("transition", {"transition": "absorbin"}),
        ("transition", {"transition": torch.eye(7), "steps": 3}),
        ("transition", {"transition": torch.ones(3, 3), "steps": 3}),
        ("transition", {"transition": torch.ones(3)}),
        ("steps", {"transition": torch.eye(3)}),
        ("steps", {"transition": torch.eye(3).expand(5, 3, 3), "steps": 4}),
        ("steps", {"betas": torch.full((3,), 0.1), "steps": 4}),
        ("steps", {"steps": 0}),
        ("betas", {"betas": "cosin"}),
        ("betas", {"betas": "cosine", "betas_options": {"start": 0.1}}),
        ("betas", {"betas": torch.tensor([0.1, 1.2])}),
        ("betas", {"betas": torch.tensor([0.1, math.nan])}),
        ("betas", {"betas": torch.zeros(2, 2)}),
        ("betas", {"transition": torch.eye(3), "steps": 2, "betas": "linear"}),
        ("betas", {"transition": "gaussian", "betas": torch.tensor([0.0, 0.1])}),
        ("betas.start", {"betas": "linear", "betas_options": {"start": -1.0}}),
        ("hybrid", {"hybrid": -0.1}),
        ("last_step", {"last_step": "mean"}),
    ],
)
def test_bad_choices_are_named(argument, options):
    with pytest.raises(InputError) as caught:
        D3PM(network(), **options)
    assert caught.value.argument == argument


def test_a_table_that_fits_no_memory_is_refused():
    with pytest.raises(InputError, match="dense matrices"):
        make_transition("gaussian", 50_257, steps=10)


def test_bad_networks_are_refused():
    config = TransformerConfig(vocab_size=4, length=4, width=8, depth=1, heads=1, time=True)
    for bad in (network(time=False), network(output_size=2), CausalTransformer(config)):
        with pytest.raises(InputError, match="network"):
            D3PM(bad, steps=4)


def test_every_name_of_betas_gives_a_chain():
    for name in BETAS:
        betas = make_betas(name, 50, 50)
        assert betas.shape == (50,)
        assert 0 <= float(betas.min()) <= float(betas.max()) <= 1


MEMORY = """
import json, resource, sys, torch
from partita.contracts.batch import Batch
from partita.methods.d3pm import D3PM
from partita.networks import Transformer, TransformerConfig
from partita.randomness import Noise
from partita.samplers import sample

torch.set_num_threads(1)
kind, what = sys.argv[1:]
config = TransformerConfig(
    vocab_size=50258, output_size=50257, length=256, width=16, depth=1, heads=1, time=True
)
method = D3PM(Transformer(config), transition=kind)
if what == "loss":
    tokens = torch.randint(50257, (2, 256))
    method.loss(Batch.of(tokens), Noise.for_batch(0, 2)).objective.backward()
else:
    sample(method, 2, steps=2)
print(json.dumps(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))
"""


@pytest.mark.parametrize("kind", ["absorbing", "uniform"])
@pytest.mark.parametrize("what", ["loss", "sample"])
def test_memory_with_a_vocabulary_of_50258(kind, what):
    """2 x 256 tokens: loss and gradient, or sampling steps, in less than 3 GB in all."""
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, kind, what],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    peak = json.loads(done.stdout)
    print(f"{kind} {what}: {peak / 1e9:.2f} GB")
    assert peak < 3e9
