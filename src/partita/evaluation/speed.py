"""Speed of sampling and of training, measured side by side.

Contestants take turns, so that a machine which slows down for a while slows all of them; the
median of each one's turns counts. Weights are random: speed does not depend on them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from partita.methods import METHODS
from partita.networks.options import DecoderOptions, TransformerOptions
from partita.randomness import Noise
from partita.samplers import sample
from partita.training.optimisers import OPTIMISERS

SAMPLING = (("mdlm", "ancestral"), ("pgm", "ancestral"), ("pgm", "ordered"))
TRAINING = (("mdlm", True), ("mdlm-complementary", True), ("pgm", False), ("pgm", True))
_TRAINING_NAMES = {("pgm", False): "pgm, L x L masks", ("pgm", True): "pgm, packed"}
_WARM_UP_STEPS = 2


@dataclass(frozen=True)
class Contestant:
    """Something to time: `run` does its work once and returns how many tokens that were."""

    name: str
    run: Callable[[], int]
    warm_up: Callable[[], object]


@dataclass(frozen=True)
class Speed:
    """What came out for one contestant."""

    name: str
    seconds: list[float]
    """Of each turn."""
    tokens: int
    """Of a turn."""
    flops: int | None = None
    """Floating-point operations of a turn in matrix products and attention, where counted."""

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / statistics.median(self.seconds)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**vars(self), "tokens_per_second": self.tokens_per_second}


def race(
    contestants: Sequence[Contestant],
    device: torch.device,
    *,
    turns: int = 3,
    count_flops: bool = False,
    progress: Callable[[str], None] | None = None,
) -> list[Speed]:
    """Time every contestant `turns` times, one after the other in each turn."""
    for contestant in contestants:
        contestant.warm_up()
    seconds: list[list[float]] = [[] for _ in contestants]
    tokens = [0] * len(contestants)
    for turn in range(turns):
        for index, contestant in enumerate(contestants):
            if progress is not None:
                progress(f"{contestant.name}, turn {turn + 1} of {turns}")
            _wait(device)
            begin = time.perf_counter()
            tokens[index] = contestant.run()
            _wait(device)
            seconds[index].append(time.perf_counter() - begin)
    flops = [count_flops_of(c.run) if count_flops else None for c in contestants]
    names = [contestant.name for contestant in contestants]
    return [Speed(*result) for result in zip(names, seconds, tokens, flops, strict=True)]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def count_flops_of(run: Callable[[], object]) -> int:
    """Floating-point operations of matrix products and attention, forward and backward."""
    with FlopCounterMode(display=False, custom_mapping=_ON_CPU) as counter:
        run()
    return int(counter.get_total_flops())


def _attention(query: torch.Size, key: torch.Size, value: torch.Size, *_: Any, **__: Any) -> int:
    """q k^T and its product with v."""
    batch, heads, queries, width = query
    return 2 * batch * heads * queries * key[2] * (width + value[3])


def _attention_backward(
    gradient: torch.Size,  # noqa: ARG001 - the shapes of a kernel's arguments, in their order
    query: torch.Size,
    key: torch.Size,
    *_: Any,
    **__: Any,
) -> int:
    """Five products of the forward pass' size: q k^T once more, and the four gradients."""
    batch, heads, queries, width = query
    return 10 * batch * heads * queries * key[2] * width


# Kernels that torch's counter does not know.
_ON_CPU = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}


def sampling_contestants(
    network: TransformerOptions,
    tokens: int,
    device: torch.device,
    *,
    batch_size: int,
    steps: int,
) -> Iterator[Contestant]:
    """MDLM's ancestral sampler, and PGM's ancestral and fixed-count ones."""
    for name, sampler in SAMPLING:
        method = _method(name, network, tokens, device).eval()

        def draw(steps: int, method: nn.Module = method, sampler: str = sampler) -> int:
            with _precision(device):
                drawn = sample(method, batch_size, sampler=sampler, steps=steps)  # type: ignore[arg-type]
            return drawn.numel()

        yield Contestant(
            f"{name}, {sampler}",
            lambda draw=draw: draw(steps),  # type: ignore[misc]
            lambda draw=draw: draw(_WARM_UP_STEPS),  # type: ignore[misc]
        )


def training_contestants(
    network: TransformerOptions,
    tokens: int,
    device: torch.device,
    *,
    batch_size: int,
    steps: int = 2,
) -> Iterator[Contestant]:
    """Optimiser steps of MDLM, of its complementary form, and of PGM with masks and packed."""
    rows = torch.randint(tokens, (batch_size, network.length), device=device)
    for name, packed in TRAINING:
        method = _method(name, network, tokens, device)
        if not packed:
            method.network.packed = packed  # type: ignore[union-attr]
        (optimiser,) = OPTIMISERS["adamw"](method, 1e-4, 0.0)

        def advance(
            steps: int,
            method: Any = method,  # noqa: ANN401 - any method
            optimiser: torch.optim.Optimizer = optimiser,
        ) -> int:
            for step in range(steps):
                with _precision(device):
                    loss = method.loss(rows, Noise.for_batch(0, batch_size, 0, device), step)
                optimiser.zero_grad()
                loss.objective.backward()
                optimiser.step()
            return rows.numel() * steps

        yield Contestant(
            _TRAINING_NAMES.get((name, packed), name),
            lambda advance=advance: advance(steps),  # type: ignore[misc]
            lambda advance=advance: advance(1),  # type: ignore[misc]
        )


def _method(name: str, network: TransformerOptions, tokens: int, device: torch.device) -> nn.Module:
    partitions = getattr(METHODS[name], "partitions", False)
    options = network if partitions else replace(network, decoder=DecoderOptions())
    method: nn.Module = METHODS[name].build(options, tokens).to(device)  # type: ignore[attr-defined]
    return method


def _precision(device: torch.device) -> Any:  # noqa: ANN401 - of two unrelated types
    """As training does it: bfloat16 on GPUs, float32 on CPUs."""
    return torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext()
