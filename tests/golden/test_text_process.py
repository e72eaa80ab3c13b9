"""The text family's process: SUBS, schedules, losses and reverse steps, without a network.

The logits are stored with each case, so every number here is a formula. Where the reference has a
fault, ours is compared with the corrected value and the test says what is corrected.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from partita.categorical import kept_by_top_p
from partita.contracts.batch import Batch
from partita.methods.mdlm import MDLM, subs
from partita.networks.base import Network
from partita.networks.options import TransformerConfig
from partita.processes.corruption import Corrupted, Discrete, Rate
from partita.processes.masked import marginal, posterior, reverse, states
from partita.schedules import discretize, make_schedule
from partita.schedules.formulas import Linear
from partita.schedules.reference import MDLM_EPS
from tests.golden.cases import load, parts, rule_of
from tests.support.references import agree, gumbel_argmax


def carried_over(mean, z_t, mask_id):
    """x_theta with visible tokens copied: the reverse step from all hidden to all visible."""
    ends = torch.tensor([0.0, 1.0], dtype=mean.dtype)[:, None].expand(2, len(z_t))
    return reverse(mean, z_t, *ends, Linear(), mask_id)


# SUBS --------------------------------------------------------------------------------------------


def test_subs_with_the_mask_last_or_inside():
    case = load("text/mdlm_subs")
    placements = case.stems(".xt", "in.")
    assert placements
    for name in placements:
        mask_id, z_t = case.config[f"mask_index_{name}"], case[f"in.{name}.xt"]
        ours, theirs = subs(case[f"in.{name}.logits"], mask_id), case[f"out.{name}.logp"]
        hidden = z_t == mask_id
        real = torch.arange(ours.shape[-1]) != mask_id
        agree(case, ours[hidden][:, real], theirs[hidden][:, real], f"{name}, hidden")
        # They write about -1e6 for -inf, so the rest is compared as probabilities: none on the
        # mask, and visible tokens copied, which the reverse step does for us.
        assert ours[..., mask_id].isneginf().all()
        agree(case, carried_over(ours.exp(), z_t, mask_id), theirs.exp(), f"{name}, all")


def test_d3pm_log_probabilities():
    """D3PM's parameterisation keeps the mask's column and copies nothing; SUBS masking drops it."""
    case = load("text/mdlm_subs")
    for name in case.stems(".d3pm_logp", "out."):
        case.close(case[f"in.{name}.logits"].log_softmax(-1), f"out.{name}.d3pm_logp")
    for name in case.stems(".d3pm_submask_logp", "out."):
        mask_id, logits = case.config[f"mask_index_{name}"], case[f"in.{name}.logits"]
        ours, real = subs(logits, mask_id), torch.arange(logits.shape[-1]) != mask_id
        key = f"out.{name}.d3pm_submask_logp"
        agree(case, ours[..., real], case[key][..., real], key)
        agree(case, ours.exp(), case[key].exp(), key)


def test_postprocessing_gives_the_mask_no_probability():
    case = load("text/mdlm_postprocess_variants")
    mask_id, z_t = case.config["mask_index"], case["in.xt"]
    ours = subs(case["in.logits"], mask_id)
    hidden = z_t == mask_id
    real = torch.arange(ours.shape[-1]) != mask_id
    agree(case, ours[hidden][:, real], case["out.orig"][hidden][:, real], "out.orig")
    agree(case, carried_over(ours.exp(), z_t, mask_id), case["out.orig"].exp(), "out.orig")
    assert (ours[hidden][:, mask_id].exp() == 0).all()

    # The efficient variant writes logit 0 at the current token after it has removed the mask, so
    # a hidden position gets the mask back with logit 0. Without that mass it agrees with ours.
    faulty = case["out.efficient"].exp()
    leaked = faulty[hidden][:, mask_id]
    expected = 1 / (1 + case["in.logits"][hidden][:, real].exp().sum(-1))
    agree(case, expected, leaked, "leaked mass")
    measured = case.facts["info"]["mask_token_prob_at_masked_positions"]
    assert measured["orig"] == 0
    rtol = case.facts["tolerance"]["rtol"]
    assert math.isclose(leaked.mean(), measured["efficient"], rel_tol=rtol)
    corrected = faulty[hidden][:, real] / (1 - leaked)[:, None]
    agree(case, ours[hidden][:, real].exp(), corrected, "out.efficient without the mask")
    agree(case, states(z_t, ours.shape[-1])[~hidden], faulty[~hidden], "out.efficient, visible")


def test_top_p_keeps_the_same_tokens():
    case = load("text/mdlm_postprocess_variants")
    logits, filtered = case["in.logits"].flatten(0, 1), case["out.top_p"].flatten(0, 1)
    kept = kept_by_top_p(logits.softmax(-1), float(case["in.top_p"]))
    # Removed entries are stored as -1e30.
    torch.testing.assert_close(kept, filtered > -1e29)
    agree(case, logits[kept], filtered[kept], "out.top_p")


# Schedules ---------------------------------------------------------------------------------------


SCHEDULES = ("loglinear", "cosine", "cosinesqr", "linear", "geometric")
schedules = pytest.mark.parametrize(
    ("file", "name"), parts("text/mdlm_noise_schedules", lambda case: case.config["schedules"])
)


def schedule_of(case, name):
    """Our schedule for one of the case's. Those without options stop at alpha = eps."""
    options, rule = case.config["schedules"][name], rule_of(name, SCHEDULES)
    schedule = make_schedule(f"mdlm:{rule}", **options)
    return schedule if options else replace(schedule, cut_end=case.config.get("eps", MDLM_EPS))


