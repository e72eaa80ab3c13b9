"""Parts of the reference implementation of FlexMDM that tests repeat."""

from __future__ import annotations

import re

import torch

from partita.methods.flexmdm import FlexMDM
from partita.networks import TransformerConfig
from partita.networks.flexible import Answer, FlexibleTransformer
from partita.processes.insertion import Interpolant
from partita.schedules import make_schedule
from tests.golden.cases import Case, rule_of

OURS = {"linear": "linear", "sin": "half-cosine", "cosine": "cosine", "polynomial": "power"}


GEOMETRIC = "geometric"


def schedule_of(facts):
    """Our schedule for one of theirs, given by facts or a name such as "geometric 10/0.01"."""
    if isinstance(facts, str):
        rule = rule_of(facts, (*OURS, GEOMETRIC))
        numbers = [float(x) for x in re.findall(r"\d[\d.e-]*", facts.removeprefix(rule))]
        keys = ("min", "max") if rule == GEOMETRIC else ("exp",)[: len(numbers)]
        facts = {"type": rule} | dict(zip(keys, numbers, strict=True))
    if facts["type"] == GEOMETRIC:  # unscaled: it neither begins at 0 nor ends at 1
        return make_schedule("mdlm:geometric", sigma_min=facts["max"], sigma_max=facts["min"])
    options = {"exponent": facts["exp"]} if "exp" in facts else {}
    return make_schedule(OURS[facts["type"]], **options)


def process_of(case: Case, pair):
    """The process of "insertion+unmasking"; a name without facts contains them."""
    known = case.config.get("schedules", {})
    known = known if isinstance(known, dict) else {}
    return Interpolant(*(schedule_of(known.get(name, name)) for name in pair.split("+")))


def pairs(case: Case):
    """The pairs of schedules of a case: "insertion+unmasking"."""
    return ["+".join(pair) for pair in case.config.get("combos") or case.config["pairs"]]


def agree(ours, theirs, what, **limits):
    torch.testing.assert_close(
        ours.to(theirs.dtype), theirs, **limits, msg=lambda text: f"{what}: {text}"
    )


def packed(table, lengths):
    """The first so many of each row, one row after the other."""
    return table[torch.arange(table.shape[1]) < lengths[:, None]]


class Recorded(FlexibleTransformer):
    """A network with given outputs: tables [B, L, V], [B, L + 1] and [B, L + 1, counts]."""

    def __init__(self, logits, gaps, counts=None):
        outputs, length = logits.shape[-1], max(logits.shape[1], 1)
        super().__init__(
            TransformerConfig(
                vocab_size=outputs + 2,
                output_size=outputs,
                length=length,
                width=2,
                heads=1,
                depth=1,
                time=True,
            )
        )
        self.tables, self.told = (logits, gaps, counts), []

    def forward(self, text, *, queries, scalar, label=None):  # noqa: ARG002
        logits, gaps, counts = self.tables
        self.told.append(scalar)
        ended = text.lengths + 1
        return Answer(
            packed(logits, text.lengths)[queries],
            packed(gaps, ended),
            None if counts is None else packed(counts, ended),
        )


def model_of(process, *tables):
    """A model with any process, also with truncated schedules, which the reference often has.

    The constructor refuses those, since the truncated part is missing from the bound.
    """
    method = FlexMDM(Recorded(*tables))
    method.process = process
    return method
