"""Padding of an output head's weights, for fast matrix products.

At odd vocabulary sizes a GPU's matrix products are several times slower. So the weights get rows of
zeros at the end, whose outputs are ignored.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

EVEN = 64


def padded(weight: Float[Tensor, "V W"]) -> Float[Tensor, "rows W"]:
    """The weights, with rows of zeros appended if products would be slow without."""
    if weight.is_cuda and weight.dtype in (torch.float16, torch.bfloat16):
        return F.pad(weight, (0, 0, 0, -len(weight) % EVEN))
    return weight


def pad_in_place(head: nn.Linear) -> Float[Tensor, "rows W"]:
    """Return the padded weights of a head, and make its own weights a view of their first rows."""
    rows = padded(head.weight.detach())
    head.weight = nn.Parameter(rows[: len(head.weight)], requires_grad=head.weight.requires_grad)
    return rows