@schedules
def test_schedules(file, name):
    case = load(file)
    t, schedule = case["in.t"], schedule_of(case, name)
    alpha, derivative = schedule.alpha(t), schedule.derivative(t)
    case.close(alpha, f"out.{name}.alpha")
    case.close(-torch.log(alpha), f"out.{name}.sigma")
    case.close(derivative, f"out.{name}.dalpha")
    case.close(-derivative / alpha, f"out.{name}.dsigma")
    case.close(schedule.weight(t), f"out.{name}.weight")
    if f"out.{name}.importance_t" in case.tensors:
        case.close(importance_sampled(case, name, t), f"out.{name}.importance_t")


def importance_sampled(case, name, t):
    """Times at which log(1 - alpha) is uniform: there the weight of the loss is constant."""
    info, options = case.facts["info"], case.config["schedules"][name]
    # A schedule without options holds its ends in float32, which moves log(1 - alpha) at its
    # first end in the fifth digit: these ends are taken as the reference holds them.
    sigma = (
        torch.tensor([options["sigma_min"], options["sigma_max"]], dtype=torch.float64)
        if options
        else torch.tensor([info[f"{name}_sigma_min"], info[f"{name}_sigma_max"]])
    )
    first, last = torch.log1p(-torch.exp(-sigma)).double()
    return schedule_of(case, name).inverse_one_minus(torch.exp(first + t * (last - first)))


# Losses ------------------------------------------------------------------------------------------


class Recorded(Network):
    """The stored logits."""

    def __init__(self, case) -> None:
        self.logits = case["in.logits"]
        self.config = TransformerConfig(
            vocab_size=self.logits.shape[-1], length=self.logits.shape[1], width=8, heads=1
        )

    def __call__(self, _, *, queries, **__):
        return self.logits[queries.rows, queries.positions]


def loss_with(case, weights, valid=None):
    """Our loss for the stored logits, with one weight per row."""
    mask_id, tokens = case.config["mask_index"], case["in.x0"]
    valid = torch.ones_like(tokens, dtype=torch.bool) if valid is None else valid
    method, given = MDLM(Recorded(case), mask_id=mask_id), Batch.of(tokens, is_token=valid)
    weights = weights[:, None].expand(tokens.shape)
    return method.loss_given(given, Corrupted((case["in.xt"] == mask_id) & valid, weights, None))


