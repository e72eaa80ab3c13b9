"""The network of FlexMDM: a transformer over packed texts, with a second head for missing tokens.

Every text is followed by an end marker. The first head gives logits of clean tokens, as usual; the
second, at every token and at the end marker, predicts how many tokens are missing before it:

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
from partita.errors import require, require_known
from partita.networks.conditions import Condition, RowCondition, through
from partita.networks.kind_options import KindOptions
from partita.networks.layers import NORMS, modulate, zero_linear
from partita.networks.options import TransformerConfig, refuse_options
from partita.networks.transformer import Transformer

HEADS = ("expectation", "distribution")


class Answer(NamedTuple):
    """The network's predictions for a state."""

    logits: Float[Tensor, "M V"]
    """Logits of clean tokens, at the queried positions."""
    gaps: Float[Tensor, "G"]
    """Expected number of missing tokens in each gap, in the order of `with_ends`."""
    counts: Float[Tensor, "G counts"] | None
    """Logits over the number of missing tokens; None if only the expectation is predicted."""


class GapHead(nn.Module):
    """Predicts the number of missing tokens before each position from hidden states."""

    def __init__(self, config: TransformerConfig, kind: str) -> None:
        super().__init__()
        width = config.width
        self.kind, self.longest = kind, config.length
        self.norm = NORMS[config.norm](width)
        self.modulation = zero_linear(config.condition_width, 2 * width)
        if kind == "expectation":
            self.inner, self.out = nn.Linear(width, width), nn.Linear(width, 1)
            # Untrained, it expects one token in every gap, not as many as a text can have.
            nn.init.zeros_(self.out.weight)
            nn.init.constant_(self.out.bias, _inverse_softplus(1 / config.length))
        else:
            self.out = zero_linear(width, config.length + 1)

    def forward(
        self, hidden: Float[Tensor, "G W"], condition: Condition
    ) -> tuple[Float[Tensor, "G"], Float[Tensor, "G counts"] | None]:
        """Expectations, and the logits of the counts or None; in float32 or better."""
        shift, scale = through(self.modulation, condition).chunk(2, -1)
        read = modulate(self.norm(hidden), shift, scale)
        if self.kind == "expectation":
            number = self.out(F.gelu(self.inner(read)))[..., 0]
            return F.softplus(_wide(number)) * self.longest, None
        logits = _wide(self.out(read))
        return mean_count(logits), logits


def mean_count(logits: Float[Tensor, "*gaps counts"]) -> Float[Tensor, "*gaps"]:
    """The expected count, given logits over the counts 0, 1, ..."""
    sizes = torch.arange(logits.shape[-1], device=logits.device, dtype=logits.dtype)
    mean: Tensor = (logits.softmax(-1) * sizes).sum(-1)
    return mean


class FlexibleTransformer(Transformer):
    """Maps texts of any length to logits at their masks and expected counts in their gaps.

    The last two ids are the mask and the end marker.
    """

    Options = KindOptions

    def __init__(self, config: TransformerConfig, gaps: str = "expectation") -> None:
        require_known(gaps, "gaps", HEADS)
        remedy = "use TransformerConfig(time=True)"
        require(config.time, "network", "takes no time as an input", remedy)
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
        """Predictions for packed texts; `queries` are the packed indices of tokens to predict."""
        ended, indices, _ = text.with_ends(self.end_id)
        longest = int(ended.lengths.max()) if ended.count else 0
        layout = PackedLayout(ended.cu_seqlens, ended.cu_seqlens, longest, longest)
        positions = ended.position_ids
        hidden, condition = self._trunk(ended.tokens, scalar, label, layout, positions, None)
        assert isinstance(condition, RowCondition), "the network is conditioned on the time"
        queried = indices[queries]
        logits = self._project(hidden[queried], condition[queried])
        return Answer(logits, *self.gap_head(hidden, condition))


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _inverse_softplus(y: float) -> float:
    return float(torch.tensor(y, dtype=torch.float64, device="cpu").expm1().log())
