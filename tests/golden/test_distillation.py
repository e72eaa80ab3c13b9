"""Self-distillation through time against the reference: divergences, targets, losses, times.

The reference has four faults, and ours is compared with what they leave right:

- its mask column takes part in what it calls `mse` and `tvd`, which are distances of logarithms;
- in the partition variant a mask of logit 0 is normalised with the rest and then removed, so that
  rows sum to less than 1;
- the times of its teacher's steps are not t, t - dt, ...; they decide which tokens are revealed
  when, so the recorded trajectories are forced upon our teacher;
- it averages over hidden tokens, our loss over real ones: here our sums are divided as theirs are.
"""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from partita.contracts.batch import Batch
from partita.contracts.layouts import Queries
from partita.distillation import DIVERGENCES, SDTT, DistillationOptions
from partita.distillation.sdtt import Planned, teacher_targets
from partita.errors import InputError
from partita.methods import MDLM, PGM
from partita.methods.mdlm import subs
from partita.models.published.reference import (
    load_dit,
    load_partition,
    rename_dit,
    rename_partition,
)
from partita.networks import TransformerConfig
from partita.networks.base import Network, PartitionNetwork
from partita.processes.draws import even_times, low_discrepancy, positive_time
from partita.randomness import Noise
from partita.schedules import make_schedule
from tests.golden.cases import Case, load, named, parts
from tests.support.distillation_rounds import boundaries, first_round
from tests.support.references import QUERIES, agree, gumbel_argmax

SCHEDULE = make_schedule("mdlm:loglinear")
SAME = {"reverse-kl": "kl_bwd", "forward-kl": "kl_fwd", "log-mse": "mse"}  # ours: theirs


def variants(kind):
    """The cases of a kind, of both variants."""
    return pytest.mark.parametrize("name", named(f"text/*sdtt_{kind}"))


def divergences(kind, suffix=""):
    """The same with each divergence, by our name, of which a case has the value."""

    def stored(case: Case):
        return [ours for ours, name in SAME.items() if f"out.{name}{suffix}" in case.tensors]

    return pytest.mark.parametrize(("name", "divergence"), parts(f"text/*sdtt_{kind}", stored))


def real_columns(case: Case, log_probs):
    """Everything but the mask's column."""
    columns = torch.arange(case.config["vocab_size"]) != case.config["mask_index"]
    return log_probs[..., columns]


def corrected(case: Case, log_probs):
    """Stored log-probabilities of real tokens, as they should be.

    The partition variant's are normalised again: its rows sum to less than 1.
    """
    real = real_columns(case, log_probs)
    return real.log_softmax(-1) if is_partition(case) else real


def is_partition(case: Case):
    return case.config["parameterization"]["name"].startswith("partition")


# Divergences -------------------------------------------------------------------------------------


class Compared:
    """A case's predictions at hidden positions by our parameterisation."""

    def __init__(self, name):
        self.case = case = load(name)
        self.hidden = case["in.xt"] == case.config["mask_index"]
        assert int(case["out.n_masked"]) == int(self.hidden.sum())
        self.logits = case["in.logits_student"].clone().requires_grad_()
        self.student, self.teacher = (
            subs(logits[self.hidden], case.config["mask_index"])
            for logits in (self.logits, case["in.logits_teacher"])
        )

    def mean(self, name):
        """Our divergence as the reference averages it."""
        return DIVERGENCES[name](self.student, self.teacher).sum() / self.hidden.sum()

    def real(self):
        """Both without the mask's column."""
        return real_columns(self.case, self.student), real_columns(self.case, self.teacher)

    def masses(self):
        """log of what each row of theirs sums to, of the student and of the teacher."""
        rows = (logits[self.hidden] for logits in (self.logits, self.case["in.logits_teacher"]))
        if not is_partition(self.case):
            return tuple(torch.zeros(len(row)) for row in rows)
        return tuple(log_mass(real_columns(self.case, row)) for row in rows)

    def close(self, value, key):
        self.case.close(value.detach(), f"out.{key}")
        (gradient,) = torch.autograd.grad(value, self.logits, retain_graph=True)
        self.case.close(gradient, f"out.grad_{key}")


def log_mass(logits):
    """log of the share of the real tokens when a mask of logit 0 is among them."""
    return F.logsigmoid(logits.logsumexp(-1))


