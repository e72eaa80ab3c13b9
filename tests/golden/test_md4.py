"""MD4's schedules, losses and sampling steps.

MD4's name for a schedule is ours with the prefix `md4:`; that variant stays eps away from 0 and 1.
The float32 files hold the same runs as the authors make them; we compute in the file's precision.
"""

from __future__ import annotations

import itertools
import math
import re

import pytest
import torch

import partita
from partita.categorical import Decoding, kept_by_top_p, weights
from partita.methods import MD4
from partita.methods.masked_method import TIME_SCALE
from partita.networks import TransformerConfig
from partita.networks.base import Network
from partita.processes.corruption import Corrupted, Discrete
from partita.processes.draws import even_times, low_discrepancy
from partita.processes.masked import prior_nats, reconstruction_nats, reverse
from partita.randomness import Noise
from partita.schedules import discretize, make_schedule, sampling_grid
from partita.schedules.reference import MD4_EPS, Truncated
from tests.golden.cases import Case, load, named
from tests.support.md4_references import plain_schedule, scalar, stopped_schedule

schedule_cases = pytest.mark.parametrize("name", named("md4/md4_schedules*"))


def schedules_of(case: Case):
    """The case's schedules by their names."""
    return {name: stopped_schedule(name, case.config["eps"]) for name in case.config["schedules"]}


# Schedules ---------------------------------------------------------------------------------------


@schedule_cases
def test_schedules(name):
    case = load(name)
    t = case["t"]
    for name, schedule in schedules_of(case).items():
        alpha, hidden = schedule.alpha(t), schedule.one_minus_alpha(t)
        case.close(alpha, f"{name}/alpha")
        # Exponents below 1 have the slope, and so the weight, -inf at 0, in theirs and in ours.
        case.close(schedule.derivative(t), f"{name}/dalpha")
        # Their weight multiplies log p, ours the cross-entropy: the sign differs.
        case.close(-schedule.weight(t), f"{name}/dgamma_times_alpha")
        case.close(torch.log(alpha / hidden), f"{name}/logsnr")
        case.close(plain_schedule(name).alpha(t), f"{name}/alpha_raw")


@schedule_cases
def test_schedules_by_name_are_those_of_the_reference(name):
    for one in load(name).config["schedules"]:
        assert make_schedule(f"md4:{one}") == Truncated(plain_schedule(one), MD4_EPS, MD4_EPS)


# Losses ------------------------------------------------------------------------------------------


class Recorded(Network):
    """A network that answers with recorded logits [B, L, V] and remembers what it was shown."""

    def __init__(self, logits):
        length, size = logits.shape[1:]
        self.config = TransformerConfig(
            vocab_size=size + 1, output_size=size, length=length, time=True
        )
        self.logits = logits

    def __call__(self, tokens, *, queries, scalar=None, label=None):  # noqa: ARG002
        self.tokens, self.scalar = tokens, scalar
        return self.logits[queries.rows, queries.positions]


def flat(case: Case, key):
    """Text [B, L, ...] as it is; an image's axes become one."""
    shape = case.config["data_shape"]
    return case[key].flatten(1, len(shape))


def recorded_loss(case: Case, network, schedule, t, weight):
    """Our loss for the recorded noise; the network must be shown their state and their time."""
    mask_id = case.config["mask_id"]
    tokens, state = flat(case, "x0"), flat(case, "zt")
    masked = state == mask_id
    corruption = Corrupted(masked, weight[:, None].expand(masked.shape), t)
    method = MD4(network, mask_id=mask_id, schedule=schedule)
    loss = method.loss_given(partita.Batch.of(tokens, is_token=torch.ones_like(masked)), corruption)
    assert torch.equal(network.tokens, state)
    torch.testing.assert_close(network.scalar, (TIME_SCALE * t).float())
    return loss


loss_cases = pytest.mark.parametrize("file", named("md4/md4_loss_*"))


@loss_cases
def test_times_and_keep_probability(file):
    case = load(file)
    batch = case.config["batch"]
    case.close(low_discrepancy(case["t0"], torch.arange(batch), batch), "t")
    for name, schedule in schedules_of(case).items():
        case.close(schedule.alpha(case["t"]), f"{name}/keep_prob")


