"""Small MD4 models of which everything is enumerated: bounds, likelihoods and laws of samples.

The bounds of PGM under the weights of its paper (`pgm/official_weights`) are in `tests/laws`.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from partita.contracts.batch import Batch
from partita.likelihood.bounds import nelbo
from partita.likelihood.enumeration import exact_log_likelihood
from partita.methods import MD4
from partita.methods.masked_method import TIME_SCALE
from partita.networks import TransformerConfig
from partita.networks.base import Network
from partita.processes.corruption import Corrupted, Discrete, Subset
from partita.processes.masked import prior_nats, reconstruction_nats, reverse
from partita.randomness import Noise
from partita.schedules import sampling_grid
from tests.golden.cases import Case, load, named
from tests.support.md4_references import plain_schedule, scalar, stopped_schedule


def schedule_of(name, eps):
    """The plain schedule for "eps0", MD4's for "eps1e-4"."""
    eps = float(eps.removeprefix("eps"))
    return stopped_schedule(name, eps) if eps else plain_schedule(name)


class Table(Network):
    """A network that looks its logits up: one row of tables [(V+1)^L, L, V] for each state.

    At time t it answers base + t * slope. The times of its rows may be fixed beforehand: methods
    tell networks the time in float32, which is too coarse for the comparisons below.
    """

    def __init__(self, base, slope, times=None):
        _, length, size = base.shape
        self.config = TransformerConfig(
            vocab_size=size + 1, output_size=size, length=length, time=True
        )
        self.base, self.slope, self.times = base, slope, times

    def __call__(self, tokens, *, queries, scalar=None, label=None):  # noqa: ARG002
        rows, positions = queries
        digits = self.config.vocab_size ** torch.arange(tokens.shape[1]).flip(0)
        state = (tokens * digits).sum(-1)[rows]
        times = self.times if scalar is None else scalar.double() / TIME_SCALE
        if times is None:
            return self.base[state, positions]
        return self.base[state, positions] + times[rows, None] * self.slope[state, positions]


class Toy:
    """A stored model, and every sequence under every mask, at as many times as wanted."""

    def __init__(self, name):
        self.case = load(name)
        self.x, self.mask_id = self.case["x_all"], self.case.config["mask_id"]
        self.base, self.slope = self.case["logits_table_A"], self.case["logits_table_B"]
        _, self.length, self.size = self.base.shape
        self.masks = torch.tensor(list(itertools.product([False, True], repeat=self.length)))
        self.shape = (len(self.x), len(self.masks))
        self.tokens = self.x.repeat_interleave(len(self.masks), 0)
        self.masked = self.masks.repeat(len(self.x), 1)

    def at(self, kind, times):
        """The model with its rows: for each time every sequence, and for each every mask."""
        row_times = times.repeat_interleave(len(self.tokens))
        network = Table(self.base, self.slope, row_times if kind == "timedep" else None)
        model = MD4(network, mask_id=self.mask_id, conditioning="none")
        count = len(times)
        return model, self.tokens.repeat(count, 1), self.masked.repeat(count, 1), row_times

    def log_probabilities(self, kind, times):
        """The model's answers at all positions, [rows, L, V]."""
        model, tokens, masked, _ = self.at(kind, times)
        everywhere = torch.ones_like(masked).nonzero(as_tuple=True)
        return model.predict(tokens, ~masked, *everywhere).view(*tokens.shape, -1)

    def expected_loss(self, kind, schedule, times, weight):
        """E over masks of weight * cross-entropy at each time, [times, sequences]."""
        model, tokens, masked, row_times = self.at(kind, times)
        row_weight = weight.repeat_interleave(len(self.tokens))[:, None]
        corruption = Corrupted(masked, row_weight.expand(masked.shape), row_times)
        loss = model.loss_given(
            Batch.of(tokens, is_token=torch.ones_like(masked)), corruption
        ).per_sequence
        hidden, visible = schedule.one_minus_alpha(row_times), schedule.alpha(row_times)
        chance = torch.where(masked, hidden[:, None], visible[:, None]).prod(-1)
        return (chance * loss).view(-1, *self.shape).sum(-1)

    def continuous(self, kind, schedule, nodes=64):
        """The continuous-time bound by Gauss-Legendre quadrature, without its end terms."""
        points, shares = (torch.tensor(a) for a in np.polynomial.legendre.leggauss(nodes))
        times = (points + 1) / 2
        terms = self.expected_loss(kind, schedule, times, schedule.weight(times))
        return (terms * shares[:, None] / 2).sum(0)

    def per_step(self, kind, schedule, steps):
        """The T terms of the discrete bound, [T, sequences]."""
        times = torch.arange(1, steps + 1).double() / steps
        share = Discrete(schedule, steps).weights(times) / steps
        return self.expected_loss(kind, schedule, times, share)

    def start(self, visible):
        """P(a mask, and x outside it) if tokens show with chance `visible`, uniformly."""
        chance = torch.where(self.masks, 1 - visible, visible / self.size)
        return chance.double().prod(-1).expand(self.shape)

    def ancestral(self, kind, schedule, times, state):
        """P(a mask, and x outside it) after the reverse steps from `state`, [sequences, masks].

        A path to x only visits x with some tokens hidden, so these states are all it takes.
        """
        _, tokens, masked, t = self.at(kind, times[:-1])
        s = times[1:].repeat_interleave(len(self.tokens))
        mean = self.log_probabilities(kind, times[:-1]).exp()
        shown = torch.where(masked, self.mask_id, tokens)
        step = reverse(mean, shown, s, t, schedule, self.mask_id)
        shape = (-1, *self.shape, 1, self.length)
        right = step.gather(-1, tokens[..., None])[..., 0].view(shape)
        stay = step[..., self.mask_id].view(shape)
        for moves in torch.where(self.masks, stay, right).prod(-1):
            state = torch.einsum("xm,xmn->xn", state, moves)
        return state

    def filled(self, state, fill=None):
        """P(x) when what is still hidden is filled: uniformly, or with the chances `fill`."""
        fill = (
            torch.full(self.masked.shape, 1 / self.size, dtype=torch.float64)
            if fill is None
            else fill
        )
        return (state * torch.where(self.masked, fill, 1.0).prod(-1).view(self.shape)).sum(-1)