def unnormalised_kl(nats, log_first, log_second):
    """KL of two rows that are multiplied by masses, by the divergence of the rows themselves."""
    return log_first.exp() * (nats + log_first - log_second)


@variants("divergences")
def test_log_probabilities(name):
    compared = Compared(name)
    case = compared.case
    for who, ours in zip(("student", "teacher"), compared.real(), strict=True):
        key = f"out.logp_{who}"
        agree(case, ours.detach(), corrected(case, case[key][compared.hidden]), key)


@divergences("divergences", "_clean")
def test_divergences_and_their_gradients(name, divergence):
    """Those of normalised rows without the mask."""
    compared = Compared(name)
    compared.close(compared.mean(divergence), f"{SAME[divergence]}_clean")


@variants("divergences")
def test_kl_of_the_rows_as_they_are(name):
    """A mask without mass does not move the KL: only distances of logarithms see it.

    The partition variant's rows sum to less than 1; theirs follow from ours and those sums.
    """
    compared = Compared(name)
    student, teacher = compared.masses()
    measured = compared.case.facts["info"]["row_prob_sum"]  # of the teacher
    limits = {"rel": compared.case.facts["tolerance"]["rtol"]}
    assert float(teacher.exp().min()) == pytest.approx(measured["min"], **limits)
    assert float(teacher.exp().max()) == pytest.approx(measured["max"], **limits)
    for kind, masses in (("reverse-kl", (student, teacher)), ("forward-kl", (teacher, student))):
        nats = DIVERGENCES[kind](compared.student, compared.teacher)
        compared.close(unnormalised_kl(nats, *masses).mean(), SAME[kind])


@variants("divergences")
def test_the_total_variation_is_one_of_probabilities(name):
    """What the reference calls so is the L1 distance of logarithms, which has no upper end."""
    compared = Compared(name)
    student, teacher = compared.real()
    compared.close((student - teacher).abs().sum(-1).mean(), "tvd_clean")

    ours = DIVERGENCES["total-variation"](compared.student, compared.teacher).detach()
    p, q = (x.detach().double().softmax(-1) for x in (student, teacher))
    # The largest difference of the probabilities of any set of tokens: those that p prefers.
    expected = torch.where(p > q, p - q, 0).sum(-1)
    agree(compared.case, ours, expected.float(), "total variation")
    assert float(ours.max()) <= 1 < float(compared.case["out.tvd_clean"])


@variants("divergences")
def test_the_squared_error_is_one_of_probabilities_too(name):
    compared = Compared(name)
    p, q = (x.detach().double().softmax(-1) for x in compared.real())
    expected = (p - q).square().mean(-1)
    ours = DIVERGENCES["mse"](compared.student, compared.teacher).detach()
    agree(compared.case, ours, expected.float(), "mse")
    # Errors of probabilities are far below the case's absolute tolerance.
    torch.testing.assert_close(ours.double(), expected, rtol=1e-4, atol=1e-9)


# Targets -----------------------------------------------------------------------------------------


class Steps(Network):
    """A network that answers with the logits of the step whose state it is shown."""

    def __init__(self, states, logits):
        self.states, self.logits, self.seen = states, logits, []
        length, size = logits.shape[-2:]
        self.config = TransformerConfig(vocab_size=size, length=length)

    def __call__(self, tokens, *, queries, scalar=None, label=None):  # noqa: ARG002
        return self.answer(tokens, queries)

    def answer(self, tokens, queries):
        # A step that reveals nothing is not asked for, so the last of equal states is meant.
        fits = [i for i in range(len(self.logits)) if torch.equal(tokens, self.states[i])]
        assert fits, "the tokens are not those of the recorded trajectory"
        self.seen.append(fits[-1])
        return self.logits[fits[-1]][queries.rows, queries.positions]


class PartitionSteps(Steps, PartitionNetwork):
    """The same for a network that reads groups: what is not revealed is taken for the mask."""

    def __call__(self, tokens, revealed, *, queries, scalar=None, label=None, layout=None):  # noqa: ARG002
        return self.answer(torch.where(revealed, tokens, self.config.vocab_size - 1), queries)

    def both(self, tokens, groups, *, real=None, scalar=None, label=None, layout=None):
        raise NotImplementedError  # a teacher is never asked for both groups


