"""MDLM with complementary masking: an ablation of PGM (Deschenaux et al., 2025, section 5.3).

The loss is PGM's (`pgm.py`), but the network reads masks: it processes every sequence twice, with
group 1 masked and with group 0 masked. This isolates what PGM gains from learning from both groups,
at twice the cost of MDLM.
"""

from __future__ import annotations

from dataclasses import replace

from partita.contracts.shapes import Tokens
from partita.methods.base import METHODS
from partita.methods.inference import queries_twice
from partita.methods.mdlm import MDLM
from partita.methods.pgm import PGM, PartitionMethod


@METHODS.register("mdlm-complementary")
class ComplementaryMDLM(MDLM, PartitionMethod):
    """MDLM with complementary masking (PGM, section 5.3): the same loss, a network with masks."""

    about = replace(
        PGM.about,
        equation="section 5.3",
        loss="MDLM's bound under complementary masks: every token is predicted once",
    )
    passes = 2
    recordable = True

    def needs_host_sync(self, tokens: Tokens) -> bool:
        return not (self.corruption.recordable and queries_twice(self, tokens))