toys = pytest.mark.parametrize("name", named("md4/toy_md4_exact_*"))


def variants(case: Case):
    """The stored combinations: key, schedule, kind of model."""
    found = case.stems("/nelbo_cont")
    assert found
    return [(key, schedule_of(*key.split("/")[::2]), key.split("/")[1]) for key in found]


def stepped_variants(case: Case):
    """The same for every number of steps."""
    return [
        (f"{key}/T{steps}", schedule, kind, steps)
        for (key, schedule, kind), steps in itertools.product(
            variants(case), case.config["T_values"]
        )
    ]


@toys
def test_toy_continuous_bound(name):
    """The reference adds the reconstruction term, not the prior's."""
    toy = Toy(name)
    case = toy.case
    for key, schedule, kind in variants(case):
        end, ours = (
            reconstruction_nats(schedule, toy.length, toy.size),
            toy.continuous(kind, schedule),
        )
        case.close(ours + end, f"{key}/nelbo_cont")
        if f"{key}/recon" in case.tensors:
            case.close(scalar(end), f"{key}/recon")
        if kind == "timeindep" and end == 0:
            # Not told the time, the bound is the same for every schedule, and that of any order.
            case.close(ours, "any_order_expected_nll")
            partition = f"{key.split('/')[0]}/pgm/corrected_weights"
            if partition in case.tensors:
                case.close(ours, partition)


@toys
def test_toy_discrete_bound(name):
    toy = Toy(name)
    for key, schedule, kind, steps in stepped_variants(toy.case):
        ours = toy.per_step(kind, schedule, steps)
        end = reconstruction_nats(schedule, toy.length, toy.size)
        toy.case.close(ours.sum(0) + end, f"{key}/nelbo")
        if f"{key}/nelbo_per_step" in toy.case.tensors:
            toy.case.close(ours, f"{key}/nelbo_per_step")


@toys
def test_toy_subset_bound(name):
    """The bound with the time integrated out: k of L hidden, k uniform, weight L / k."""
    toy = Toy(name)
    rows = len(toy.masked)
    drawn = Subset().draw(torch.ones_like(toy.masked), Noise.for_batch(0, rows), 0, rows)
    counts = drawn.masked.sum(-1, keepdim=True)
    assert set(counts.flatten().tolist()) == set(range(1, toy.length + 1))
    products = drawn.weights * counts
    torch.testing.assert_close(products, torch.full_like(products, toy.length))
    counts = toy.masked.sum(-1, keepdim=True).double()
    ways = torch.tensor([math.comb(toy.length, int(k)) for k in counts]).double()[:, None]
    chance, weight = 1 / (toy.length * ways), toy.length / counts.clamp(min=1)
    corruption = Corrupted(toy.masked, (chance * weight).expand(toy.masked.shape), None)
    model = toy.at("timeindep", torch.zeros(1))[0]
    loss = model.loss_given(Batch.of(toy.tokens, is_token=torch.ones_like(toy.masked)), corruption)
    toy.case.close(loss.per_sequence.view(toy.shape).sum(-1), "closed_form_nelbo")


