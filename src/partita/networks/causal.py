"""The causal transformer: the same layers, where a token reads only itself and earlier ones."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from partita.contracts.layouts import DENSE
from partita.errors import require
from partita.networks.attention import KeyValueCache
from partita.networks.conditions import Told
from partita.networks.kind_options import KindOptions
from partita.networks.options import TransformerConfig, refuse_options
from partita.networks.transformer import Transformer


class CausalTransformer(Transformer):
    """A transformer in causal order, with a key-value cache for token-by-token use."""

    recordable = True
    causal = True
    Options = KindOptions

    def __init__(self, config: TransformerConfig) -> None:
        refuse_options(
            config,
            "a causal network",
            grid="begins with a start token, which would shift every row",
            registers="reads nothing that stands at the end",
        )
        super().__init__(config)

    def new_caches(self, batch: int) -> list[KeyValueCache]:
        """Empty caches for `batch` sequences of the network's full length."""
        config, weight = self.config, self.embed.weight
        shape = (batch, config.length, config.heads, config.width // config.heads)
        return [
            KeyValueCache(weight.new_empty(shape), weight.new_empty(shape)) for _ in self.blocks
        ]

    def extend(
        self,
        tokens: Int[Tensor, "B N"],
        caches: list[KeyValueCache],
        label: Int[Tensor, "B"] | None = None,
    ) -> Float[Tensor, "B V"]:
        """Feed the next tokens; logits of the one that follows them."""
        past = caches[0].filled
        end = past + tokens.shape[1]
        require(
            end <= self.config.length,
            "length",
            f"{end} tokens do not fit the network's {self.config.length}",
        )
        positions = torch.arange(past, end, device=tokens.device)
        hidden, condition = self._trunk(tokens, None, label, DENSE, positions, caches)
        assert not isinstance(condition, Told), "rows of a batch, not packed tokens"
        return self._project(hidden[:, -1], None if condition is None else condition[:, 0])
