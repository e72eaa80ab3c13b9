"""FlexMDM: Any-Order Flexible Length Masked Diffusion (Kim et al., 2025).

Masked diffusion in which tokens are also deleted, by the process of `processes/insertion.py`. The
reverse process inserts masks into the text and then reveals them, so texts have any length. A
network predicts both the hidden tokens and the number of missing ones:

    unmasking posterior      p(x_i | x_t) of the token at a mask i
    insertion expectation    g_i = E[number of tokens missing in gap i | x_t]

They define the rates of the reverse process: at time t, mask i becomes v at the rate w_b(t) p(v),
and a mask is inserted in gap i at the rate w_a(t) g_i, where w = -alpha'/(1 - alpha) for the
schedules a of insertion and b of unmasking. The loss is a divergence of rates, with
phi(x, y) = y - x + x log(x / y):

    L = E_t [ w_b(t) sum over masks of -log p(x_i)  +  w_a(t) sum over gaps of phi(n_i, g_i) ]

The posteriors depend on t only through a(t), so the network is conditioned on a(t).

L is a loose bound: phi ignores which of the n_i tokens is inserted first. With c(n) of `order_nats`
for a text of n tokens, L - c(n) >= -log p(text), with equality for the exact posteriors. The tokens
of a prompt cut a text into runs, and every run has its own c.

There are two heads for the gaps. One predicts g_i itself. With `gaps="distribution"` the network
predicts the distribution of the number of missing tokens, trained by cross-entropy, and g_i is its
mean.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor
from torch.nn import functional as F

from partita.contracts.batch import Batch
from partita.contracts.layouts import DENSE
from partita.contracts.loss import Loss
from partita.contracts.packed import PackedTokens
from partita.contracts.shapes import Indices, Labels, Marks, RowTimes
from partita.devices import readable
from partita.errors import naming, require
from partita.methods.base import METHODS, About, NetworkMethod, check_batch
from partita.methods.contracts import FlexibleModel
from partita.methods.masked_method import TIME_SCALE
from partita.methods.mdlm import subs
from partita.networks.flexible import Answer, FlexibleTransformer
from partita.networks.kinds import new_network
from partita.networks.options import TransformerOptions
from partita.processes.draws import crowded_times, even_times, positive_time
from partita.processes.insertion import Interpolant, State, bregman, free_runs, order_nats
from partita.randomness import Noise, Purpose
from partita.schedules import Schedule, make_schedule

CROWD = 0.5  # half of the times have the density CROWD t^(CROWD-1): near 0, few texts count much
# The lower limit of g_i, which keeps phi finite. Below it there is no gradient. Each gap of a full
# text costs this times the integral of the weight (about 40).
LEAST = 1e-12


class Thinned(NamedTuple):
    """Texts with tokens deleted or hidden, and the times, drawn from a density (default 1)."""

    state: State
    t: RowTimes
    kept: Marks | None = None
    """Tokens of prompts, which are neither deleted nor hidden."""
    density: Float[Tensor, "B"] | None = None


class Terms(NamedTuple):
    """The loss terms of a state: nats of each mask and of each gap, unweighted."""

    masks: Float[Tensor, "M"]
    gaps: Float[Tensor, "G"]
    counts: Float[Tensor, "G"] | None
    """Cross-entropy of the counts, if the network predicts their distribution."""


@METHODS.register("flexmdm")
class FlexMDM(NetworkMethod, FlexibleModel):
    """Masked diffusion for texts of any length: predicts hidden tokens and missing counts."""

    about = About(
        paper="Any-Order Flexible Length Masked Diffusion (Kim et al., 2025)",
        equation="L_unmask + L_insert",
        loss="cross-entropy of masks and divergence of insertion rates, weighted to a bound",
        choices={
            "schedule": "of unmasking: any that falls from 1 to 0; see the list of schedules",
            "options.insertion": "the schedule of insertion, the same unless given",
            "options.gaps": "what the network predicts for gaps: expectation (the default) or"
            " distribution",
        },
    )
    reads = "growing"
    network: FlexibleTransformer
    process: Interpolant
    default_rows = "padded"
    reads_padding = False

    def __init__(
        self,
        network: FlexibleTransformer,
        *,
        schedule: str | Schedule = "linear",
        insertion: str | Schedule | None = None,
    ) -> None:
        """`schedule` is that of unmasking (b); that of `insertion` (a) is the same by default.

        Both must fall from 1 to 0, so that texts start empty and end complete; otherwise the loss
        would be no bound.
        """
        super().__init__()
        fits = isinstance(network, FlexibleTransformer)
        problem = f"{type(network).__name__} does not tell what is missing"
        require(fits, "network", problem, "use FlexibleTransformer")
        self.network = network
        unmasking = make_schedule(schedule)
        _check_ends("schedule", unmasking)
        with naming({"schedule": "insertion"}):
            inserting = unmasking if insertion is None else make_schedule(insertion)
        _check_ends("insertion", inserting)
        self.process = Interpolant(inserting, unmasking)
        self.order_nats = order_nats(self.length)

    @classmethod
    def build(
        cls,
        network: TransformerOptions,
        tokens: int,
        *,
        schedule: str | None = None,
        schedule_options: dict[str, float] | None = None,
        insertion: str | None = None,
        gaps: str = "expectation",
    ) -> FlexMDM:
        """Build the method with a new network for ids 0..tokens-1, a mask and an end marker."""
        sizes = {"vocab_size": tokens + 2, "output_size": tokens, "time": True, "gaps": gaps}
        chosen = make_schedule(schedule or "linear", **(schedule_options or {}))
        return cls(new_network(network, cls.reads, **sizes), schedule=chosen, insertion=insertion)

    @property
    def mask_id(self) -> int:
        return self.network.mask_id

    @property
    def end_id(self) -> int:
        """The id that fills up the rows of shorter texts."""
        return self.network.end_id

    def ask(
        self, text: PackedTokens, t: RowTimes, queries: Indices, label: Labels | None = None
    ) -> tuple[Float[Tensor, "N V"], Answer]:
        """log p(x_i | x_t) at the queried indices of the packed text, and the network's output."""
        scalar = (TIME_SCALE * self.process.insertion.alpha(t.double())).float()
        answer = self.network(text, queries=queries, scalar=scalar, label=label)
        # The loss and the samplers use the same model: no mass on the mask, gaps of at least LEAST.
        log_probs = subs(answer.logits[:, : self.mask_id], self.mask_id)
        return log_probs, answer._replace(gaps=answer.gaps.clamp(min=LEAST))

    # The loss ------------------------------------------------------------------------------------

    def loss(self, batch: Batch, noise: Noise, step: int = 0, *, kept: Marks | None = None) -> Loss:
        """Draw a time for each row and a state at that time, and compute its loss.

        Rows are whole texts, padded on the right; empty texts are allowed. `kept` marks tokens of
        prompts, which are neither deleted nor hidden.
        """
        problem = "documents that share a row have no ends of their own"
        remedy = "give each a row: --data.rows padded"
        require(batch.layout() is DENSE, "layout", problem, remedy)
        _check(batch, self)
        u = positive_time(even_times(noise, step, batch.size))
        t, _, share = crowded_times(u, CROWD)
        positions = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)[None]
        u_deleted = noise.uniform(Purpose.INSERT, step, positions)
        u_mask = noise.uniform(Purpose.MASK, step, positions)
        deleted, masked = self.process.times(u_deleted, u_mask)
        read = batch.tokens, batch.real, t, deleted, masked, self.mask_id, kept
        return self.loss_given(batch, Thinned(self.process.state(*read), t, kept, share / t))

    def loss_given(self, batch: Batch, drawn: Thinned) -> Loss:
        """The loss of given states.

        `per_token` sums to the bound of each row. The nats of a mask are at its token, those of a
        gap at the token after it (those of the last gap at the last token, where the nats of the
        order are subtracted too). Those of an empty text are in its first column.
        """
        tokens, real, (state, t, kept, density) = batch.tokens, batch.real, drawn
        queries = state.hidden.nonzero()[:, 0]
        log_probs, answer = self.ask(state.text, t, queries, batch.label)
        index = state.text.sequence_ids[queries], state.source[queries]
        terms = self.terms(log_probs, tokens[index], state, answer)
        rate = torch.ones_like(t) if density is None else density
        weight_b, weight_a = (
            (schedule.weight(t.double()) / rate).to(terms.gaps.dtype)[:, None]
            for schedule in (self.process.unmasking, self.process.insertion)
        )
        last = torch.arange(len(tokens), device=tokens.device), real.cumsum(-1).argmax(-1)
        gap_index = self._gap_indices(state, last[1])
        empty = terms.gaps.new_zeros(tokens.shape)
        masks, gaps = empty.index_put(index, terms.masks), _added(empty, gap_index, terms.gaps)
        order = _added(empty, last, self._order(real, kept).to(empty.dtype))
        per_token = weight_b * masks + weight_a * gaps - order
        objective = per_token.sum()
        if terms.counts is not None:  # the cross-entropy of the counts replaces phi
            counts = _added(empty, gap_index, terms.counts)
            objective = objective + (weight_a * (counts - gaps)).sum()
        count = real.sum().clamp(min=1)
        hidden = torch.zeros_like(real).index_put(index, torch.ones_like(queries).bool())
        return Loss(objective / count, per_token, masks, hidden, count)

    def terms(
        self,
        log_probs: Float[Tensor, "M V"],
        target: Int64[Tensor, "M"],
        state: State,
        answer: Answer,
    ) -> Terms:
        """Cross-entropies of the masks, divergences of the gaps."""
        masks = -log_probs.gather(-1, target[:, None])[:, 0]
        gaps = bregman(state.gaps.to(answer.gaps.dtype), answer.gaps)
        if answer.counts is None:
            return Terms(masks, gaps, None)
        largest = answer.counts.shape[-1] - 1
        return Terms(
            masks,
            gaps,
            F.cross_entropy(answer.counts, state.gaps.clamp(max=largest), reduction="none"),
        )

    def _order(self, real: Tensor, kept: Tensor | None) -> Float64[Tensor, "B"]:
        """The sum of c over all runs of each text."""
        return self.order_nats.to(real.device)[free_runs(real, kept)].sum(-1)

    @staticmethod
    def _gap_indices(state: State, last: Tensor) -> tuple[Tensor, Tensor]:
        """Row and column for the nats of each gap: of the token after it, or of the last one."""
        ended, at, ends = state.text.with_ends(0)
        columns = torch.zeros_like(ended.tokens).index_copy(0, at, state.source)
        return ended.sequence_ids, columns.index_copy(0, ends, last)


def _check_ends(argument: str, schedule: Schedule) -> None:
    """Refuse a schedule that does not fall from exactly 1 to exactly 0."""
    ends = schedule.alpha(torch.tensor([0.0, 1.0], dtype=torch.float64, device="cpu")).tolist()
    problem = f"falls from {ends[0]:.3g} to {ends[1]:.3g}, not from 1 to 0"
    require(ends == [1.0, 0.0], argument, problem, "use another, such as linear")


def _added(empty: Tensor, index: tuple[Tensor, Tensor], values: Tensor) -> Tensor:
    return empty.index_put(index, values, accumulate=True)


def _check(batch: Batch, model: FlexMDM) -> None:
    """Check a batch as for any method, but allow empty texts and refuse end markers in them."""
    if not readable(batch.tokens):
        check_batch(batch, model)
        return
    real = batch.tokens if batch.is_token is None else batch.tokens[batch.is_token]
    if real.numel() == 0:
        return
    check_batch(batch, model)
    problem = f"holds the end marker ({model.end_id}) as if it were a real one"
    require(not bool((real == model.end_id).any()), "tokens", problem)
