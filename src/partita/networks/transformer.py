"""The bidirectional transformer (DiT style): tokens in, logits out; it knows nothing of diffusion.

Pre-norm blocks with rotary positions. With `time` or `classes` set, every block is modulated by
adaLN (shift, scale and gate for attention, then for the MLP); without them no such layer exists.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from partita.errors import require, require_int, require_positive
from partita.networks.attention import (
    DENSE,
    Attention,
    KeyValueCache,
    Layout,
    Segments,
)
from partita.networks.base import Queries
from partita.networks.layers import MLPS, NORMS, Conditioning, Rotary, modulate, zero_linear

EMBEDDING_STD = 0.02
DEEPEST = 1 << 16  # blocks: even empty ones take time to make


@dataclass(frozen=True, kw_only=True)
class TransformerOptions:
    """What there is to choose about a transformer; data and method decide the rest."""

    length: int = 1024
    """Longest sequence."""
    width: int = 768
    """Channels of each token."""
    depth: int = 12
    """Number of blocks."""
    heads: int = 12
    """Attention heads of each block."""
    mlp: str = "swiglu"
    """Kind of MLP: swiglu, gelu or relu2."""
    mlp_ratio: float = 4.0
    """Hidden channels of the MLP, in widths."""
    norm: str = "rms"
    """Kind of norm: rms or layer."""
    qk_norm: bool = True
    """Whether queries and keys are normalised."""
    head_bias: bool = False
    """Whether the output projection has a bias."""
    dropout: float = 0.0
    """Share of each branch's output that training drops."""
    classes: int = 0
    """Number of class labels; 0 for none."""
    condition_width: int = 128
    """Channels of the vector that tells time and label."""
    rotary_base: float = 10000.0
    """Base of the rotary frequencies; longer sequences want a larger one."""

    def __post_init__(self) -> None:
        for name in ("length", "width", "heads", "condition_width"):
            require_int(getattr(self, name), f"network.{name}")
        require_int(self.depth, "network.depth", 1, DEEPEST)
        for name in ("mlp_ratio", "rotary_base"):
            require_positive(getattr(self, name), f"network.{name}")
        narrow = f"{self.mlp_ratio} times width {self.width} is no channel"
        require(self.mlp_ratio * self.width >= 1, "network.mlp_ratio", narrow, "give more")
        _ = MLPS[self.mlp], NORMS[self.norm]
        require(
            self.width % (2 * self.heads) == 0,
            "network.heads",
            f"width {self.width} must be an even multiple of heads {self.heads}",
        )
        require_int(self.classes, "network.classes", 0)
        require(0 <= self.dropout < 1, "network.dropout", f"must be in [0, 1), got {self.dropout}")


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(TransformerOptions):
    """Sizes and options of a transformer."""

    vocab_size: int
    """Number of input ids, the mask (or start) token included."""
    output_size: int | None = None
    """Number of logits; the same as vocab_size unless given."""
    time: bool = False
    """Condition on a scalar (time or noise level)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_int(self.vocab_size, "network.vocab_size", 2)
        require(
            1 <= self.outputs <= self.vocab_size,
            "network.output_size",
            f"must lie in 1..{self.vocab_size} (vocab_size), got {self.output_size}",
        )

    @property
    def outputs(self) -> int:
        return self.vocab_size if self.output_size is None else self.output_size

    @property
    def conditioned(self) -> bool:
        return self.time or self.classes > 0


class Block(nn.Module):
    """Attention and MLP, each with a norm before, a residual around and an optional gate."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norm_attention = NORMS[config.norm](config.width)
        self.attention = Attention(config.width, config.heads, config.qk_norm)
        self.norm_mlp = NORMS[config.norm](config.width)
        self.mlp = MLPS[config.mlp](config.width, config.mlp_ratio)
        self.dropout = config.dropout
        self.modulation = (
            zero_linear(config.condition_width, 6 * config.width) if config.conditioned else None
        )

    def forward(
        self,
        x: Float[Tensor, "*tokens W"],
        rotary: Rotary,
        layout: Layout,
        condition: Float[Tensor, "*rows C"] | None,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "*tokens W"]:
        if self.modulation is None:
            x = x + self._drop(self.attention(self.norm_attention(x), rotary, layout, cache))
            branch = self._drop(self.mlp(self.norm_mlp(x)))
        else:
            modulation = self.modulation(condition)
            shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = modulation.chunk(6, -1)
            entering = modulate(self.norm_attention(x), shift_a, scale_a)
            x = x + gate_a * self._drop(self.attention(entering, rotary, layout, cache))
            entering = modulate(self.norm_mlp(x), shift_m, scale_m)
            branch = gate_m * self._drop(self.mlp(entering))
        return x + branch

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


