"""Self-distillation through time on tables: plans, targets and where a student ends, enumerated.

From every state of a short text all plans and all draws of the teacher are written out with their
chances. That gives the law of the targets, and with it the expected loss as a function of a free
table of student logits, whose minimum is known in closed form.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass

import pytest
import torch
from scipy import stats
from torch import Tensor

from partita.contracts.batch import Batch
from partita.distillation import DIVERGENCES, SDTT
from partita.distillation.sdtt import Planned, reveal_plan, teacher_targets
from partita.processes.draws import even_times, positive_time
from partita.randomness import Noise, Purpose
from partita.schedules import make_schedule
from tests.laws.tables import (
    LEVEL,
    MASK,
    VOCAB,
    all_sequences,
    all_states,
    chain_step,
    data_law,
    random_logits,
    state_index,
    table_mdlm,
    table_pgm,
)
from tests.support.distillation_rounds import boundaries, first_round

SCHEDULES = {
    name: make_schedule(name)
    for name in ("linear", "cosine", "cosine-squared", "geometric", "mdlm:loglinear", "md4:linear")
}
TABLES = {"mdlm": table_mdlm, "pgm": table_pgm}
TEACHER, DATA = 0, 3  # seeds
EVERY_DIVERGENCE = ("reverse-kl", "forward-kl", "total-variation", "mse", "log-mse")

schedules = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=list(SCHEDULES))
substeps = pytest.mark.parametrize("k", [2, 3])
tables = pytest.mark.parametrize("table", TABLES.values(), ids=list(TABLES))
divergences = pytest.mark.parametrize("divergence", EVERY_DIVERGENCE)
kullback_leibler = pytest.mark.parametrize("divergence", ["forward-kl", "reverse-kl"])


# Plans -------------------------------------------------------------------------------------------


def step_law(t, options, schedule):
    """The chance of a token that is hidden at t to be asked for in each step: [times, k].

    From one reverse step to the next: a token that is not revealed in one may be in the next, and
    the last step asks for all that are left.
    """
    law, left = [], torch.ones_like(t)
    for step in range(options.substeps - 1):
        now, later = ((t - passed * options.step_size).clamp(min=0) for passed in (step, step + 1))
        # Nothing is hidden at time 0, and 0 of 0 tokens are revealed there.
        revealed = schedule.reveal_probability(later, now).nan_to_num(1.0)
        law.append(left * revealed)
        left = left * (1 - revealed)
    return torch.stack([*law, left], -1)


TIMES = torch.tensor([1.0, 0.83, 0.5, 0.3, 0.12, 0.01], dtype=torch.float64)  # some below k dt


@schedules
@substeps
@pytest.mark.parametrize("steps", [4, 9])
def test_plans_have_the_law_of_ancestral_steps(schedule, k, steps):
    options = first_round(k, steps)
    ends = boundaries(TIMES, options, schedule)
    law = torch.diff(ends, prepend=torch.zeros(len(TIMES), 1), append=torch.ones(len(TIMES), 1))
    torch.testing.assert_close(law, step_law(TIMES, options, schedule), atol=1e-12, rtol=0)


@schedules
@substeps
def test_drawn_plans_have_this_law(schedule, k):
    options, rows = first_round(k, 6), 4000
    t = TIMES.repeat_interleave(rows)
    v = Noise.for_batch(11, len(t)).uniform(Purpose.ORDER, 0, torch.arange(3)[None])
    plan = reveal_plan(t, options, schedule, v).view(len(TIMES), -1)
    for drawn, law in zip(plan, step_law(TIMES, options, schedule), strict=True):
        assert_counts(drawn.bincount(minlength=k), law)


def test_tokens_have_plans_of_their_own():
    """Two tokens of a row: the joint law of their steps is a product."""
    options, t = first_round(3, 6), torch.full((20_000,), 0.7, dtype=torch.float64)
    v = Noise.for_batch(12, len(t)).uniform(Purpose.ORDER, 0, torch.arange(2)[None])
    law = step_law(t[:1], options, SCHEDULES["cosine"])[0]
    plan = reveal_plan(t, options, SCHEDULES["cosine"], v)
    assert_counts(
        (plan[:, 0] * 3 + plan[:, 1]).bincount(minlength=9), (law[:, None] * law).flatten()
    )


def assert_counts(counts: Tensor, law: Tensor) -> None:
    """Chi-square test at `LEVEL`, with rare cells pooled; the impossible must not happen."""
    torch.testing.assert_close(law.sum(), torch.ones((), dtype=law.dtype))
    assert int(counts[law == 0].sum()) == 0
    expected = law * counts.sum()
    rare = expected < 5
    pairs = [torch.cat([x[~rare], x[rare].sum()[None]]) for x in (counts.double(), expected)]
    observed, expected = (x[pairs[1] > 1e-9] for x in pairs)
    if len(expected) > 1:
        p_value = stats.chisquare(observed.numpy(), expected.numpy(), sum_check=False).pvalue
        assert p_value > LEVEL, f"p = {p_value:.2e}"


# Enumeration -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Futures:
    """Every plan and every draw of the teacher, from every state: one row for each."""

    states: Tensor
    plan: Tensor
    u: Tensor
    """Numbers by which the teacher draws the tokens of this row."""
    asked: Tensor
    """The number of the state in which each hidden token is asked for."""
    drawn: Tensor
    """The chance of the draws, given the plan."""

    @property
    def hidden(self) -> Tensor:
        return self.states == MASK

    def chances(self, t, options, schedule):
        """The chance of each row given its state, at each time: [times, rows]."""
        law = step_law(t, options, schedule)[:, self.plan]
        return torch.where(self.hidden, law, 1.0).prod(-1) * self.drawn

    def select(self, rows):
        return Futures(*(part[rows] for part in vars(self).values()))


@functools.cache
def futures(length, k):
    """Those of the teacher's table."""
    mean = teacher_means(length).tolist()
    found = [row for state in all_states(length).tolist() for row in _futures(mean, state, k)]
    states, plan, u, asked, drawn = map(torch.tensor, zip(*found, strict=True))
    return Futures(states, plan, u.double(), asked, drawn.double())


