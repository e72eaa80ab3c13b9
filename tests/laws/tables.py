"""Models small enough to enumerate: a table gives the prediction at every partial state.

With 3 tokens and 2 or 3 positions there are 4^L states (a position holds a token or the mask), so
every law and every expectation can be written down exactly.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import torch
from scipy import stats
from torch import Tensor, nn

from partita.contracts.layouts import DENSE, Queries
from partita.methods import MD4, MDLM, PGM
from partita.methods.masked_method import TIME_SCALE
from partita.networks.base import Network, NetworkConfig, PartitionNetwork
from partita.processes.masked import reverse

VOCAB = 3
MASK = VOCAB
LEVEL = 1e-3  # every chi-square test in this folder: fixed seeds, this level


@dataclass(frozen=True)
class TableConfig(NetworkConfig):
    """The sizes of a table network."""

    length: int
    vocab_size: int = VOCAB + 1
    outputs: int = VOCAB
    classes: int = 0
    time: bool = True


class TableNetwork(nn.Module, Network):
    """Logits looked up by state; they drift with the time when `drift` is not 0."""

    def __init__(self, logits: Tensor, drift: float = 0.0, with_mask: bool = False) -> None:
        super().__init__()
        if with_mask:  # a logit for the mask itself, which SUBS has to remove
            logits = torch.cat([logits, torch.full_like(logits[..., :1], 2.5)], dim=-1)
        self.table = nn.Parameter(logits)
        self.drift = drift
        self.config = TableConfig(length=logits.shape[1], outputs=logits.shape[-1])

    def forward(self, tokens, *, queries: Queries, scalar=None, label=None):  # noqa: ARG002
        logits = self.table[state_index(tokens)][queries.rows, queries.positions]
        if scalar is not None:
            logits = logits * (1 + self.drift * scalar[queries.rows, None] / 1000)
        return logits


class TablePartitionNetwork(nn.Module, PartitionNetwork):
    """The same look-up for partitions: what is not revealed is looked up as a mask.

    The network itself has no mask: neither an input id nor a logit.
    """

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.table = nn.Parameter(logits)
        _, length, size = logits.shape
        self.config = TableConfig(length=length, vocab_size=size, outputs=size, time=False)

    def forward(self, tokens, revealed, *, queries: Queries, scalar=None, label=None, layout=DENSE):  # noqa: ARG002
        size = self.config.vocab_size
        state = state_index(torch.where(revealed, tokens, size), size)
        return self.table[state[queries.rows], queries.positions]

    def both(self, tokens, groups, *, real=None, scalar=None, label=None, layout=DENSE):  # noqa: ARG002
        """Two look-ups. Group 0 comes first: the order of the answers is the network's choice."""
        real = torch.ones_like(groups) if real is None else real
        halves = [~groups & real, groups & real]
        asked = [Queries(*half.nonzero(as_tuple=True)) for half in halves]
        answers = [
            self(tokens, seen, queries=queries)
            for seen, queries in zip(reversed(halves), asked, strict=True)
        ]
        return torch.cat(answers), Queries(*map(torch.cat, zip(*asked, strict=True)))


class LabelledNetwork(nn.Module, Network):
    """Two networks: one for label 1 of 3, the other for none."""

    def __init__(self, known: nn.Module, nothing: nn.Module) -> None:
        super().__init__()
        self.known, self.nothing = known, nothing
        self.config = replace(known.config, classes=3)

    def forward(self, tokens, *, queries: Queries, scalar=None, label=None):
        told = {"queries": queries, "scalar": scalar}
        outputs = self.known(tokens, **told), self.nothing(tokens, **told)
        return torch.where((label[queries.rows] == 1)[:, None], *outputs)


def leaning_pair(make) -> tuple[nn.Module, nn.Module]:
    """Networks with tables for a label, leaning towards token 1, and for none."""
    known, nothing = make(1), make(2)
    with torch.no_grad():
        known.table.mul_(0.3).add_(nothing.table)[..., 1] += 0.7
    return known, nothing


class MixedNetwork(nn.Module, Network):
    """Guidance by hand: (1 + w) times one network's outputs less w times another's.

    w is a function of 1 - t. `keep_total` leaves the sum of the exponentials what it was.
    """

    def __init__(self, known: nn.Module, nothing: nn.Module, weight, keep_total=False) -> None:
        super().__init__()
        self.known, self.nothing, self.config = known, nothing, known.config
        self.weight, self.keep_total = weight, keep_total

    def forward(self, tokens, *, queries: Queries, scalar=None, label=None):  # noqa: ARG002
        told = {"queries": queries, "scalar": scalar}
        known, nothing = self.known(tokens, **told), self.nothing(tokens, **told)
        weight = self.weight(1 - scalar[queries.rows, None].double() / TIME_SCALE)
        mixed = (1 + weight) * known - weight * nothing
        if not self.keep_total:
            return mixed
        return mixed.log_softmax(-1) + known.logsumexp(-1, keepdim=True)