def numbers_of_steps(case):
    """The T for which the case has discrete losses."""
    prefix = "out.discrete_subs_T"
    steps = [int(key.removeprefix(prefix)) for key in case.keys(prefix)]
    assert steps
    return steps


def bin_ends(case, steps):
    """The times of the rows on the grid of a chain, in float64 so that t - s is exact enough."""
    return torch.round(discretize(case["in.t"], steps).double() * steps) / steps


def d3pm_loss(case, t, steps):
    """T KL(q(z_s | z_t, x) || p(z_s | z_t)) per token; the prediction may hold the mask."""
    mask_id, x, z_t = case.config["mask_index"], case["in.x0"], case["in.xt"]
    mean = case["in.logits"].double().softmax(-1)
    s = (torch.round(t * steps) - 1) / steps
    q = posterior(x, z_t, s, t, Linear(), mask_id, mean.shape[-1])
    p = reverse(mean, z_t, s, t, Linear(), mask_id)
    return steps * (torch.xlogy(q, q) - torch.xlogy(q, p)).sum(-1)


def test_continuous_loss_under_every_schedule():
    case = load("text/mdlm_loss")
    assert set(case.keys("out.cont.")) == {f"out.cont.{name}" for name in case.config["schedules"]}
    for name in case.config["schedules"]:
        schedule = schedule_of(case, name)
        case.close(loss_with(case, schedule.weight(case["in.t"])).per_token, f"out.cont.{name}")


def test_batch_loss_averages_over_real_tokens():
    case = load("text/mdlm_loss")
    schedule = make_schedule(f"mdlm:{case.config['noise']['type']}")
    valid = case["in.attention_mask"].bool()
    loss = loss_with(case, schedule.weight(case["in.t"]), valid)
    case.close(loss.objective, "out.batch_loss")
    assert int(loss.tokens) == int(valid.sum())


def test_change_of_variables_has_a_constant_weight():
    """Hiding rates uniform in log(1 - alpha): the weight is the length of that range.

    The reference starts the range at sigma = MDLM_EPS. As weight it takes minus the log at that
    first end and drops the log at the last end, which is not 0 because its alpha stops above 0.
    """
    case = load("text/mdlm_loss")
    schedule = make_schedule("mdlm:loglinear")
    first = math.log(-math.expm1(-MDLM_EPS))
    last = float(schedule.one_minus_alpha(torch.ones((), dtype=torch.float64)).log())
    law = Rate(
        rate=lambda t: torch.exp(first + t * (last - first)),
        weight=lambda t: torch.full_like(t, last - first),
    )

    # It is a law of the bound: its weight is the derivative of log(1 - alpha), as everywhere.
    t = case["in.t"].double().requires_grad_()
    (slope,) = torch.autograd.grad(law.rate(t).log().sum(), t)
    torch.testing.assert_close(law.weight(t), slope)

    loss = loss_with(case, law.weight(case["in.t"]))
    for key in ("out.cont_change_of_variables", "out.cont_importance"):
        case.close(loss.per_token - last * loss.cross_entropy, key)  # their weight
        case.close(loss.per_token, key)  # ours: the dropped end is 1.5e-4 of the weight


def test_discrete_loss():
    """The reference keeps t below 1 - 1e-4 here; ours takes the bin's end, 1e-4 away at most."""
    case = load("text/mdlm_loss")
    for steps in numbers_of_steps(case):
        t = bin_ends(case, steps)
        case.close(t, f"out.t_disc_T{steps}")
        loss = loss_with(case, Discrete(Linear(), steps).weights(t))
        case.close(loss.per_token, f"out.discrete_subs_T{steps}")


def test_discrete_d3pm_loss():
    """D3PM's bound: T times the divergence of a step, and the reconstruction from z_0 = x."""
    case = load("text/mdlm_loss")
    log_probs = case["in.logits_x0"].double().log_softmax(-1)
    reconstruction = -log_probs.gather(-1, case["in.x0"][..., None])[..., 0]
    case.close(reconstruction, "out.recon_t0")
    for steps in numbers_of_steps(case):
        ours = d3pm_loss(case, bin_ends(case, steps), steps) + reconstruction
        # The reference subtracts nearly equal float32 logarithms and multiplies by T. The case's
        # notes ask for 5e-4 at T = 1000.
        atol = max(case.facts["tolerance"]["atol"], 5e-7 * steps)
        case.close(ours, f"out.discrete_d3pm_T{steps}", atol=atol)