def teacher_means(length):
    return random_logits(length, TEACHER).softmax(-1)


def _futures(mean, state, k):
    hidden = [place for place, token in enumerate(state) if token == MASK]
    for steps in itertools.product(range(k), repeat=len(hidden)):
        plan = dict(zip(hidden, steps, strict=True))
        for u, asked, chance in _draws(mean, tuple(state), plan, 0, k):
            rows = [
                [part.get(place, 0) for place in range(len(state))] for part in (plan, u, asked)
            ]
            rows[1] = [float(number) for number in rows[1]]
            yield state, *rows, chance


def _draws(mean, state, plan, step, k):
    """What may happen from a step on: uniform numbers, states in which tokens are asked for."""
    if step == k:
        yield {}, {}, 1.0
        return
    now = [place for place, planned in plan.items() if planned == step]
    number = int(state_index(torch.tensor(state)))
    asked = dict.fromkeys(now, number)
    if step == k - 1:
        yield {}, asked, 1.0
        return
    for tokens in itertools.product(range(VOCAB), repeat=len(now)):
        after, u, chance = list(state), {}, 1.0
        for place, token in zip(now, tokens, strict=True):
            law = mean[number][place]
            after[place] = token
            u[place] = sum(law[:token]) + law[token] / 2
            chance *= law[token]
        for later_u, later_asked, later in _draws(mean, tuple(after), plan, step + 1, k):
            yield u | later_u, asked | later_asked, chance * later


def state_law(length, t, schedule):
    """P(z_t = z) of every state under the data, at each time: [times, states]."""
    states, sequences = all_states(length), all_sequences(length)
    hidden = states == MASK
    fits = (hidden[:, None] | (states[:, None] == sequences)).all(-1)
    visible = fits.double() @ data_law(length, DATA)
    rate = schedule.one_minus_alpha(t)[:, None, None]
    return torch.where(hidden, rate, 1 - rate).prod(-1) * visible


def midpoints(count):
    """Times of equal weight that stand for uniform ones."""
    return (torch.arange(count, dtype=torch.float64) + 0.5) / count


