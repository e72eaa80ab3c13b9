"""Choose a device by name, and build modules without allocating their weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from partita.errors import InputError, require


def readable(tensor: Tensor) -> bool:
    """Whether a tensor's values can be read without waiting for a device, as on a CPU.

    On a GPU, reading a value waits for all queued work, and a step that does so cannot be captured
    as a CUDA graph. Tensors on torch's device "meta" have no values: a loss that runs there is
    shown, on any machine, to read none.
    """
    return tensor.device.type == "cpu"


def choose_device(name: str) -> torch.device:
    """The device of a name: cpu, cuda, cuda:N, or auto for a GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    unknown = InputError("device", f"unknown name {name!r}", "known: auto, cpu, cuda")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise unknown from error
    if device.type not in ("cpu", "cuda"):
        raise unknown
    usable = device.type != "cuda" or torch.cuda.is_available()
    require(usable, "device", "there is no usable CUDA device here", "use cpu or auto")
    missing = device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()
    require(not missing, "device", f"there is no {device} here", "use cuda or auto")
    return device


@contextmanager
def in_outline() -> Iterator[None]:
    """Modules built inside have shapes but no values, so that no size is too large for memory."""
    with torch.device("meta"), _Undrawn():
        yield


class _Undrawn(TorchFunctionMode):
    """Skips the random initialization of weights, which have no values here.

    Drawing them on the device "meta" loads torch's compiler, which takes longer than loading a
    model. Torch has no other way to skip it: `skip_init` draws them too.
    """

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
