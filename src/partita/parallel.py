"""Training on several processes, by torch's own distribution and `torchrun`.

A process alone is a world of one, and the same code runs. Rows of a global batch are shared out
evenly; gradients are averaged by DistributedDataParallel, which keeps all weights everywhere, or
by FSDP2 (`fully_shard`), which keeps a share of each.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from partita.devices import choose_device
from partita.errors import require

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor


@dataclass(frozen=True)
class World:
    """This process in its group: its rank, the number of processes, its device."""

    rank: int
    size: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    def share(self, count: int, argument: str) -> slice:
        """This process' part of `count` rows."""
        each, rest = divmod(count, self.size)
        problem = f"{count} rows cannot be shared evenly by {self.size} processes"
        require(rest == 0, argument, problem, f"use a multiple of {self.size}")
        return slice(self.rank * each, (self.rank + 1) * each)

    def largest(self, *values: float) -> list[float]:
        """The largest of all processes' values, one by one: how processes agree."""
        if self.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64)  # on the CPU: no GPU is waited for
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return [float(value) for value in tensor]

    def total(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, on every one of them."""
        if self.size > 1:
            tensor = tensor.clone()
            dist.all_reduce(tensor)
        return tensor

    def wait(self) -> None:
        """Wait for all processes."""
        self.largest(0.0)

    @contextmanager
    def first_works(self) -> Iterator[bool]:
        """Inside, the first process works, and the others wait; if it fails, all stop.

        Yields whether this process is the first one.
        """
        failed = 1.0
        try:
            yield self.first
            failed = 0.0
        finally:
            failed = self.largest(failed)[0]
        require(not failed, "run", "the first process stopped; it says why")

    def first_says(self, text: str) -> str:
        """The text of the first process, on all of them."""
        words = [text]
        if self.size > 1:
            dist.broadcast_object_list(words, device=torch.device("cpu"))
        return words[0]


@contextmanager
def joined(device: str = "auto") -> Iterator[World]:
    """Join the process group of `torchrun`; without one, this process is alone.

    A caller with several runs joins once around all of them: a group that is left and joined
    again may hang. Joining inside of a group does nothing.
    """
    chosen = choose_device(device)
    if "WORLD_SIZE" not in os.environ:
        yield World(0, 1, chosen)
        return
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if chosen.type == "cuda":
        chosen = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(chosen)
    inside = dist.is_initialized()
    if not inside:
        dist.init_process_group("cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo")
    try:
        world = World(rank, size, chosen)
        yield world
        # Whatever still uses the group is freed first, in all processes at the same time: a
        # process that is left alone hangs.
        gc.collect()
        world.wait()
    finally:
        if not inside:
            dist.destroy_process_group()


def leave(code: int) -> None:
    """End a process that is one of many, now that its work is done and its files are written.

    Torch's communication threads outlive the process group, and now and then they abort while the
    interpreter shuts down, which would look like a failed run.
    """
    if "WORLD_SIZE" in os.environ:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def spread(objective: nn.Module, network: nn.Module, kind: str, world: World) -> nn.Module:
    """The objective, wrapped for several processes; call it instead of the original."""
    if world.size == 1:
        return objective
    if kind == "ddp":
        return DistributedDataParallel(objective)
    from torch.distributed.fsdp import fully_shard

    for block in blocks_of(network):
        fully_shard(block)
    fully_shard(objective)
    return objective


def blocks_of(network: nn.Module) -> list[nn.Module]:
    """The repeated blocks of a network, which are compiled and sharded one by one."""
    stacks = [child for child in network.children() if isinstance(child, nn.ModuleList)]
    return [block for stack in stacks for block in stack]


@contextmanager
def synchronising(spread_objective: nn.Module, last: bool) -> Iterator[None]:
    """Gradients are averaged over processes in the `last` part of a step alone."""
    if isinstance(spread_objective, DistributedDataParallel) and not last:
        with spread_objective.no_sync():
            yield
        return
    if shares := _shares(spread_objective):
        shares.set_requires_gradient_sync(last)
    yield


def release(spread_objective: nn.Module) -> None:
    """Shard again what a forward pass gathered (a backward pass does that itself)."""
    if shares := _shares(spread_objective):
        shares.reshard()


# Sharded weights ---------------------------------------------------------------------------------
# Imported only if there are several processes: the imports take a second.


def _shares(module: nn.Module) -> FSDPModule | None:
    if not dist.is_initialized():
        return None
    from torch.distributed.fsdp import FSDPModule

    return module if isinstance(module, FSDPModule) else None


def as_shared(tensor: Tensor) -> DTensor | None:
    """A tensor that is sharded over processes; None for all others."""
    if not dist.is_initialized():
        return None
    from torch.distributed.tensor import DTensor

    return tensor if isinstance(tensor, DTensor) else None


def whole(tensor: Tensor) -> Tensor:
    """The full tensor of a sharded one, on every process."""
    shared = as_shared(tensor)
    return tensor if shared is None else shared.full_tensor()


def local(tensor: Tensor) -> Tensor:
    """This process' shard of a tensor, without a copy."""
    shared = as_shared(tensor)
    return tensor if shared is None else shared.to_local()


def like(tensor: Tensor, pattern: Tensor) -> Tensor:
    """A full tensor, moved to the device of another one and sharded like it."""
    tensor, shared = tensor.to(pattern.device), as_shared(pattern)
    if shared is None or tensor.ndim == 0:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor, shared.device_mesh, shared.placements)