def test_the_first_bin_is_finite():
    """There s = 0 and the reference returns NaN (0/0); the divergence has the limit 0 log 0 = 0."""
    case = load("text/mdlm_loss")
    for steps in numbers_of_steps(case):
        t = discretize(torch.zeros(len(case["in.t"]), dtype=torch.float64), steps)
        # Everything hidden is revealed in this step: the weight is T.
        loss = loss_with(case, Discrete(Linear(), steps).weights(t))
        torch.testing.assert_close(loss.per_token, steps * loss.cross_entropy)
        assert loss.per_token.isfinite().all()
        divergence = d3pm_loss(case, t, steps)
        assert divergence.isfinite().all()
        assert (divergence[case["in.xt"] == case.config["mask_index"]] > 0).all()


# Reverse steps -----------------------------------------------------------------------------------


def posterior_case():
    """The case with its mask, its SUBS prediction in float64, and the step's times s < t."""
    case = load("text/mdlm_posterior")
    mask_id, t = case.config["mask_index"], case["in.t"][:, 0].double()
    mean = subs(case["in.logits"].double(), mask_id).exp()
    return case, mask_id, mean, t - case.config["dt"], t


def test_reverse_step():
    case, mask_id, mean, s, t = posterior_case()
    z_t = case["in.x"]
    hidden = z_t == mask_id
    case.close(carried_over(mean, z_t, mask_id), "out.ddpm_cache.p_x0")
    # Their step with a cache takes the schedule that ends at alpha = 0. Both leave out the factor
    # 1 / (1 - alpha_t), and rows of visible tokens mean nothing: those tokens are copied.
    processes = {"ddpm": make_schedule("mdlm:loglinear"), "ddpm_cache": Linear()}
    for name, schedule in processes.items():
        ours = reverse(mean, z_t, s, t, schedule, mask_id)
        torch.testing.assert_close(ours.sum(-1), torch.ones_like(ours[..., 0]))
        unnormalised = ours * schedule.one_minus_alpha(t)[:, None, None]
        agree(case, unnormalised[hidden], case[f"out.{name}.q_xs"][hidden], name)
    ours = reverse(mean, z_t, s, t, processes["ddpm"], mask_id)
    torch.testing.assert_close(gumbel_argmax(ours, case["in.u"]), case["out.ddpm.x_next"])


def test_analytic_and_denoising_steps_are_the_reverse_step():
    """The steps that SEDD derives from scores; the denoiser goes all the way to alpha_s = 1."""
    case, mask_id, mean, s, t = posterior_case()
    schedule = make_schedule("mdlm:loglinear")
    case.close(reverse(mean, case["in.x"], s, t, schedule, mask_id), "out.analytic.probs")
    start = torch.zeros_like(t)
    case.close(reverse(mean, case["in.x"], start, t, schedule, mask_id), "out.denoiser.probs")


def test_score_is_a_ratio_of_marginals():
    """p(j) / p(z_t) at time t: at hidden positions, alpha / (1 - alpha) times the mean (MD4)."""
    case, mask_id, mean, _, t = posterior_case()
    z_t, size = case["in.x"], mean.shape[-1]
    schedule = make_schedule("mdlm:loglinear")
    alpha, rate = schedule.alpha(t)[:, None, None], schedule.one_minus_alpha(t)[:, None, None]
    predicted = alpha * mean + rate * states(torch.full_like(z_t, mask_id), size)
    visible = marginal(z_t, t, schedule, mask_id, size)
    p = torch.where((z_t == mask_id)[..., None], predicted, visible)
    case.close(p / p.gather(-1, z_t[..., None]), "out.score")
