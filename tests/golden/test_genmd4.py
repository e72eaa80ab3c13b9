"""GenMD4's schedules, loss, gradients and reverse step, and an exact enumeration of a small model.

The reference draws its times from [t1, 1] but never multiplies the integral by (1 - t1), and it
leaves out the prior term although alpha(1) = eps. Ours has both. Stored values are compared after
undoing the two; the enumeration also holds the corrected integral, which ours is compared with.

The float32 files hold the same runs as the authors make them; we compute in the file's precision.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

from partita.contracts.batch import Batch
from partita.methods.genmd4 import GenMD4, MaskedTwice
from partita.methods.masked_method import TIME_SCALE
from partita.networks import TransformerConfig
from partita.networks.base import Network
from partita.processes.draws import low_discrepancy
from partita.schedules import sampling_grid
from tests.golden.cases import Case, load, named

schedules = pytest.mark.parametrize("file", named("md4/genmd4_schedule*"))
loss_cases = pytest.mark.parametrize("file", named("md4/genmd4_loss_*"))


def config(length, size):
    return TransformerConfig(vocab_size=size + 1, output_size=size, length=length, time=True)


def model_of(network, raw, **options) -> GenMD4:
    """GenMD4 with recorded exponents."""
    model = GenMD4(network, **options)
    model.raw = nn.Parameter(raw.clone())
    return model


# Schedules ---------------------------------------------------------------------------------------


class Sizes(Network):
    """A network that nobody asks anything."""

    def __init__(self, size):
        self.config = config(1, size)

    def __call__(self, tokens, *, queries, scalar=None, label=None, layout=None):
        raise NotImplementedError


@schedules
def test_schedules(file):
    """The derivative and the weight -w/t follow from w, which is the exponent that we report."""
    case = load(file)
    eps, t = case.config["eps"], case["t"]
    model = model_of(Sizes(case.config["vocab_size"]), case["w_raw"], eps=eps)
    w, alpha = model.exponents.detach(), model.alpha(t).detach()
    case.close(w, "power")
    case.close(alpha, "alpha")
    case.close(-(1 - eps) * w * t[:, None] ** (w - 1), "dalpha")
    case.close(-w / t[:, None], "dgamma_times_alpha")
    plain = model_of(Sizes(case.config["vocab_size"]), case["w_raw"])
    ends = plain.alpha(torch.tensor([0.0, 1.0], dtype=t.dtype))
    assert torch.equal(ends, torch.tensor([[1.0], [0.0]], dtype=t.dtype).expand_as(ends))
    hidden = (1 - eps) * t[:, None] ** w
    inside = hidden > 0  # theirs is infinite where it is not
    ours = torch.where(inside, torch.log(alpha / hidden), case["logsnr"])
    case.close(ours, "logsnr")


@schedules
def test_initial_exponents(file):
    case = load(file)
    for power, raw in zip(case["init/power_init"], case["init/w_raw"], strict=True):
        model = GenMD4(Sizes(case.config["vocab_size"]), exponent=float(power))
        limits = {name: max(case.facts["tolerance"][name], 1e-6) for name in ("rtol", "atol")}
        torch.testing.assert_close(model.raw.detach(), raw.float().expand_as(model.raw), **limits)
        torch.testing.assert_close(model.exponents[0].detach(), power.double(), **limits)


# Losses ------------------------------------------------------------------------------------------


class Recorded(Network):
    """A network that answers with recorded logits, [B, L, V] for one mask and then the other."""

    def __init__(self, *logits):
        length, size = logits[0].shape[1:]
        self.config = config(length, size)
        self.logits = [one.clone().requires_grad_() for one in logits]
        self.seen = []

    def __call__(self, tokens, *, queries, scalar=None, label=None):  # noqa: ARG002
        self.seen.append((tokens, scalar))
        return self.logits[len(self.seen) - 1][queries.rows, queries.positions]


class Replay:
    """Our loss for recorded noise, and the recorded sizes."""

    def __init__(self, file):
        self.case = case = load(file)
        self.eps, self.t1 = case.config["eps"], case.config["t1"]
        self.size, self.tokens = case.config["vocab_size"], math.prod(case.config["data_shape"])
        self.network = Recorded(self.flat("logits_1"), self.flat("logits_2"))
        self.model = model_of(self.network, case["w_raw"], eps=self.eps, t1=self.t1)
        self.x, states = self.flat("x0"), [self.flat("zt_1"), self.flat("zt_2")]
        self.masks = tuple(state == case.config["mask_id"] for state in states)
        self.valid = torch.ones_like(self.x, dtype=torch.bool)
        self.loss = self.model.loss_given(
            Batch.of(self.x, is_token=self.valid), MaskedTwice(self.masks, case["t"])
        )
        for (tokens, scalar), state in zip(self.network.seen, states, strict=True):
            assert torch.equal(tokens, state)
            torch.testing.assert_close(scalar, (TIME_SCALE * case["t"]).float())

    def flat(self, key):
        """Text [B, L, ...] as it is; an image's axes become one."""
        return self.case[key].flatten(1, len(self.case.config["data_shape"]))

    @property
    def bits(self):
        """Nats of the batch to bits per token."""
        return 1 / (len(self.x) * self.tokens * math.log(2))

    @property
    def prior(self):
        """The term that theirs lacks, per token."""
        return self.eps * math.log(self.size)

    def diffusion(self):
        """Their diffusion term of each example: ours without ends and without (1 - t1)."""
        ends = self.model.ends(self.x, self.valid)
        return (self.loss.per_token - ends).sum(-1) / (1 - self.t1)

    def reconstruction(self):
        return (self.model.ends(self.x, self.valid) - self.prior).sum(-1)

    def each(self, index):
        """The diffusion term of one mask: the same mask twice."""
        masks, self.network.seen = (self.masks[index],) * 2, []
        logits = self.network.logits
        self.network.logits = [logits[index]] * 2
        loss = self.model.loss_given(
            Batch.of(self.x, is_token=self.valid), MaskedTwice(masks, self.case["t"])
        )
        self.network.logits = logits
        return (loss.per_token - self.model.ends(self.x, self.valid)).sum(-1) / (1 - self.t1)

    def log_ratio(self):
        log_t = self.case["t"].log()
        q1, q2 = (self.model.log_mask(self.x, z, log_t, self.valid) for z in self.masks)
        return q1 - q2


