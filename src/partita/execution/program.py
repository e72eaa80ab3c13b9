"""A sampler's step as a program of fixed shape: captured once, replayed for every step.

Everything that changes from step to step is in memory on the device: the tokens so far, the
timetable, the uniform numbers, and the index of the step. So the host sends nothing and waits for
nothing. A CUDA graph has fixed sizes, so the number of tokens that a step reads is rounded up to
one of a few sizes, with one graph for each. Empty slots belong to no sequence.

On a CPU the same step runs uncaptured, at its exact size.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from partita.categorical import Decoding, sample_categorical
from partita.execution.timetable import PackedSlots, Timetable
from partita.methods.mdlm import subs

SIZES = 32  # at most so many graphs for different numbers of tokens
LEAST = 64  # slots of the smallest one
WARM_UPS = 2

Logits = Callable[[PackedSlots, PackedSlots, "GraphBuffers"], Tensor]
"""Computes the logits of queried slots, given visible ones and the buffers."""


@dataclass(frozen=True)
class Sizes:
    """The sizes that are fixed in a graph: how many slots a step reads and queries."""

    read: int
    queried: int


@dataclass
class GraphBuffers:
    """The tensors that a program reads and writes, at fixed addresses."""

    tokens: Int64[Tensor, "B_times_L_plus_1"]
    """Row after row, and one more entry, to which empty slots write."""
    order: Int64[Tensor, "B L"]
    known: Int64[Tensor, "times B"]
    scalars: Float[Tensor, "times B"]
    """The time or noise level that conditions the network at each step."""
    uniforms: Float[Tensor, "B L"]
    label: Int64[Tensor, "B"]
    now: Int64[Tensor, "1"]
    broken: Int64[Tensor, "1"]
    """How many predictions were invalid (NaN, infinite or without a possible token)."""

    @staticmethod
    def blank(batch: int, length: int, times: int, device: torch.device) -> GraphBuffers:
        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return GraphBuffers(
            tokens=zeros(batch * length + 1),
            order=zeros(batch, length),
            known=zeros(times, batch),
            scalars=zeros(times, batch, dtype=torch.float32),
            uniforms=zeros(batch, length, dtype=torch.float64),
            label=zeros(batch),
            now=zeros(1),
            broken=zeros(1),
        )

    @property
    def by_row(self) -> Int64[Tensor, "B L"]:
        return self.tokens[:-1].view(self.order.shape)

    def set(
        self,
        tokens: Tensor,
        table: Timetable,
        uniforms: Tensor,
        scalars: Tensor | None,
        label: Tensor,
    ) -> None:
        """Fill the buffers for a new run."""
        steps = len(table.steps)
        self.by_row.copy_(tokens)
        self.order.copy_(table.order)
        self.known[: steps + 1].copy_(table.known)
        self.uniforms.copy_(uniforms)
        self.label.copy_(label)
        if scalars is not None:
            self.scalars[:steps].copy_(scalars)
        self.now.zero_()
        self.broken.zero_()


class Memory:
    """The memory pool that all graphs of a network share, since they run one after the other.

    Freed memory can be reused on the same stream only, so all graphs are captured on one stream.
    """

    def __init__(self, device: torch.device) -> None:
        graphs = device.type == "cuda"
        self.stream: Any = torch.cuda.Stream(device) if graphs else None  # type: ignore[no-untyped-call]
        self.pool: Any = torch.cuda.graph_pool_handle() if graphs else None


@dataclass
class Program:
    """The sampling steps of one model, at one batch size and length.

    It holds no reference to the model: programs are kept for as long as their model lives.
    """

    logits: Logits
    forbidden: int
    """The id of the mask, which is never drawn."""
    buffers: GraphBuffers
    decoding: Decoding
    memory: Memory
    compiled: bool = False
    graphs: dict[Sizes, torch.cuda.CUDAGraph] = field(default_factory=dict)

    def prepare(self, steps: Iterable[tuple[int, int]]) -> None:
        """Capture the graphs of steps, given as pairs (positions read, positions queried).

        The largest is captured first, so that the others fit into its memory.
        """
        if not self.buffers.tokens.is_cuda:
            return
        wanted: dict[Sizes, int] = {}
        for number, step in enumerate(steps):
            wanted.setdefault(self._rounded(*step), number)
        for sizes in sorted(wanted, key=lambda x: (x.read, x.queried), reverse=True):
            if sizes not in self.graphs:
                self.graphs[sizes] = self._captured(sizes, wanted[sizes])

    def run(self, read: int, queried: int) -> None:
        """Run one prepared step that reads and queries so many positions."""
        if self.buffers.tokens.is_cuda:
            self.graphs[self._rounded(read, queried)].replay()
        else:
            self._step(Sizes(read, queried))

    def _rounded(self, read: int, queried: int) -> Sizes:
        batch, length = self.buffers.order.shape
        unit = max(LEAST, -(-batch * length // SIZES // LEAST) * LEAST)
        few = max(16, 1 << max(0, queried.bit_length() - 3))
        return Sizes(max(1, -(-read // unit)) * unit, max(1, -(-queried // few)) * few)

    def _captured(self, sizes: Sizes, number: int) -> torch.cuda.CUDAGraph:
        """Capture a step of these sizes; the buffers that a warm-up changes are restored.

        (`torch.cuda.graph` would collect garbage and empty caches each time, which takes longer
        than the capture itself.)
        """
        moving = self.buffers.tokens, self.buffers.now, self.buffers.broken
        kept = [x.clone() for x in moving]
        current, stream = torch.cuda.current_stream(), self.memory.stream
        stream.wait_stream(current)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                self.buffers.now.fill_(number)  # a step that fits into these sizes
                self._step(sizes)
            stream.synchronize()
            graph.capture_begin(self.memory.pool)
            self._step(sizes)
            graph.capture_end()
            for x, before in zip(moving, kept, strict=True):
                x.copy_(before)
        current.wait_stream(stream)
        return graph

    def _step(self, sizes: Sizes) -> None:
        buffers = self.buffers
        before = self._fused(_slots)
        visible, queried = before(
            buffers.order, buffers.known, buffers.now, sizes.read, sizes.queried
        )
        with torch.autocast(
            buffers.tokens.device.type, enabled=False
        ):  # the network copy already has the precision
            logits = self.logits(visible, queried, buffers)
            tokens, broken = self._draw(logits, buffers.uniforms[queried.rows, queried.positions])
        after = self._fused(_record)
        after(
            buffers.tokens,
            buffers.broken,
            buffers.now,
            queried,
            buffers.order.shape[1],
            tokens,
            broken,
        )

    def _fused(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """Fuse many small kernels into a few, if the program is compiled."""
        return _fused(work) if self.compiled else work

    def _draw(self, logits: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        if not logits.is_cuda:
            drawn = sample_categorical(subs(logits, self.forbidden), u, self.decoding)
            return drawn, torch.zeros_like(u).bool()
        from partita.kernels.draws import draw_tokens

        how = self.decoding.temperature, self.decoding.top_k, self.decoding.top_p
        return draw_tokens(logits, u, *how, forbidden=self.forbidden)


# Around the network ------------------------------------------------------------------------------


def _slots(
    order: Int64[Tensor, "B L"],
    known: Int64[Tensor, "times B"],
    now: Int64[Tensor, "1"],
    read: int,
    queried: int,
) -> tuple[PackedSlots, PackedSlots]:
    """The slots that the step reads, and those that it queries."""
    begin, end = known[now][0], known[now + 1][0]
    nothing = torch.zeros_like(begin)
    return PackedSlots.of(order, nothing, begin, read), PackedSlots.of(order, begin, end, queried)


def _record(
    tokens: Int64[Tensor, "B_times_L_plus_1"],
    broken: Int64[Tensor, "1"],
    now: Int64[Tensor, "1"],
    queried: PackedSlots,
    length: int,
    drawn: Int64[Tensor, "N"],
    bad: Bool[Tensor, "N"],
) -> None:
    """Write the drawn tokens, and advance to the next step."""
    where = torch.where(queried.real, queried.rows * length + queried.positions, tokens.numel() - 1)
    tokens.index_put_((where,), drawn)
    broken.add_((bad & queried.real).sum())
    now.add_(1)


@functools.cache
def _fused(work: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(work, dynamic=True)