class Exact:
    """The expected loss of a student's table: over data, times, masks, plans and draws."""

    def __init__(self, length, options, schedule, t):
        self.length, self.options, self.rows = length, options, futures(length, options.substeps)
        number = state_index(self.rows.states)
        at = state_law(length, t, schedule)[:, number] * self.rows.chances(t, options, schedule)
        self.weights = at.mean(0)
        self.teacher = random_logits(length, TEACHER).log_softmax(-1)
        # How often each target is that of a hidden token: [states, places, states asked].
        row, place = self.rows.hidden.nonzero(as_tuple=True)
        self.met = torch.zeros(len(self.teacher), length, len(self.teacher), dtype=torch.float64)
        where = number[row], place, self.rows.asked[row, place]
        self.met.index_put_(where, self.weights[row], accumulate=True)

    def best(self):
        """log of the mean of the targets, or of their normalised geometric mean."""
        share = self.met / self.met.sum(-1, keepdim=True)
        if self.options.divergence == "forward-kl":
            mean = torch.einsum("slz,zlv->slv", share, self.teacher.exp()).log()
        else:
            mean = torch.einsum("slz,zlv->slv", share, self.teacher).log_softmax(-1)
        return torch.where((all_states(self.length) == MASK)[..., None], mean, 0.0)

    def loss(self, student):
        """Nats of a text, by the library, for the student that the table makes."""
        lesson = self.lesson(student)
        text = self.rows.states.masked_fill(self.rows.hidden, 0)
        loss = lesson.loss_given(
            Batch.of(text, is_token=torch.ones_like(self.rows.hidden)),
            Planned(self.rows.hidden, self.rows.plan, self.rows.u),
        )
        return (self.weights * loss.per_sequence).sum()

    def lesson(self, student):
        return SDTT(student, table_mdlm(random_logits(self.length, TEACHER)), self.options)

    def gradient(self, logits):
        student = table_mdlm(logits)
        self.loss(student).backward()
        return student.network.table.grad[..., :VOCAB]


# Targets -----------------------------------------------------------------------------------------


@substeps
def test_targets_are_asked_for_in_the_enumerated_states(k):
    """All rows of the enumeration at once, each with its own plan and its own draws."""
    rows, table = futures(3, k), random_logits(3, TEACHER)
    row, place = rows.hidden.nonzero(as_tuple=True)
    for method in (table_mdlm(table), table_pgm(table)):
        found = teacher_targets(method, rows.states, rows.hidden, rows.plan, rows.u, substeps=k)
        expected = table.log_softmax(-1)[rows.asked[row, place], place]
        torch.testing.assert_close(found[:, :VOCAB], expected)


@pytest.mark.parametrize("state", [(MASK, MASK, MASK), (MASK, 1, MASK), (2, MASK, 0)])
@pytest.mark.parametrize(
    ("k", "name", "time"), [(2, "linear", 0.9), (3, "cosine", 0.6), (2, "geometric", 0.1)]
)
@tables
def test_drawn_targets_follow_the_enumerated_law(table, k, name, time, state):
    """The joint law of the states in which the hidden tokens of a text are asked for."""
    options, schedule, count = first_round(k, 5), SCHEDULES[name], 8000
    logits, state = random_logits(3, TEACHER), torch.tensor(state)
    t = torch.full((count,), time, dtype=torch.float64)
    tokens = state.expand(count, -1)
    noise, places = Noise.for_batch(13, count), torch.arange(3)[None]
    plan = reveal_plan(t, options, schedule, noise.uniform(Purpose.ORDER, 0, places))
    u = noise.uniform(Purpose.TOKEN, 0, places)
    targets = teacher_targets(table(logits), tokens, tokens == MASK, plan, u, substeps=k)
    asked = states_of(targets[:, :VOCAB], (state == MASK).nonzero()[:, 0].repeat(count), logits)

    rows = futures(3, k)
    rows = rows.select((rows.states == state).all(-1))
    powers = len(logits) ** torch.arange(int((state == MASK).sum()))
    outcomes, which = (rows.asked[:, state == MASK] * powers).sum(-1).unique(return_inverse=True)
    law = torch.zeros(len(outcomes), dtype=torch.float64)
    law.index_add_(0, which, rows.chances(t[:1], options, schedule)[0])
    drawn = (asked.view(count, -1) * powers).sum(-1)
    assert torch.isin(drawn, outcomes).all()
    assert_counts(torch.searchsorted(outcomes, drawn).bincount(minlength=len(outcomes)), law)