def test_low_discrepancy_times():
    """MD4's, squeezed to start at t1."""
    case = load("md4/md4_antithetic_times")
    t1 = case.config["t1_genmd4"]
    for batch in (setting["batch"] for setting in case.config["cases"]):
        times = low_discrepancy(case[f"bs{batch}/t0"], torch.arange(batch), batch)
        case.close(t1 + (1 - t1) * times, f"bs{batch}/t_genmd4")


@loss_cases
def test_times_and_keep_probability(file):
    """Ours are mirrored in training (1 - u for u), which is the same law."""
    replay = Replay(file)
    case, t1 = replay.case, replay.t1
    times = low_discrepancy(case["t0"], torch.arange(len(replay.x)), len(replay.x))
    case.close(t1 + (1 - t1) * times, "t")
    alpha = replay.model.alpha(case["t"]).gather(-1, replay.x)
    case.close(alpha.view(case["keep_prob"].shape).detach(), "keep_prob")


@loss_cases
def test_losses(file):
    replay = Replay(file)
    case = replay.case
    case.close(replay.model.exponents.detach(), "power")
    for index in (0, 1):
        case.close(replay.each(index).detach(), f"loss_diff_{index + 1}_per_example")
    difference = replay.each(0) - replay.each(1)
    reinforce = difference * replay.log_ratio() / 2
    case.close(reinforce.detach(), "rloo_per_example")
    recon, diffusion = replay.reconstruction(), replay.diffusion()
    case.close(recon.detach(), "recon_per_example")
    for ours, key in (
        (diffusion, "loss_diff_bpt"),
        (recon, "loss_recon_bpt"),
        (diffusion + recon, "loss_nelbo_bpt"),
        (diffusion + recon + reinforce, "loss_bpt"),  # whose value means nothing
    ):
        case.close(ours.sum()[None].detach() * replay.bits, key)


