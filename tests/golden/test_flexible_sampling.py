"""FlexMDM's samplers: whole trajectories of the reference, run by our sampler.

The network's answers at each step are stored, and so is what was drawn. Our sampler is given
uniform numbers that make the same draws under the stored probabilities and means: once just above
the lower end of the interval that belongs to a draw, once just below its upper end, so that a
slightly different probability would draw something else. Every state on the way is compared
exactly. Their t is 1 minus ours.

What the reference does otherwise, and what is taken for it here:

- Euler: the weight of staying a mask is 1 and not 1 - r, so that a mask is revealed with r/(1 + r);
  ours with r, the sum of the stored weights.
- Tau-leaping: a mask at which two tokens come up is not revealed, hence with l exp(-l) instead of
  1 - exp(-l), which ours has; l is the sum of the stored means.
- The number of reveals by confidence is a Poisson number, which may exceed the number of masks;
  ours is one coin for each mask. The smaller code's mean lacks the rate of unmasking, which is put
  in, and its confidences are those of a second softmax, of the rates, which our measures are given.
- The softmax of tokens runs over the mask and the pad, too; the mask is never revealed as such.
- What does not fit is appended as masks, and too many reveals overwrite tokens.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import pytest
import torch
from torch.nn import functional as F

from partita.categorical import Decoding
from partita.contracts.prompt import Prompt
from partita.methods.contracts import FlexibleModel
from partita.networks.flexible import Answer
from partita.processes.insertion import Interpolant
from partita.randomness import Noise, Purpose
from partita.samplers import insertion as module
from partita.samplers.base import SamplingContext
from partita.samplers.confidence import most_confident
from partita.samplers.drafts import Draft, fitting
from partita.samplers.state import SamplerState
from partita.schedules import make_schedule
from tests.golden.cases import Case, load, parts, rule_of, stated
from tests.support.flexible_references import agree, packed, process_of, schedule_of

CONFIDENCE = {  # theirs: ours
    "position": "position",
    "top_prob": "probability",
    "prob_diff": "margin",
    "entropy": "entropy",
}
MARGIN = 1e-4  # of an interval, on either side
edges = pytest.mark.parametrize("edge", [MARGIN, 1 - MARGIN])
LINEAR = make_schedule("linear")


def runs(file):
    """The recorded runs of a case, by what the names of their tensors begin with."""
    return pytest.mark.parametrize(
        ("file", "name"), parts(file, lambda case: case.stems(".xt_before"))
    )


def mask_of(case: Case):
    return case.config["mask_token"]


def pad_of(case: Case):
    return case.config["pad_token"]


class Recorded(FlexibleModel):
    """A model that answers as stored, and expects the stored states."""

    family = "flexible"

    def __init__(self, case: Case, prefix, process, rows, log_probs=None):
        self.case, self.prefix, self.process, self.rows = case, prefix, process, rows
        self.mask_id, self.end_id = mask_of(case), pad_of(case)
        self.states, self.logits = case[f"{prefix}xt_before"], case[f"{prefix}token_logits"]
        self.log_probs = self.logits.double().log_softmax(-1) if log_probs is None else log_probs
        self.steps, _, self.length = self.states.shape
        self.vocab_size = self.logits.shape[-1]
        key = f"{prefix}expected_gaps"
        none = torch.zeros(self.steps, self.states.shape[1], self.length + 1)
        self.gaps = case[key] if key in case.tensors else none

    def ask(self, text, t, queries, label=None):  # noqa: ARG002
        step = round((1 - float(t[0])) * self.steps)
        assert torch.equal(text.padded(self.end_id, self.length), self.states[step, self.rows])
        log_probs = packed(self.log_probs[step, self.rows], text.lengths)[queries]
        gaps = packed(self.gaps[step, self.rows], text.lengths + 1)
        return log_probs, Answer(log_probs, gaps, None)


@dataclass(frozen=True)
class Script(Noise):
    """Uniform numbers for masks [S, B, L] and gaps [S, B, L + 1]."""

    coins: torch.Tensor | None = None
    lots: torch.Tensor | None = None

    def uniform_at(self, purpose, step, rows, positions):
        rows = self.samples[rows]
        if purpose == Purpose.INSERT:  # two for each step, of which these rules read the first
            return self.lots[step // 2, rows, positions]
        if purpose == Purpose.ORDER:
            return self.coins[min(step, len(self.coins) - 1), rows, positions]
        return torch.zeros(len(rows), dtype=torch.float64)


@dataclass
class Replay(SamplingContext):
    """Tokens are the stored ones [S, B, L]; without them, the most probable."""

    tokens: torch.Tensor | None = None

    def draw(self, log_probs, step, rows, positions):
        if self.tokens is None:
            return super().draw(log_probs, step, rows, positions)
        return self.tokens[step, self.noise.samples[rows], positions]


def within(low, high, edge):
    return low.double() + edge * (high.double() - low.double())


def bernoulli(drawn, chance, edge):
    """Numbers that fall below the chance where something was drawn."""
    low, high = torch.where(drawn, 0, chance), torch.where(drawn, chance, 1)
    return within(low, high, edge)


def poisson(counts, mean, edge):
    """Numbers at which the distribution function passes the counts."""
    counts, mean = counts.double(), mean.double()
    low = torch.special.gammaincc(counts.clamp(min=1), mean)
    high = torch.special.gammaincc(counts + 1, mean)
    return within(torch.where(counts > 0, low, 0), high, edge)


def start(case: Case, prefix, apart=False):
    """The initial state of each group of rows that can share one: prompts of a row are its own.

    Where rows are to be followed `apart`, each has one of its own.
    """
    states = case[f"{prefix}xt_before"]
    lengths = (states[0] != pad_of(case)).sum(-1)
    if f"{prefix}prompt" in case.tensors:  # what follows the prompt is open
        first = (case[f"{prefix}prompt"] != pad_of(case)).sum(-1)
        assert torch.equal(first, lengths)
    elif f"{prefix}prefix" in case.tensors:
        first = (case[f"{prefix}prefix"] != pad_of(case)).sum(-1)
        assert bool((first < lengths).all())
    else:
        rows = torch.arange(states.shape[1])
        for group in rows[:, None] if apart else rows[None]:
            state = SamplerState.blank(len(group), int(lengths[0]), mask_of(case))
            if not int(lengths[0]):
                state.open = torch.ones(len(group), 1, dtype=torch.bool)
            yield group, state
        return
    for row, length in enumerate(lengths.tolist()):
        tokens = states[0, row, None, :length]
        opened = torch.arange(length + 1)[None] == first[row]
        prompt = Prompt(tokens, torch.ones_like(tokens, dtype=torch.bool), opened)
        yield torch.tensor([row]), SamplerState.from_prompt(prompt, mask_of(case))


class PartedError(Exception):
    """A fault of the reference has led elsewhere."""


def overflowing(case: Case, prefix):
    """In which steps [S, B] more is drawn for a row's gaps than there is room for."""
    before = case[f"{prefix}xt_before"]
    lengths, faulty = (before != pad_of(case)).sum(-1), torch.zeros(before.shape[:2]).bool()
    drawn = [key for key in case.keys(f"{prefix}insertion_") if key.endswith(("draw", "count"))]
    first, after_last = torch.zeros(before.shape[1], dtype=torch.long), lengths
    for key in ("prompt", "prefix"):
        if f"{prefix}{key}" in case.tensors:
            first = (case[f"{prefix}{key}"] != pad_of(case)).sum(-1)
    if f"{prefix}suffix" in case.tensors:
        after_last = lengths - (case[f"{prefix}suffix"] != pad_of(case)).sum(-1)
    for counts in (case[key] for key in drawn):
        gap = torch.arange(counts.shape[-1])
        allowed = (gap >= first[:, None]) & (gap <= after_last[: len(counts), :, None])
        total = lengths[: len(counts)] + (counts * allowed).sum(-1)
        faulty[: len(counts)] = total > before.shape[-1]
    return faulty


