"""The one attention module. Only attention knows how tokens are laid out in memory.

Every other layer acts on single tokens `[..., width]`, so the same blocks run on a dense batch
`[B, L, width]` and on packed tokens `[N, width]`. A layout says which queries read which keys:

- `Dense`: a rectangular batch, with an optional boolean mask or causal order;
- `Segments`: packed tokens; the queries of segment i read the keys of segment i. Queries and keys
  have offsets of their own, so a segment may read another one's keys. A rectangular batch may be
  cut into segments too (documents that share a row): offsets then count over its B*L tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from partita.errors import require
from partita.networks.layers import Rotary, rms_normalise


@dataclass(frozen=True)
class Dense:
    """A rectangular batch. `mask` is true where a query may read a key."""

    mask: Bool[Tensor, "#B Lq Lk"] | None = None
    causal: bool = False


@dataclass(frozen=True)
class Segments:
    """Packed tokens: segment i holds queries [q_i, q_{i+1}) and keys [k_i, k_{i+1})."""

    query_offsets: Int[Tensor, "offsets"]
    key_offsets: Int[Tensor, "offsets"]
    max_queries: int
    max_keys: int
    causal: bool = False
    within_rows: bool = False
    """For rectangular batches: each segment reads its own tokens, and none crosses a row's end."""

    @staticmethod
    def of_lengths(lengths: Int[Tensor, "S"], causal: bool = False) -> Segments:
        """Self-attention inside consecutive segments of the given lengths."""
        offsets = F.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
        longest = int(lengths.max()) if lengths.numel() else 0
        return Segments(offsets, offsets, longest, longest, causal)

    @staticmethod
    def of_documents(ends: Bool[Tensor, "B L"], longest: int | None = None) -> Segments:
        """Documents that share the rows of a batch; `ends` is true at the last token of each.

        The end of a row always ends a document. What follows the last real token of a row is
        padding, a document of its own that no other one reads.

        On a GPU this waits for the documents to be counted, and once more for the length of the
        longest one unless an upper bound is given (the length of a row is one). A data loader
        avoids both: it builds the layout on the CPU and moves it with `to`.
        """
        ends = ends.clone()
        ends[:, -1:] = True
        stops = ends.flatten().nonzero()[:, 0] + 1
        offsets = F.pad(stops, (1, 0)).to(torch.int32)
        if longest is None or not ends.is_cuda:
            actual = int(offsets.diff().max()) if stops.numel() else 0
            longest = actual if longest is None else longest
            require(
                longest >= actual,
                "longest",
                f"is {longest}, but a document has {actual} tokens",
                "leave it out, or give the length of a row",
            )
        return Segments(offsets, offsets, longest, longest, within_rows=True)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Segments:
        """The same layout on another device."""
        queries = self.query_offsets.to(device, non_blocking=non_blocking)
        keys = self.key_offsets.to(device, non_blocking=non_blocking)
        return replace(self, query_offsets=queries, key_offsets=keys)

    def check(self, tokens: Int[Tensor, "*tokens"]) -> None:
        """Refuse a layout that was made for other tokens."""
        if self.query_offsets.is_cuda:  # looking at the values would wait for the GPU
            return
        held = int(self.query_offsets[-1])
        require(
            held == tokens.numel(),
            "layout",
            f"its segments hold {held} tokens, but there are {tokens.numel()}",
        )

    def segment_of_query(self) -> Int[Tensor, "N"]:
        """The segment that each packed query belongs to."""
        lengths = self.query_offsets.diff()
        return torch.repeat_interleave(
            torch.arange(lengths.numel(), device=lengths.device), lengths
        )

    def query_positions(self) -> Int[Tensor, "N"]:
        """Where each packed query stands inside its segment."""
        starts = self.query_offsets[:-1][self.segment_of_query()]
        return torch.arange(starts.numel(), device=starts.device) - starts


Layout = Dense | Segments
DENSE = Dense()