def states_of(targets, places, logits):
    """The number of the state that a target was predicted in: no two predictions are alike."""
    gaps = (logits.log_softmax(-1)[:, places] - targets).abs().amax(-1)
    assert (gaps.amin(0) < 1e-12).all()
    return gaps.argmin(0)


# Where a student ends ----------------------------------------------------------------------------

CASES = [(2, 2, "linear"), (3, 2, "cosine"), (3, 3, "geometric")]
cases = pytest.mark.parametrize(("length", "k", "name"), CASES)


def exact(length, k, name, divergence, times=40):
    return Exact(length, first_round(k, 5, divergence), SCHEDULES[name], midpoints(times))


@cases
@kullback_leibler
def test_the_loss_is_least_at_the_mean_of_the_targets(length, k, name, divergence):
    """forward-kl: their mean. reverse-kl: their normalised geometric mean."""
    expected = exact(length, k, name, divergence)
    best = expected.best()
    assert float(expected.gradient(best).abs().max()) < 1e-9
    with torch.no_grad():
        least = expected.loss(table_mdlm(best))
        generator = torch.Generator().manual_seed(0)
        for size in (1e-3, 0.1, 1.0):
            for _ in range(5):
                moved = best + size * torch.randn(best.shape, generator=generator, dtype=best.dtype)
                assert expected.loss(table_mdlm(moved)) > least


@cases
@kullback_leibler
def test_a_teacher_has_something_to_learn_from_itself(length, k, name, divergence):
    """But not about the last hidden token, whose target is the teacher's own prediction."""
    expected = exact(length, k, name, divergence)
    slope = expected.gradient(random_logits(length, TEACHER)).abs().amax((1, 2))
    hidden = (all_states(length) == MASK).sum(-1)
    assert (slope[hidden >= 2] > 1e-5).all()
    assert (slope[hidden == 1] < 1e-12).all()
    assert (slope[hidden == 0] == 0).all()


def test_the_two_means_are_different():
    """Neither divergence leads where the other does, nor do they leave the teacher as it is."""
    ends = [exact(3, 2, "cosine", name).best().exp() for name in ("forward-kl", "reverse-kl")]
    hidden = (all_states(3) == MASK).all(-1)
    for one, other in itertools.combinations([*ends, teacher_means(3)], 2):
        assert float((one - other)[hidden].abs().max()) > 0.01


@divergences
def test_the_enumerated_loss_is_that_of_the_formula(divergence):
    """The library's loss of every row, against its divergence of the enumerated targets."""
    expected = exact(3, 2, "cosine", divergence)
    student = random_logits(3, 7)
    state, place, asked = expected.met.nonzero(as_tuple=True)
    apart = DIVERGENCES[divergence](
        student.log_softmax(-1)[state, place], expected.teacher[asked, place]
    )
    nats = (expected.met[state, place, asked] * apart).sum()
    torch.testing.assert_close(expected.loss(table_mdlm(student)).detach(), nats)


@kullback_leibler
def test_an_exact_optimiser_ends_there(divergence):
    expected = exact(2, 2, "linear", divergence)
    student = table_mdlm(random_logits(2, TEACHER))
    optimiser = torch.optim.LBFGS(
        student.parameters(),
        max_iter=300,
        tolerance_grad=1e-12,
        tolerance_change=1e-16,
        line_search_fn="strong_wolfe",
    )

    def closure():
        optimiser.zero_grad()
        loss = expected.loss(student)
        loss.backward()
        return loss

    optimiser.step(closure)
    hidden = all_states(2) == MASK
    ended = student.network.table.detach()[..., :VOCAB].softmax(-1)
    torch.testing.assert_close(ended[hidden], expected.best().exp()[hidden], atol=1e-6, rtol=0)


def drawn_texts(length, count, seed):
    generator = torch.Generator().manual_seed(seed)
    which = torch.multinomial(data_law(length, DATA), count, True, generator=generator)
    return all_sequences(length)[which]


