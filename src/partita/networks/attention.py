"""Attention, the only layer that depends on how tokens are laid out in memory.

Every other layer acts on single tokens `[..., width]`, so the same blocks run on a dense batch
`[B, L, width]` and on packed tokens `[N, width]`. The layout says which queries read which keys
(`layouts.py`). The function `attend` chooses the implementation: variable-length kernels on GPUs,
and on CPUs the cheapest of several ways.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from partita.contracts.layouts import DENSE, DenseLayout, Layout, PackedLayout, sequence_at
from partita.devices import readable
from partita.kernels import KERNELS
from partita.networks.layers import QKNorm, Rotary, normalized

CALL_PAIRS = 2048  # one more kernel call on a CPU costs as much as this many query-key pairs


@dataclass
class KeyValueCache:
    """Keys and values of the tokens that one layer has seen, in preallocated memory.

    New tokens are appended to the cache and attend to all of it. In a causal layer they do not
    attend to later tokens; in other layers, tokens appended together attend to each other.
    """

    keys: Float[Tensor, "B L H D"]
    values: Float[Tensor, "B L H D"]
    filled: int = field(default=0)

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values, and return all that the cache holds."""
        end = self.filled + keys.shape[1]
        self.keys[:, self.filled : end] = keys
        self.values[:, self.filled : end] = values
        self.filled = end
        return self.keys[:, :end], self.values[:, :end]

    def forget(self, filled: int) -> None:
        """Keep only the first `filled` tokens: the later ones will be read again."""
        self.filled = min(filled, self.filled)


def attend(
    query: Float[Tensor, "*q H D"],
    key: Float[Tensor, "*k H D"],
    value: Float[Tensor, "*k H D"],
    layout: Layout,
) -> Float[Tensor, "*q H D"]:
    """softmax(q k^T / sqrt(D)) v under a layout. A query without keys gets zeros.

    Under `PackedLayout`, tokens may come packed [N, H, D] or as a rectangular batch [B, L, H, D].
    """
    if isinstance(layout, DenseLayout):
        return _attend_dense(query, key, value, layout)
    kernel = query.is_cuda and query.dtype in (torch.float16, torch.bfloat16)
    if query.ndim == 4:
        if layout.within_rows and not kernel:
            return _attend_rows(query, key, value, layout)
        packed = attend(query.flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1), layout)
        return packed.reshape(query.shape)
    if query.numel() == 0 or key.numel() == 0:
        return _zeros(query, key, value)
    if kernel:
        return _attend_varlen(query, key, value, layout)
    if not readable(query):  # one call of fixed shape: reading lengths would wait for the GPU
        return _attend_padded(query, key, value, layout)
    return _attend_on_cpu(query, key, value, layout)


def _attend_dense(query: Tensor, key: Tensor, value: Tensor, layout: DenseLayout) -> Tensor:
    mask, causal = layout.mask, layout.causal
    past = key.shape[1] - query.shape[1]  # with a cache, the queries are the last tokens
    if causal and (past or mask is not None):  # kernels take a mask or causal order, not both
        ones = torch.ones(query.shape[1], key.shape[1], dtype=torch.bool, device=query.device)
        earlier = ones.tril(past)[None]
        mask, causal = earlier if mask is None else mask & earlier, False
    attended = F.scaled_dot_product_attention(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        attn_mask=None if mask is None else mask[:, None],
        is_causal=causal,
    ).transpose(1, 2)
    if mask is None:
        return attended
    # For a query without keys the softmax is 0/0, and kernels return different things for it.
    return attended.masked_fill(~mask.any(-1)[:, :, None, None], 0)


def _attend_varlen(query: Tensor, key: Tensor, value: Tensor, layout: PackedLayout) -> Tensor:
    if KERNELS and not layout.causal and not torch.is_grad_enabled():
        from partita.kernels.attention import attend_packed, fits

        if fits(query, key, value):
            offsets = layout.cu_seqlens_q, layout.cu_seqlens_k
            packed: Tensor = attend_packed(query, key, value, *offsets, layout.max_seqlen_q)
            return packed
    from torch.nn.attention.varlen import varlen_attn  # a slow import (1 s), not needed on CPUs

    attended = varlen_attn(
        query,
        key,
        value,
        layout.cu_seqlens_q,
        layout.cu_seqlens_k,
        layout.max_seqlen_q,
        layout.max_seqlen_k,
        window_size=(-1, 0) if layout.causal else (-1, -1),
    )
    assert isinstance(attended, Tensor)
    return attended


def _attend_rows(query: Tensor, key: Tensor, value: Tensor, layout: PackedLayout) -> Tensor:
    """A `PackedLayout` of a rectangular batch as a mask: the path for CPUs and for float32.

    It computes at most L keys per token. Padding to the longest sequence could take many times
    that if one document is long and the others are short.
    """
    batch, length = query.shape[:2]
    sequence = sequence_at(layout.cu_seqlens_q, batch * length).view(batch, length)
    mask = sequence[:, :, None] == sequence[:, None, :]
    if layout.causal:
        mask = mask.tril()
    return _attend_dense(query, key, value, DenseLayout(mask))


