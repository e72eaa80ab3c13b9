"""Attention inside packed segments, without gradients, for sampling on GPUs.

A program takes a tile of one segment's queries, for one head, and loops over the segment's keys
with a running softmax. If a step queries few positions of each row, tiles have as few rows as
tensor cores allow. On one H200, for 32 segments of 512 tokens and 12 heads of 64 channels, it
takes 83 microseconds; torch's kernel takes 107.
"""

from __future__ import annotations

import math
from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

FEW, SOME, MANY = (16, 128, 4), (64, 64, 4), (128, 64, 8)
"""Rows, columns and warps of a tile, for segments with few, some and many queries."""
TILES = 8192  # number of queries from which large tiles are enough to occupy a GPU
WIDTHS = (16, 32, 64, 128)  # supported head widths
LOG2_E = math.log2(math.e)


@triton.jit
@no_type_check
def _walk(
    q,
    key,
    value,
    key_stride,
    value_stride,
    channel,
    start,
    begin,
    end,
    keys,
    scale,
    top,
    total,
    sums,
    columns: tl.constexpr,
    masked: tl.constexpr,
):
    """Loop over keys begin..end; update the largest score, the sum of weights and of values."""
    for at in range(begin, end, columns):
        column = at + tl.arange(0, columns)
        there = (start + column).to(tl.int64)
        pointers = key + there[None, :] * key_stride + channel[:, None]
        if masked:
            inside = column < keys
            k = tl.load(pointers, mask=inside[None, :], other=0.0)
        else:
            k = tl.load(pointers)
        scores = tl.dot(q, k)
        if masked:
            scores = tl.where(inside[None, :], scores, -float("inf"))
        peak = tl.maximum(top, tl.max(scores, 1) * scale)
        weights = tl.exp2(scores * scale - peak[:, None])
        shrink = tl.exp2(top - peak)
        total = total * shrink + tl.sum(weights, 1)
        pointers = value + there[:, None] * value_stride + channel[None, :]
        v = tl.load(pointers, mask=inside[:, None], other=0.0) if masked else tl.load(pointers)
        sums = tl.dot(weights.to(v.dtype), v, sums * shrink[:, None])
        top = peak
    return top, total, sums


@triton.jit
@no_type_check
def _attend_kernel(
    query,
    key,
    value,
    out,
    query_offsets,
    key_offsets,
    query_stride,
    key_stride,
    value_stride,
    out_stride,
    scale,
    tiles,
    width: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
):
    # Only the first grid axis may exceed 65,535.
    segment, tile, head = tl.program_id(0) // tiles, tl.program_id(0) % tiles, tl.program_id(1)
    first = tl.load(query_offsets + segment)
    count = tl.load(query_offsets + segment + 1) - first
    if tile * rows < count:
        start = tl.load(key_offsets + segment)
        keys = tl.load(key_offsets + segment + 1) - start
        row = tile * rows + tl.arange(0, rows)
        channel = head * width + tl.arange(0, width)
        here = (first + row).to(tl.int64)[:, None]
        real = (row < count)[:, None]
        q = tl.load(query + here * query_stride + channel[None, :], mask=real, other=0.0)
        top = tl.full((rows,), -float("inf"), tl.float32)
        total = tl.zeros((rows,), tl.float32)
        sums = tl.zeros((rows, width), tl.float32)
        whole = keys // columns * columns
        top, total, sums = _walk(
            q, key, value, key_stride, value_stride, channel, start,
            0, whole, keys, scale, top, total, sums, columns, False,
        )  # fmt: skip
        top, total, sums = _walk(
            q, key, value, key_stride, value_stride, channel, start,
            whole, keys, keys, scale, top, total, sums, columns, True,
        )  # fmt: skip
        attended = sums / tl.where(total > 0, total, 1.0)[:, None]  # 0 where there are no keys
        pointers = out + here * out_stride + channel[None, :]
        tl.store(pointers, attended.to(out.dtype.element_ty), mask=real)


def fits(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether the kernel supports these tensors: contiguous heads of a supported width."""
    width = query.shape[-1]
    contiguous = all(x.stride(-1) == 1 and x.stride(-2) == width for x in (query, key, value))
    return width in WIDTHS and contiguous


@torch.library.custom_op(
    "partita::attend_packed",
    mutates_args=(),
    schema="(Tensor query, Tensor key, Tensor value, Tensor query_offsets, Tensor key_offsets, "
    "SymInt longest) -> Tensor",
)
def attend_packed(
    query: Float[Tensor, "Nq H D"],
    key: Float[Tensor, "Nk H D"],
    value: Float[Tensor, "Nk H D"],
    query_offsets: Int[Tensor, "offsets"],
    key_offsets: Int[Tensor, "offsets"],
    longest: int,
) -> Float[Tensor, "Nq H D"]:
    """softmax(q k^T / sqrt(D)) v inside each segment; none has more than `longest` queries.

    The output after the last segment is uninitialized.
    """
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    segments = len(query_offsets) - 1
    rows, columns, warps = _tile(len(query), segments)
    tiles = triton.cdiv(longest, rows)
    _attend_kernel[(tiles * segments, query.shape[1])](
        query,
        key,
        value,
        out,
        query_offsets,
        key_offsets,
        query.stride(0),
        key.stride(0),
        value.stride(0),
        out.stride(0),
        LOG2_E / math.sqrt(query.shape[-1]),
        tiles,
        width=query.shape[-1],
        rows=rows,
        columns=columns,
        num_warps=warps,
        num_stages=3,
    )
    return out


def _tile(queries: int, segments: int) -> tuple[int, int, int]:
    if queries <= 2 * FEW[0] * segments:
        return FEW
    return SOME if queries < TILES else MANY


@attend_packed.register_fake
def _(query: Tensor, *_: object) -> Tensor:
    return torch.empty_like(query, memory_format=torch.contiguous_format)
