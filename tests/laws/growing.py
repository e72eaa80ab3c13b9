"""Texts of any length, small enough to enumerate: exact posteriors, chains of steps, rates.

A text is a tuple of tokens and a state a tuple of tokens and masks, so that every law is a
dictionary. The formulas are written out here once more, in plain Python: the library's own stand on
the other side.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy import integrate, stats

from partita.contracts.packed import PackedTokens
from partita.methods.contracts import FlexibleModel
from partita.methods.flexmdm import FlexMDM
from partita.networks import TransformerConfig
from partita.networks.flexible import Answer, FlexibleTransformer
from partita.processes.insertion import Interpolant
from partita.schedules import make_schedule
from tests.laws.tables import LEVEL

VOCAB = 2
MASK, END = VOCAB, VOCAB + 1
TOO_LONG = None  # every state that is longer than any text, in one


def all_texts(longest, symbols=VOCAB):
    """Every tuple of at most so many symbols, the short ones first."""
    return [
        text
        for length in range(longest + 1)
        for text in itertools.product(range(symbols), repeat=length)
    ]


def random_law(longest, seed=0):
    """A law over all texts of at most so many tokens."""
    texts = all_texts(longest)
    weights = np.exp(np.random.default_rng(seed).normal(size=len(texts)))
    return dict(zip(texts, weights / weights.sum(), strict=True))


def entropy(law):
    return -sum(p * math.log(p) for p in law.values())


# What a model says of a state --------------------------------------------------------------------


@dataclass(frozen=True)
class Said:
    """The tokens at the masks [masks, V], and how many are missing in each gap [gaps, counts]."""

    tokens: np.ndarray
    counts: np.ndarray
    gaps: np.ndarray


class Posteriors:
    """The exact answers for a law of texts, by enumeration of (text, places that are left).

    Given a state of k tokens, a text of n has the weight p(text) (1 - a)^(n - k) for every way in
    which the state lies in it. A state that lies in no text has no gaps, and uniform tokens.
    """

    def __init__(self, law):
        self.law, self.longest = law, max(map(len, law))
        self.known, self.said = {}, {}

    def ways(self, state):
        """p(text), n - k, tokens under the masks and missing ones in the gaps, for each way."""
        found = []
        for text, p in self.law.items():
            for places in itertools.combinations(range(len(text)), len(state)):
                under = [text[i] for i in places]
                if all(s in (MASK, v) for s, v in zip(state, under, strict=True)):
                    gaps = np.diff([-1, *places, len(text)]) - 1
                    masked = [v for s, v in zip(state, under, strict=True) if s == MASK]
                    found.append((p, len(text) - len(state), masked, gaps))
        return found

    def at(self, state, alpha):
        """What is said of a state while a share alpha of the tokens is there."""
        key = (state, float(alpha))
        if key not in self.said:
            self.said[key] = self._at(state, float(alpha))
        return self.said[key]

    def _at(self, state, alpha):
        if state not in self.known:
            self.known[state] = self._stacked(state)
        chance, missing, under, gaps = self.known[state]
        weight = chance * (1 - alpha) ** missing
        tokens, counts = np.tensordot(weight, under, 1), np.tensordot(weight, gaps, 1)
        if not counts.any():
            tokens, counts = tokens + 1, counts + np.eye(self.longest + 1)[0]
        return normalised(tokens, counts)

    def _stacked(self, state):
        """All ways as arrays; tokens and gaps as ones among zeros."""
        ways = self.ways(state)
        under = np.zeros((len(ways), state.count(MASK), VOCAB))
        gaps = np.zeros((len(ways), len(state) + 1, self.longest + 1))
        for i, (_, _, masked, missing) in enumerate(ways):
            under[i, np.arange(len(masked)), masked] = 1
            gaps[i, np.arange(len(missing)), missing] = 1
        chance, missing = (np.array([way[part] for way in ways]) for part in (0, 1))
        return chance, missing, under, gaps


class Perturbed(Posteriors):
    """Answers that no law of texts has: the exact ones, moved at random state by state.

    Gaps vanish where the exact ones do, and with 1 - a: otherwise texts would never end.
    """

    def __init__(self, law, seed, size=0.7):
        super().__init__(law)
        self.seed, self.size = seed, size

    def _at(self, state, alpha):
        exact = super()._at(state, alpha)
        random = np.random.default_rng([self.seed, len(state), *state])
        tokens = exact.tokens * np.exp(self.size * random.normal(size=exact.tokens.shape))
        moved = exact.counts.copy()
        moved[:, 1:] *= np.exp(self.size * random.normal(size=moved[:, 1:].shape))
        return normalised(tokens, moved)


class Mixed:
    """Guidance by hand: two tables, and a weight that is a function of alpha.

    Of gaps, the laws of their counts are mixed, or else their expectations, up to a limit.
    """

    def __init__(self, known, nothing, weight, counts, limit):
        self.tables, self.longest = (known, nothing), known.longest
        self.weight, self.counts, self.limit = weight, counts, limit

    def at(self, state, alpha):
        known, nothing = (table.at(state, alpha) for table in self.tables)
        w = self.weight(alpha)

        def mixed(a, b):
            return np.where(a > 0, a ** (1 + w) / np.where(a > 0, b, 1) ** w, 0)

        tokens, counts = mixed(known.tokens, nothing.tokens), mixed(known.counts, nothing.counts)
        said, rates = normalised(tokens, counts), mixed(known.gaps, nothing.gaps)
        return said if self.counts else replace(said, gaps=rates.clip(max=self.limit))


def normalised(tokens, counts):
    counts = counts / counts.sum(-1, keepdims=True)
    gaps = counts @ np.arange(counts.shape[1])
    return Said(tokens / tokens.sum(-1, keepdims=True), counts, gaps)


# The same as the library's models ----------------------------------------------------------------


def _ask(table, text, alphas, queries, distribution):
    """Answers for packed texts, each different state looked up once."""
    rows = text.padded(END)
    keys = torch.cat([rows.double(), alphas.double()[:, None]], -1)
    found, which = keys.unique(dim=0, return_inverse=True)
    said = [
        table.at(tuple(int(v) for v in key[:-1] if v != END), key[-1]) for key in found.tolist()
    ]
    lengths = torch.tensor([len(one.gaps) for one in said], dtype=torch.int64)
    gaps = PackedTokens.of_texts(
        torch.zeros(int((text.lengths + 1).sum()), dtype=torch.int64), text.lengths + 1
    )
    starts = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    at = starts[which[gaps.sequence_ids]] + gaps.position_ids
    mean = torch.from_numpy(np.concatenate([one.gaps for one in said]))[at]
    counts = torch.from_numpy(np.concatenate([one.counts for one in said]))[at].log()
    masks = torch.tensor([len(one.tokens) for one in said], dtype=torch.int64)
    starts = torch.nn.functional.pad(masks.cumsum(0), (1, 0))
    hidden = text.tokens == MASK
    before = hidden.cumsum(0) - 1
    firsts = torch.nn.functional.pad(text.lengths.cumsum(0), (1, 0))[:-1]
    seen = torch.nn.functional.pad(hidden.cumsum(0), (1, 0))[firsts]
    order = (before - seen[text.sequence_ids])[queries]
    tokens = torch.from_numpy(np.concatenate([one.tokens for one in said]))
    log_probs = tokens[starts[which[text.sequence_ids[queries]]] + order].log()
    return log_probs, Answer(log_probs, mean, counts if distribution else None)


class GrowingModel(FlexibleModel):
    """All that the sampler asks of a model, answered by a table."""

    family = "flexible"
    vocab_size, mask_id, end_id = VOCAB + 2, MASK, END

    def __init__(self, table, insertion="linear", unmasking="linear", length=6, counts=False):
        self.table, self.length, self.distribution = table, length, counts
        self.process = Interpolant(make_schedule(insertion), make_schedule(unmasking))

    def ask(self, text, t, queries, label=None):  # noqa: ARG002
        return _ask(self.table, text, self.process.insertion.alpha(t), queries, self.distribution)


class LabelledModel(GrowingModel):
    """Two tables: one for label 1 of 3, the other for none."""

    def __init__(self, known, nothing, **options):
        super().__init__(known, **options)
        self.tables = known, nothing
        self.network = TableTransformer(known, self.length)
        self.network.config = replace(self.network.config, classes=3)

    def ask(self, text, t, queries, label=None):
        alphas, counts = self.process.insertion.alpha(t), None
        laws, said = zip(
            *(_ask(table, text, alphas, queries, self.distribution) for table in self.tables),
            strict=True,
        )
        known = torch.repeat_interleave(label == 1, text.lengths + 1)
        law = torch.where((label == 1)[text.sequence_ids[queries], None], *laws)
        gaps = torch.where(known, *(one.gaps for one in said))
        if self.distribution:
            counts = torch.where(known[:, None], *(one.counts for one in said))
        return law, Answer(law, gaps, counts)


class TableTransformer(FlexibleTransformer):
    """A network for the loss that answers from a table."""

    def __init__(self, table, length=4, counts=False):
        sizes = {"width": 4, "depth": 1, "heads": 1, "time": True}
        super().__init__(
            TransformerConfig(vocab_size=VOCAB + 2, output_size=VOCAB, length=length, **sizes)
        )
        self.table, self.distribution, self.alphas = table, counts, None

    def forward(self, text, *, queries, scalar, label=None):  # noqa: ARG002
        torch.testing.assert_close(scalar, (1000 * self.alphas).float())
        return _ask(self.table, text, self.alphas, queries, self.distribution)[1]


class TableFlexMDM(FlexMDM):
    """The method, whose network is told a(t) in full: single precision shows in the sixth digit."""

    def ask(self, text, t, queries, label=None):
        self.network.alphas = self.process.insertion.alpha(t.double())
        return super().ask(text, t, queries, label)


# Chains of steps ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chain:
    """The law of a sampler's texts, step by step over all states."""

    table: Posteriors
    process: Interpolant
    rule: str
    counts: bool = False
    leftmost: bool = False
    room: int | None = None
    """The most tokens of a text; without it, what is longer than every text is `TOO_LONG`."""
    most: int | None = None
    """The most masks that a step puts into a gap."""

    def law(self, steps, start=(), opened=None):
        """The law of the texts after so many steps, from a prompt and its open gaps."""
        opened = (True,) * (len(start) + 1) if opened is None else opened
        law = {(start, opened): 1.0}
        for index in range(steps):
            t, s = 1 - index / steps, 1 - (index + 1) / steps
            alpha = _number(self.process.insertion.alpha, t)
            chances = [
                _chances(each, t, s) for each in (self.process.insertion, self.process.unmasking)
            ]
            after = defaultdict(float)
            for (state, gaps), before in law.items():
                if state is TOO_LONG:
                    after[state, gaps] += before
                    continue
                said = self.table.at(state, alpha)
                for new, p in self._step(state, gaps, said, chances, index + 1 == steps):
                    after[new] += before * p
            law = after
        texts = defaultdict(float)
        for (state, _), chance in law.items():
            texts[state] += chance
        return dict(texts)

    def _step(self, state, opened, said, chances, last):
        reveal = 1.0 if last else self._reveal(*chances[1])
        revealed = list(self._revealed(state, said, reveal))
        if last:
            yield from (((new, opened), p) for new, p in revealed)
            return
        for counts, q in self._grown(state, opened, said, chances[0]):
            if self.room is None and len(state) + sum(counts) > self.table.longest:
                yield (TOO_LONG, ()), q
            else:
                yield from ((_joined(new, opened, counts), p * q) for new, p in revealed)

    def _reveal(self, p, rate):
        return {
            "schedule": p,
            "euler": min(1, rate),
            "tau-leaping": 1 - math.exp(-rate),
            "reference euler": rate / (1 + rate),
            "reference hazard": p,
        }[self.rule]

    def _inserted(self, said, gap, p, rate):
        """The law of the masks that a gap receives, as a list."""
        law = list(self._unlimited(said, gap, p, rate))
        if self.most is None or len(law) <= self.most + 1:
            return law
        return [*law[: self.most], sum(law[self.most :])]

    def _unlimited(self, said, gap, p, rate):
        expected = said.gaps[gap]
        if self.rule == "tau-leaping":
            # More than any text has are as good as one more than that, where there is no limit.
            most = self.table.longest if self.room is None else 3 + int(20 * rate * expected)
            law = [math.exp(-rate * expected)]
            for k in range(1, most + 1):
                law.append(law[-1] * rate * expected / k)
            return [*law, max(0.0, 1 - sum(law))]
        if self.rule == "schedule" and self.counts:
            sizes = np.arange(said.counts.shape[1])
            return said.counts[gap] @ stats.binom.pmf(sizes[None], sizes[:, None], p)
        chance = {
            "schedule": 1 - (1 - p) ** expected,
            "euler": min(1, rate * expected),
            "reference euler": min(1, rate * expected),
            "reference hazard": min(1, p * expected),
        }[self.rule]
        return [1 - chance, chance]

    def _grown(self, state, opened, said, chances):
        """Counts for all gaps; where there is no room for all masks, each is as likely left out."""
        laws = [
            self._inserted(said, gap, *chances) if free and said.gaps[gap] > 0 else [1.0]
            for gap, free in enumerate(opened)
        ]
        for counts in itertools.product(*(range(len(law)) for law in laws)):
            chance = math.prod(law[c] for law, c in zip(laws, counts, strict=True))
            left = sum(counts) if self.room is None else max(self.room - len(state), 0)
            if chance == 0:
                continue
            if sum(counts) <= left:
                yield counts, chance
                continue
            ways = math.comb(sum(counts), left)
            for kept in itertools.product(*(range(min(c, left) + 1) for c in counts)):
                if sum(kept) == left:
                    share = math.prod(map(math.comb, counts, kept)) / ways
                    yield kept, chance * share

    def _revealed(self, state, said, reveal):
        """The state after some masks were revealed, and how likely."""
        places = [i for i, token in enumerate(state) if token == MASK]
        for choice in itertools.product((MASK, *range(VOCAB)), repeat=len(places)):
            shown = [token != MASK for token in choice]
            count = sum(shown)
            if self.leftmost and shown != sorted(shown, reverse=True):
                continue
            ways = math.comb(len(places), count) if self.leftmost else 1
            chance = ways * reveal**count * (1 - reveal) ** (len(places) - count)
            tokens = list(state)
            for mask, (place, token) in enumerate(zip(places, choice, strict=True)):
                if token != MASK:
                    chance *= said.tokens[mask, token]
                    tokens[place] = token
            if chance > 0:
                yield tuple(tokens), chance


