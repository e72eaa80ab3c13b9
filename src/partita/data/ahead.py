"""Prefetching: the next batch is read while the device works on the present one."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import torch

from partita.contracts.batch import Batch
from partita.data.batches import Order


class Ahead:
    """An order's batches on a device, each read by a thread one step ahead.

    Which rows a step has is a function of its number, so reading early changes nothing.
    """

    def __init__(self, order: Order, part: slice, device: torch.device) -> None:
        self.order, self.part, self.device = order, part, device
        self._thread = ThreadPoolExecutor(1, "batches")
        self._waiting: tuple[int, Future[Batch]] | None = None

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    def batch(self, step: int) -> Batch:
        """The batch of a step, on the device; reading the next one begins."""
        expected, future = self._waiting or (None, None)
        batch = future.result() if future and expected == step else self._read(step)
        self._waiting = step + 1, self._thread.submit(self._read, step + 1)
        return batch.to(self.device)

    def _read(self, step: int) -> Batch:
        batch = self.order.batch(step, self.part)
        # A GPU copies from pinned memory by itself; copies from other memory block.
        return batch.pinned() if self.device.type == "cuda" else batch