class Transformer(nn.Module):
    """Tokens (and positions, a scalar, a label) to logits."""

    causal = False
    recompute: bool = False
    """Keep no activations inside the blocks for the gradient: compute them twice instead."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.width)
        self.conditioning = (
            Conditioning(config.condition_width, config.time, config.classes)
            if config.conditioned
            else None
        )
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.norm_out = NORMS[config.norm](config.width)
        self.modulation_out = (
            zero_linear(config.condition_width, 2 * config.width) if config.conditioned else None
        )
        self._initialise()
        # Zero logits at the start: the untrained model is exactly uniform.
        self.head = zero_linear(config.width, config.outputs, config.head_bias)

    def _initialise(self) -> None:
        """Variance 1/fan-in; what feeds the residual stream shrinks with the depth."""
        nn.init.normal_(self.embed.weight, std=EMBEDDING_STD)
        for block in self.blocks:
            for name, parameter in block.named_parameters():
                if parameter.ndim == 2 and not name.startswith("modulation"):
                    residual = name in ("attention.out.weight", "mlp.down.weight")
                    shrink = math.sqrt(2 * self.config.depth) if residual else 1.0
                    nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5 / shrink)

    def forward(
        self,
        tokens: Int[Tensor, "*tokens"],
        *,
        queries: Queries | None = None,
        scalar: Float[Tensor, "B"] | None = None,
        label: Int[Tensor, "B"] | None = None,
        layout: Layout = DENSE,
    ) -> Float[Tensor, "*out V"]:
        """Logits at every token, or at the queried ones alone (the projection runs on those).

        Tokens are [B, L], or packed [N] with a `Segments` layout. A scalar and a label belong to a
        row, or to a segment of packed tokens.
        """
        hidden, condition = self._trunk(tokens, scalar, label, layout, positions=None, caches=None)
        if queries is None:
            return self._project(hidden, condition)
        picked = hidden[queries.rows, queries.positions]
        if condition is not None:
            condition = condition[:, 0][queries.rows]
        return self._project(picked, condition)

    def _trunk(
        self,
        tokens: Tensor,
        scalar: Tensor | None,
        label: Tensor | None,
        layout: Layout,
        positions: Tensor | None,
        caches: list[KeyValueCache] | None,
    ) -> tuple[Tensor, Tensor | None]:
        if isinstance(layout, Segments):
            layout.check(tokens)
        if self.causal:
            layout = replace(layout, causal=True)
        if positions is None:
            positions = self._positions(tokens, layout)
        condition = self._condition(tokens, scalar, label, layout)
        head_width = self.config.width // self.config.heads
        rotary = Rotary.at(positions, head_width, self.config.rotary_base)
        x = self.embed(tokens)
        for index, block in enumerate(self.blocks):
            if caches is None:
                x = self._run(block, x, rotary, layout, condition)
            else:
                x = block(x, rotary, layout, condition, caches[index])
        return x, condition

    def _run(self, block: nn.Module, *inputs: Any) -> Tensor:
        """A block, whose activations are computed again for the gradient under `recompute`."""
        run: Callable[..., Tensor] = block
        if self.recompute and self.training and torch.is_grad_enabled():
            dropping = self.config.dropout > 0  # the second pass must then drop what the first did
            run = partial(checkpoint, block, use_reentrant=False, preserve_rng_state=dropping)
        return run(*inputs)

    @staticmethod
    def _positions(tokens: Tensor, layout: Layout) -> Tensor:
        if isinstance(layout, Segments) and tokens.ndim == 1:
            return layout.query_positions()
        # Rotary attention sees differences alone, so documents in a row need no count of their own.
        return torch.arange(tokens.shape[-1], device=tokens.device)

    def _condition(
        self, tokens: Tensor, scalar: Tensor | None, label: Tensor | None, layout: Layout
    ) -> Tensor | None:
        """One vector per row (or packed segment), shaped to broadcast over the tokens."""
        self._check_condition(scalar, label)
        if self.conditioning is None:
            return None
        if isinstance(layout, Segments) and tokens.ndim == 1:
            count = layout.query_offsets.numel() - 1
            vectors: Tensor = self.conditioning(scalar, label, count)
            return vectors[layout.segment_of_query()]
        dense: Tensor = self.conditioning(scalar, label, tokens.shape[0])
        return dense[:, None]

    def _check_condition(self, scalar: Tensor | None, label: Tensor | None) -> None:
        classes = self.config.classes
        require(scalar is None or self.config.time, "time", "this network is not told the time")
        require(label is None or classes > 0, "label", "this network has no class labels")
        if label is not None and not label.is_cuda:  # a check on a GPU would wait for it
            require(
                bool(((label >= 0) & (label <= classes)).all()),
                "label",
                f"must lie in 0..{classes - 1} ({classes} for none), got {label.tolist()}",
            )

    def _project(self, hidden: Tensor, condition: Tensor | None) -> Tensor:
        hidden = self.norm_out(hidden)
        if self.modulation_out is not None:
            shift, scale = self.modulation_out(condition).chunk(2, -1)
            hidden = modulate(hidden, shift, scale)
        logits: Tensor = self.head(hidden)
        return logits