@loss_cases
def test_continuous_loss_and_gradient(file):
    case = load(file)
    tokens, size = math.prod(case.config["data_shape"]), case.config["vocab_size"]
    for name, schedule in schedules_of(case).items():
        network = Recorded(flat(case, "logits").clone().requires_grad_())
        loss = recorded_loss(case, network, schedule, case["t"], schedule.weight(case["t"]))
        case.close(loss.per_sequence, f"{name}/cont/loss_diff_per_example")
        bits = loss.objective[None] / math.log(2)
        reconstruction = reconstruction_nats(schedule, tokens, size) / (tokens * math.log(2))
        case.close(bits, f"{name}/cont/loss_diff_bpt")
        case.close(scalar(reconstruction), f"{name}/cont/loss_recon_bpt")
        case.close(bits + reconstruction, f"{name}/cont/loss_bpt")
        bits.sum().backward()
        gradient = f"{name}/cont/grad_logits_of_loss_bpt"
        case.close(network.logits.grad.view(case[gradient].shape), gradient)


@loss_cases
def test_discrete_loss(file):
    case = load(file)
    tokens, size = math.prod(case.config["data_shape"]), case.config["vocab_size"]
    kinds = itertools.product(schedules_of(case).items(), case.config["discrete_T"])
    for (name, schedule), steps in kinds:
        key = f"{name}/T{steps}"
        t = discretize(case["t"], steps)
        case.close(t, f"{key}/t_disc")
        law = Discrete(schedule, steps)
        loss = recorded_loss(case, Recorded(flat(case, "logits")), schedule, t, law.weights(t))
        case.close(loss.per_sequence, f"{key}/loss_diff_per_example")
        bits = loss.objective[None] / math.log(2)
        reconstruction = reconstruction_nats(schedule, tokens, size) / (tokens * math.log(2))
        case.close(bits, f"{key}/loss_diff_bpt")
        case.close(scalar(reconstruction), f"{key}/loss_recon_bpt")
        case.close(bits + reconstruction, f"{key}/loss_bpt")


@loss_cases
def test_end_terms(file):
    """The reference sets the prior term to 0 although alpha(1) = eps, so its value is no bound.

    Ours is the KL to the prior that shows a token, uniformly, with probability eps.
    """
    case = load(file)
    tokens, size = math.prod(case.config["data_shape"]), case.config["vocab_size"]
    missing = tokens * case.config["eps"] * math.log(size)
    assert not case["latent_loss_nats"].any()
    for name, schedule in schedules_of(case).items():
        case.close(scalar(reconstruction_nats(schedule, tokens, size)), "recon_loss_nats")
        assert not case[f"{name}/cont/loss_prior_bpt"].any()
        assert prior_nats(schedule, tokens, size) == pytest.approx(missing, rel=1e-12)
        assert prior_nats(plain_schedule(name), tokens, size) == 0


def test_low_discrepancy_times():
    """Theirs come from a range with a float step, which has one time too many at some sizes."""
    case = load("md4/md4_antithetic_times")
    for setting in case.config["cases"]:
        batch = setting["batch"]
        case.close(
            low_discrepancy(case[f"bs{batch}/t0"], torch.arange(batch), batch), f"bs{batch}/t"
        )
    for batch in case["bad_batch_sizes"].tolist():
        times = even_times(Noise.for_batch(case.facts["seed"], batch), 0, batch)
        assert times.shape == (batch,)
        gaps = times.sort().values.diff()
        torch.testing.assert_close(
            gaps, torch.full_like(gaps, 1 / batch), rtol=0, atol=case.facts["tolerance"]["atol"]
        )


# Sampling ----------------------------------------------------------------------------------------


sampling_cases = pytest.mark.parametrize("file", named("md4/md4_sampling*"))


def agree(case: Case, ours, key, s):
    """Close. Theirs may be NaN where their last time s is below 0; ours is finite there, too."""
    broken = case[key].isnan()
    assert torch.isfinite(ours).all()
    assert s < 0 or not broken.any()
    case.close(torch.where(broken, torch.nan, ours), key, equal_nan=True)


def step_times(case: Case, grid, steps, index):
    """(s, t) of a sampling step for every row, in the case's precision."""
    times = sampling_grid(grid, steps).to(case["logits"].dtype)
    batch = case["logits"].shape[0]
    return times[index + 1].expand(batch), times[index].expand(batch)


def recorded_mean(case: Case):
    """MD4's prediction of x_0 from the recorded logits."""
    method = MD4(Recorded(case["logits"]), mask_id=case.config["mask_id"])
    return method.log_probabilities(case["logits"]).exp()


@sampling_cases
def test_sampling_grids(file):
    """Ours run from exactly 1 to exactly 0; their cosine grid ends at a rounded cos(pi/2)."""
    case = load(file)
    for key in case.keys("grid/"):
        _, name, steps = key.split("/")
        times = sampling_grid(name, int(steps.removeprefix("T")))
        assert (times[0], times[-1]) == (1, 0)
        case.close(torch.stack([times[1:], times[:-1]], -1), key)