def replay(
    case: Case,
    prefix,
    process,
    coins,
    lots,
    *,
    tokens=None,
    log_probs=None,
    watch=None,
    faulty=False,
    **options,
):
    """Our sampler along a stored trajectory: the same states after every step.

    A row is followed to the end, or to the first step [S, B] in which a fault of theirs tells: it
    is `faulty`, or its text grows too long.
    """
    states, faulty = case[f"{prefix}xt_after"], faulty | overflowing(case, prefix)
    for rows, state in start(case, prefix, apart=bool(faulty.any())):
        model = Recorded(case, prefix, process, rows, log_probs)
        seen = []

        def compare(step, rows=rows, seen=seen):
            ours = step.state.tokens
            ours = F.pad(ours, (0, states.shape[2] - ours.shape[1]), value=pad_of(case))
            same = torch.equal(ours, states[step.index, rows])
            if not same and bool(faulty[step.index, rows].all()):
                raise PartedError
            assert same, f"{prefix} step {step.index}"
            seen.append(step.index)

        context = Replay(
            model,
            Script(0, rows, coins=coins, lots=lots),
            Decoding(temperature=0),
            callback=compare,
            tokens=tokens,
        )
        if watch is not None:
            watch.clear()
        with contextlib.suppress(PartedError):
            final = module.insertion(context, state, steps=len(states), **options)
            final = F.pad(final, (0, states.shape[2] - final.shape[1]), value=pad_of(case))
            assert torch.equal(final, states[-1, rows])
            masks = bool((model.states[-1, rows] == model.mask_id).any())
            assert seen == list(range(len(states) if masks else len(states) - 1))
        yield rows, list(watch or ())


