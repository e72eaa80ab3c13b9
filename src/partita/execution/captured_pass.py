"""The forward and backward pass of a training step as one CUDA graph, captured and replayed.

A GPU waits for Python to launch the kernels of a small network one by one. The batches of a run
have one shape, so the launches can be recorded in a graph. The graph reads what differs from fixed
memory: tokens, labels, and the index of the step, which addresses the noise. It writes gradients to
the same memory each time. A replay runs no Python code of the loss.

On a CPU nothing is recorded: a "replay" runs the same work again on the same memory. That is no
faster, but tests that a step finds everything it needs in that memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from partita.contracts.batch import Batch
from partita.errors import InputError

WARM_UPS = 3  # before a capture, so that compilation and set-up of libraries are done

Work = Callable[[Batch, Int64[Tensor, ""]], Float[Tensor, ""]]
"""Computes the gradients of a batch at a step, and returns the loss for display."""


class CapturedPass:
    """The forward and backward pass of a module over batches of one shape."""

    def __init__(self, work: Work, module: nn.Module, example: Batch) -> None:
        device = example.tokens.device
        self.module = module
        self.step = torch.zeros((), dtype=torch.int64, device=device)
        self.batch = replace(
            example,
            tokens=example.tokens.clone(),
            rows=example.rows.clone(),
            label=None if example.label is None else example.label.clone(),
        )
        self._replay = self._recorded(work) if device.type == "cuda" else partial(self._try, work)

    def _recorded(self, work: Work) -> Callable[[], Float[Tensor, ""]]:
        """Capture the work as a graph that writes its loss and gradients to fixed memory."""
        device = self.batch.tokens.device
        stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                self._try(work)
            with _not_waiting(type(self.module).__name__):
                self._try(work)
        # Gradients that are None when the capture begins are written, not added to.
        self.module.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        # A thread that reads the next batch may pin memory meanwhile, hence "thread_local".
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            loss = work(self.batch, self.step)
        gradients = [parameter.grad for parameter in self.module.parameters()]

        def replay() -> Float[Tensor, ""]:
            graph.replay()
            for parameter, gradient in zip(self.module.parameters(), gradients, strict=True):
                parameter.grad = gradient
            return loss.clone()

        return replay

    def _try(self, work: Work) -> Float[Tensor, ""]:
        self.module.zero_grad(set_to_none=True)
        return work(self.batch, self.step)

    @staticmethod
    def fits(batch: Batch) -> bool:
        """Whether a batch has full rows, like the others of its run."""
        return batch.is_token is None and batch.given_layout is None and batch.ends is None

    def takes(self, batch: Batch) -> bool:
        """Whether a batch has the shape of the captured one."""
        return (
            self.fits(batch)
            and batch.tokens.shape == self.batch.tokens.shape
            and (batch.size, batch.count) == (self.batch.size, self.batch.count)
            and (batch.label is None) == (self.batch.label is None)
        )

    def run(self, batch: Batch, step: int) -> Float[Tensor, ""]:
        """Overwrite the gradients with those of a batch, and return its loss."""
        self.batch.tokens.copy_(batch.tokens)
        self.batch.rows.copy_(batch.rows)
        if self.batch.label is not None and batch.label is not None:
            self.batch.label.copy_(batch.label)
        self.step.fill_(step)
        return self._replay()


@contextmanager
def _not_waiting(name: str) -> Iterator[None]:
    """Turn a wait for the GPU inside into an InputError; a capture would fail obscurely."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    except RuntimeError as error:
        if "synchronizing" not in str(error):
            raise
        problem = f"the loss of {name} waits for the GPU, so that its steps cannot be recorded"
        remedy = "use --run.cuda_graph false, or give the method a `needs_host_sync` that says so"
        raise InputError("run.cuda_graph", problem, remedy) from error
    finally:
        torch.cuda.set_sync_debug_mode(before)