class Trajectory:
    """The tokens before and after each of k steps, as a plan and as numbers to draw by."""

    def __init__(self, states, mask_id):
        self.states, self.k = states, len(states) - 1
        self.hidden = states[0] == mask_id
        left = (states[1:] == mask_id).sum(0)  # after how many steps a token is hidden still
        self.plan = torch.where(self.hidden, left.clamp(max=self.k - 1), 0)
        self.revealed = [int((self.hidden & (left == step)).sum()) for step in range(self.k)]
        self.left = int((self.hidden & (left == self.k)).sum())

    def numbers(self, log_probs):
        """Numbers in the middle of each drawn token's interval; [N, V] at hidden tokens."""
        probs = log_probs.double().exp()
        middle = (probs.cumsum(-1) - probs / 2) / probs.sum(-1, keepdim=True)
        tokens = self.states[-1][self.hidden].clamp(max=probs.shape[-1] - 1)
        u = torch.zeros(self.hidden.shape, dtype=torch.float64)
        u[self.hidden] = middle.gather(-1, tokens[:, None])[:, 0]
        return torch.where(self.plan < self.k - 1, u, 0.0)  # the last step draws nothing


def numbers_of_steps(case: Case):
    return [int(steps) for steps in case.stems(".t", "in.k")]


trajectories = pytest.mark.parametrize(("name", "k"), parts("text/*sdtt_targets", numbers_of_steps))


def recorded(case: Case, k):
    states = torch.cat([case[f"in.k{k}.xt"][None], case[f"out.k{k}.x_steps"]])
    return Trajectory(states, case.config["mask_index"])


@trajectories
def test_targets_are_those_of_the_step_that_reveals_a_token(name, k):
    """Tokens that stay hidden have the last step's; the trajectory is the recorded one.

    The partition variant's targets are normalised again.
    """
    case = load(name)
    mask_id = case.config["mask_index"]
    path, facts = recorded(case, k), case.facts["info"][f"k{k}"]
    assert path.revealed == facts["revealed_per_step"]
    assert path.left == facts["left_masked"]
    network = (PartitionSteps if is_partition(case) else Steps)(
        path.states, case[f"in.k{k}.teacher_logits"]
    )
    teacher = (PGM if is_partition(case) else MDLM)(network, mask_id=mask_id)
    key = f"out.k{k}.target"
    theirs = corrected(case, case[key][path.hidden])
    ours = teacher_targets(
        teacher, path.states[0], path.hidden, path.plan, path.numbers(theirs), substeps=k
    )
    agree(case, real_columns(case, ours), theirs, key)
    assert ours[:, mask_id].isneginf().all()
    assert network.seen == path.plan[path.hidden].unique().tolist()  # no others are asked for


@trajectories
def test_log_probabilities_of_every_step(name, k):
    """What targets are put together from."""
    case = load(name)
    path, key = recorded(case, k), f"out.k{k}.logp_steps"
    hidden = path.states[:-1] == case.config["mask_index"]
    ours = subs(case[f"in.k{k}.teacher_logits"][hidden], case.config["mask_index"])
    agree(case, real_columns(case, ours), corrected(case, case[key][hidden]), key)


# The teacher's times -----------------------------------------------------------------------------


def their_step_size(case: Case, k):
    assert case.config["noise"]["type"] == "loglinear"
    eps, steps = case.config["training"]["sampling_eps"], original_steps(case)
    return (1 - eps) / steps, first_round(k, steps)


def original_steps(case: Case):
    return case.config["parameterization"]["orig_num_sampling_steps"]


def their_times(case: Case, t, dt, k):
    """The reference's grid [k, B]: t and the weight of the end have changed places."""
    weight = torch.linspace(1, 0, k)[:, None]
    return (t * weight + (1 - t) * (t - k * dt)).clamp(min=case.config["training"]["sampling_eps"])


def their_transition(case: Case, log_probs, time, dt):
    """The reference's unnormalised reverse step at hidden tokens: [N, V], times [N]."""
    hidden, later = SCHEDULE.one_minus_alpha(time), SCHEDULE.one_minus_alpha(time - dt)
    moved = log_probs.exp() * (hidden - later)[:, None]
    columns = torch.arange(moved.shape[-1]) == case.config["mask_index"]
    return torch.where(columns, later[:, None], moved)


