"""Samplers: plain functions that turn a trained model into samples, one step at a time."""

from partita.categorical import Decoding, sample_categorical
from partita.contracts.prompt import Prompt
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
from partita.samplers.base import SAMPLERS, Callback, Session, Step
from partita.samplers.canvas import Canvas
from partita.samplers.front import sample
from partita.samplers.guided_models import guided

__all__ = [
    "SAMPLERS",
    "Callback",
    "Canvas",
    "Decoding",
    "Prompt",
    "Session",
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
