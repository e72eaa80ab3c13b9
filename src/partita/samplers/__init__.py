"""Samplers: plain functions that turn a trained model into samples, one step at a time."""

from __future__ import annotations

from partita.categorical import Decoding, sample_categorical
from partita.contracts.prompt import Prompt
from partita.moved import offer_old_names
from partita.samplers import (
    autoregressive,
    blocks,
    chain,
    confidence,
    gaussian,
    halton,
    insertion,
    planned,
    score,
)
from partita.samplers.base import SAMPLERS, Callback, SamplingContext, Step
from partita.samplers.front import sample
from partita.samplers.guided_models import guided
from partita.samplers.state import SamplerState

__all__ = [
    "SAMPLERS",
    "Callback",
    "Decoding",
    "Prompt",
    "SamplerState",
    "SamplingContext",
    "Step",
    "autoregressive",
    "blocks",
    "chain",
    "confidence",
    "gaussian",
    "guided",
    "halton",
    "insertion",
    "planned",
    "sample",
    "sample_categorical",
    "score",
]

offer_old_names(__name__)
