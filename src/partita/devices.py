"""Devices: which one a name means, and what tensors allow on the one that they live on."""

from __future__ import annotations

import torch
from torch import Tensor

from partita.errors import InputError, require


def readable(tensor: Tensor) -> bool:
    """Whether a look at a tensor's values costs nothing, as on a CPU.

    On a GPU the program would wait for all that was asked before, and such a step cannot be
    captured. On torch's device "meta" there are no values: there it is seen, on any machine, that
    a loss looks at none.
    """
    return tensor.device.type == "cpu"


def choose_device(name: str) -> torch.device:
    """The device that a name means."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError("device", f"unknown name {name!r}", "known: auto, cpu, cuda") from error
    require(
        device.type in ("cpu", "cuda"), "device", f"unknown name {name!r}", "known: auto, cpu, cuda"
    )
    require(
        device.type != "cuda" or torch.cuda.is_available(),
        "device",
        "there is no usable CUDA device here",
        "use cpu or auto",
    )
    missing = device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()
    require(not missing, "device", f"there is no {device} here", "use cuda or auto")
    return device
