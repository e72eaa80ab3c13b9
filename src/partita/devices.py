"""What tensors allow on the device that they live on."""

from __future__ import annotations

from torch import Tensor


def readable(tensor: Tensor) -> bool:
    """Whether a look at a tensor's values costs nothing, as on a CPU.

    On a GPU the program would wait for all that was asked before, and such a step cannot be
    captured. On torch's device "meta" there are no values: there it is seen, on any machine, that
    a loss looks at none.
    """
    return tensor.device.type == "cpu"
