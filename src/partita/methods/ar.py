"""AR: the autoregressive baseline, p(x) = prod_l p(x_l | x_<l).

A start token stands before every sequence (its id is free to choose, usually the vocabulary
size), so the first token has a probability too and the likelihood is exact.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from partita.contracts.layouts import DENSE, Layout, PackedLayout
from partita.contracts.loss import Loss
from partita.contracts.packed import places_of
from partita.errors import require
from partita.methods.asking import head_of, plain_softmax
from partita.methods.base import METHODS, About, check_tokens
from partita.methods.contracts import TextMethod
from partita.methods.mdlm import subs
from partita.methods.weighing import weighed
from partita.networks.attention import KeyValueCache
from partita.networks.causal import CausalTransformer
from partita.networks.options import TransformerConfig, TransformerOptions
from partita.randomness import Noise


@METHODS.register("ar")
class AR(nn.Module, TextMethod):
    """A causal network and its start token (the last input id unless told otherwise)."""

    about = About(
        paper="none: the autoregressive baseline, by the chain rule",
        equation="log p(x) = sum_l log p(x_l | x_<l)",
        loss="cross-entropy of the next token, the exact likelihood",
    )
    family: str = "causal"
    all_positions = True  # every token is predicted: none has to be found

    def __init__(self, network: CausalTransformer, *, start_id: int | None = None) -> None:
        super().__init__()
        require(
            isinstance(network, CausalTransformer),
            "network",
            f"AR needs a CausalTransformer, got {type(network).__name__}",
            "a network that looks ahead would read the answers",
        )
        self.network = network
        self.start_id = network.config.vocab_size - 1 if start_id is None else start_id

    @classmethod
    def build(cls, network: TransformerOptions, tokens: int) -> AR:
        """AR over a new network for ids 0..tokens-1; the start token is the id after them."""
        config = TransformerConfig(**vars(network), vocab_size=tokens + 1)
        return cls(CausalTransformer(config))

    @property
    def mask_id(self) -> int:
        """What stands at positions that are yet to come: the start token, never a real one."""
        return self.start_id

    @property
    def vocab_size(self) -> int:
        return self.network.config.vocab_size

    @property
    def length(self) -> int:
        """Longest sequence. The network reads the start token and all tokens but the last."""
        return self.network.config.length

    @plain_softmax
    def log_probabilities(self, logits: Float[Tensor, "*n C"]) -> Float[Tensor, "*n C"]:
        """log p(next token): never the start token."""
        return subs(logits, self.start_id)

    def new_caches(self, batch: int) -> list[KeyValueCache]:
        """Memory for `batch` sequences that are written from left to right."""
        return self.network.new_caches(batch)

    def following(
        self,
        tokens: Int64[Tensor, "B N"],
        caches: list[KeyValueCache],
        label: Int64[Tensor, "B"] | None = None,
    ) -> Float[Tensor, "B V"]:
        """Read the next tokens; log p of the one that follows them."""
        return self.log_probabilities(self.network.extend(tokens, caches, label))

    def shifted(self, tokens: Int64[Tensor, "B L"], layout: Layout = DENSE) -> Int64[Tensor, "B L"]:
        """What the network reads to predict each token: the start token, then all but the last.

        Under a `PackedLayout` every sequence has a start token of its own.
        """
        if not isinstance(layout, PackedLayout):
            return F.pad(tokens[:, :-1], (1, 0), value=self.start_id)
        layout.check(tokens)
        read = F.pad(tokens.flatten(), (1, 0))
        read[layout.cu_seqlens_q.long()] = self.start_id
        return read[:-1].view_as(tokens)

    def loss(
        self,
        tokens: Int64[Tensor, "B L"],
        noise: Noise | None = None,  # noqa: ARG002 - methods share one signature; this one draws none
        step: int = 0,  # noqa: ARG002
        *,
        batch: int | None = None,  # noqa: ARG002
        valid: Bool[Tensor, "B L"] | None = None,
        label: Int64[Tensor, "B"] | None = None,
        layout: Layout = DENSE,
    ) -> Loss:
        """-log p(x_l | x_<l) of every token: an exact likelihood, nothing is drawn.

        Under a `PackedLayout`, x_<l are the earlier tokens of the same sequence.
        """
        check_tokens(tokens, self, valid)
        queries = places_of(valid, tokens)
        if valid is None:
            valid = torch.ones_like(tokens, dtype=torch.bool)
        else:
            tokens = torch.where(valid, tokens, self.start_id)  # padding may hold anything
        read = self.shifted(tokens, layout)
        weights = torch.ones(tokens.shape, device=tokens.device)
        answer = self.network(read, queries=queries, label=label, layout=layout, **head_of(self))
        return weighed(self, answer, queries, tokens, weights, valid)
