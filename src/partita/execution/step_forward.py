"""The network in a captured step: logits at queried positions, given the visible tokens."""

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
    """Maps visible and queried slots to logits; guidance runs both passes as one batch."""

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
        no_label = torch.full_like(buffers.label, self.network.config.classes)
        both = self._vectors(
            torch.cat([buffers.by_row, buffers.by_row]),
            visible.twice(len(buffers.label)),
            queried.twice(len(buffers.label)),
            buffers,
            torch.cat([buffers.label, no_label]),
        )
        conditional, unconditional = self._logits(both).chunk(2)
        weight = self.guidance.weights(buffers)[queried.rows, None].to(conditional.dtype)
        # The mixture of logits equals that of log-probabilities up to a constant.
        return mix(conditional, unconditional, weight, laws=False)

    def _vectors(
        self,
        tokens: Tensor,
        visible: PackedSlots,
        queried: PackedSlots,
        buffers: GraphBuffers,
        label: Tensor,
    ) -> Tensor:
        """The network's output vectors at the queried slots, before the head."""
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
        """The vectors of a partition network, which reads visible tokens only.

        Empty slots point at hidden tokens; their mask is not an id of the network, hence the clamp.
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
        """Logits in float32; in half precision the products keep their float32 sums."""
        head = self.network.head
        if vectors.is_cuda and vectors.dtype in (torch.float16, torch.bfloat16):
            logits = torch.mm(vectors, self.head.T, out_dtype=torch.float32)
            logits = logits[:, : len(head.weight)]
            return logits if head.bias is None else logits + head.bias
        return F.linear(vectors, head.weight, head.bias)