@loss_cases
def test_the_objective_s_value_is_the_bound_with_all_terms(file):
    """Theirs with the integral over [t1, 1] scaled rightly, and with a prior term."""
    replay = Replay(file)
    case = replay.case
    corrected = (1 - replay.t1) * case["loss_diff_bpt"] + case["loss_recon_bpt"]
    corrected = corrected * math.log(2) + replay.prior
    limits = {name: case.facts["tolerance"][name] for name in ("atol", "rtol")}
    torch.testing.assert_close(replay.loss.objective[None].detach(), corrected, **limits)
    assert int(replay.loss.tokens) == replay.valid.numel()
    torch.testing.assert_close(replay.loss.per_token.mean(), replay.loss.objective, **limits)


@loss_cases
def test_gradients(file):
    """The parts of the exponents' gradient, and the network's, from the objective at once."""
    replay = Replay(file)
    case, raw, t1 = replay.case, replay.model.raw, replay.t1

    def gradient(value):
        return torch.autograd.grad(value, raw, retain_graph=True)[0]

    pathwise = gradient(replay.diffusion().sum() * replay.bits)
    recon = gradient(replay.reconstruction().sum() * replay.bits)
    whole = gradient(replay.loss.objective / math.log(2))
    reinforce = (whole - recon - (1 - t1) * pathwise) / (1 - t1)
    case.close(pathwise, "grad_w_raw_pathwise_diff_bpt")
    case.close(recon, "grad_w_raw_recon_bpt")
    case.close(reinforce, "grad_w_raw_reinforce_bpt")
    case.close(pathwise + recon, "grad_w_raw_of_loss_nelbo_bpt")
    case.close((whole - recon) / (1 - t1) + recon, "grad_w_raw_of_loss_bpt")
    logits = torch.autograd.grad(replay.loss.objective / math.log(2), replay.network.logits)
    for index, ours in enumerate(logits):
        key = f"grad_logits_{index + 1}_of_loss_bpt"
        case.close((ours / (1 - t1)).view(case[key].shape), key)


@loss_cases
def test_extreme_exponents(file):
    replay = Replay(file)
    w = replay.model.exponents.detach()
    for ours, key in ((w.max(), "power_max"), (w.min(), "power_min"), (w.mean(), "power_avg")):
        replay.case.close(ours[None], key)


# The reverse step --------------------------------------------------------------------------------


def test_reverse_step():
    """eps cancels: the step is the same with and without it."""
    case = load("md4/genmd4_reverse_step")
    logits, state = case["logits"], case["zt"]
    for eps in (0.0, case.config["eps"]):
        model = model_of(Recorded(logits), case["w_raw"], eps=eps)
        log_mean = logits.log_softmax(-1)
        step = model.step(log_mean, state, case["s"], case["t"]).detach()
        case.close(step, "probs")
        blank = torch.full_like(state, case.config["mask_id"])
        everywhere = model.step(log_mean, blank, case["s"], case["t"]).detach()
        case.close(everywhere, "probs_masked_rule")
    case.close(model.alpha(case["s"]).detach(), "alpha_s")
    case.close(model.alpha(case["t"]).detach(), "alpha_t")


# Exact enumeration -------------------------------------------------------------------------------


class Table(Network):
    """A network that looks its logits up by state; it does not care for the time."""

    def __init__(self, logits):
        _, length, size = logits.shape
        self.config, self.logits = config(length, size), logits

    def __call__(self, tokens, *, queries, scalar=None, label=None):  # noqa: ARG002
        digits = self.config.vocab_size ** torch.arange(tokens.shape[1]).flip(0)
        return self.logits[(tokens * digits).sum(-1)[queries.rows], queries.positions]