def run(*args, **options):
    """A replay of which nothing else is compared."""
    for _ in replay(*args, **options):
        pass


def hidden_of(case: Case, prefix):
    return case[f"{prefix}xt_before"] == mask_of(case)


def times_of(case: Case, prefix):
    """Our times at the two ends of every step."""
    t = 1 - case[f"{prefix}t"].double()
    return zip(t, t - 1 / len(t), strict=True)


# Euler -------------------------------------------------------------------------------------------


def euler_chances(case: Case, prefix, process):
    """P(reveal) of every slot by the stored weights, which are our chances times the posterior."""
    probs = case[f"{prefix}token_logits"].softmax(-1)
    weights, hidden = case[f"{prefix}transition_weights"], hidden_of(case, prefix)
    real = torch.arange(probs.shape[-1]) != mask_of(case)
    rule = module.RULES["euler"]()
    ours = torch.stack([rule.reveal(process, t, s) for t, s in times_of(case, prefix)])
    moved = (ours[:, None, None, None] * probs)[hidden][:, real]
    agree(moved, weights[hidden][:, real], "transition_weights", rtol=1e-5, atol=1e-6)
    stay = weights[hidden][:, ~real][:, 0]
    last = hidden.nonzero()[:, 0] == len(weights) - 1
    assert torch.equal(stay, (~last).float())  # 1, whatever the others are; 0 in the last step
    chances = weights[..., real].sum(-1) / probs[..., real].sum(-1)
    return torch.where(hidden, chances, 0.5)


@edges
@runs("flex/flex_sampler_euler")
def test_euler(file, name, edge):
    case, prefix = load(file), f"{name}."
    process = process_of(case, name)
    tokens = case[f"{prefix}sampled_tokens"]
    chances = euler_chances(case, prefix, process)
    coins = bernoulli(tokens != mask_of(case), chances, edge)
    drawn = case[f"{prefix}insertion_draw"].bool()
    lots = bernoulli(drawn, case[f"{prefix}insertion_prob"], edge)
    run(case, prefix, process, coins, lots, tokens=tokens, rule="euler")


# Tau-leaping -------------------------------------------------------------------------------------


