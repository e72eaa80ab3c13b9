"""The network of FlexMDM: a transformer over packed texts, with a second head for what is missing.

Every text is read with an end marker after it. The first head has logits of clean tokens, as any
network has; the second, read at every token and at the end, tells how many tokens are missing
before that place:

    expectation     one number, softplus(...) times the longest length
    distribution    logits over the counts 0..longest
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from partita.contracts.layouts import PackedLayout
from partita.contracts.packed import PackedTokens
from partita.errors import require
from partita.networks.conditions import Condition, RowCondition, through
from partita.networks.kind_options import KindOptions
from partita.networks.layers import NORMS, modulate, zero_linear
from partita.networks.options import TransformerConfig, refuse_options
from partita.networks.transformer import Transformer

HEADS = ("expectation", "distribution")


class Answer(NamedTuple):
    """What the network says of a state."""

    logits: Float[Tensor, "M V"]
    """Of clean tokens, at the queried positions."""
    gaps: Float[Tensor, "G"]
    """How many tokens are expected to be missing in each gap, in the order of `with_ends`."""
    counts: Float[Tensor, "G counts"] | None
    """Logits over the numbers of missing tokens; None for a head that has the expectation alone."""


class GapHead(nn.Module):
    """Hidden states to the number of tokens that are missing before each place."""

    def __init__(self, config: TransformerConfig, kind: str) -> None:
        super().__init__()
        width = config.width
        self.kind, self.longest = kind, config.length
        self.norm = NORMS[config.norm](width)
        self.modulation = zero_linear(config.condition_width, 2 * width)
        if kind == "expectation":
            self.inner, self.out = nn.Linear(width, width), nn.Linear(width, 1)
            # At the start one token is expected in every gap, not as many as a text can have.
            nn.init.zeros_(self.out.weight)
            nn.init.constant_(self.out.bias, _inverse_softplus(1 / config.length))
        else:
            self.out = zero_linear(width, config.length + 1)

    def forward(
        self, hidden: Float[Tensor, "G W"], condition: Condition
    ) -> tuple[Float[Tensor, "G"], Float[Tensor, "G counts"] | None]:
        """Expectations, and the logits of the counts if there are any; in float32 or better."""
        shift, scale = through(self.modulation, condition).chunk(2, -1)
        read = modulate(self.norm(hidden), shift, scale)
        if self.kind == "expectation":
            number = self.out(F.gelu(self.inner(read)))[..., 0]
            return F.softplus(_wide(number)) * self.longest, None
        logits = _wide(self.out(read))
        return mean_count(logits), logits


def mean_count(logits: Float[Tensor, "*gaps counts"]) -> Float[Tensor, "*gaps"]:
    """How many tokens are expected, given logits over the counts 0, 1, ..."""
    sizes = torch.arange(logits.shape[-1], device=logits.device, dtype=logits.dtype)
    mean: Tensor = (logits.softmax(-1) * sizes).sum(-1)
    return mean


class FlexibleTransformer(Transformer):
    """Texts of any length to logits of their masks and expectations of their gaps.

    The last two ids are the mask and the end marker.
    """

    Options = KindOptions

    def __init__(self, config: TransformerConfig, gaps: str = "expectation") -> None:
        problem, known = f"unknown name {gaps!r}", f"known: {', '.join(HEADS)}"
        require(gaps in HEADS, "gaps", problem, known)
        require(config.time, "network", "is not told the time", "use TransformerConfig(time=True)")
        require(config.vocab_size > 2, "network", "needs ids for tokens, a mask and an end marker")
        growing = "reads texts that grow, in which no place stays where it was"
        refuse_options(config, "this network", grid=growing)
        super().__init__(config)
        self.gap_head = GapHead(config, gaps)

    @property
    def mask_id(self) -> int:
        return self.config.vocab_size - 2

    @property
    def end_id(self) -> int:
        return self.config.vocab_size - 1

    def forward(  # type: ignore[override]
        self,
        text: PackedTokens,
        *,
        queries: Int[Tensor, "M"],
        scalar: Float[Tensor, "B"],
        label: Int[Tensor, "B"] | None = None,
    ) -> Answer:
        """`queries` are indices in the packed text whose clean tokens are predicted."""
        ended, places, _ = text.with_ends(self.end_id)
        longest = int(ended.lengths.max()) if ended.count else 0
        layout = PackedLayout(ended.cu_seqlens, ended.cu_seqlens, longest, longest)
        positions = ended.position_ids
        hidden, condition = self._trunk(ended.tokens, scalar, label, layout, positions, None)
        assert isinstance(condition, RowCondition), "the network is told the time"
        queried = places[queries]
        logits = self._project(hidden[queried], condition[queried])
        return Answer(logits, *self.gap_head(hidden, condition))


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _inverse_softplus(y: float) -> float:
    return float(torch.tensor(y, dtype=torch.float64, device="cpu").expm1().log())