@divergences
@tables
def test_drawn_losses_have_the_enumerated_mean(table, divergence):
    """The loss as training calls it: times, masks, plans and draws from noise."""
    k, name, count = 3, "cosine", 12_000
    expected = exact(2, k, name, divergence, times=500)
    logits = random_logits(2, 7)
    mean = float(expected.loss(table_mdlm(logits)).detach())
    teacher = table(random_logits(2, TEACHER), schedule=SCHEDULES[name])
    lesson = SDTT(table(logits), teacher, expected.options)
    texts = drawn_texts(2, count, 14)
    nats = lesson.loss(Batch.of(texts), Noise.for_batch(15, count)).per_sequence.detach()
    # Times are spread evenly over the batch, which only lowers the deviation of its mean.
    assert abs(float(nats.mean()) - mean) < 4 * float(nats.std()) / math.sqrt(count)


@kullback_leibler
def test_training_on_drawn_batches_ends_there(divergence):
    expected = exact(2, 2, "linear", divergence, times=500)
    student, steps = table_mdlm(random_logits(2, TEACHER)), 150
    lesson = expected.lesson(student)
    optimiser = torch.optim.Adam(student.parameters(), lr=0.1)
    rate = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1 - step / steps)
    texts = drawn_texts(2, 1024, 16)
    with torch.no_grad():
        start, least = (
            float(expected.loss(table_mdlm(logits)))
            for logits in (random_logits(2, TEACHER), expected.best())
        )
    for step in range(steps):
        optimiser.zero_grad()
        lesson.loss(Batch.of(texts), Noise.for_batch(17, len(texts)), step).objective.backward()
        optimiser.step()
        rate.step()
    with torch.no_grad():
        end = float(expected.loss(student))
    assert least < end < least + 0.03 * (start - least)


# What the student's step is then -----------------------------------------------------------------


def teachers_steps(length, t, options, schedule):
    """Transitions of k - 1 ancestral steps from t, and of one that reveals all that is left."""
    method = table_mdlm(random_logits(length, TEACHER))
    times = [max(t - step * options.step_size, 0.0) for step in range(options.substeps)]
    law = torch.eye((VOCAB + 1) ** length, dtype=torch.float64)
    for now, later in itertools.pairwise([*times, 0.0]):
        if now > 0:
            law = law @ chain_step(method, length, later, now, schedule)
    return law


@pytest.mark.parametrize("name", ["linear", "cosine", "geometric"])
@pytest.mark.parametrize(
    ("k", "steps", "t"), [(2, 2, 1.0), (3, 3, 1.0), (2, 8, 0.25), (2, 6, 0.8), (3, 7, 0.6)]
)
def test_one_step_of_the_mean_has_the_marginals_of_the_teachers_steps(k, steps, t, name):
    """Given t, from every state: the law of each single token.

    In the first three cases the steps end at 0, and these are the teacher's k steps themselves.
    Elsewhere the last of them reveals what would be hidden still, as the targets do.
    """
    schedule, options = SCHEDULES[name], first_round(k, steps, "forward-kl")
    time = torch.tensor([t], dtype=torch.float64)
    expected = Exact(3, options, schedule, time)
    law, states = teachers_steps(3, t, options, schedule), all_states(3)
    marginals = torch.stack(
        [law @ (states[:, place, None] == torch.arange(VOCAB)).double() for place in range(3)], 1
    )
    seen = (state_law(3, time, schedule)[0] > 0)[:, None] & (states == MASK)
    assert seen.any()
    torch.testing.assert_close(expected.best().exp()[seen], marginals[seen])


def test_one_step_of_the_mean_has_not_the_joint_law():
    """A student draws the tokens of a step independently of each other: that is what is lost."""
    options, schedule = first_round(2, 2, "forward-kl"), SCHEDULES["linear"]
    one = torch.ones(1, dtype=torch.float64)
    mean = Exact(2, options, schedule, one).best()[-1].exp()  # from all masks
    law = teachers_steps(2, 1.0, options, schedule)[-1, state_index(all_sequences(2))]
    assert float((law - (mean[0, :, None] * mean[1]).flatten()).abs().max()) > 1e-3


# Divergences -------------------------------------------------------------------------------------


