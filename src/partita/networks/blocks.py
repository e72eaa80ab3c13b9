"""Transformer blocks: pre-norm, residual, with optional adaLN modulation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from partita.contracts.layouts import Layout
from partita.networks.attention import Attention, CrossAttention, KeyValueCache
from partita.networks.conditions import Condition, through
from partita.networks.layers import MLPS, NORMS, Rotary, modulate, zero_linear
from partita.networks.options import TransformerConfig

_INTO_THE_STREAM = ("attention.out.weight", "mlp.down.weight")


class Residual(nn.Module):
    """The base class of blocks: a residual branch of attention, then one of an MLP.

    With a condition, adaLN shifts and scales the input of a branch, and gates its output.
    """

    def _add_mlp(self, config: TransformerConfig, width: int) -> None:
        self.norm_mlp = NORMS[config.norm](width)
        self.mlp = MLPS[config.mlp](width, config.mlp_ratio)
        self.dropout = config.dropout
        self.modulation = (
            zero_linear(config.condition_width, 6 * width) if config.conditioned else None
        )

    def _branches(
        self,
        x: Tensor,
        norm: nn.Module,
        attention: Callable[[Tensor], Tensor],
        condition: Condition | None,
    ) -> Tensor:
        if self.modulation is None or condition is None:
            x = x + self._drop(attention(norm(x)))
            branch: Tensor = self._drop(self.mlp(self.norm_mlp(x)))
            return x + branch
        modulation = through(self.modulation, condition)
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = modulation.chunk(6, -1)
        x = x + gate_a * self._drop(attention(modulate(norm(x), shift_a, scale_a)))
        branch = gate_m * self._drop(self.mlp(modulate(self.norm_mlp(x), shift_m, scale_m)))
        return x + branch

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


class Block(Residual):
    """Self-attention and an MLP."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norm_attention = NORMS[config.norm](config.width)
        self.attention = Attention(config.width, config.heads, config.query_key_norm)
        self._add_mlp(config, config.width)

    def forward(
        self,
        x: Float[Tensor, "*tokens W"],
        rotary: Rotary,
        layout: Layout,
        condition: Condition | None,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "*tokens W"]:
        def attention(entering: Tensor) -> Tensor:
            attended: Tensor = self.attention(entering, rotary, layout, cache)
            return attended

        return self._branches(x, self.norm_attention, attention, condition)


class CrossBlock(Residual):
    """Cross-attention and an MLP; the other stream is normed but never modulated."""

    def __init__(self, config: TransformerConfig, width: int, heads: int) -> None:
        super().__init__()
        self.norm_query = NORMS[config.norm](width)
        self.norm_memory = NORMS[config.norm](config.width)
        self.attention = CrossAttention(width, config.width, heads, config.query_key_norm)
        self._add_mlp(config, width)

    def forward(
        self,
        x: Float[Tensor, "*queries W"],
        memory: Float[Tensor, "*tokens M"],
        rotary: Rotary,
        memory_rotary: Rotary,
        layout: Layout,
        condition: Condition | None,
    ) -> Float[Tensor, "*queries W"]:
        read = self.norm_memory(memory)

        def attention(entering: Tensor) -> Tensor:
            attended: Tensor = self.attention(entering, read, rotary, memory_rotary, layout)
            return attended

        return self._branches(x, self.norm_query, attention, condition)


def initialize(blocks: Iterable[nn.Module], depth: int) -> None:
    """Variance 1/fan-in; projections into the residual stream are scaled by 1/sqrt(2 depth)."""
    for block in blocks:
        for name, parameter in block.named_parameters():
            if parameter.ndim == 2 and not name.startswith("modulation"):
                shrink = math.sqrt(2 * depth) if name in _INTO_THE_STREAM else 1.0
                nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5 / shrink)
