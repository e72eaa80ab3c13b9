"""AR: the autoregressive baseline, p(x) = prod_l p(x_l | x_<l).

A start token precedes every sequence (any id, usually the vocabulary size), so the first token has
a probability too and the likelihood is exact.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional as F

from partita.contracts.batch import Batch
from partita.contracts.layouts import DENSE, Layout, PackedLayout
from partita.contracts.loss import Loss
from partita.contracts.packed import indices_of
from partita.contracts.shapes import Labels, Tokens
from partita.errors import require
from partita.methods.base import METHODS, About, NetworkMethod, check_batch
from partita.methods.contracts import CausalModel
from partita.methods.mdlm import subs
from partita.methods.weighing import fuses, weighted_cross_entropy
from partita.networks.attention import KeyValueCache
from partita.networks.causal import CausalTransformer
from partita.networks.kinds import new_network
from partita.networks.options import TransformerOptions
from partita.randomness import Noise


@METHODS.register("ar")
class AR(NetworkMethod, CausalModel):
    """A causal network and its start token (the last input id by default)."""

    about = About(
        paper="none: the autoregressive baseline, by the chain rule",
        equation="log p(x) = sum_l log p(x_l | x_<l)",
        loss="cross-entropy of the next token, the exact likelihood",
    )
    network: CausalTransformer
    reads = "past"
    exact = True
    plain_softmax = True
    all_positions = True
    recordable = True

    def __init__(self, network: CausalTransformer, *, start_id: int | None = None) -> None:
        super().__init__()
        problem = f"AR needs a CausalTransformer, got {type(network).__name__}"
        remedy = "a network that looks ahead would read the answers"
        require(isinstance(network, CausalTransformer), "network", problem, remedy)
        self.network = network
        self.start_id = network.config.vocab_size - 1 if start_id is None else start_id

    @classmethod
    def build(cls, network: TransformerOptions, tokens: int) -> AR:
        """Build AR with a new network for ids 0..tokens-1; the start token's id is `tokens`."""
        return cls(new_network(network, cls.reads, vocab_size=tokens + 1))

    @property
    def mask_id(self) -> int:
        """The id at positions that are not generated yet: the start token, never a real one."""
        return self.start_id

    def log_probabilities(self, logits: Float[Tensor, "*n C"]) -> Float[Tensor, "*n C"]:
        """log p(next token), with no mass on the start token."""
        return subs(logits, self.start_id)

    def new_caches(self, batch: int) -> list[KeyValueCache]:
        """Empty key-value caches for `batch` sequences."""
        return self.network.new_caches(batch)

    def following(
        self, tokens: Int64[Tensor, "B N"], caches: list[KeyValueCache], label: Labels | None = None
    ) -> Float[Tensor, "B V"]:
        """Append tokens to the caches; log-probabilities of the token that follows them."""
        return self.log_probabilities(self.network.extend(tokens, caches, label))

    def shifted(self, tokens: Tokens, layout: Layout = DENSE) -> Int64[Tensor, "B L"]:
        """The inputs from which each token is predicted: the start token, then all but the last.

        Under a `PackedLayout` every sequence has its own start token.
        """
        if not isinstance(layout, PackedLayout):
            return F.pad(tokens[:, :-1], (1, 0), value=self.start_id)
        layout.check(tokens)
        read = F.pad(tokens.flatten(), (1, 0))
        read[layout.cu_seqlens_q.long()] = self.start_id
        return read[:-1].view_as(tokens)

    def loss(
        self,
        batch: Batch,
        noise: Noise | None = None,  # noqa: ARG002 - methods share one signature; this one draws none
        step: int = 0,  # noqa: ARG002
    ) -> Loss:
        """-log p(x_l | x_<l) of every token: the exact likelihood, without random noise.

        Under a `PackedLayout`, x_<l are the earlier tokens of the same sequence.
        """
        batch = check_batch(batch, self).padded_with(self.start_id)
        layout, queries = batch.layout(), indices_of(batch.is_token, batch.tokens)
        read = self.shifted(batch.tokens, layout)
        given: dict[str, Any] = {"queries": queries, "label": batch.label, "layout": layout}
        given |= {"project": False} if fuses(self) else {}
        output = self.network(read, **given)
        weights = torch.ones(read.shape, device=read.device)
        return weighted_cross_entropy(self, output, queries, batch, weights)

    def needs_host_sync(self, tokens: Tokens) -> bool:  # noqa: ARG002 - whatever they are
        return not self.network.recordable