def state_index(tokens: Tensor, size: int = VOCAB) -> Tensor:
    """The number of a state in base `size` + 1."""
    powers = (size + 1) ** torch.arange(tokens.shape[-1])
    return (tokens * powers).sum(-1)


def all_states(length: int) -> Tensor:
    """Every partial state, in the order of its number."""
    states = torch.tensor(list(itertools.product(range(VOCAB + 1), repeat=length))).flip(-1)
    assert torch.equal(state_index(states), torch.arange(len(states)))
    return states


def all_sequences(length: int) -> Tensor:
    """Every complete sequence."""
    return torch.tensor(list(itertools.product(range(VOCAB), repeat=length)))


def random_logits(length: int, seed: int = 0) -> Tensor:
    """A table that no data law would give: bounds and samplers must hold for any model."""
    generator = torch.Generator().manual_seed(seed)
    shape = ((VOCAB + 1) ** length, length, VOCAB)
    return 1.5 * torch.randn(shape, generator=generator, dtype=torch.float64)


def data_law(length: int, seed: int = 0) -> Tensor:
    """A random law over complete sequences."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(VOCAB**length, generator=generator, dtype=torch.float64).mul(1.3).softmax(0)


def bayes_logits(length: int, law: Tensor) -> Tensor:
    """log p(x_l = v | visible tokens) under a data law: the best possible denoiser."""
    sequences, states = all_sequences(length), all_states(length)
    fits = ((states[:, None] == MASK) | (states[:, None] == sequences)).all(-1)
    joint = torch.einsum(
        "sn,nlv->slv", fits * law, (sequences[..., None] == torch.arange(VOCAB)).double()
    )
    return joint.log()


def table_mdlm(logits: Tensor, **options) -> MDLM:
    return MDLM(TableNetwork(logits, with_mask=True), mask_id=MASK, **options)


def table_md4(logits: Tensor, drift: float = 0.7, **options) -> MD4:
    return MD4(TableNetwork(logits, drift), mask_id=MASK, **options)


def table_pgm(logits: Tensor, **options) -> PGM:
    return PGM(TablePartitionNetwork(logits), **options)


def mean_prediction(method, states: Tensor, time: float) -> Tensor:
    """x_theta at every position of every state, the mask's column left out."""
    everywhere = torch.ones_like(states, dtype=torch.bool)
    rows, positions = everywhere.nonzero(as_tuple=True)
    times = torch.full((len(states),), time, dtype=torch.float64)
    log_probs = method.predict(states, states != MASK, rows, positions, times)
    return log_probs.exp().detach().reshape(*states.shape, -1)[..., :VOCAB]


def chain_step(method, length: int, s: float, t: float, schedule) -> Tensor:
    """The transition matrix of one reverse step, over all states."""
    states = all_states(length)
    batch = torch.ones(len(states), dtype=torch.float64)
    alpha = schedule.alpha(torch.tensor(t, dtype=torch.float64))
    told = float(method.schedule.inverse(alpha))  # the time at which its own schedule is there
    mean = mean_prediction(method, states, told)
    step = reverse(mean, states, s * batch, t * batch, schedule, MASK)
    # Positions are independent given z_t: the probability of z_s is a product over positions.
    chosen = torch.stack([step[:, l][:, states[:, l]] for l in range(length)])  # noqa: E741
    return chosen.prod(0)


def chain_law(method, length: int, grid: Tensor, schedule) -> Tensor:
    """The law of the complete sequences after the reverse chain, from all masks."""
    law = torch.zeros((VOCAB + 1) ** length, dtype=torch.float64)
    law[-1] = 1.0  # the last state is all masks
    for t, s in itertools.pairwise(grid.tolist()):
        law = law @ chain_step(method, length, s, t, schedule)
    return law[state_index(all_sequences(length))]


def frequencies(samples: Tensor) -> Tensor:
    """How often each complete sequence occurs, in the order of `all_sequences`."""
    powers = VOCAB ** torch.arange(samples.shape[1]).flip(0)
    return torch.bincount((samples * powers).sum(-1), minlength=VOCAB ** samples.shape[1])


def assert_law(samples: Tensor, law: Tensor) -> None:
    """Chi-square test of samples against a law at `LEVEL`; the impossible must not happen."""
    counts = frequencies(samples)
    assert counts.sum() == len(samples), "a mask was emitted"
    torch.testing.assert_close(law.sum(), torch.ones((), dtype=law.dtype))
    assert int(counts[law == 0].sum()) == 0
    expected = law * len(samples)
    rare = expected < 5  # the usual rule: pool what is too rare for its own cell
    observed = torch.cat([counts[~rare], counts[rare].sum()[None]]).double()
    expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
    filled = expected > 0
    p_value = stats.chisquare(observed[filled].numpy(), expected[filled].numpy()).pvalue
    assert p_value > LEVEL, f"p = {p_value:.2e}"
