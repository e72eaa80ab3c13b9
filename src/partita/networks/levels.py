"""An output head for ordered levels: a mixture of discretized logistics.

A level v of 0..V-1 is a real number rounded, with everything beyond the ends rounded to the ends.
If the number is logistic with mean m and scale s (in levels), then with the logistic distribution
function sigma and a_v = (v + 1/2 - m) / s,

    P(0)     = sigma(a_0)
    P(v)     = sigma(a_v) - sigma(a_{v-1}) = sigma(a_v) sigma(-a_{v-1}) (1 - e^(-1/s))
    P(V-1)   = sigma(-a_{V-2})

The product equals the difference exactly, as (1 + e^x)(1 + e^y) divides e^x - e^y, and its
logarithm has no cancellation, however far in the tails v is.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from partita.errors import require_int

LOGISTIC_NUMBERS = 3  # of each logistic: its weight, its mean and its scale
LOG_SCALE_BOUND = 6.0  # from 1/400 of a level, all mass on one, to 400 levels, flat over 256


def discretized_logistic(
    mean: Float[Tensor, "*n"], log_scale: Float[Tensor, "*n"], levels: int
) -> Float[Tensor, "*n V"]:
    """Log-probabilities of the levels; mean and scale are in levels."""
    require_int(levels, "levels", 2)
    edges = torch.arange(levels - 1, device=mean.device, dtype=mean.dtype) + 0.5
    sharpness = torch.exp(-log_scale)[..., None]
    steps = (edges - mean[..., None]) * sharpness
    below, above = F.logsigmoid(steps), F.logsigmoid(-steps)
    within = below[..., 1:] + above[..., :-1] + torch.log(-torch.expm1(-sharpness))
    return torch.cat([below[..., :1], within, above[..., -1:]], dim=-1)


def mixture_log_probabilities(numbers: Float[Tensor, "*n P"], levels: int) -> Float[Tensor, "*n V"]:
    """Log-probabilities of the levels under a mixture; `numbers` are a network's outputs.

    If all numbers are zero, the logistics cover the range evenly: identical ones would never
    diverge. Means reach one range beyond each end, and scales are bounded, so that logarithms and
    gradients are finite for any numbers. In float32 or better.
    """
    numbers = numbers.to(torch.promote_types(numbers.dtype, torch.float32))
    weights, means, scales = numbers.chunk(LOGISTIC_NUMBERS, dim=-1)
    count = weights.shape[-1]
    centers = torch.arange(count, device=numbers.device, dtype=numbers.dtype) + 0.5
    means = centers * (levels / count) - 0.5 + levels * torch.tanh(means / 2)
    scales = math.log(levels / (2 * count)) + scales
    scales = LOG_SCALE_BOUND * torch.tanh(scales / LOG_SCALE_BOUND)
    each = discretized_logistic(means, scales, levels)
    return torch.logsumexp(weights.log_softmax(-1)[..., None] + each, dim=-2)