@trajectories
def test_the_references_grid_is_another_one(name, k):
    """It starts above t, as long as t is more than k steps, and falls by other steps than dt."""
    case = load(name)
    t, theirs = case[f"in.k{k}.t"], case[f"out.k{k}.ts"]
    dt, options = their_step_size(case, k)
    assert dt == pytest.approx(case.facts["info"][f"k{k}"]["dt"], rel=1e-12)
    case.close(their_times(case, t, dt, k), f"out.k{k}.ts")
    ours = t - torch.arange(k)[:, None] * options.step_size
    assert bool(((theirs - ours).abs() > 1e-3).any())
    assert bool((theirs[0] > t)[t > k * dt].all())
    # What it was meant to be ends one step too far, at the end of the last step.
    meant = torch.lerp(t - k * dt, t, torch.linspace(1, 0, k)[:, None])
    torch.testing.assert_close(meant[-1], ours[-1] - dt, atol=1e-4, rtol=0)


@trajectories
def test_plans_have_the_times_of_k_steps_from_t(name, k):
    """A token hidden at t is asked for before step j with probability j dt / t.

    Under the log-linear schedule, theirs or ours, that is (alpha(t - j dt) - alpha(t)) over
    1 - alpha(t); reveal by reveal it is dt / t_j, where the reference has dt over its own times.
    """
    case = load(name)
    t = case[f"in.k{k}.t"].double()
    dt, options = their_step_size(case, k)
    assert options.step_size == pytest.approx(dt / (1 - case.config["training"]["sampling_eps"]))
    passed = torch.arange(1, k).double() * options.step_size
    for schedule in (SCHEDULE, make_schedule("log-linear")):
        found = boundaries(t, options, schedule)
        expected = (passed / t[:, None]).clamp(max=1)
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
        later = (t[:, None] - passed).clamp(min=0)
        by_schedule = (schedule.alpha(later) - schedule.alpha(t)[:, None]) / (
            schedule.one_minus_alpha(t)[:, None]
        )
        torch.testing.assert_close(found, by_schedule, atol=1e-12, rtol=0)
    first, theirs = found[:, 0], dt / case[f"out.k{k}.ts"][0]
    # Fewer tokens are revealed at its first step.
    assert bool((first - theirs > 1e-4)[t > k * dt].all())


@trajectories
def test_the_references_trajectories_can_be_replayed(name, k):
    """Its transitions and draws, from stored predictions: what whole losses need below."""
    case = load(name)
    path, (dt, _) = recorded(case, k), their_step_size(case, k)
    for step in range(k):
        before, after = path.states[step], path.states[step + 1]
        rows, places = (before == case.config["mask_index"]).nonzero(as_tuple=True)
        log_probs = case[f"out.k{k}.logp_steps"][step][rows, places]
        q = their_transition(case, log_probs, case[f"out.k{k}.ts"][step][rows], dt)
        agree(case, q, case[f"out.k{k}.q_xs"][step][rows, places], f"k{k}, step {step}")
        drawn = gumbel_argmax(q, case[f"in.rand.k{k}.{step:03}"][rows, places])
        assert torch.equal(drawn, after[rows, places])
        visible = before != case.config["mask_index"]
        assert torch.equal(before[visible], after[visible])


# Whole losses ------------------------------------------------------------------------------------


def build(case: Case, prefix):
    model, state = case.config["model"], case.state_dict(prefix)
    heads, length = model["n_heads"], model["length"]
    if is_partition(case):
        mode = QUERIES[model["swap"]["pre_query_mode"]]
        method = PGM(load_partition(state, heads, length, mode), schedule=SCHEDULE)
    else:
        network = load_dit(state, heads, length)
        method = MDLM(network, mask_id=case.config["mask_index"], schedule=SCHEDULE)
    assert method.mask_id == case.config["mask_index"]
    return method.eval()


def masses_of(method, tokens, revealed, queries):
    """log of what the reference's rows sum to: 0, but in the partition variant."""
    if isinstance(method, PGM):
        return log_mass(method.network(tokens, revealed, queries=queries))
    return torch.zeros(len(queries.rows))