def _joined(state, opened, counts):
    """Masks in the gaps; a gap beside a mask that was inserted is open."""
    tokens, gaps = [], []
    for token, gap, count in zip((*state, None), opened, counts, strict=True):
        tokens += [MASK] * count + [token]
        gaps += [True] * count + [gap]
    return tuple(tokens[:-1]), tuple(gaps)


def _chances(schedule, t, s):
    """(alpha_s - alpha_t) / (1 - alpha_t), and the rate of time t times the length of the step."""
    alpha_t, alpha_s = (_number(schedule.alpha, time) for time in (t, s))
    return (alpha_s - alpha_t) / (1 - alpha_t), _number(schedule.weight, t) * (t - s)


def _number(function, t):
    return float(function(torch.tensor(t, dtype=torch.float64)))


def total_variation(law, data):
    """What is in no text of the data counts in full."""
    return sum(abs(law.get(x, 0) - data.get(x, 0)) for x in {*law, *data}) / 2


# The process in continuous time ------------------------------------------------------------------


def shares(process, t):
    """P(gone), P(mask), P(clean) of a token at time t, by quadrature over when it disappears."""
    points, parts = map(torch.from_numpy, np.polynomial.legendre.leggauss(60))
    low = math.log(t)
    d = torch.exp(low * (1 - points) / 2)  # from t to 1, evenly in the logarithm
    rate = -process.insertion.derivative(d) / process.unmasking.one_minus_alpha(d)
    lost = -low / 2 * float((parts * rate * d).sum())
    mask = _number(process.unmasking.one_minus_alpha, t) * lost
    there = _number(process.insertion.alpha, t)
    return np.array([_number(process.insertion.one_minus_alpha, t), mask, there - mask])


