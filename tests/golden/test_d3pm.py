"""D3PM's matrices, posteriors, reverse kernels, bounds and hybrid losses, one token enumerated.

Where a stored value is not the one to have, the corrected one is compared, and said so:

- absorbing with linear betas: the chain leaves some tokens visible, and the stored prior, all
  masks, makes the prior term and so the bound infinite. Our prior shows such a token uniformly,
  which costs ln V each; with the stored prior the rest of the bound is the stored one.
- MDLM's loss is stored for steps 2..T-1 alone, since that code divides 0 by 0 at the first one;
  ours is finite there.
"""

from __future__ import annotations

import math
import re

import pytest
import torch

from partita.contracts.batch import Batch
from partita.methods.d3pm import D3PM, posterior, reverse
from partita.methods.masked_method import TIME_SCALE
from partita.networks import TransformerConfig
from partita.networks.base import Network
from partita.processes.betas import make_betas
from partita.processes.draws import Noised
from partita.processes.matrices import Own, make_transition
from tests.golden.cases import load, named

OURS = {"jsd": "jsd", "linear": "linear", "cosine": "cosine", "cosine_sq": "cosine-squared"}
cases = pytest.mark.parametrize("name", named("md4/d3pm_*"))


def options_of(text):
    """The numbers of "linspace(0.02, 0.5)", or of a cosine's "u/T+0.008"."""
    ends = re.match(r"linspace\(([\d.e-]+), ([\d.e-]+)\)", text)
    offset = re.search(r"u/T\+([\d.e-]+)", text)
    if ends:
        return {"start": float(ends[1]), "end": float(ends[2])}
    return {"offset": float(offset[1])} if offset else {}


def words_of(name):
    """Kind and betas of a case, by their order in its name."""
    return name.removeprefix("md4/d3pm_").split("_", 1)


def chain_of(name):
    """The case and the transition that its name and its configuration describe."""
    case, (kind, betas) = load(name), words_of(name)
    options = options_of(case.config["beta_schedule"])
    chain = make_transition(kind, case.config["V"], OURS[betas], case.config["T"], **options)
    assert chain.size == case.config["K"]
    return case, chain


def every(case):
    """All (t, x_t, x0) with their steps: states as rows of one token."""
    steps, size, tokens = case.config["T"], case.config["K"], case.config["V"]
    axes = torch.arange(1, steps + 1), torch.arange(size), torch.arange(tokens)
    t, z, x = (part.flatten() for part in torch.meshgrid(*axes, indexing="ij"))
    return t, z[:, None], x[:, None]


class Recorded(torch.nn.Module, Network):
    """A network that looks its logits up by step and state."""

    def __init__(self, logits):
        super().__init__()
        self.logits = logits
        self.config = TransformerConfig(
            vocab_size=logits.shape[-1] + 1, output_size=logits.shape[-1], length=1, time=True
        )

    def forward(self, tokens, *, queries, scalar=None, label=None):  # noqa: ARG002
        step = torch.round(scalar.double() / TIME_SCALE * len(self.logits)).long()
        return self.logits[step[queries.rows] - 1, tokens[queries.rows, queries.positions]]


@cases
def test_betas_and_matrices(name):
    case, chain = chain_of(name)
    steps = case.config["T"]
    betas = make_betas(
        OURS[words_of(name)[1]], steps, steps, **options_of(case.config["beta_schedule"])
    )
    case.close(betas, "betas")
    case.close(torch.stack([chain.matrix(t - 1, t) for t in range(1, steps + 1)]), "Q")
    case.close(torch.stack([chain.matrix(0, t) for t in range(steps + 1)]), "Qbar")


@cases
@pytest.mark.parametrize("own", [False, True])
def test_posteriors(name, own):
    case, chain = chain_of(name)
    if own:  # the stored matrices in the place of ours
        chain = Own(case["Q"], masks=case.config["mask_id"] is not None)
    t, z, x = every(case)
    possible = case["posterior_valid"].flatten().bool()
    assert torch.equal(chain.entries(x, z, 0 * t, t)[:, 0] > 0, possible)
    ours = posterior(chain, x, z, t - 1, t)[:, 0]
    ours = torch.where(possible[:, None], ours, 0).view_as(case["posterior"])
    case.close(ours, "posterior")
    mixed = (ours * case["logits"].softmax(-1)[..., None]).sum(-2)
    whole = case["p_theta_mixture_valid"].bool()[..., None]
    case.close(torch.where(whole, mixed, 0), "p_theta_mixture")


@cases
def test_reverse_kernels(name):
    case, chain = chain_of(name)
    mean = case["logits"].softmax(-1)
    steps, size, _ = mean.shape
    t = torch.arange(1, steps + 1)
    z = torch.arange(size).expand(steps, -1)
    ours = reverse(chain, mean, z, t - 1, t)
    torch.testing.assert_close(ours.sum(-1), torch.ones_like(ours[..., 0]))
    # A state that cannot occur has no stored kernel; in ours it stays.
    possible = case["p_theta_joint_valid"].bool()
    assert bool((ours.argmax(-1) == z)[~possible].all())
    case.close(torch.where(possible[..., None], ours, 0), "p_theta_joint")


