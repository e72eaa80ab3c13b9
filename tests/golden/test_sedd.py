"""SEDD's noise, losses, gradients and sampling steps under both graphs, and scores from means.

Oddities of the reference, compared with the corrected value:

- the stored score at a visible position is 0 towards the mask; the true ratio is e^sigma - 1. The
  absorbing chain never uses it (nothing leaves a visible token), so it is checked by itself;
- the stored denoising step keeps what an inconsistent score leaves outside the tokens: it is not
  normalised. Ours is, so the stored one is compared before, and ours after normalising it;
- Euler's stored probabilities may be negative: compared before they are clamped;
- the reference's sampling times stop at a small eps, ours go to 0: compared after squeezing.
"""

from __future__ import annotations

import re

import pytest
import torch

from partita.contracts.batch import Batch
from partita.methods.sedd import SEDD
from partita.networks import TransformerConfig
from partita.networks.base import Network
from partita.processes.chains import mean_from_score, score_from_mean
from partita.processes.ctmc import Rates, noise_rate, total_noise
from partita.processes.draws import Noised
from partita.processes.graphs import Absorbing, Uniform, make_graph
from partita.processes.masked import reverse
from partita.samplers.score import (
    analytic_step,
    as_probabilities,
    denoising_step,
    euler_step,
)
from partita.schedules import make_schedule, sampling_grid
from partita.schedules.formulas import Linear
from partita.schedules.reference import MDLM_EPS, Truncated
from tests.golden.cases import Case, load, named

graphs = pytest.mark.parametrize("name", named("md4/sedd_*", holding="transp_rate"))
absorbing_graphs = pytest.mark.parametrize("name", named("md4/sedd_absorb*", holding="transp_rate"))


def loglinear(eps):
    return Truncated(Linear(), 0.0, eps)


def geometric(low, high):
    return make_schedule("mdlm:geometric", sigma_min=float(low), sigma_max=float(high))


def noise_of(text):
    """The schedule (sigma = -log alpha) that a text such as "eps 1e-3" describes."""
    ends = re.search(r"sigma_min ([\d.e+-]+), sigma_max ([\d.e+-]+)", text)
    if ends:
        return geometric(*ends.groups())
    return loglinear(float(re.search(r"eps ([\d.e+-]+)", text)[1]))


def schedules(case: Case):
    """The case's noises as schedules."""
    return {name: noise_of(text) for name, text in case.config["noise"].items()}


def graph_of(case: Case):
    kind = Uniform if case.config["mask_id"] is None else Absorbing
    graph = kind(case.config["V"])
    assert graph.states == case.config["K"]
    assert graph.mask_id == case.config["mask_id"]
    return graph


def rows_of(case: Case, values):
    """One value per sequence as one per position."""
    return values[:, None].expand(case["xt"].shape)


class Recorded(Network):
    """A network that answers so that the method's log-scores are the recorded ones [B, L, S]."""

    def __init__(self, case: Case, graph, log_score, sigma):
        length = case.config["length"]
        sizes = {"vocab_size": graph.states, "output_size": graph.states, "length": length}
        self.config = TransformerConfig(**sizes, time=True)
        self.outputs = log_score + graph.log_scale(sigma)[:, None, None]

    def __call__(self, tokens, *, queries, scalar=None, label=None):  # noqa: ARG002
        self.tokens, self.scalar = tokens, scalar
        return self.outputs[queries.rows, queries.positions]


def recorded_model(case: Case, schedule, log_score):
    graph = graph_of(case)
    network = Recorded(case, graph, log_score, total_noise(schedule, case["t"]))
    return SEDD(network, graph=graph, schedule=schedule)


# Noise -------------------------------------------------------------------------------------------


def test_noise():
    case = load("md4/sedd_noise")
    kinds = {
        "loglinear": loglinear(case.config["loglinear_eps"]),
        "geometric": geometric(*case.config["geometric"]),
    }
    for name, schedule in kinds.items():
        case.close(total_noise(schedule, case["t"]), f"{name}/sigma")
        case.close(noise_rate(schedule, case["t"]), f"{name}/dsigma")


def test_the_default_noise_is_the_reference_s():
    assert make_schedule(SEDD.default_schedule) == loglinear(MDLM_EPS)


def test_sampling_times_are_ours_squeezed_to_stop_at_eps():
    case = load("md4/sedd_noise")
    for key in case.keys("sampler_timesteps_"):
        eps, steps = case.config["sampling_eps_generate"], int(key.rsplit("_", 1)[1])
        case.close(eps + (1 - eps) * sampling_grid("uniform", steps), key)


# Losses ------------------------------------------------------------------------------------------