def two_predictions(rows=40, mask=True):
    generator = torch.Generator().manual_seed(4)
    logits = 2 * torch.randn(2, rows, VOCAB + 1, generator=generator, dtype=torch.float64)
    if mask:
        logits[..., MASK] = -torch.inf
    return logits.log_softmax(-1).unbind()


def test_every_divergence_is_tested():
    assert set(DIVERGENCES) == set(EVERY_DIVERGENCE)


@divergences
def test_a_divergence_is_zero_where_both_agree_and_positive_elsewhere(divergence):
    student, teacher = two_predictions()
    apart = DIVERGENCES[divergence]
    assert (apart(teacher, teacher) == 0).all()
    assert (apart(student, teacher) > 0).all()
    nearly = (teacher + 1e-3 * student.masked_fill(student.isneginf(), 0)).log_softmax(-1)
    assert (apart(nearly, teacher) > 0).all()
    assert (apart(nearly, teacher) < apart(student, teacher)).all()


@divergences
def test_a_column_that_neither_can_take_has_no_part(divergence):
    """Values and gradients are those without the column."""
    student, teacher = (part.clone() for part in two_predictions())
    student.requires_grad_()
    nats = DIVERGENCES[divergence](student, teacher)
    (slope,) = torch.autograd.grad(nats.sum(), student)
    short = student.detach()[:, :MASK].requires_grad_()
    without = DIVERGENCES[divergence](short, teacher[:, :MASK])
    (expected,) = torch.autograd.grad(without.sum(), short)
    assert nats.isfinite().all()
    assert (slope[:, MASK] == 0).all()
    torch.testing.assert_close(nats, without)
    torch.testing.assert_close(slope[:, :MASK], expected)


@divergences
@pytest.mark.parametrize("same", [True, False])
def test_gradients_reach_the_logits_without_nan(divergence, same):
    """Through SUBS, which sets the mask's logit to -inf; also where student and teacher agree."""
    student, teacher = two_predictions(mask=False)
    logits = (teacher if same else student).clone().requires_grad_()
    masked = [
        part.masked_fill(torch.arange(VOCAB + 1) == MASK, -torch.inf).log_softmax(-1)
        for part in (logits, teacher)
    ]
    DIVERGENCES[divergence](*masked).sum().backward()
    assert logits.grad.isfinite().all()
    assert (logits.grad[:, MASK] == 0).all()
    assert bool(logits.grad.any()) != same or divergence in ("reverse-kl", "forward-kl")
    if same:
        torch.testing.assert_close(logits.grad, torch.zeros_like(logits), atol=1e-14, rtol=0)


@divergences
def test_gradients_are_the_slopes_of_the_divergence(divergence):
    student, teacher = two_predictions(rows=5, mask=False)

    def of_logits(logits):
        return DIVERGENCES[divergence](logits.log_softmax(-1), teacher)

    assert torch.autograd.gradcheck(of_logits, student.clone().requires_grad_())


def test_divergences_by_hand():
    """One token, three numbers: each definition written out."""
    p, q = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.3, 0.6]], dtype=torch.float64)
    by_hand = {
        "forward-kl": sum(b * math.log(b / a) for a, b in zip(p, q, strict=True)),
        "reverse-kl": sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)),
        "total-variation": 0.4,
        "mse": (0.4**2 + 0.4**2) / 3,
        "log-mse": (math.log(5) ** 2 + math.log(3) ** 2) / 3,
    }
    for name, value in by_hand.items():
        found = DIVERGENCES[name](p.log()[None], q.log()[None])
        assert float(found) == pytest.approx(float(value), rel=1e-12)


def test_total_variation_lies_between_0_and_1():
    student, teacher = two_predictions()
    apart = DIVERGENCES["total-variation"]
    assert (apart(student, teacher) <= 1).all()
    torch.testing.assert_close(apart(student, teacher), apart(teacher, student))
    certain = torch.full((2, VOCAB), -torch.inf, dtype=torch.float64)
    certain[0, 0] = certain[1, 2] = 0.0
    assert apart(certain[:1], certain[1:]).item() == 1


def test_a_token_that_the_teacher_excludes_costs_what_it_should():
    """No target asks for it, so KL(teacher || student) is finite; the other one is not."""
    teacher = torch.tensor([[0.0, -torch.inf]], dtype=torch.float64)
    student = torch.tensor([[0.25, 0.75]], dtype=torch.float64).log()
    assert DIVERGENCES["forward-kl"](student, teacher).item() == pytest.approx(math.log(4))
    assert DIVERGENCES["reverse-kl"](student, teacher).item() == math.inf


