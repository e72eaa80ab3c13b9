"""MDLM with complementary masking: an ablation of PGM (Deschenaux et al., 2025, section 5.3).

The loss is PGM's (`pgm.py`), the network one with masks: every sequence is seen twice, with group 1
masked and with group 0 masked. It isolates what PGM gains from learning from both groups, at twice
the cost of MDLM.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jaxtyping import Int64
from torch import Tensor

from partita.contracts.layouts import Layout, Queries
from partita.methods.asking import asks_twice, query_halves
from partita.methods.base import METHODS
from partita.methods.mdlm import MDLM
from partita.methods.pgm import PGM, PartitionMethod
from partita.registry import is_ours


@METHODS.register("mdlm-complementary")
class ComplementaryMDLM(MDLM, PartitionMethod):
    """MDLM with complementary masking (PGM, section 5.3): the same loss, a network with masks."""

    about = replace(
        PGM.about,
        equation="section 5.3",
        loss="MDLM's bound under complementary masks: every token is predicted once",
    )
    passes = 2  # of the network over a token, in a step of training

    def _ask_both(
        self,
        tokens: Tensor,
        groups: Tensor,
        valid: Tensor | None,
        label: Tensor | None,
        layout: Layout,
        **how: Any,
    ) -> tuple[Tensor, Queries]:
        def ask(hidden: Tensor, queries: Queries) -> Tensor:
            return self._ask(tokens, ~hidden, queries, None, label, layout, **how)

        return query_halves(self, ask, tokens, groups, valid)

    def waits(self, tokens: Int64[Tensor, "B L"]) -> bool:
        """Whether the loss of such tokens waits for the GPU."""
        return not (asks_twice(self, tokens) and is_ours(self.law))