@graphs
def test_noise_at_the_case_s_times(name):
    case = load(name)
    for noise, schedule in schedules(case).items():
        case.close(total_noise(schedule, case["t"]), f"{noise}/sigma")
        case.close(noise_rate(schedule, case["t"]), f"{noise}/dsigma")


@graphs
def test_score_entropy_by_closed_form_and_by_matrix(name):
    case, graph = load(name), graph_of(load(name))
    for noise, schedule in schedules(case).items():
        assert float(case[f"{noise}/score_entropy"].min()) >= 0
        sigma = rows_of(case, total_noise(schedule, case["t"]))
        for chain in (graph, Rates(graph.matrix(), graph.tokens)):
            ours = chain.score_entropy(case["log_score"], case["xt"], case["x0"], sigma)
            case.close(ours, f"{noise}/score_entropy")


@graphs
def test_loss_and_gradient(name):
    case = load(name)
    for noise, schedule in schedules(case).items():
        log_score = case["log_score"].clone().requires_grad_()
        model = recorded_model(case, schedule, log_score)
        loss = model.loss_given(
            Batch.of(case["x0"], is_token=torch.ones_like(case["xt"], dtype=torch.bool)),
            Noised(case["xt"], case["t"]),
        )
        assert torch.equal(model.network.tokens, case["xt"])
        torch.testing.assert_close(model.network.scalar, case[f"{noise}/sigma"].float())
        # Ours is the whole bound; the reference leaves the end terms out.
        ends = model.end_nats(case["x0"])
        case.close(loss.cross_entropy, f"{noise}/score_entropy")
        case.close(loss.per_sequence - ends.sum(-1), f"{noise}/loss")
        loss.per_sequence.mean().backward()
        case.close(log_score.grad, f"{noise}/grad_log_score")


@absorbing_graphs
def test_loss_of_a_mean_is_md4_s_weighted_cross_entropy(name):
    case = load(name)
    everywhere, graph = torch.ones_like(case["xt"], dtype=torch.bool), graph_of(case)
    for noise, schedule in schedules(case).items():
        model = recorded_model(case, schedule, case[f"{noise}/score_from_mu"].log())
        loss = model.loss_given(
            Batch.of(case["x0"], is_token=everywhere), Noised(case["xt"], case["t"])
        )
        ours = loss.per_sequence - model.end_nats(case["x0"]).sum(-1)
        case.close(ours, f"{noise}/loss_with_score_from_mu")
        nats = -case["mu"].gather(-1, case["x0"][..., None])[..., 0].log()
        masked = case["xt"] == graph.mask_id
        expected = (schedule.weight(case["t"])[:, None] * nats * masked).sum(-1)
        case.close(expected, f"{noise}/loss_with_score_from_mu")


# Scores ------------------------------------------------------------------------------------------


@graphs
def test_scores_from_means(name):
    case, graph = load(name), graph_of(load(name))
    for noise, schedule in schedules(case).items():
        sigma, x = rows_of(case, total_noise(schedule, case["t"])), case["xt"]
        # `mu` is the law of the clean token before x is seen; the score needs the one after.
        mean = case["mu"] * graph.row(x, sigma)[..., : graph.tokens]
        mean = mean / mean.sum(-1, keepdim=True)
        ours = score_from_mean(graph, mean, x, sigma)
        torch.testing.assert_close(mean_from_score(graph, ours, x, sigma), mean)
        if graph.mask_id is not None:
            visible = x != graph.mask_id
            towards = ours[..., graph.mask_id][visible]
            torch.testing.assert_close(towards, torch.expm1(sigma)[visible])
            ours[..., graph.mask_id][visible] = 0.0
        case.close(ours, f"{noise}/score_from_mu")


def test_score_mean_table():
    case = load("md4/sedd_score_mean")
    graph, sigma = Absorbing(case.config["V"]), case["sigma"]
    assert graph.mask_id == case.config["mask_id"]
    case.close(-case["alpha"].log(), "sigma")
    masks = torch.full_like(case["x_unmasked"], graph.mask_id)
    score = score_from_mean(graph, case["mu"], masks, sigma)
    case.close(score, "score_masked")
    case.close(score[..., : graph.tokens].sum(-1), "sum_score_masked")
    case.close(case["alpha"] / (1 - case["alpha"]), "sum_score_masked")
    case.close(mean_from_score(graph, score, masks, sigma), "mu_back")
    seen = torch.nn.functional.one_hot(case["x_unmasked"], graph.tokens).double()
    case.close(score_from_mean(graph, seen, case["x_unmasked"], sigma), "score_unmasked")