@toys
def test_toy_bounds_by_monte_carlo(name):
    """`nelbo` estimates the mean of the stored bounds, within 6 of its own standard errors."""
    toy = Toy(name)
    copies = max(1, min(32, 1000 // len(toy.x)))
    tokens, steps = toy.x.repeat(copies, 1), max(toy.case.config["T_values"])
    network = Table(toy.base, toy.slope)

    def check(law, key, **options):
        method = MD4(network, mask_id=toy.mask_id, **options)
        ours = nelbo(method, tokens, corruption=law, replicates=32, batch_size=len(tokens))
        # Ours includes the prior term, which the reference drops.
        end = 0.0 if law.schedule is None else prior_nats(law.schedule, 1, toy.size)
        theirs = float(toy.case[key].mean()) / toy.length
        assert abs(ours.nats - end - theirs) < 6 * ours.nats_error, key

    check(Subset(), "closed_form_nelbo", conditioning="none")
    for key, schedule, kind in variants(toy.case):
        conditioning = "time" if kind == "timedep" else "none"
        law = Discrete(schedule, steps)
        check(law, f"{key}/T{steps}/nelbo", schedule=schedule, conditioning=conditioning)


@toys
def test_toy_exact_likelihood(name):
    """`exact_log_likelihood`: for models that are not told the time, under schedules to 0 and 1."""
    toy = Toy(name)
    case, model = toy.case, toy.at("timeindep", torch.zeros(1))[0]

    def log_likelihoods(visible=None):
        values = [exact_log_likelihood(model, x, visible) for x in toy.x]
        return torch.tensor(values, dtype=torch.float64)

    case.close(-log_likelihoods(), "any_order_neg_log_p")
    for key, schedule, kind, steps in stepped_variants(case):
        if kind == "timedep" or reconstruction_nats(schedule, toy.length, toy.size) > 0:
            continue
        visible = schedule.alpha(sampling_grid("uniform", steps))
        case.close(-log_likelihoods(visible), f"{key}/neg_log_p")
        if f"{key}/law_cosine_grid" in case.tensors:
            visible = schedule.alpha(sampling_grid("cosine", steps))
            case.close(log_likelihoods(visible).exp(), f"{key}/law_cosine_grid")


@toys
def test_toy_sampling_law(name):
    """The law of ancestral sampling by our reverse step, for every model and schedule.

    With eps, some tokens are left at t = 0: the stored likelihood fills them uniformly, as the
    reconstruction term assumes, but the reference's sampler takes the most probable ones.
    """
    toy = Toy(name)
    case, blank = toy.case, toy.start(torch.tensor(0.0))
    for key, schedule, kind, steps in stepped_variants(case):
        end = toy.ancestral(kind, schedule, sampling_grid("uniform", steps), blank)
        case.close(-toy.filled(end).log(), f"{key}/neg_log_p")
        if f"{key}/law_with_argmax_decode" in case.tensors:
            best = toy.log_probabilities(kind, torch.zeros(1)).argmax(-1)
            ours = toy.filled(end, (best == toy.tokens).double())
            case.close(ours, f"{key}/law_with_argmax_decode")
        if f"{key}/law_cosine_grid" in case.tensors:
            end = toy.ancestral(kind, schedule, sampling_grid("cosine", steps), blank)
            case.close(toy.filled(end), f"{key}/law_cosine_grid")


@toys
def test_toy_prior_term_makes_the_bound_strict(name):
    """Without a prior term the reference's value falls below -log p at few steps; ours does not.

    The likelihood that ours bounds is that of a process that starts from the same prior: a token
    is visible, and uniform, with probability alpha(1).
    """
    toy = Toy(name)
    for key, schedule, kind, steps in stepped_variants(toy.case):
        theirs = toy.case[f"{key}/nelbo"]
        gap = float((theirs - toy.case[f"{key}/neg_log_p"]).min())
        assert gap == pytest.approx(toy.case.config["summary"][key]["min_gap"], abs=1e-10)
        prior = toy.start(schedule.alpha(torch.ones((), dtype=torch.float64)))
        end = toy.ancestral(kind, schedule, sampling_grid("uniform", steps), prior)
        bound = theirs + prior_nats(schedule, toy.length, toy.size)
        assert (bound + toy.filled(end).log()).min() > -1e-10
