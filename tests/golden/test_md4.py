"""MD4's schedules, losses and sampling steps, and exact enumerations of small MD4 models.

MD4's name for a schedule is ours with the prefix `md4:`; that variant stays eps away from 0 and 1.
The float32 files hold the same runs as the authors make them; we compute in the file's precision.

Stored but not compared: PGM's partition weights at the complement's time (`pgm/official_weights`),
which are a bound under the linear schedule alone.
"""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
import torch

import partita
from partita.categorical import Decoding, kept_by_top_p, weights
from partita.evaluation.enumeration import exact_log_likelihood
from partita.evaluation.likelihood import nelbo
from partita.methods import MD4
from partita.methods.masked_method import TIME_SCALE
from partita.networks import TransformerConfig
from partita.networks.base import Network
from partita.processes.corruption import Corruption, Discrete, Subset
from partita.processes.draws import even_times, low_discrepancy
from partita.processes.masked import prior_nats, reconstruction_nats, reverse
from partita.randomness import Noise
from partita.schedules import discretise, make_schedule, sampling_grid
from partita.schedules.reference import MD4_EPS, Truncated
from tests.golden.cases import Case, load, named

schedule_cases = pytest.mark.parametrize("name", named("md4/md4_schedules*"))


def plain_schedule(name):
    """Our schedule, from exactly 1 to exactly 0, under MD4's name."""
    if name.startswith("poly"):
        return make_schedule("polynomial", exponent=float(name.removeprefix("poly")))
    return make_schedule(name)


def stopped_schedule(name, eps):
    """The same eps away from both ends; ours of MD4's own eps goes by its name."""
    if eps == MD4_EPS:
        return make_schedule(f"md4:{name}")
    return Truncated(plain_schedule(name), eps, eps)


def schedules_of(case: Case):
    """The case's schedules by their names."""
    return {name: stopped_schedule(name, case.config["eps"]) for name in case.config["schedules"]}


def scalar(value):
    """A number in the shape of a stored one."""
    return torch.tensor([value], dtype=torch.float64)


def schedule_of(name, eps):
    """The plain schedule for "eps0", MD4's for "eps1e-4"."""
    eps = float(eps.removeprefix("eps"))
    return stopped_schedule(name, eps) if eps else plain_schedule(name)


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
    corruption = Corruption(masked, weight[:, None].expand(masked.shape), t)
    method = MD4(network, mask_id=mask_id, schedule=schedule)
    loss = method.loss_under(tokens, corruption, torch.ones_like(masked))
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
        t = discretise(case["t"], steps)
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


# Exact enumerations ------------------------------------------------------------------------------


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
        corruption = Corruption(masked, row_weight.expand(masked.shape), row_times)
        loss = model.loss_under(tokens, corruption, torch.ones_like(masked)).per_sequence
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
    corruption = Corruption(toy.masked, (chance * weight).expand(toy.masked.shape), None)
    model = toy.at("timeindep", torch.zeros(1))[0]
    loss = model.loss_under(toy.tokens, corruption, torch.ones_like(toy.masked))
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
        ours = nelbo(method, tokens, law=law, replicates=32, batch_size=len(tokens))
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
