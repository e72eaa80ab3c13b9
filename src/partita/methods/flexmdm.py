"""FlexMDM: Any-Order Flexible Length Masked Diffusion (Kim et al., 2025).

Masked diffusion in which tokens also disappear, by the process of `processes/insertion.py`. Going
back, masks are inserted into the text and then revealed, so that texts have any length. A network
tells both what is hidden and what is missing:

    unmasking posterior      p(x_i | x_t) of the token at a mask i
    insertion expectation    g_i = E[number of tokens that are missing in gap i | x_t]

They make the rates of the reverse process: at time t, mask i becomes v at the rate w_b(t) p(v), and
gap i receives a mask at the rate w_a(t) g_i, w = -alpha'/(1 - alpha) of the two schedules a and b.
The loss is a divergence of rates, with phi(x, y) = y - x + x log(x / y):

    L = E_t [ w_b(t) sum over masks of -log p(x_i)  +  w_a(t) sum over gaps of phi(n_i, g_i) ]

The posteriors depend on t by a(t) alone, so that is what the network is told.

L is a loose bound: phi does not ask which of the n_i tokens comes first. With c(n) of `order_nats`
for a text of n tokens, L - c(n) >= -log p(text), and both are the same for the exact posteriors. A
prompt's tokens cut a text into runs, and every run has its own c.

There are two heads for the gaps. One tells g_i itself. With `gaps="distribution"` the network tells
how probable every number of missing tokens is, which is learned by cross-entropy, and g_i is the
mean.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from partita.contracts.batch import Batch
from partita.contracts.layouts import DENSE
from partita.contracts.loss import Loss
from partita.contracts.packed import PackedTokens
from partita.devices import readable
from partita.errors import naming, require
from partita.methods.base import METHODS, About, check_batch
from partita.methods.contracts import FlexibleModel, TextMethod
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
# The least that is expected in a gap, so that phi stays finite. A full text has its gaps for all t,
# so that it costs this times the integral of the weight (some 40), for each of them; and below it
# there is no gradient.
LEAST = 1e-12


class Thinned(NamedTuple):
    """Texts of which tokens are gone or hidden, at times of some density (1 unless given)."""

    state: State
    t: Float[Tensor, "B"]
    kept: Bool[Tensor, "B L"] | None = None
    """Tokens of prompts, which neither disappear nor are hidden."""
    density: Float[Tensor, "B"] | None = None


class Terms(NamedTuple):
    """The loss of a state: nats of each mask, and of each gap, before their weights."""

    masks: Float[Tensor, "M"]
    gaps: Float[Tensor, "G"]
    counts: Float[Tensor, "G"] | None
    """Cross-entropy of the counts, where the network has a distribution of them."""


@METHODS.register("flexmdm")
class FlexMDM(nn.Module, TextMethod, FlexibleModel):
    """A network that predicts hidden and missing tokens, and the schedules by which they go."""

    about = About(
        paper="Any-Order Flexible Length Masked Diffusion (Kim et al., 2025)",
        equation="L_unmask + L_insert",
        loss="cross-entropy of masks and divergence of insertion rates, weighed to a bound",
        choices={
            "schedule": "of unmasking: any that falls from 1 to 0; see the list of schedules",
            "options.insertion": "the schedule of insertion, the same unless given",
            "options.gaps": "what the network tells of gaps: expectation (the default) or"
            " distribution",
        },
    )
    reads = "growing"
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
        """`schedule` is that of unmasking (b), `insertion` (a) is the same unless given.

        Both fall from 1 to 0: texts begin with nothing and end whole, or the loss would be no
        bound.
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
        """The method over a new network for ids 0..tokens-1, a mask and an end marker."""
        sizes = {"vocab_size": tokens + 2, "output_size": tokens, "time": True, "gaps": gaps}
        chosen = make_schedule(schedule or "linear", **(schedule_options or {}))
        return cls(new_network(network, cls.reads, **sizes), schedule=chosen, insertion=insertion)

    @property
    def length(self) -> int:
        """Longest text."""
        return self.network.config.length

    @property
    def vocab_size(self) -> int:
        return self.network.config.vocab_size

    @property
    def mask_id(self) -> int:
        return self.network.mask_id

    @property
    def end_id(self) -> int:
        """What fills up rows of texts that are shorter than others."""
        return self.network.end_id

    def ask(
        self,
        text: PackedTokens,
        t: Float[Tensor, "B"],
        queries: Int64[Tensor, "M"],
        label: Int64[Tensor, "B"] | None = None,
    ) -> tuple[Float[Tensor, "M V"], Answer]:
        """log p(x_i | x_t) at some places of the packed text, and the network's answer."""
        told = (TIME_SCALE * self.process.insertion.alpha(t.double())).float()
        answer = self.network(text, queries=queries, scalar=told, label=label)
        # The loss and the samplers see the same model: tokens alone, and the least of every gap.
        log_probs = subs(answer.logits[:, : self.mask_id], self.mask_id)
        return log_probs, answer._replace(gaps=answer.gaps.clamp(min=LEAST))

    # The loss ------------------------------------------------------------------------------------

    def loss(
        self,
        batch: Batch,
        noise: Noise,
        step: int = 0,
        *,
        kept: Bool[Tensor, "B L"] | None = None,
    ) -> Loss:
        """A time for each row, a state at that time, and the loss of it.

        Rows are whole texts, filled up on the right with padding; an empty one is a text too.
        `kept` marks tokens of prompts, which neither disappear nor are hidden.
        """
        problem = "documents that share a row have no ends of their own"
        remedy = "give each a row: --data.rows padded"
        require(batch.layout() is DENSE, "layout", problem, remedy)
        _check(batch, self)
        u = positive_time(even_times(noise, step, batch.size))
        t, _, share = crowded_times(u, CROWD)
        positions = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)[None]
        u_gone = noise.uniform(Purpose.INSERT, step, positions)
        u_mask = noise.uniform(Purpose.MASK, step, positions)
        gone, masked = self.process.times(u_gone, u_mask)
        read = batch.tokens, batch.real, t, gone, masked, self.mask_id, kept
        return self.loss_given(batch, Thinned(self.process.state(*read), t, kept, share / t))

    def loss_given(self, batch: Batch, drawn: Thinned) -> Loss:
        """The loss of states that are already drawn.

        `per_token` sums to the bound of each row. The nats of a mask are at its token, those of a
        gap at the token after it (the last one's at the last token, from which the nats of the
        order are taken too). An empty text's are in its first column.
        """
        tokens, real, (state, t, kept, density) = batch.tokens, batch.real, drawn
        queries = state.hidden.nonzero()[:, 0]
        log_probs, answer = self.ask(state.text, t, queries, batch.label)
        place = state.text.sequence_ids[queries], state.source[queries]
        terms = self.terms(log_probs, tokens[place], state, answer)
        rate = torch.ones_like(t) if density is None else density
        weight_b, weight_a = (
            (schedule.weight(t.double()) / rate).to(terms.gaps.dtype)[:, None]
            for schedule in (self.process.unmasking, self.process.insertion)
        )
        last = torch.arange(len(tokens), device=tokens.device), real.cumsum(-1).argmax(-1)
        gap_place = self._gap_places(state, last[1])
        empty = terms.gaps.new_zeros(tokens.shape)
        masks, gaps = empty.index_put(place, terms.masks), _added(empty, gap_place, terms.gaps)
        order = _added(empty, last, self._order(real, kept).to(empty.dtype))
        per_token = weight_b * masks + weight_a * gaps - order
        objective = per_token.sum()
        if terms.counts is not None:  # the counts' own loss takes the place of phi
            counts = _added(empty, gap_place, terms.counts)
            objective = objective + (weight_a * (counts - gaps)).sum()
        count = real.sum().clamp(min=1)
        hidden = torch.zeros_like(real).index_put(place, torch.ones_like(queries).bool())
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
        """c of all runs of each text."""
        return self.order_nats.to(real.device)[free_runs(real, kept)].sum(-1)

    @staticmethod
    def _gap_places(state: State, last: Tensor) -> tuple[Tensor, Tensor]:
        """Where the nats of each gap are written: at the token after it, or at the last one."""
        ended, at, ends = state.text.with_ends(0)
        columns = torch.zeros_like(ended.tokens).index_copy(0, at, state.source)
        return ended.sequence_ids, columns.index_copy(0, ends, last)


def _check_ends(argument: str, schedule: Schedule) -> None:
    """Refuse a schedule that is cut off before 1 or before 0."""
    ends = schedule.alpha(torch.tensor([0.0, 1.0], dtype=torch.float64, device="cpu")).tolist()
    problem = f"falls from {ends[0]:.3g} to {ends[1]:.3g}, not from 1 to 0"
    require(ends == [1.0, 0.0], argument, problem, "use another, such as linear")


def _added(empty: Tensor, place: tuple[Tensor, Tensor], values: Tensor) -> Tensor:
    return empty.index_put(place, values, accumulate=True)


def _check(batch: Batch, model: FlexMDM) -> None:
    """As for any method, but all texts may be empty; and no text holds the end marker."""
    if not readable(batch.tokens):
        check_batch(batch, model)
        return
    real = batch.tokens if batch.is_token is None else batch.tokens[batch.is_token]
    if real.numel() == 0:
        return
    check_batch(batch, model)
    problem = f"holds the end marker ({model.end_id}) as if it were a real one"
    require(not bool((real == model.end_id).any()), "tokens", problem)