def configurations(length):
    """0 (gone), 1 (mask) or 2 (clean) for every token, in every way."""
    return list(itertools.product(range(3), repeat=length))


def what_is_left(text, configuration):
    """The state that is left of a text."""
    pairs = zip(text, configuration, strict=True)
    return tuple(MASK if kind == 1 else token for token, kind in pairs if kind)


def rate_law(table, process, longest):
    """The law of the texts under the rates themselves: an ODE over all states.

    In r = -log t both weights stay finite; what is still hidden at the end is lost mass.
    """
    states = all_texts(longest, VOCAB + 1)
    number = {state: i for i, state in enumerate(states)}

    def slope(r, law):
        t = math.exp(-r)
        alpha = _number(process.insertion.alpha, t)
        a, b = (_number(each.weight, t) * t for each in (process.insertion, process.unmasking))
        change = np.zeros_like(law)
        for i, state in enumerate(states):
            if law[i] == 0:
                continue
            said, mask = table.at(state, alpha), 0
            flows = []
            for place, token in enumerate(state):
                if token == MASK:
                    for v in range(VOCAB):
                        moved = (*state[:place], v, *state[place + 1 :])
                        flows.append((moved, b * said.tokens[mask, v]))
                    mask += 1
            if len(state) < longest:
                flows += [
                    ((*state[:gap], MASK, *state[gap:]), a * said.gaps[gap])
                    for gap in range(len(state) + 1)
                ]
            for moved, rate in flows:
                change[number[moved]] += rate * law[i]
                change[i] -= rate * law[i]
        return change

    start = np.zeros(len(states))
    start[0] = 1
    end = integrate.solve_ivp(slope, (0, 22), start, rtol=1e-6, atol=1e-9).y[:, -1]
    return {state: end[i] for state, i in number.items() if MASK not in state}


# Samples -----------------------------------------------------------------------------------------


def texts_of(samples):
    """Rows as tuples, without what fills them up."""
    return [tuple(v for v in row if v != END) for row in samples.tolist()]


def assert_texts(samples, law, longest=None):
    """Chi-square test of drawn texts against a law; what is impossible must not happen."""
    counts = defaultdict(int)
    for text in texts_of(samples):
        counts[TOO_LONG if longest is not None and len(text) > longest else text] += 1
    assert set(counts) <= {text for text, p in law.items() if p > 0}
    expected = {text: p * len(samples) for text, p in law.items()}
    often = [text for text in law if expected[text] >= 5]
    rare = len(samples) - sum(expected[text] for text in often)
    observed, wanted = [counts[text] for text in often], [expected[text] for text in often]
    if rare > 1e-3:  # all that is rare, in one; less than that is what a law leaves out
        observed.append(len(samples) - sum(observed))
        wanted.append(rare)
    wanted = np.array(wanted) * sum(observed) / sum(wanted)
    assert stats.chisquare(observed, wanted).pvalue > LEVEL
