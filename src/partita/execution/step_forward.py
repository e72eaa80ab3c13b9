"""The network in a captured step: logits at some positions, given what is visible."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from partita.contracts.layouts import Queries
from partita.execution.timetable import PackedSlots
from partita.networks.partition import PartitionTransformer
from partita.networks.transformer import Transformer
from partita.samplers.guidance import mix

if TYPE_CHECKING:
    from partita.execution.program import GraphBuffers


@dataclass(frozen=True)
class GuidanceSpec:
    """Guidance: its weight, and the share of it for a share of revealed tokens."""

    weight: float
    share: Callable[[Tensor], Tensor]

    def weights(self, buffers: GraphBuffers) -> Float[Tensor, "B"]:
        """The weight of each row at this step."""
        known = buffers.known[buffers.now][0].double() / max(1, buffers.order.shape[1] - 1)
        return self.weight * self.share(known.clamp(0, 1))


@dataclass(frozen=True)
class StepForward:
    """Visible and queried positions of a step to logits. Under guidance, both passes are one."""

    timed: bool
    network: Transformer | PartitionTransformer
    head: Float[Tensor, "rows W"]
    """The head's weights, padded to an even number of rows."""
    guidance: GuidanceSpec | None = None

    def __call__(
        self, visible: PackedSlots, queried: PackedSlots, buffers: GraphBuffers
    ) -> Float[Tensor, "N V"]:
        if self.guidance is None:
            vectors = self._vectors(buffers.by_row, visible, queried, buffers, buffers.label)
            return self._logits(vectors)
        nobody = torch.full_like(buffers.label, self.network.config.classes)
        both = self._vectors(
            torch.cat([buffers.by_row, buffers.by_row]),
            visible.twice(len(buffers.label)),
            queried.twice(len(buffers.label)),
            buffers,
            torch.cat([buffers.label, nobody]),
        )
        conditional, unconditional = self._logits(both).chunk(2)
        weight = self.guidance.weights(buffers)[queried.rows, None].to(conditional.dtype)
        # Normalised or not, the mixture of logits is that of log-probabilities up to a constant.
        return mix(conditional, unconditional, weight, laws=False)

    def _vectors(
        self,
        tokens: Tensor,
        visible: PackedSlots,
        queried: PackedSlots,
        buffers: GraphBuffers,
        label: Tensor,
    ) -> Tensor:
        """What the head reads."""
        labels = label if self.network.config.classes else None
        if isinstance(self.network, PartitionTransformer):
            return self._of_visible(self.network, tokens, visible, queried, labels)
        scalar = buffers.scalars[buffers.now][0] if self.timed else None
        if scalar is not None and len(tokens) > len(scalar):
            scalar = torch.cat([scalar, scalar])
        arguments: dict[str, Any] = {
            "queries": Queries(queried.rows, queried.positions),
            "scalar": scalar,
            "label": labels,
        }
        vectors: Tensor = self.network(tokens, project=False, **arguments)
        return vectors

    @staticmethod
    def _of_visible(
        network: PartitionTransformer,
        tokens: Tensor,
        visible: PackedSlots,
        queried: PackedSlots,
        label: Tensor | None,
    ) -> Tensor:
        """A partition network reads what is visible, and nothing else.

        Slots that hold nothing point at hidden tokens, whose mask is none of the network's ids.
        """
        batch, length = tokens.shape
        return network.vectors(
            tokens.clamp(max=network.config.vocab_size - 1),
            visible.batch(length),
            queried.batch(length),
            network.condition(None, label, batch),
            visible.row_of_sequence,
        )

    def _logits(self, vectors: Tensor) -> Tensor:
        """Of half precision, products leave their float32 sums as they are."""
        head = self.network.head
        if vectors.is_cuda and vectors.dtype in (torch.float16, torch.bfloat16):
            logits = torch.mm(vectors, self.head.T, out_dtype=torch.float32)
            logits = logits[:, : len(head.weight)]
            return logits if head.bias is None else logits + head.bias
        return F.linear(vectors, head.weight, head.bias)