def tau_events(case: Case, prefix):
    """Where exactly one token came up, and the tokens; the last step takes the most probable."""
    counts = case[f"{prefix}unmask_count"].clone()
    counts[..., mask_of(case)] = 0
    last = case[f"{prefix}token_logits"][-1:].argmax(-1)
    return counts.sum(-1) == 1, torch.cat([counts.argmax(-1), last])


def tau_chances(case: Case, prefix, process):
    """1 - exp(-l), l the sum of the stored means, which are our rates times the posterior."""
    mean, probs = case[f"{prefix}unmask_mean"], case[f"{prefix}token_logits"][:-1].softmax(-1)
    times = list(times_of(case, prefix))[:-1]
    rates = torch.stack([process.unmasking.weight(t) * (t - s) for t, s in times])
    agree(rates[:, None, None, None] * probs, mean, "unmask_mean", rtol=1e-5, atol=1e-6)
    return -torch.expm1(-mean.double().sum(-1))


@edges
@runs("flex/flex_sampler_tau")
def test_tau_leaping(file, name, edge):
    case, prefix = load(file), f"{name}."
    process = process_of(case, name)
    due, tokens = tau_events(case, prefix)
    coins = bernoulli(due, tau_chances(case, prefix, process), edge)
    counts = case[f"{prefix}insertion_count"]
    lots = poisson(counts, case[f"{prefix}insertion_mean"], edge)
    run(case, prefix, process, coins, lots, tokens=tokens, rule="tau-leaping")


@edges
@runs("flex/flex_sampler_mdm")
def test_fixed_length(file, name, edge):
    """A text of masks that may grow nowhere is plain masked diffusion."""
    case, prefix = load(file), f"{name}."
    process = Interpolant(LINEAR, schedule_of(case.config["schedule"]))
    steps, rows, length = case[f"{prefix}xt_before"].shape
    lots = torch.zeros(steps, rows, length + 1).double()
    if rule_of(name, ("euler", "tau")) == "tau":
        due, tokens = tau_events(case, prefix)
        coins = bernoulli(due, tau_chances(case, prefix, process), edge)
        run(case, prefix, process, coins, lots, tokens=tokens, rule="tau-leaping")
        return
    tokens = case[f"{prefix}sampled_tokens"]
    coins = bernoulli(tokens != mask_of(case), euler_chances(case, prefix, process), edge)
    run(case, prefix, process, coins, lots, tokens=tokens, rule="euler")
    if process.unmasking == LINEAR:  # there the two rules are the same
        run(case, prefix, process, coins, lots, tokens=tokens, rule="schedule")


# Confidence --------------------------------------------------------------------------------------


def surest(case: Case, prefix, process, edge, scale):
    """Coins of as many masks as are revealed; the stored mean is `scale` times n w dt."""
    hidden = hidden_of(case, prefix)[:-1]
    count, number = case[f"{prefix}reveal_count"], hidden.sum(-1)
    mean = case[f"{prefix}reveal_mean"].double()
    rates = torch.stack([process.unmasking.weight(t) * (t - s) for t, s in times_of(case, prefix)])
    agree(number * rates[:-1, None] * scale[:, None], mean.float(), "mean", rtol=1e-5, atol=0)
    each = (mean / scale[:, None] / number.clamp(min=1))[..., None].expand(hidden.shape)
    due = hidden & (hidden.cumsum(-1) <= count[..., None])
    return bernoulli(due, -torch.expm1(-each), edge)


@pytest.fixture
def compared(monkeypatch, file):
    """What the sampler compares in each step: scores, which ones compete, how many are taken.

    As many compete as in the case.
    """
    seen = []
    most = load(file).config.get("max_window", module.MOST_COMPETING)
    monkeypatch.setattr(module, "MOST_COMPETING", most)

    def watched(*given):
        seen.append(given)
        return most_confident(*given)

    monkeypatch.setattr(module, "most_confident", watched)
    return seen