class Whole:
    """A case's student and teacher, its hidden tokens and its teacher's trajectory."""

    def __init__(self, name):
        self.case = case = load(name)
        self.k = case.config["parameterization"]["num_distill_steps"]
        self.tokens, self.mask_id = case["in.x0"], case.config["mask_index"]
        self.hidden = case["out.xt"] == self.mask_id
        self.queries = Queries(*self.hidden.nonzero(as_tuple=True))
        self.student, self.teacher = (build(case, f"sd_{who}.") for who in ("student", "teacher"))
        self.target = corrected(case, case["out.target"][self.hidden])
        self.path = self.replayed()
        self.u = self.path.numbers(self.target)

    def replayed(self):
        """The reference's trajectory, which is not stored: its draws from our predictions."""
        case, states = self.case, [self.case["out.xt"]]
        dt, _ = their_step_size(case, self.k)
        times = their_times(case, case["in.t"], dt, self.k)
        draws = case.keys("in.rand.loss.")[1:]  # the first are those of the hidden tokens
        for key, time in zip(draws, times, strict=True):
            before, after = states[-1], states[-1].clone()
            queries = Queries(*(before == self.mask_id).nonzero(as_tuple=True))
            revealed = before != self.mask_id
            with torch.no_grad():
                log_probs = self.teacher.predict(before, revealed, *queries)
                log_probs += masses_of(self.teacher, before, revealed, queries)[:, None]
            with_mask = F.pad(log_probs, (0, case.config["vocab_size"] - log_probs.shape[-1]))
            q = their_transition(case, with_mask, time[queries.rows], dt)
            after[queries] = gumbel_argmax(q, case[key][queries])
            states.append(after)
        return Trajectory(torch.stack(states), self.mask_id)

    def loss(self, divergence):
        options = DistillationOptions(
            round=1, steps=original_steps(self.case), substeps=self.k, divergence=divergence
        )
        lesson = SDTT(self.student, self.teacher, options)
        everything = torch.ones_like(self.hidden)
        return lesson.loss_given(
            Batch.of(self.tokens, is_token=everything), Planned(self.hidden, self.path.plan, self.u)
        )

    def as_theirs(self, divergence):
        """Our loss by their rows, which need not be normalised, and by their divisor."""
        nats = self.loss(divergence).per_token[self.hidden]
        student = masses_of(self.student, self.tokens, ~self.hidden, self.queries)
        teacher = real_columns(self.case, self.case["out.target"][self.hidden]).logsumexp(-1)
        masses = (student, teacher) if divergence == "reverse-kl" else (teacher, student)
        return unnormalised_kl(nats, *masses).mean()


@variants("e2e")
def test_tokens_are_hidden_by_the_references_draws(name):
    whole = Whole(name)
    hidden = whole.case["in.rand.loss.000"] < SCHEDULE.one_minus_alpha(whole.case["in.t"])[:, None]
    assert torch.equal(hidden, whole.hidden)
    assert int(hidden.sum()) == whole.case.facts["info"]["n_masked"]
    assert torch.equal(whole.case["out.xt"][~hidden], whole.tokens[~hidden])


@variants("e2e")
def test_predictions_of_the_student(name):
    whole = Whole(name)
    ours = whole.student.predict(whole.tokens, ~whole.hidden, *whole.queries).detach()
    theirs = corrected(whole.case, whole.case["out.student_logp"][whole.hidden])
    agree(whole.case, ours[:, : theirs.shape[-1]], theirs, "out.student_logp")


@variants("e2e")
def test_targets_of_the_teacher(name):
    whole = Whole(name)
    path = whole.path
    ours = teacher_targets(
        whole.teacher, whole.tokens, whole.hidden, path.plan, whole.u, substeps=whole.k
    )
    agree(whole.case, ours[:, : whole.target.shape[-1]], whole.target, "out.target")


@variants("e2e")
def test_targets_after_a_reveal(name):
    """In the stored runs the first step may reveal nothing; here it reveals every other token."""
    whole = Whole(name)
    case, rows, places = whole.case, *whole.queries
    later = torch.arange(len(rows)) % 2 == 1
    plan, u = torch.zeros_like(whole.tokens), torch.full(whole.tokens.shape, 0.5).double()
    plan[rows, places] = later.long()
    ours = teacher_targets(whole.teacher, whole.tokens, whole.hidden, plan, u, substeps=2)
    text, visible = case["out.xt"].clone(), ~whole.hidden
    with torch.no_grad():
        first = whole.teacher.predict(text, visible, rows[~later], places[~later])
        # The median: the first token at which half of the probability is passed.
        drawn = (first.double().exp().cumsum(-1) > 0.5).long().argmax(-1)
        text[rows[~later], places[~later]] = drawn
        second = whole.teacher.predict(text, text != whole.mask_id, rows[later], places[later])
        unchanged = whole.teacher.predict(case["out.xt"], visible, rows[later], places[later])
    torch.testing.assert_close(ours[~later], first)
    torch.testing.assert_close(ours[later], second)
    assert float((second - unchanged).nan_to_num(0).abs().max()) > 0.01


