"""What a captured step asks of a network: the logits of some positions, given what is visible."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from partita.contracts.layouts import Queries
from partita.execution.timetable import Stretch
from partita.networks.packing import Owners, Packed
from partita.networks.partition import PartitionTransformer
from partita.networks.transformer import Transformer
from partita.samplers.guidance import mix

if TYPE_CHECKING:
    from partita.execution.program import Board


@dataclass(frozen=True)
class Pull:
    """Guidance: its weight, and the share of it for a share of revealed tokens."""

    weight: float
    share: Callable[[Tensor], Tensor]

    def weights(self, board: Board) -> Float[Tensor, "B"]:
        """The weight of each row at this step."""
        known = board.known[board.now][0].double() / max(1, board.order.shape[1] - 1)
        return self.weight * self.share(known.clamp(0, 1))


@dataclass(frozen=True)
class Answer:
    """What a step reads and asks for, to logits. Under guidance, both passes are one."""

    timed: bool
    network: Transformer | PartitionTransformer
    head: Float[Tensor, "rows W"]
    """The head's weights, padded to an even number of rows."""
    pull: Pull | None = None

    def __call__(self, visible: Stretch, asked: Stretch, board: Board) -> Float[Tensor, "N V"]:
        if self.pull is None:
            vectors = self._vectors(board.canvas, visible, asked, board, board.label)
            return self._logits(vectors)
        nobody = torch.full_like(board.label, self.network.config.classes)
        both = self._vectors(
            torch.cat([board.canvas, board.canvas]),
            visible.twice(len(board.label)),
            asked.twice(len(board.label)),
            board,
            torch.cat([board.label, nobody]),
        )
        conditional, unconditional = self._logits(both).chunk(2)
        weight = self.pull.weights(board)[asked.rows, None].to(conditional.dtype)
        # Normalised or not, the mixture of logits is that of log-probabilities up to a constant.
        return mix(conditional, unconditional, weight, laws=False)

    def _vectors(
        self, tokens: Tensor, visible: Stretch, asked: Stretch, board: Board, label: Tensor
    ) -> Tensor:
        """What the head reads."""
        labels = label if self.network.config.classes else None
        if isinstance(self.network, PartitionTransformer):
            return self._of_visible(self.network, tokens, visible, asked, labels)
        told = board.told[board.now][0] if self.timed else None
        if told is not None and len(tokens) > len(told):
            told = torch.cat([told, told])
        asked_of: dict[str, Any] = {
            "queries": Queries(asked.rows, asked.positions),
            "scalar": told,
            "label": labels,
        }
        vectors: Tensor = self.network(tokens, project=False, **asked_of)
        return vectors

    @staticmethod
    def _of_visible(
        network: PartitionTransformer,
        tokens: Tensor,
        visible: Stretch,
        asked: Stretch,
        label: Tensor | None,
    ) -> Tensor:
        """A partition network reads what is visible, and nothing else.

        Slots that hold nothing point at hidden tokens, whose mask is none of the network's ids.
        """
        batch, length = tokens.shape
        return network.vectors(
            tokens.clamp(max=network.config.vocab_size - 1),
            _packed(visible, length),
            _packed(asked, length),
            network.condition(None, label, batch),
            Owners(visible.owners, torch.zeros_like(visible.owners)),
        )

    def _logits(self, vectors: Tensor) -> Tensor:
        """Of half precision, products leave their float32 sums as they are."""
        head = self.network.head
        if vectors.is_cuda and vectors.dtype in (torch.float16, torch.bfloat16):
            logits = torch.mm(vectors, self.head.T, out_dtype=torch.float32)
            logits = logits[:, : len(head.weight)]
            return logits if head.bias is None else logits + head.bias
        return F.linear(vectors, head.weight, head.bias)


def _packed(stretch: Stretch, length: int) -> Packed:
    places = Queries(stretch.rows, stretch.positions)
    offsets = stretch.offsets.to(torch.int32)
    longest = min(length, len(stretch.rows))
    return Packed(places, stretch.positions, stretch.segments, offsets, longest, stretch.rows)