def same_confidences(case: Case, prefix, rows, steps):
    """The competing masks, and how sure they are. Nothing is stored where nothing is revealed."""
    stored, checked = case[f"{prefix}confidence"], 0
    due = case[f"{prefix}reveal_count"][: len(steps), rows] > 0
    for step, (scores, competing, counts) in enumerate(steps):
        assert torch.equal(counts, case[f"{prefix}reveal_count"][step, rows].long())
        if measure_of(prefix) == "position":  # theirs counts from 1 down, in lengths
            lengths = (case[f"{prefix}xt_before"][step, rows] != pad_of(case)).sum(-1)
            scores = 1 + scores / lengths[:, None]
        for ours, there, row, count in zip(scores, competing, rows, counts, strict=True):
            theirs = stored[step, row, : len(ours)]
            if not int(count):
                continue
            assert torch.equal(there, theirs.isfinite())
            assert not bool(stored[step, row, len(ours) :].isfinite().any())
            limits = stated(case.facts["tolerance"]["confidence"])
            agree(ours[there], theirs[there], "confidence", **limits)
            checked += 1
    assert checked == int(due.sum())


def measure_of(name):
    """Our confidence for a run such as "top_prob.window"."""
    return CONFIDENCE[rule_of(name, CONFIDENCE)]


def by_confidence(case: Case, prefix, process, edge, scale, compared, log_probs=None):
    lots = poisson(case[f"{prefix}insertion_count"], case[f"{prefix}insertion_mean"], edge)
    return replay(
        case,
        prefix,
        process,
        surest(case, prefix, process, edge, scale),
        lots,
        log_probs=log_probs,
        watch=compared,
        rule="tau-leaping",
        confidence=measure_of(prefix),
        window=None if "nowindow" in prefix else case.config["alpha"],
    )


def process_of_all(case: Case):
    """The process of a case whose runs have one."""
    return process_of(case, case.config["schedules"])


@edges
@runs("flex/flex_sampler_confidence")
def test_confidence(file, name, edge, compared):
    case, prefix = load(file), f"{name}."
    process = process_of_all(case)
    rate = process.unmasking.weight(1 - case[f"{prefix}t"].double())
    probs = case[f"{prefix}token_logits"].double().softmax(-1)
    twice = (probs * rate[:, None, None, None]).log_softmax(-1)
    followed = by_confidence(case, prefix, process, edge, 1 / rate[:-1], compared, twice)
    for rows, steps in followed:
        same_confidences(case, prefix, rows, steps)


@edges
@runs("flex/flex_sampler_confidence_8b")
def test_confidence_after_a_prompt(file, name, edge, compared):
    """Nothing is inserted before the end of a prompt, whatever is drawn there."""
    case, prefix = load(file), f"{name}."
    ones = torch.ones(len(case[f"{prefix}t"]) - 1).double()
    followed = by_confidence(case, prefix, process_of_all(case), edge, ones, compared)
    for rows, steps in followed:
        same_confidences(case, prefix, rows, steps)


@edges
@runs("flex/flex_sampler_infill_8b")
def test_infilling(file, name, edge, compared):
    """Only between the prefix and the suffix."""
    case, prefix = load(file), f"{name}."
    ones = torch.ones(len(case[f"{prefix}t"]) - 1).double()
    followed = by_confidence(case, prefix, process_of_all(case), edge, ones, compared)
    final, suffix = case[f"{prefix}xt_after"][-1], case[f"{prefix}suffix"]
    assert [int(row) for row, _ in followed] == list(range(len(final)))
    for text, end in zip(final, suffix, strict=True):
        kept = end[end != pad_of(case)]
        text = text[text != pad_of(case)]
        assert torch.equal(text[len(text) - len(kept) :], kept)


# What the reference does wrong -------------------------------------------------------------------

QUIRKS = "flex/flex_overflow_quirk"


def quirks(*, reveals):
    """The halves of the case of faults, by whether they count reveals or insertions."""
    key = "reveal_count" if reveals else "unmask_count"
    return pytest.mark.parametrize(
        ("file", "name"), parts(QUIRKS, lambda case: case.stems(f".{key}"))
    )