# The loss as training calls it -------------------------------------------------------------------


def lesson_of(table, length=3, divergence="reverse-kl", k=2):
    student, teacher = (table(random_logits(length, seed)) for seed in (7, TEACHER))
    return SDTT(student, teacher, first_round(k, 6, divergence))


def asked_of(method):
    """A list that a method's network fills: the (row, position) pairs of each call."""
    calls = []

    def note(_module, _args, told, _answer):
        calls.append(list(zip(*(part.tolist() for part in told["queries"]), strict=True)))

    method.network.register_forward_hook(note, with_kwargs=True)
    return calls


TEXTS = all_sequences(3)


@tables
@divergences
def test_the_same_noise_gives_the_same_loss(table, divergence):
    lesson, noise = lesson_of(table, divergence=divergence), Noise.for_batch(1, len(TEXTS))
    first, again = (lesson.loss(Batch.of(TEXTS), noise, 3) for _ in range(2))
    assert torch.equal(first.per_token, again.per_token)
    assert torch.equal(first.objective, again.objective)
    for other in (
        lesson.loss(Batch.of(TEXTS), noise, 4),
        lesson.loss(Batch.of(TEXTS), Noise.for_batch(2, len(TEXTS)), 3),
    ):
        assert not torch.equal(first.per_token, other.per_token)


@tables
def test_rows_are_the_same_in_any_batch(table):
    """Times are spread over the global batch; the rest of a row's noise is its own."""
    lesson, rows = lesson_of(table), len(TEXTS)
    whole = lesson.loss(Batch.of(TEXTS), Noise.for_batch(5, rows), 4)
    for first, last in ((1, 3), (3, 9), (9, rows)):
        noise = Noise.for_batch(5, last - first, first)
        part = lesson.loss(Batch.of(TEXTS[first:last], size=rows), noise, 4)
        torch.testing.assert_close(part.per_token, whole.per_token[first:last])
        assert torch.equal(part.counted, whole.counted[first:last])
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(0))
    moved = lesson.loss(Batch.of(TEXTS[order]), Noise.for_batch(5, rows).select(order), 4)
    torch.testing.assert_close(moved.per_token, whole.per_token[order])


@tables
def test_the_objective_is_nats_of_hidden_tokens_over_real_ones(table):
    lesson = lesson_of(table)
    loss = lesson.loss(Batch.of(TEXTS), Noise.for_batch(6, len(TEXTS)))
    assert (loss.per_token[~loss.counted] == 0).all()
    assert (loss.per_token[loss.counted] > -1e-12).all()
    assert int(loss.tokens) == TEXTS.numel()
    assert 0 < int(loss.counted.sum()) < TEXTS.numel()
    torch.testing.assert_close(loss.objective, loss.per_token.sum() / TEXTS.numel())


@tables
def test_the_teacher_is_left_as_it_is(table):
    student, teacher = table(random_logits(3, 7)), table(random_logits(3, TEACHER))
    teacher.train()
    lesson = SDTT(student, teacher, first_round(2, 6))
    assert not teacher.training
    before = teacher.network.table.detach().clone()
    optimiser = torch.optim.SGD([*student.parameters(), *teacher.parameters()], lr=1.0)
    lesson.loss(Batch.of(TEXTS), Noise.for_batch(7, len(TEXTS))).objective.backward()
    optimiser.step()
    assert teacher.network.table.grad is None
    assert not teacher.network.table.requires_grad
    assert torch.equal(teacher.network.table, before)
    assert student.network.table.grad.any()


@tables
@substeps
def test_a_teacher_is_asked_once_about_each_hidden_token(table, k):
    lesson = lesson_of(table, k=k)
    asked, guessed = asked_of(lesson.teacher), asked_of(lesson.student)
    loss = lesson.loss(Batch.of(TEXTS), Noise.for_batch(8, len(TEXTS)))
    hidden = [tuple(pair) for pair in loss.counted.nonzero().tolist()]
    assert sorted(itertools.chain(*asked)) == hidden
    assert guessed == [hidden]
    assert len(asked) == k  # here every step has tokens of its own
    assert all(asked)


