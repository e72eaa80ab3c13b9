"""Vocabularies have odd sizes, at which a GPU's matrix products are several times slower.

So the head's weights get rows of zeros after their last one, and what comes of those is left out.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

EVEN = 64


def padded(weight: Float[Tensor, "V W"]) -> Float[Tensor, "rows W"]:
    """Weights and rows of zeros, where products would be slow without."""
    if weight.is_cuda and weight.dtype in (torch.float16, torch.bfloat16):
        return F.pad(weight, (0, 0, 0, -len(weight) % EVEN))
    return weight


def pad_in_place(head: nn.Linear) -> Float[Tensor, "rows W"]:
    """The padded weights of a head, whose own are from now on the first rows of them."""
    rows = padded(head.weight.detach())
    head.weight = nn.Parameter(rows[: len(head.weight)], requires_grad=head.weight.requires_grad)
    return rows
