"""Devices: which one a name means, and what tensors allow on the one that they live on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

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


@contextmanager
def in_outline() -> Iterator[None]:
    """Modules that are made inside have shapes and no numbers, so that no size is too large."""
    with torch.device("meta"), _Undrawn():
        yield


class _Undrawn(TorchFunctionMode):
    """First weights are not drawn. Tensors without numbers have none to draw, but to draw them
    there loads torch's compiler, which takes longer than to load a model. Torch has no other way
    to leave it out: `skip_init` draws them too."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        named = kwargs or {}
        if func is nn.init.normal_ or func is Tensor.normal_:
            return named["tensor"] if "tensor" in named else args[0]
        return func(*args, **named)