def test_parameterisation():
    case = load("md4/sedd_score_mean")
    graph = Absorbing(case.config["V"])
    x = torch.stack([torch.full_like(case["x_unmasked"], graph.mask_id), case["x_unmasked"]], -1)
    sigma = case["sigma"][:, None].expand(x.shape)
    logits = case["sedd_param/logits"]

    class Sizes(Network):
        config = TransformerConfig(vocab_size=graph.states, length=x.shape[1], time=True)

        def __call__(self, tokens, *, queries, scalar=None, label=None):  # noqa: ARG002
            raise AssertionError

    model = SEDD(Sizes())
    ours = model.parameterize(logits, x, sigma)
    case.close(ours, "sedd_param/log_score")
    case.close(
        graph.score_entropy(ours, x, case["sedd_param/x0"], sigma), "sedd_param/score_entropy"
    )
    # Without an output for the mask, which only visible positions would have, masks have the same.
    fewer = model.parameterize(logits[:, 0, : graph.tokens], x[:, 0], sigma[:, 0])
    torch.testing.assert_close(fewer, case["sedd_param/log_score"][:, 0, : graph.tokens])


# Steps -------------------------------------------------------------------------------------------


@graphs
def test_rates_and_transitions_by_closed_form_and_by_matrix(name):
    case, graph = load(name), graph_of(load(name))
    x, score = case["xt"], case["log_score"].exp()
    for chain in (graph, Rates(graph.matrix(), graph.tokens)):
        case.close(chain.rate_row(x), "transp_rate")
        case.close(chain.reverse_rate(score, x), "reverse_rate")
        for key in case.keys("transp_transition_sigma"):
            sigma = torch.full(x.shape, float(key.rsplit("sigma", 1)[1]), dtype=torch.float64)
            case.close(chain.row(x, sigma), key)
        for key in case.keys("staggered_score_dsigma"):
            sigma = torch.full(x.shape, float(key.rsplit("dsigma", 1)[1]), dtype=torch.float64)
            case.close(chain.flow(score, -sigma), key)


@graphs
def test_steps(name):
    """The stored steps use the score of `mu`, at each sequence's own time."""
    case, graph = load(name), graph_of(load(name))
    dt = case.config["dt"]
    for noise, schedule in schedules(case).items():
        model, score = (
            recorded_model(case, schedule, case["log_score"]),
            case[f"{noise}/score_from_mu"],
        )
        rows = list(zip(score, case["xt"], case["t"], strict=True))
        euler = torch.stack([euler_step(model, s, x, t, t - dt) for s, x, t in rows])
        case.close(euler, f"{noise}/euler_probs")
        exact = torch.stack([analytic_step(model, s, x, t, t - dt) for s, x, t in rows])
        case.close(exact, f"{noise}/analytic_probs")
        clean = torch.stack([denoising_step(model, s, x, t) for s, x, t in rows])
        assert not clean[..., graph.tokens :].any()
        clean = clean[..., : graph.tokens]
        case.close(clean, f"{noise}/denoise_probs")
        stored = case[f"{noise}/denoise_probs"]
        stored = stored / stored.sum(-1, keepdim=True)
        torch.testing.assert_close(as_probabilities(clean.flatten(0, 1)).view_as(stored), stored)
        drawn = as_probabilities(euler.flatten(0, 1))
        assert float(drawn.min()) >= 0
        torch.testing.assert_close(drawn.sum(-1), torch.ones_like(drawn[:, 0]))
        if graph.mask_id is not None:
            ancestral = reverse(
                case["mu"], case["xt"], case["t"] - dt, case["t"], schedule, graph.mask_id
            )
            case.close(ancestral, f"{noise}/analytic_probs")


@graphs
def test_euler_steps_that_are_too_long_are_probabilities_all_the_same(name):
    """What an Euler step leaves of staying falls below 0 at last, which the clamp is for."""
    case, graph = load(name), graph_of(load(name))
    fastest = graph.reverse_rate(case["log_score"].exp(), case["xt"]).abs().amax((-1, -2))
    for schedule in schedules(case).values():
        model = recorded_model(case, schedule, case["log_score"])
        lengths = 2 / (fastest * noise_rate(schedule, case["t"]))
        rows = zip(case["log_score"].exp(), case["xt"], case["t"], lengths, strict=True)
        steps = torch.cat([euler_step(model, s, x, t, t - length) for s, x, t, length in rows])
        assert float(steps.min()) < 0
        ours = as_probabilities(steps)
        assert float(ours.min()) >= 0
        torch.testing.assert_close(ours.sum(-1), torch.ones_like(ours[:, 0]))


def test_graphs_by_name():
    assert isinstance(make_graph("absorbing", 5), Absorbing)
    assert isinstance(make_graph("uniform", 5), Uniform)
