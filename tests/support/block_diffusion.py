"""BD3-LM: Block Diffusion (Arriola et al., 2025): left to right by blocks, masked inside of each.

    -log p(x) = sum over blocks b of -log p(x_b | x_<b)
             <= sum over blocks b of E_t [ 1/t sum over hidden l of -log p(x_l | z_b, x_<b) ]

In training one pass reads a row twice, noisy and clean: block b of the noisy half reads itself and
the clean blocks before it. When sampling, finished blocks are read once, and then come out of a
cache. With blocks of the whole length this is MDLM, with blocks of one token it is autoregression.

As the file of a method of one's own it is a command line; imported, it registers nothing.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import torch
from torch import Tensor, nn

from partita.commands import main
from partita.contracts.layouts import DENSE, DenseLayout, Layout, Queries
from partita.contracts.loss import Loss
from partita.contracts.packed import PackedBatch
from partita.errors import require, require_int
from partita.methods.base import METHODS, About, check_batch
from partita.methods.contracts import Denoiser, TextMethod
from partita.methods.mdlm import subs
from partita.networks.base import CachingNetwork
from partita.networks.kinds import new_network
from partita.processes.draws import even_times, positive_time
from partita.randomness import Purpose
from partita.samplers.base import sampler
from partita.schedules import make_schedule


class Hidden(NamedTuple):
    """Which tokens are hidden, and how much each of them counts."""

    hidden: Tensor
    weight: Tensor


class BlockDiffusion(nn.Module, TextMethod, Denoiser):
    """Masked diffusion inside each block, given all blocks before it."""

    about = About(
        paper="Block Diffusion (Arriola et al., 2025)",
        equation="eq. 8",
        loss="cross-entropy of hidden tokens, weighed to a bound in continuous time",
        choices={
            "options.block_length": "tokens of a block, 4 unless given",
            "options.levels": "whether the network reads the share of hidden tokens of each block",
        },
    )
    timed = False
    schedule = make_schedule("linear")

    def __init__(self, network: CachingNetwork, block_length: int = 4) -> None:
        super().__init__()
        require(isinstance(network, CachingNetwork), "network", "has no cache")
        self.network, self.block_length = network, block_length
        self.length, self.vocab_size = network.config.length, network.config.vocab_size
        self.mask_id = self.vocab_size - 1

    @classmethod
    def build(cls, network, tokens, *, block_length: int = 4, levels: bool = False):
        require_int(block_length, "block_length")
        return cls(
            new_network(network, cls.reads, vocab_size=tokens + 1, time=levels), block_length
        )

    # The network -------------------------------------------------------------------------------

    def layout(self, tokens: Tensor, documents: Layout) -> DenseLayout:
        """Which of [noisy, clean] read which; a document reads itself alone."""
        block = torch.arange(tokens.shape[1], device=tokens.device) // self.block_length
        own, before = block[:, None] == block, block[:, None] > block
        noisy = torch.cat([own, before], 1)
        clean = torch.cat([torch.zeros_like(own), own | before], 1)
        document = PackedBatch.of_rows(tokens, documents).sequence_ids.view(tokens.shape)
        same = document[:, :, None] == document[:, None, :]
        return DenseLayout(torch.cat([noisy, clean])[None] & same.repeat(1, 2, 2))

    def levels(self, hidden: Tensor) -> Tensor | None:
        """For each token, the share of hidden tokens in its block."""
        if not self.network.config.time:
            return None
        parts = hidden.float().split(self.block_length, 1)
        return torch.cat([part.mean(1, keepdim=True).expand(part.shape) for part in parts], 1)

    def log_probs(self, clean, hidden, queries, label=None, documents=DENSE) -> Tensor:
        """log p(x_l | z_b, x_<b) at some positions of noisy blocks; `clean` are the tokens."""
        noisy, length = torch.where(hidden, self.mask_id, clean), clean.shape[1]
        levels = self.levels(hidden)
        place = torch.arange(length, device=clean.device)
        logits = self.network(
            torch.cat([noisy, clean], 1),
            queries=queries,
            scalar=None if levels is None else torch.cat([levels, torch.zeros_like(levels)], 1),
            label=label,
            layout=self.layout(clean, documents),
            positions=torch.cat([place, place]),
        )
        return subs(logits, self.mask_id)

    def predict(self, tokens, revealed, rows, positions, time=None, label=None):  # noqa: ARG002
        """Given what is revealed of the block, and of all blocks before it."""
        known = torch.where(revealed, tokens, self.mask_id)
        return self.log_probs(known, ~revealed, Queries(rows, positions), label)

    # The loss ----------------------------------------------------------------------------------

    def loss(self, batch, noise, step=0):
        """A time for each block, spread evenly over the blocks of the batch."""
        batch = check_batch(batch, self).padded_with(self.mask_id)
        tokens = batch.tokens
        place = torch.arange(tokens.shape[1], device=tokens.device)
        block = place // self.block_length
        shift = block.double() / (int(block[-1]) + 1)
        t = positive_time((even_times(noise, step, batch.size)[:, None] + shift) % 1)
        hidden = (noise.uniform(Purpose.MASK, step, place[None]) < t) & batch.real
        return self.loss_given(batch, Hidden(hidden, 1 / t))

    def loss_given(self, batch, drawn) -> Loss:
        """The loss, given which tokens are hidden and the weight of each."""
        tokens, real, (hidden, weight) = batch.tokens, batch.real, drawn
        queries = Queries(*hidden.nonzero(as_tuple=True))
        log_probs = self.log_probs(tokens, hidden, queries, batch.label, batch.layout())
        nats = -log_probs.gather(1, tokens[queries][:, None])[:, 0]
        cross_entropy = nats.new_zeros(tokens.shape).index_put(tuple(queries), nats)
        per_token = weight.to(nats) * cross_entropy
        return Loss(per_token.sum() / real.sum(), per_token, cross_entropy, hidden, real.sum())

    # Block by block ----------------------------------------------------------------------------

    def within(self, block, hidden, rows, positions, caches, label=None) -> Tensor:
        """The same predictions for the next block, given the cached ones."""
        past = caches[0].filled
        queries = Queries(rows, positions)
        noisy = torch.where(hidden, self.mask_id, block)
        levels = self.levels(hidden)
        logits = self.network(noisy, queries=queries, scalar=levels, label=label, caches=caches)
        for cache in caches:
            cache.forget(past)
        return subs(logits, self.mask_id)

    def finish(self, block, caches, label=None) -> None:
        """Add a finished block to the caches."""
        nothing = Queries(*block.new_zeros(2, 0))
        levels = self.levels(torch.zeros_like(block, dtype=torch.bool))
        self.network(block, queries=nothing, scalar=levels, label=label, caches=caches)


def block_by_block(context, state, *, steps: int | None = None):
    """Blocks from left to right, each in so many steps (one token at each unless given)."""
    model, (batch, length) = context.model, state.tokens.shape
    gap = state.revealed[:, 1:] & ~state.revealed[:, :-1]
    require(not bool(gap.any()), "prompt", "a known token follows a blank", "use another sampler")
    caches, size = model.network.new_caches(batch), model.block_length
    for start in range(0, length, size):
        part = slice(start, min(start + size, length))
        place = torch.arange(part.start, part.stop, device=state.tokens.device)[None]
        keys = context.noise.uniform(Purpose.ORDER, 0, place)
        hidden = state.remaining[:, part]
        rank = keys.masked_fill(~hidden, torch.inf).argsort(-1).argsort(-1)
        count = hidden.sum(-1, keepdim=True).clamp(min=1)
        number = size if steps is None else steps
        due = torch.where(hidden, rank * number // count, -1)
        for step in due[due >= 0].unique().tolist():
            rows, inside = (due == step).nonzero(as_tuple=True)
            unknown = state.remaining[:, part]
            with torch.no_grad():
                log_probs = model.within(
                    state.tokens[:, part], unknown, rows, inside, caches, context.label
                )
            positions = inside + start
            state.write(rows, positions, context.draw(log_probs, 0, rows, positions))
            context.report(start + step, None, state, rows, positions)
        with torch.no_grad():
            model.finish(state.tokens[:, part], caches, context.label)
    return state.tokens


if __name__ == "__main__":
    METHODS.register("block-diffusion")(BlockDiffusion)
    sampler("block-by-block", family="masked")(block_by_block)
    sys.exit(main())