class Toy:
    """The stored model; every sequence under every pair of masks at some times."""

    def __init__(self, raw=None, **ends):
        self.case: Case = load("md4/toy_genmd4_exact")
        self.x, self.mask_id = self.case["x_all"], self.case.config["mask_id"]
        self.length = self.x.shape[1]
        raw = self.case["w_raw"] if raw is None else raw
        self.model = model_of(Table(self.case["logits_table_A"]), raw, **ends)
        self.masks = torch.tensor(list(itertools.product([False, True], repeat=self.length)))

    def rows(self, times):
        """Sequences, masks and times: for each time every sequence, for each every mask."""
        count, masks = len(times), len(self.masks)
        tokens = self.x.repeat_interleave(masks, 0).repeat(count, 1)
        masked = self.masks.repeat(len(self.x) * count, 1)
        return tokens, masked, times.repeat_interleave(len(self.x) * masks)

    def chance(self, tokens, masked, times):
        return self.model.log_mask(tokens, masked, times.log(), torch.ones_like(masked)).exp()

    def diffusion(self, times, through_masks=True):
        """E over masks of the loss at each time, without ends, [times, sequences]."""
        tokens, masked, row_times = self.rows(times)
        valid = torch.ones_like(masked)
        loss = self.model.loss_given(
            Batch.of(tokens, is_token=valid), MaskedTwice((masked, masked), row_times)
        )
        nats = (loss.per_token - self.model.ends(tokens, valid)).sum(-1)
        chance = self.chance(tokens, masked, row_times)
        chance = chance if through_masks else chance.detach()
        return (chance * nats).view(len(times), len(self.x), -1).sum(-1)

    def times(self, nodes):
        """Gauss-Legendre quadrature on [t1, 1] in v with t = v^4: small exponents are steep at 0.

        The shares are those of uniform times, so they add up to 1.
        """
        points, shares = map(torch.from_numpy, np.polynomial.legendre.leggauss(nodes))
        t1 = self.model.t1
        v = t1**0.25 + (1 - t1**0.25) * (points + 1) / 2
        return v**4, shares / 2 * (1 - t1**0.25) * 4 * v**3 / (1 - t1)

    def integral(self, nodes=200):
        times, shares = self.times(nodes)
        return (shares[:, None] * self.diffusion(times)).sum(0)

    def moves(self, s, t):
        """(positions, state, outcome): p of staying masked and of the right token, per sequence."""
        tokens, masked, row_t = self.rows(t)
        row_s = s.repeat_interleave(len(self.x) * len(self.masks))
        z = torch.where(masked, self.mask_id, tokens)
        log_mean = self.model.log_mean(z, row_t)
        step = self.model.step(log_mean, z, row_s, row_t).detach()
        right = step.gather(-1, tokens[..., None])[..., 0]
        shape = (len(t), len(self.x), len(self.masks), self.length)
        return right.view(shape), step[..., self.mask_id].view(shape), masked.view(shape)

    def steps(self, count):
        times = sampling_grid("uniform", count)
        return times[1:], times[:-1]

    def nelbo(self, count):
        """sum over steps of E KL(q(z_s | z_t, x) || p(z_s | z_t)), for a chain of `count` steps."""
        s, t = self.steps(count)
        right, stay, masked = self.moves(s, t)
        w = self.model.exponents.detach()[self.x][None, :, None]
        q_stay = (s / t)[:, None, None, None] ** w
        divergence = torch.special.xlogy(q_stay, q_stay / stay).nan_to_num()
        divergence = divergence + torch.special.xlogy(1 - q_stay, (1 - q_stay) / right)
        tokens, mask, row_t = self.rows(t)
        chance = self.chance(tokens, mask, row_t).detach().view(masked.shape[:-1])
        return (chance * torch.where(masked, divergence, 0).sum(-1)).sum((0, 2))

    def neg_log_p(self, count):
        """A path to x visits x with some tokens masked, and nothing else."""
        right, stay, _ = self.moves(*self.steps(count))
        state = torch.zeros(len(self.x), len(self.masks), dtype=torch.float64)
        state[:, -1] = 1
        for one_right, one_stay in zip(right, stay, strict=True):
            outcome = torch.where(self.masks, one_stay[:, :, None], one_right[:, :, None]).prod(-1)
            state = torch.einsum("xm,xmn->xn", state, outcome)
        return -state[:, 0].log()