@sampling_cases
def test_ancestral_steps(file):
    case = load(file)
    mean, state, mask_id = recorded_mean(case), case["zt"], case.config["mask_id"]
    steps = {key.rpartition("/")[0] for key in case.keys("ancestral/")}
    assert steps
    for step in steps:
        _, name, grid, total, index = step.split("/")
        schedule = stopped_schedule(name, case.config["eps"])
        s, t = step_times(case, grid, int(total.removeprefix("T")), int(index.removeprefix("i")))
        their_s = float(case[f"{step}/s_t_alpha_s_alpha_t"][0])
        scalars = torch.stack([s[0], t[0], schedule.alpha(s)[0], schedule.alpha(t)[0]])
        agree(case, scalars, f"{step}/s_t_alpha_s_alpha_t", their_s)
        all_masked = torch.full_like(state, mask_id)
        everywhere = reverse(mean, all_masked, s, t, schedule, mask_id)
        agree(case, everywhere, f"{step}/probs_masked_rule", their_s)
        agree(case, reverse(mean, state, s, t, schedule, mask_id), f"{step}/probs", their_s)


def stated_step(case: Case, key):
    """(T, i) of the step at which a tensor is recorded, as it says: "T=8, i=4", "i=T//2=4, T=8"."""
    meaning = case.meaning(key)
    steps, index = (re.search(rule, meaning) for rule in (r"\bT=(\d+)", r"\bi=(?:T//2=)?(\d+)"))
    return int(steps[1]), int(index[1])


@sampling_cases
def test_mean_sampler(file):
    """A token from the prediction, then a coin for whether to show it: the ancestral step again."""
    case = load(file)
    settings = {key.rpartition("/")[0] for key in case.keys("mean/")}
    assert settings
    for setting in settings:
        _, name, grid = setting.split("/")
        s, t = step_times(case, grid, *stated_step(case, f"{setting}/unmask_prob"))
        case.close(recorded_mean(case), f"{setting}/z0_probs")
        reveal = stopped_schedule(name, case.config["eps"]).reveal_probability(s, t)
        case.close(reveal[:1], f"{setting}/unmask_prob")


@sampling_cases
def test_decoding_of_leftover_masks(file):
    """What is still hidden at t = 0 becomes the most probable token.

    Under our own schedules alpha(0) = 1, so the last step leaves nothing hidden.
    """
    case = load(file)
    mask_id, state = case.config["mask_id"], case["decode/z_end"]
    model = MD4(Recorded(case["logits"]), mask_id=mask_id, conditioning="none")
    ours = partita.sample(
        model,
        prompt=partita.Prompt(state, state != mask_id),
        sampler="ordered",
        steps=1,
        temperature=0.0,
    )
    assert torch.equal(ours, case["decode/tokens"])
    assert not case["decode/t_seen"].any()
    for name in {key.split("/")[1] for key in case.keys("ancestral/")}:
        end, t = torch.zeros(3), torch.tensor([0.1, 0.5, 1.0])
        assert (plain_schedule(name).reveal_probability(end, t) == 1).all()


@pytest.mark.parametrize("file", named("md4/md4_sampling*", holding="topp"))
def test_top_p(file):
    """Recorded in float32 alone. Tokens tied with the last one that is kept are kept as well."""
    case = load(file)
    logits, mask_id = case["logits"], case.config["mask_id"]
    size = logits.shape[-1]
    for setting in case.stems("/probs_masked_rule", "topp"):
        p, rule = float(setting), f"topp{setting}/probs_masked_rule"
        kept = kept_by_top_p(recorded_mean(case).view(-1, size), p)
        assert torch.equal(kept.view(logits.shape), case[f"topp{setting}/kept"].bool())
        mass = weights(logits.view(-1, size), Decoding(top_p=p)).view(logits.shape)
        name, grid = re.match(r"(\S+) schedule, (\S+) grid", case.meaning(rule)).groups()
        s, t = step_times(case, grid, *stated_step(case, rule))
        ours = reverse(
            mass / mass.sum(-1, keepdim=True),
            torch.full(logits.shape[:-1], mask_id),
            s,
            t,
            stopped_schedule(name, case.config["eps"]),
            mask_id,
        )
        case.close(ours, rule)
    tied, kept = case["topp_ties/logits"], case["topp_ties/kept"].bool()
    p = float(re.search(r"top-p ([\d.]+)", case.meaning("topp_ties/kept"))[1])
    assert torch.equal(kept_by_top_p(tied.flatten(0, -2).softmax(-1), p).view(kept.shape), kept)