def test_hiding_planning_and_drawing_have_numbers_of_their_own():
    """What is hidden says nothing of when it is revealed, nor that of what is drawn."""
    lesson, rows, calls = lesson_of(table_mdlm), 6000, []
    lesson.teacher.network.register_forward_hook(
        lambda _module, args, told, answer: calls.append((args[0], told["queries"], answer)),
        with_kwargs=True,
    )
    noise = Noise.for_batch(18, rows)
    hidden = lesson.loss(Batch.of(TEXTS[torch.arange(rows) % len(TEXTS)]), noise).counted
    (_, asked, logits), (revealed, _, _) = calls

    t = positive_time(even_times(noise, 0, rows))
    in_time = step_law(t, lesson.options, lesson.teacher.schedule)[hidden.nonzero()[:, 0], 0]
    assert_mean(torch.tensor(len(asked.rows)), in_time)
    drawn, law = revealed[asked.rows, asked.positions], logits[:, :VOCAB].softmax(-1)
    for token in range(VOCAB):
        assert_mean((drawn == token).sum(), law[:, token])


def assert_mean(count, chances):
    """A number of independent events, each with its own chance, is within 4 deviations."""
    deviation = (chances * (1 - chances)).sum().sqrt()
    assert abs(float(count - chances.sum())) < 4 * float(deviation)


@tables
def test_a_step_without_tokens_costs_no_call(table):
    lesson = lesson_of(table, k=3)
    asked = asked_of(lesson.teacher)
    hidden = torch.ones_like(TEXTS, dtype=torch.bool)
    for step in range(3):
        plan = torch.full_like(TEXTS, step)
        lesson.loss_given(
            Batch.of(TEXTS, is_token=hidden),
            Planned(hidden, plan, torch.zeros(TEXTS.shape).double()),
        )
        assert len(asked) == step + 1


@tables
def test_padding_never_counts_and_is_never_asked_for(table):
    lesson = lesson_of(table)
    valid = torch.rand(TEXTS.shape, generator=torch.Generator().manual_seed(1)) < 0.6
    asked, guessed = asked_of(lesson.teacher), asked_of(lesson.student)
    noise = Noise.for_batch(9, len(TEXTS))
    loss = lesson.loss(Batch.of(TEXTS, is_token=valid), noise)
    assert not (loss.counted & ~valid).any()
    assert not loss.per_token[~valid].any()
    assert int(loss.tokens) == int(valid.sum())
    torch.testing.assert_close(loss.objective, loss.per_token.sum() / valid.sum())
    pairs = list(itertools.chain(*asked, *guessed))
    assert pairs
    assert all(valid[pair] for pair in pairs)
    # What stands there is nothing to anybody.
    other = torch.where(valid, TEXTS, (TEXTS + 1) % VOCAB)
    assert torch.equal(
        lesson.loss(Batch.of(other, is_token=valid), noise).per_token, loss.per_token
    )


def nothing_hidden(lesson):
    hidden = torch.zeros_like(TEXTS, dtype=torch.bool)
    numbers = torch.zeros(TEXTS.shape, dtype=torch.float64)
    return lesson.loss_given(
        Batch.of(TEXTS, is_token=~hidden), Planned(hidden, torch.zeros_like(TEXTS), numbers)
    )


@tables
def test_texts_without_hidden_tokens_have_no_loss(table):
    lesson = lesson_of(table)
    asked = asked_of(lesson.teacher)
    loss = nothing_hidden(lesson)
    assert float(loss.objective.detach()) == 0
    assert not loss.per_token.any()
    assert not loss.counted.any()
    assert int(loss.tokens) == TEXTS.numel()
    assert not list(itertools.chain(*asked))


@tables
def test_texts_without_hidden_tokens_have_a_gradient_of_zero(table):
    """A method's own loss does: a step of training must not fail where a batch shows all it has.

    One short text is enough, since its time may be near 0.
    """
    lesson = lesson_of(table)
    nothing_hidden(lesson).objective.backward()
    gradient = lesson.student.network.table.grad
    assert gradient is None or not gradient.any()