def test_toy_continuous_bound():
    toy = Toy()
    toy.case.close(toy.model.exponents.detach(), "power")
    toy.case.close(toy.integral().detach(), "nelbo_cont")
    equal = Toy(raw=torch.full_like(toy.case["w_raw"], 0.3))
    toy.case.close(equal.integral().detach(), "nelbo_cont_equal_powers")


def test_toy_reference_s_ends():
    """The integral from t1 with the reconstruction term; theirs misses the factor (1 - t1)."""
    facts = load("md4/toy_genmd4_exact").config
    toy = Toy(eps=facts["eps"], t1=facts["t1"])
    case, valid = toy.case, torch.ones_like(toy.x, dtype=torch.bool)
    prior = toy.length * toy.model.eps * math.log(toy.model.mask_id)
    integral = toy.integral().detach()
    recon = toy.model.ends(toy.x, valid).sum(-1).detach() - prior
    case.close(recon, "official/recon")
    case.close(integral / (1 - toy.model.t1), "official/diff_expectation")
    case.close(integral / (1 - toy.model.t1) + recon, "official/nelbo")
    case.close(integral + recon, "exact_integral/nelbo")


def test_toy_discrete_bound_and_likelihood():
    toy = Toy()
    for count in toy.case.config["T_values"]:
        nelbo, exact = toy.nelbo(count), toy.neg_log_p(count)
        toy.case.close(nelbo, f"T{count}/nelbo")
        toy.case.close(exact, f"T{count}/neg_log_p")
        gap = float((nelbo - exact).min())
        stored = toy.case.config["summary"][f"T{count}"]["min_gap"]
        assert gap == pytest.approx(stored, abs=toy.case.facts["tolerance"]["atol"])
        assert gap > -1e-10


def test_toy_gradient():
    """Through the law of the masks; without that part it is biased."""
    facts = load("md4/toy_genmd4_exact").config
    toy = Toy(eps=facts["eps"], t1=facts["t1"])
    case, law, raw = toy.case, toy.case["p_data"], toy.model.raw
    times, shares = toy.times(200)
    shares = shares[:, None] * law / (1 - facts["t1"])

    def gradient(value):
        return torch.autograd.grad(value, raw)[0]

    case.close(gradient((shares * toy.diffusion(times)).sum()), "grad/exact_w_raw")
    pathwise = gradient((shares * toy.diffusion(times, through_masks=False)).sum())
    case.close(pathwise, "grad/pathwise_only_w_raw")
    ends = toy.model.ends(toy.x, torch.ones_like(toy.x, dtype=torch.bool)).sum(-1)
    case.close(gradient((law * ends).sum()), "grad/recon_w_raw")


def test_toy_reinforce():
    """The objective's gradient, over all pairs of masks, has that gradient as its expectation.

    That holds at every single time, so a few stand for all.
    """
    facts = load("md4/toy_genmd4_exact").config
    toy = Toy(eps=facts["eps"], t1=facts["t1"])
    law, raw = toy.case["p_data"], toy.model.raw
    limits = {name: toy.case.facts["tolerance"][name] for name in ("atol", "rtol")}
    for time in toy.times(3)[0]:
        expected = torch.zeros_like(raw)
        for x, share in zip(toy.x, law, strict=True):
            one = x[None], torch.ones(1, toy.length, dtype=torch.bool)
            ends = torch.autograd.grad(toy.model.ends(*one).sum(), raw)[0]
            for first, second in itertools.product(toy.masks[:, None], repeat=2):
                masks = (first, second)
                loss = toy.model.loss_given(
                    Batch.of(one[0], is_token=one[1]), MaskedTwice(masks, time[None])
                )
                found = torch.autograd.grad(loss.objective * loss.tokens, raw)[0] - ends
                chances = [toy.chance(one[0], z, time[None]).detach() for z in masks]
                expected += share * chances[0] * chances[1] * found
        exact = torch.autograd.grad((law * toy.diffusion(time[None])).sum(), raw)[0]
        torch.testing.assert_close(expected, exact, **limits)
