"""Optimisers by name: AdamW, and Muon for hidden matrices with AdamW for the rest."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from partita.registry import Registry

OPTIMISERS: Registry[Callable[[nn.Module, float, float], list[torch.optim.Optimizer]]] = Registry(
    "optimiser"
)
BETAS = (0.9, 0.99)
_AT_THE_ENDS = {"embed", "conditioning", "modulation_out", "head"}  # not inside the network


def _adamw(
    parameters: list[nn.Parameter], rate: float, weight_decay: float
) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        parameters, lr=rate, betas=BETAS, weight_decay=weight_decay, fused=True
    )


@OPTIMISERS.register("adamw")
def adamw(module: nn.Module, rate: float, weight_decay: float) -> list[torch.optim.Optimizer]:
    """AdamW for everything."""
    return [_adamw(list(module.parameters()), rate, weight_decay)]


@OPTIMISERS.register("muon")
def muon(module: nn.Module, rate: float, weight_decay: float) -> list[torch.optim.Optimizer]:
    """Muon (orthogonalised momentum) for hidden matrices; AdamW for embeddings, head, gains.

    Its updates are scaled to AdamW's typical size, so that one learning rate serves both.
    """
    matrices: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for name, parameter in module.named_parameters():
        hidden_matrix = parameter.ndim == 2 and not _AT_THE_ENDS & set(name.split("."))
        (matrices if hidden_matrix else rest).append(parameter)
    hidden = torch.optim.Muon(
        matrices, lr=rate, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"
    )
    return [hidden, _adamw(rest, rate, weight_decay)]
