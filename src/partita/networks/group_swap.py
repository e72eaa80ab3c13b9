"""GroupSwap (PGM, section 4): the layer in which information crosses between the groups."""

from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from partita.contracts.layouts import Layout
from partita.networks.attention import attend
from partita.networks.kind_options import PartitionOptions
from partita.networks.layers import NORMS, Rotary, normalized, on_grid, sinusoid
from partita.networks.options import TransformerConfig

QUERY_MLP_RATIO = 4


class GroupSwap(nn.Module):
    """Cross-attention in which the positions of each group read the tokens of the other group.

    Queries start from V_i = W LN(u + pos_i) + b (u is `base`, W and b are `process`). The modes
    "mean" and "logsumexp" have V'_i = W LN(u + pos_i + Y) + b, with Y that aggregate of the
    encoder's output X over the other group, as in the authors' code; section 4 writes V'_i = V_i +
    Y. There is no residual connection: the encoder's output at i belongs to i's own group. X is not
    normalized here, and rotary positions apply besides pos_i, both as in the authors' code.
    """

    several: ClassVar = {"key_value": 2}

    def __init__(
        self, config: TransformerConfig, options: PartitionOptions, width: int, heads: int
    ) -> None:
        super().__init__()
        self.mode, self.heads, self.qk_norm = options.queries, heads, config.query_key_norm
        self.length, self.columns = config.length, config.grid
        self.base = nn.Parameter(torch.randn(width))
        self.norm = NORMS["affine"](width)
        self.process = self._processor(options.process, width)
        self.key_value = nn.Linear(config.width, 2 * width)
        self.out = nn.Linear(width, width)
        narrower = options.aggregates and width != config.width
        self.aggregate = nn.Linear(config.width, width, bias=False) if narrower else None

    @staticmethod
    def _processor(kind: str, width: int) -> nn.Module:
        if kind == "linear":
            return nn.Linear(width, width)
        hidden = QUERY_MLP_RATIO * width
        return nn.Sequential(nn.Linear(width, hidden), nn.SiLU(), nn.Linear(hidden, width))

    def start(
        self, positions: Int[Tensor, "*q"], aggregate: Float[Tensor, "*q M"] | None
    ) -> Float[Tensor, "*q W"]:
        """V_i of every position, or V'_i with the other group's aggregate."""
        if aggregate is None and positions.numel() > self.length:  # compute each position once
            everywhere = torch.arange(self.length, device=positions.device)
            return self.start(everywhere, None)[positions]
        x = self.base.expand(*positions.shape, -1)
        if self.mode != "learned":
            embedded = self._embedded(positions.flatten(), x.shape[-1])
            x = x + embedded.view(x.shape).to(x.dtype)
        if aggregate is not None:
            x = x + (aggregate if self.aggregate is None else self.aggregate(aggregate))
        processed: Tensor = self.process(self.norm(x))
        return processed

    def _embedded(self, positions: Tensor, width: int) -> Tensor:
        """pos_i: sinusoids of the position, or on a grid, of its row and its column."""
        if not self.columns:
            return sinusoid(positions.float(), width)
        halves = (sinusoid(x.float(), width // 2) for x in on_grid(positions, self.columns))
        return torch.cat(list(halves), dim=-1)

    def aggregates(
        self, memory: Float[Tensor, "N M"], sequence_ids: Int[Tensor, "N"], count: int
    ) -> Float[Tensor, "S M"] | None:
        """Y: the mean or the logsumexp of each sequence's tokens; 0 for an empty one."""
        if self.mode not in ("mean", "logsumexp"):
            return None
        x = memory.float()
        zeros = x.new_zeros(count, x.shape[-1])
        sizes = x.new_zeros(count).index_add(0, sequence_ids, torch.ones_like(x[:, 0]))
        if self.mode == "mean":  # the clamp makes it 0 / 1 for an empty group
            means = zeros.index_add(0, sequence_ids, x) / sizes.clamp(min=1)[:, None]
            return means.to(memory.dtype)
        # Subtract each channel's largest value, so that no exponential overflows. It is detached:
        # the sum is the same whatever is subtracted, so its gradient would cancel.
        index = sequence_ids[:, None].expand_as(x)
        largest = zeros.scatter_reduce(0, index, x.detach(), "amax", include_self=False)
        sums = zeros.index_add(0, sequence_ids, (x - largest[sequence_ids]).exp())
        # An empty group has the sum 0: the clamp keeps its gradient finite, `where` sets it to 0.
        logs = sums.clamp(min=torch.finfo(x.dtype).tiny).log() + largest
        return torch.where(sizes[:, None] > 0, logs, 0).to(memory.dtype)

    def forward(
        self,
        start: Float[Tensor, "*q W"],
        memory: Float[Tensor, "*k M"],
        rotary: Rotary,
        memory_rotary: Rotary,
        layout: Layout,
    ) -> Float[Tensor, "*q W"]:
        query = start.view(*start.shape[:-1], self.heads, start.shape[-1] // self.heads)
        key, value = self.key_value(memory).unflatten(-1, (2, self.heads, -1)).unbind(-3)
        query, key = normalized(query, key, self.qk_norm)
        query, key = rotary.rotate(query), memory_rotary.rotate(key)
        swapped: Tensor = self.out(attend(query, key, value, layout).flatten(-2))
        return swapped