@dataclass
class KeyValueCache:
    """Keys and values of the tokens that one causal layer has seen, in preallocated memory."""

    keys: Float[Tensor, "B L H D"]
    values: Float[Tensor, "B L H D"]
    filled: int = field(default=0)

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append and return everything seen so far."""
        end = self.filled + keys.shape[1]
        self.keys[:, self.filled : end] = keys
        self.values[:, self.filled : end] = values
        self.filled = end
        return self.keys[:, :end], self.values[:, :end]


def attend(
    query: Float[Tensor, "*q H D"],
    key: Float[Tensor, "*k H D"],
    value: Float[Tensor, "*k H D"],
    layout: Layout,
) -> Float[Tensor, "*q H D"]:
    """softmax(q k^T / sqrt(D)) v under a layout. A query without keys gets zeros.

    Under `Segments`, tokens may come packed [N, H, D] or as a rectangular batch [B, L, H, D].
    """
    if isinstance(layout, Dense):
        return _attend_dense(query, key, value, layout)
    kernel = query.is_cuda and query.dtype in (torch.float16, torch.bfloat16)
    if query.ndim == 4:
        if layout.within_rows and not kernel:
            return _attend_rows(query, key, value, layout)
        packed = attend(query.flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1), layout)
        return packed.reshape(query.shape)
    if kernel:
        return _attend_varlen(query, key, value, layout)
    return _attend_padded(query, key, value, layout)


def _attend_dense(query: Tensor, key: Tensor, value: Tensor, layout: Dense) -> Tensor:
    mask, causal = layout.mask, layout.causal
    past = key.shape[1] - query.shape[1]  # queries are the last of the keys (a cache)
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
    # A row without keys is 0/0 in the softmax, and kernels differ in what they make of it.
    return attended.masked_fill(~mask.any(-1)[:, :, None, None], 0)


def _attend_varlen(query: Tensor, key: Tensor, value: Tensor, layout: Segments) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    attended = varlen_attn(
        query,
        key,
        value,
        layout.query_offsets,
        layout.key_offsets,
        layout.max_queries,
        layout.max_keys,
        window_size=(-1, 0) if layout.causal else (-1, -1),
    )
    assert isinstance(attended, Tensor)
    return attended


def _attend_rows(query: Tensor, key: Tensor, value: Tensor, layout: Segments) -> Tensor:
    """Segments of a rectangular batch as a mask: the path for CPUs and for float32.

    It takes L keys per token at most; padding to the longest segment could take many times that
    where one document is long and the others are short.
    """
    batch, length = query.shape[:2]
    offsets = layout.query_offsets
    tokens = torch.arange(batch * length, device=offsets.device, dtype=offsets.dtype)
    segment = torch.bucketize(tokens, offsets[1:], right=True).view(batch, length)
    mask = segment[:, :, None] == segment[:, None, :]
    if layout.causal:
        mask = mask.tril()
    return _attend_dense(query, key, value, Dense(mask))


def _attend_padded(query: Tensor, key: Tensor, value: Tensor, layout: Segments) -> Tensor:
    """Packed segments as a padded dense batch: the path for CPUs and for float32."""
    query_slots, query_real = _slots(layout.query_offsets, layout.max_queries)
    key_slots, key_real = _slots(layout.key_offsets, layout.max_keys)
    mask = key_real[:, None, :].expand(-1, layout.max_queries, -1)
    if layout.causal:
        mask = mask & torch.ones_like(mask).tril()
    padded = _attend_dense(query[query_slots], key[key_slots], value[key_slots], Dense(mask))
    return padded[query_real]


def _slots(offsets: Tensor, longest: int) -> tuple[Tensor, Tensor]:
    """Packed indices as a padded table [S, longest], and which of its entries are real."""
    within = torch.arange(longest, device=offsets.device)
    real = within < offsets.diff()[:, None]
    index = offsets[:-1, None] + within
    return torch.where(real, index, 0), real


class Attention(nn.Module):
    """Multi-head self-attention with rotary positions and optional QK normalisation."""

    def __init__(self, width: int, heads: int, qk_norm: bool) -> None:
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
        if self.qk_norm:
            query, key = rms_normalise(query), rms_normalise(key)
        query, key = rotary.rotate(query), rotary.rotate(key)
        if cache is not None:
            key, value = cache.extend(key, value)
        attended: Tensor = self.out(attend(query, key, value, layout).flatten(-2))
        return attended