def _attend_on_cpu(query: Tensor, key: Tensor, value: Tensor, layout: PackedLayout) -> Tensor:
    """Packed sequences in the cheapest of three ways: reshaped, padded, or one call for each."""
    queries, keys = layout.cu_seqlens_q.diff().tolist(), layout.cu_seqlens_k.diff().tolist()
    count, most_queries, most_keys = len(queries), max(queries), max(keys)
    if most_queries == min(queries) and most_keys == min(keys):
        q, k, v = (x.reshape(count, -1, *x.shape[1:]) for x in (query, key, value))
        return _attend_dense(q, k, v, DenseLayout(causal=layout.causal)).flatten(0, 1)
    pairs = sum(q * k for q, k in zip(queries, keys, strict=True))
    if count * most_queries * most_keys <= pairs + count * CALL_PAIRS:
        return _attend_padded(query, key, value, layout)
    parts = torch.split(query, queries), torch.split(key, keys), torch.split(value, keys)
    sequences = zip(*parts, strict=True)
    return torch.cat([_attend_sequence(q, k, v, layout.causal) for q, k, v in sequences])


def _attend_sequence(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
    if query.numel() == 0 or key.numel() == 0:
        return _zeros(query, key, value)
    return _attend_dense(query[None], key[None], value[None], DenseLayout(causal=causal))[0]


def _zeros(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Zeros that depend on all inputs, so that each parameter has a gradient in each process."""
    return torch.zeros_like(query) + 0 * (query.sum() + key.sum() + value.sum())


def _attend_padded(query: Tensor, key: Tensor, value: Tensor, layout: PackedLayout) -> Tensor:
    """Packed sequences as a padded dense batch: the path for float32 on GPUs."""
    query_slots, _ = _slots(layout.cu_seqlens_q, layout.max_seqlen_q)
    key_slots, key_real = _slots(layout.cu_seqlens_k, layout.max_seqlen_k)
    mask = key_real[:, None, :].expand(-1, layout.max_seqlen_q, -1)
    if layout.causal:  # a sequence's queries are the last of its keys
        past = layout.cu_seqlens_k.diff() - layout.cu_seqlens_q.diff()
        within = torch.arange(max(mask.shape[1:]), device=mask.device)
        reach = within[: mask.shape[1], None] + past[:, None, None]
        mask = mask & (within[: mask.shape[2]] <= reach)
    padded = _attend_dense(query[query_slots], key[key_slots], value[key_slots], DenseLayout(mask))
    # Looking up each query's slot avoids `nonzero`, which waits for the GPU.
    index = torch.arange(len(query), device=query.device, dtype=layout.cu_seqlens_q.dtype)
    sequence = sequence_at(layout.cu_seqlens_q, len(query)).clamp(max=len(padded) - 1)
    within = (index - layout.cu_seqlens_q[sequence]).clamp(max=layout.max_seqlen_q - 1)
    return padded[sequence, within]


def _slots(offsets: Tensor, longest: int) -> tuple[Tensor, Tensor]:
    """Packed indices as a padded table [S, longest], and a mask of its real entries."""
    within = torch.arange(longest, device=offsets.device)
    real = within < offsets.diff()[:, None]
    index = offsets[:-1, None] + within
    return torch.where(real, index, 0), real


class Attention(nn.Module):
    """Multi-head self-attention with rotary positions and optional QK normalization."""

    several: ClassVar = {"qkv": 3}
    """Projections that stack several matrices, and how many."""

    def __init__(self, width: int, heads: int, qk_norm: QKNorm | None) -> None:
        super().__init__()
        self.heads = heads
        self.qk_norm = qk_norm
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(
        self,
        x: Float[Tensor, "*tokens W"],
        rotary: Rotary,
        layout: Layout = DENSE,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "*tokens W"]:
        query, key, value = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        query, key = normalized(query, key, self.qk_norm)
        query, key = rotary.rotate(query), rotary.rotate(key)
        if cache is not None:
            key, value = cache.extend(key, value)
        attended: Tensor = self.out(attend(query, key, value, layout).flatten(-2))
        return attended


class CrossAttention(nn.Module):
    """Attention whose queries come from one stream and whose keys and values from another."""

    several: ClassVar = {"key_value": 2}

    def __init__(self, width: int, memory_width: int, heads: int, qk_norm: QKNorm | None) -> None:
        super().__init__()
        self.heads = heads
        self.qk_norm = qk_norm
        self.query = nn.Linear(width, width, bias=False)
        self.key_value = nn.Linear(memory_width, 2 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(
        self,
        x: Float[Tensor, "*q W"],
        memory: Float[Tensor, "*k M"],
        rotary: Rotary,
        memory_rotary: Rotary,
        layout: Layout,
    ) -> Float[Tensor, "*q W"]:
        query = self.query(x).unflatten(-1, (self.heads, -1))
        key, value = self.key_value(memory).unflatten(-1, (2, self.heads, -1)).unbind(-3)
        query, key = normalized(query, key, self.qk_norm)
        query, key = rotary.rotate(query), memory_rotary.rotate(key)
        attended: Tensor = self.out(attend(query, key, value, layout).flatten(-2))
        return attended
