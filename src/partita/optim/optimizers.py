"""Optimizers by name: AdamW, and Muon for hidden matrices with AdamW for the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from partita.optim.muon import StackedMuon
from partita.registry import Registry

OPTIMIZERS: Registry[Callable[[nn.Module, float, float], list[torch.optim.Optimizer]]] = Registry(
    "optimizer"
)
BETAS = (0.9, 0.99)
_AT_THE_ENDS = {"embed", "conditioning", "modulation_out", "head"}  # not hidden matrices


def take_step(
    optimizers: Iterable[torch.optim.Optimizer],
    parameters: Iterable[nn.Parameter],
    learning_rate: float,
    max_grad_norm: float,
) -> Tensor:
    """Clip the gradients and take an optimizer step; return their norm before clipping."""
    norm = nn.utils.clip_grad_norm_(parameters, max_grad_norm)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        optimizer.step()
    return norm


def _adamw(
    module: nn.Module, names: list[str], rate: float, weight_decay: float
) -> torch.optim.Optimizer:
    """AdamW for some parameters; those that a module names as `undecayed` are not decayed."""
    kept, parameters = getattr(module, "undecayed", ()), dict(module.named_parameters())
    groups: list[dict[str, Any]] = [
        {"params": [parameters[name] for name in names if name not in kept]},
        {"params": [parameters[name] for name in names if name in kept], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=rate, betas=BETAS, weight_decay=weight_decay, fused=True)


@OPTIMIZERS.register("adamw")
def adamw(module: nn.Module, rate: float, weight_decay: float) -> list[torch.optim.Optimizer]:
    """AdamW for everything."""
    return [_adamw(module, [name for name, _ in module.named_parameters()], rate, weight_decay)]


@OPTIMIZERS.register("muon")
def muon(module: nn.Module, rate: float, weight_decay: float) -> list[torch.optim.Optimizer]:
    """Muon (orthogonalized momentum) for hidden matrices; AdamW for embeddings, head, gains.

    Its updates are scaled to AdamW's typical size, so that one learning rate serves both. If a
    module declares that a layer's weight is `several` matrices, each is orthogonalized by itself.
    """
    parts: dict[nn.Parameter, int] = {}
    rest: list[str] = []
    for name, parameter in module.named_parameters():
        if parameter.ndim == 2 and not _AT_THE_ENDS & set(name.split(".")):
            parts[parameter] = _several(module, name)
        else:
            rest.append(name)
    muons = [StackedMuon([*parts], rate, weight_decay, parts)] if parts else []
    return [*muons, *([_adamw(module, rest, rate, weight_decay)] if rest else [])]


def _several(module: nn.Module, name: str) -> int:
    owner, _, layer = name.rpartition(".")[0].rpartition(".")
    known: dict[str, int] = getattr(module.get_submodule(owner), "several", {})
    return known.get(layer, 1)
