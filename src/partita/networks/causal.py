"""The causal transformer: the same layers, but a token attends only to itself and earlier ones."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from partita.contracts.layouts import DENSE
from partita.networks.attention import KeyValueCache
from partita.networks.conditions import RowCondition
from partita.networks.kind_options import KindOptions
from partita.networks.options import TransformerConfig, refuse_options
from partita.networks.transformer import Transformer


class CausalTransformer(Transformer):
    """A causal transformer, with a key-value cache for generating token by token."""

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

    def extend(
        self,
        tokens: Int[Tensor, "B N"],
        caches: list[KeyValueCache],
        label: Int[Tensor, "B"] | None = None,
    ) -> Float[Tensor, "B V"]:
        """Append tokens to the caches; logits of the token that follows them."""
        hidden, condition = self._trunk(tokens, None, label, DENSE, None, caches)
        assert not isinstance(condition, RowCondition), "rows of a batch, not packed tokens"
        return self._project(hidden[:, -1], None if condition is None else condition[:, 0])