@cases
@pytest.mark.parametrize("own", [False, True])
def test_terms_of_the_bound(name, own):
    """The loss at every (t, x0, x_t), its expectations, and the objective with the second term."""
    case, chain = chain_of(name)
    if own:
        chain = Own(case["Q"], masks=case.config["mask_id"] is not None)
    steps, weight = case.config["T"], case.config["lambda"]
    method = D3PM(Recorded(case["logits"]), transition=chain, hybrid=weight, last_step="prediction")
    t, z, x = every(case)
    possible = case["posterior_valid"].bool().transpose(1, 2)
    shape = steps, case.config["K"], case.config["V"]
    reachable = case["posterior_valid"].flatten().bool()
    loss = method.loss_given(
        Batch.of(x[reachable], is_token=torch.ones_like(x[reachable]) > 0),
        Noised(z[reachable], t[reachable]),
    )

    def spread(values):
        """[t, x0, x_t], with 0 at what cannot happen."""
        full = torch.zeros(len(t), dtype=torch.float64)
        full[reachable] = values.flatten().double()
        return full.view(shape).transpose(1, 2)

    prior = spread(chain.prior_nats(x[reachable]))
    divergence = (spread(loss.per_token) - prior) / steps
    case.close(divergence, "kl_t_x0_xt")
    case.close(torch.where(possible, spread(loss.cross_entropy), 0), "ce_t_x0_xt")
    case.close(divergence + weight * spread(loss.cross_entropy), "hybrid_t_x0_xt")
    total = (loss.per_token + weight * steps * loss.cross_entropy).sum() / reachable.sum()
    torch.testing.assert_close(loss.objective, total)

    chance = case["Qbar"][1:, : case.config["V"]]
    terms = (chance * divergence).sum(-1)
    second = (chance * spread(loss.cross_entropy)).sum(-1)
    case.close(terms, "L_t")
    case.close(second, "CE_t")
    case.close((terms + weight * second).mean(0), "hybrid_uniform_t")
    at_end = chain.prior_nats(torch.arange(case.config["V"])[None])[0]
    left = float(case["Qbar"][-1, 0, 0])
    if case.config["mask_id"] is not None and left > 0:
        for key in ("L_T", "L_vb", "hybrid_sum"):
            assert bool(torch.isinf(case[key]).all())
        torch.testing.assert_close(at_end, torch.full_like(at_end, left * math.log(len(at_end))))
        return
    case.close(chain.prior(), "prior")
    case.close(at_end, "L_T")
    case.close(at_end + terms.sum(0), "L_vb")
    case.close(at_end + (terms + weight * second).sum(0), "hybrid_sum")


@pytest.mark.parametrize("name", named("md4/d3pm_*", holding="L_t_carry_over"))
def test_equation_4_in_the_last_step_copies_visible_tokens(name):
    case, chain = chain_of(name)
    method = D3PM(Recorded(case["logits"]), transition=chain)
    t, z, x = every(case)
    loss = method.loss_given(Batch.of(x, is_token=torch.ones_like(x) > 0), Noised(z, t))
    divergence = (loss.per_token - chain.prior_nats(x)) / case.config["T"]
    divergence = divergence.view(len(case["Q"]), case.config["K"], -1).transpose(1, 2)
    terms = (case["Qbar"][1:, : case.config["V"]] * divergence).sum(-1)
    case.close(terms, "L_t_carry_over")
    # Infinite with the stored prior where the chain leaves tokens visible.
    case.close(terms.sum(0) + case["L_T"], "L_vb_carry_over")


@cases
def test_exact_likelihood_of_the_chain(name):
    """The sampler's own steps, multiplied out from the stored prior."""
    case, chain = chain_of(name)
    steps, size = case.config["T"], case.config["K"]
    method = D3PM(Recorded(case["logits"]), transition=chain, last_step="prediction")
    states, ones = torch.arange(size)[:, None], torch.ones(size, dtype=torch.float64)
    law = case["prior"]
    for t in range(steps, 0, -1):
        mean = method.log_mean(states, ones * t / steps)
        law = law @ method.step(mean, states, ones * (t - 1) / steps, ones * t / steps)[:, 0]
    case.close(-law[: case.config["V"]].log(), "neg_log_p")


def test_mdlm_loss_with_and_without_mass_on_the_mask():
    case = load("md4/mdlm_d3pm_loss")
    x, z, mask = case["x0"], case["xt"], case.config["mask_id"]
    for steps in case.config["T"]:
        chain = make_transition("absorbing", case.config["V"], "jsd", steps)
        t = torch.round(case[f"T{steps}/t"] * steps).long()
        log_mean = case["logits"].log_softmax(-1)
        case.close(log_mean, "logp_d3pm")
        for key, prediction in (("d3pm", log_mean), ("subs", case["logp_subs"])):
            ours = steps * chain.divergence(prediction, x, z, t - 1, t)
            case.close(ours, f"T{steps}/L_vb_{key}")
        first = chain.divergence(log_mean, x, z, 0 * t, 0 * t + 1)
        # -log p(x | mask) with the law p ~ (mean(x) / T, mean(mask)) of equation 4
        share = log_mean[..., mask].exp()
        away = log_mean.gather(-1, x[..., None])[..., 0]
        expected = torch.log1p(share * (steps - 1)) - away
        torch.testing.assert_close(first, torch.where(z == mask, expected, 0))