def linear_rates(case: Case, prefix):
    """The rate of either event times the length of a step, [S]."""
    return torch.stack([LINEAR.weight(t) * (t - s) for t, s in times_of(case, prefix)])


@edges
@quirks(reveals=False)
def test_masks_that_do_not_fit(file, name, edge):
    """They insert none of a row's masks then, but append as many; ours inserts those that fit.

    In rows of masks the two cannot be told apart, so the trajectory is the same; where the old
    tokens are afterwards can: nothing comes after the last one unless it was drawn there.
    """
    case, prefix = load(file), f"{name}."
    assert bool(overflowing(case, prefix).any())
    length = case.config[name]["L"]
    due, tokens = tau_events(case, prefix)
    rates = linear_rates(case, prefix)
    chance = -torch.expm1(-rates[:-1, None, None]).expand(due.shape)
    counts = case[f"{prefix}insertion_count"].long()
    mean = rates[:-1, None, None] * case[f"{prefix}expected_gaps"][:-1]
    coins, lots = bernoulli(due, chance, edge), poisson(counts, mean, edge)
    process = Interpolant(LINEAR, LINEAR)
    run(case, prefix, process, coins, lots, tokens=tokens, rule="tau-leaping")

    for step, drawn in enumerate(counts):
        before, after = case[f"{prefix}xt_before"][step], case[f"{prefix}xt_after"][step]
        old, new = ((rows != pad_of(case)).sum(-1) for rows in (before, after))
        everywhere = torch.ones_like(drawn, dtype=torch.bool)
        draft = Draft(before, old, everywhere, mask_of(case), pad_of(case))
        drawn = torch.where(draft.insertable, drawn, 0)
        u = torch.linspace(0, 1, 1 + int(drawn.sum(-1).max())).double().flip(0).expand(len(old), -1)
        taken = fitting(drawn, length - old, u[:, 1:])
        assert bool((taken <= drawn).all())
        assert torch.equal(taken.sum(-1), torch.minimum(drawn.sum(-1), length - old))
        moved = draft.insert(taken)
        rows = torch.arange(len(old))
        assert torch.equal(draft.lengths, new)
        assert int(draft.lengths.max()) <= length
        behind = draft.lengths - 1 - moved[rows, (old - 1).clamp(min=0)]
        some = old > 0
        assert torch.equal(behind[some], taken[rows, old][some])


@edges
@quirks(reveals=True)
def test_more_reveals_than_masks(file, name, edge, compared):
    """They reveal tokens that are there already; ours takes all masks and nothing else."""
    case, prefix = load(file), f"{name}."
    hidden, count = hidden_of(case, prefix), case[f"{prefix}reveal_count"]
    too_many = F.pad(count > hidden[:-1].sum(-1), (0, 0, 0, 1))
    assert bool(too_many.any())
    rates = linear_rates(case, prefix)
    due = hidden[:-1] & (hidden[:-1].cumsum(-1) <= count[..., None])
    chance = -torch.expm1(-rates[:-1, None, None]).expand(due.shape)
    mean = rates[:-1, None, None] * case[f"{prefix}expected_gaps"][:-1]
    lots = poisson(case[f"{prefix}insertion_count"], mean, edge)
    probs = case[f"{prefix}token_logits"].double().softmax(-1)
    rate = rates * len(rates)
    for _, steps in replay(
        case,
        prefix,
        Interpolant(LINEAR, LINEAR),
        bernoulli(due, chance, edge),
        lots,
        log_probs=(probs * rate[:, None, None, None]).log_softmax(-1),
        watch=compared,
        faulty=too_many,
        rule="tau-leaping",
        confidence=measure_of(case.config[name]["method"]),
    ):
        for scores, competing, counts in steps:
            everything = most_confident(scores, competing, counts + competing.shape[1])
            assert torch.equal(everything, competing)