@variants("e2e")
@pytest.mark.parametrize("divergence", ["reverse-kl", "forward-kl"])
def test_whole_losses(name, divergence):
    """The partition variant's are those of unnormalised rows; ours follow from its own."""
    whole = Whole(name)
    case = whole.case
    case.close(whole.as_theirs(divergence).detach(), f"out.{SAME[divergence]}")
    student = corrected(case, case["out.student_logp"][whole.hidden])
    expected = DIVERGENCES[divergence](student, whole.target)
    loss = whole.loss(divergence)
    agree(case, loss.per_token[whole.hidden].detach(), expected, divergence)
    agree(case, loss.objective.detach(), expected.sum() / whole.tokens.numel(), divergence)
    assert torch.equal(loss.counted, whole.hidden)


@variants("e2e")
def test_gradient_norms_of_the_student(name):
    """Of the reverse KL, the reference's default; unnormalised rows have gradients of their own."""
    whole = Whole(name)
    whole.as_theirs("reverse-kl").backward()
    gradients = {key: p.grad for key, p in whole.student.network.named_parameters()}
    norms = whole.case.facts["info"]["student_grad_l2"]
    assert len(norms) == len(gradients)
    rename = rename_partition if is_partition(whole.case) else rename_dit
    limits = {key: whole.case.facts["tolerance"][key] for key in ("atol", "rtol")}
    for theirs, norm in norms.items():
        (ours,) = rename({theirs: torch.empty(0)})
        torch.testing.assert_close(
            gradients[ours].norm().item(), norm, **limits, msg=lambda m, n=theirs: f"{n}: {m}"
        )
    assert all(p.grad is None for p in whole.teacher.parameters())


# Times of training -------------------------------------------------------------------------------


class Shift(Noise):
    """Noise whose shared number is a recorded one."""

    def __init__(self, shift, rows):
        super().__init__(0, torch.arange(rows))
        object.__setattr__(self, "shift", shift.double()[0])

    def shared(self, purpose, step):  # noqa: ARG002
        return self.shift


def test_times_of_training():
    """One shift for the batch, as theirs; they stay an epsilon away from 0, and ours needs none."""
    case = load("text/sdtt_time_sampling")
    shift, count = case["in.rand.t.000"], len(case["out.t"])
    eps = case.config["training"]["sampling_eps"]
    ours = even_times(Shift(shift, count), 0, count)
    assert torch.equal(ours, low_discrepancy(shift.double()[0], torch.arange(count), count))
    case.close((1 - eps) * ours + eps, "out.t")
    atol = case.facts["tolerance"]["atol"]
    torch.testing.assert_close(ours.float(), case["out.t"], atol=eps + atol, rtol=0)
    # Distillation mirrors them to (0, 1], where they are spread as evenly.
    mirrored = positive_time(ours)
    assert 0 < float(mirrored.min()) <= float(mirrored.max()) <= 1
    torch.testing.assert_close(
        mirrored.sort().values.diff(), torch.full((count - 1,), 1 / count).double()
    )


def test_rates_of_hiding():
    case = load("text/sdtt_time_sampling")
    t = case["out.t"]
    case.close(SCHEDULE.one_minus_alpha(t), "out.move_chance")
    case.close(-torch.log(SCHEDULE.alpha(t)), "out.sigma")


def test_step_sizes_of_the_rounds():
    """Each round's teacher takes k times as long a step as the one before; no epsilon is lost.

    Theirs are written down beyond the last round; ours says that no step is left.
    """
    case = load("text/sdtt_time_sampling")
    k, steps = case.config["parameterization"]["num_distill_steps"], original_steps(case)
    theirs = case["out.dt_rounds"] / (1 - case.config["training"]["sampling_eps"])
    assert len(theirs)
    for number, size in enumerate(theirs.tolist(), start=1):
        if k**number > steps:
            with pytest.raises(InputError, match="no step is left"):
                DistillationOptions(round=number, steps=steps, substeps=k)
            continue
        options = DistillationOptions(round=number, steps=steps, substeps=k)
        assert options.step_size == pytest.approx(size, rel=1e-12)
        assert options.reach == pytest.approx(k * size, rel=1e-12)
        assert options.student_steps == pytest.approx(1 / options.reach, abs=1)
