"""Samplers: plain functions that turn a trained model into samples, one step at a time."""

from __future__ import annotations

from partita.categorical import Decoding as Decoding
from partita.categorical import sample_categorical as sample_categorical
from partita.contracts.prompt import Prompt as Prompt
from partita.moved import offer_old_names
from partita.samplers import autoregressive as autoregressive
from partita.samplers import blocks as blocks
from partita.samplers import chain as chain
from partita.samplers import confidence as confidence
from partita.samplers import gaussian as gaussian
from partita.samplers import halton as halton
from partita.samplers import insertion as insertion
from partita.samplers import planned as planned
from partita.samplers import score as score
from partita.samplers.base import SAMPLERS as SAMPLERS
from partita.samplers.base import Callback as Callback
from partita.samplers.base import SamplingContext as SamplingContext
from partita.samplers.base import Step as Step
from partita.samplers.front import sample as sample
from partita.samplers.guided_models import guided as guided
from partita.samplers.state import SamplerState as SamplerState

offer_old_names(__name__)
