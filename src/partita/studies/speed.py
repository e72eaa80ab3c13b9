"""Speed of sampling and of training, measured side by side.

Contestants take turns, so that a temporary slowdown of the machine affects all of them; the median
of each one's turns is reported. Weights are random: speed does not depend on them.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from partita.networks.partition import PartitionTransformer
from partita.training.throughput import peak_flops


@dataclass(frozen=True)
class Contestant:
    """Something to time: `run` does its work once and returns the number of tokens."""

    name: str
    run: Callable[[], int]
    warm_up: Callable[[], object]
    work: Work | None = None
    """The least work of a run."""
    plain: Callable[[], object] | None = None
    """The same run without CUDA graphs, for counting operations: a replay hides them."""


@dataclass(frozen=True)
class Speed:
    """The measurements of one contestant."""

    name: str
    seconds: list[float]
    """Of each turn."""
    tokens: int
    """Of a turn."""
    flops: int | None = None
    """Floating-point operations of a turn in matrix products and attention, if counted."""
    first: float | None = None
    """Seconds of the first run, which includes capturing, compiling and filling caches."""
    peak_bytes: int | None = None
    """Peak memory of tensors on a GPU, including the first run, since a replay allocates none."""
    reserved_bytes: int | None = None
    """Peak memory reserved by the process, including the first run, graphs and fragmentation."""
    shares: dict[str, float] = field(default_factory=dict)
    """Fractions of the device's peak rates, if those are known."""

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / statistics.median(self.seconds)

    def to_dict(self) -> dict[str, Any]:
        """All fields, for JSON."""
        return {**vars(self), "tokens_per_second": self.tokens_per_second}


def race(
    contestants: Iterable[Contestant],
    device: torch.device,
    *,
    turns: int = 3,
    count_flops: bool = False,
    progress: Callable[[str], None] | None = None,
) -> list[Speed]:
    """Time every contestant `turns` times, one after the other in each turn.

    On a GPU, where no other work interferes, each contestant takes all of its turns and is then
    freed: its memory would count as the others'.
    """
    options: dict[str, Any] = {"turns": turns, "count_flops": count_flops}
    options["progress"] = progress or (lambda _text: None)
    if device.type != "cuda":
        return _race([*contestants], device, **options)
    results = []
    for contestant in contestants:
        results += _race([contestant], device, **options)
        del contestant
        gc.collect()
        torch.cuda.empty_cache()
    return results


def _race(
    contestants: Sequence[Contestant],
    device: torch.device,
    *,
    turns: int,
    count_flops: bool,
    progress: Callable[[str], None],
) -> list[Speed]:
    clocks = [_Clock(contestant, device) for contestant in contestants]
    for clock in clocks:
        progress(f"{clock.contestant.name}, first run")
        clock.take(clock.contestant.warm_up)
    for turn in range(turns):
        for clock in clocks:
            progress(f"{clock.contestant.name}, turn {turn + 1} of {turns}")
            clock.tokens = clock.take(clock.contestant.run)
    return [clock.speed(count_flops) for clock in clocks]


class _Clock:
    """The seconds of one contestant's runs, the first one among them, and the memory they take."""

    def __init__(self, contestant: Contestant, device: torch.device) -> None:
        self.contestant, self.device = contestant, device
        self.seconds: list[float] = []
        self.tokens = self.peak = self.held = 0

    def take(self, run: Callable[[], Any]) -> Any:  # noqa: ANN401 - what the run returns
        """Run, and measure the time and the memory."""
        cuda = self.device.type == "cuda"
        if cuda:
            torch.cuda.reset_peak_memory_stats(self.device)
            torch.cuda.synchronize(self.device)
        begin = time.perf_counter()
        result = run()
        if cuda:
            torch.cuda.synchronize(self.device)
        self.seconds.append(time.perf_counter() - begin)
        if cuda:
            self.peak = max(self.peak, torch.cuda.max_memory_allocated(self.device))
            self.held = max(self.held, torch.cuda.max_memory_reserved(self.device))
        return result

    def speed(self, count_flops: bool) -> Speed:
        contestant, (first, *seconds) = self.contestant, self.seconds
        took, work = statistics.median(seconds), contestant.work
        return Speed(
            contestant.name,
            seconds,
            self.tokens,
            count_flops_of(contestant.plain or contestant.run) if count_flops else None,
            first,
            self.peak or None,
            self.held or None,
            {} if work is None else work.shares(took, self.device),
        )


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


# The least possible work, and the share of a device's peak that is reached -----------------------

# Bytes a second from the device's memory, by a part of its name, from the vendors' data sheets.
BANDWIDTHS = {
    "B200": 8.0e12,
    "H200": 4.8e12,
    "H100": 3.35e12,
    "A100": 2.04e12,
    "L40S": 0.864e12,
    "L4": 0.3e12,
    "4090": 1.008e12,
    "V100": 0.9e12,
}


@dataclass(frozen=True)
class Work:
    """The least work of a run: operations of matrix products, and bytes of weights that are read.

    A sampler's step reads every weight once: with one sequence, memory bandwidth limits it. With
    many, matrix products do. Both are counted as the method requires, not as the program executes
    them, for steps that reveal equally many tokens.
    """

    flops: float
    weight_bytes: float

    def shares(self, seconds: float, device: torch.device) -> dict[str, float]:
        """The fractions of the device's peak rates that are reached, if the peaks are known."""
        peak, rate = peak_flops(device), bandwidth(device)
        return {
            **({} if peak is None else {"of_matrix_rate": self.flops / seconds / peak}),
            **({} if rate is None else {"of_bandwidth": self.weight_bytes / seconds / rate}),
        }


def bandwidth(device: torch.device) -> float | None:
    """Bytes a second of the device's memory; None if it is unknown (and for CPUs)."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((rate for part, rate in BANDWIDTHS.items() if part in name), None)


def sampling_work(network: nn.Module, batch: int, length: int, steps: int, bytes_each: int) -> Work:
    """The work of a planned sampler: `steps` steps that reveal batch x length tokens."""
    config: Any = network.config
    head = _matrices(network.head)  # type: ignore[arg-type]
    tokens, revealed = batch * length, batch * length / steps
    weights = _matrices(network) - _matrices(network.embed)  # type: ignore[arg-type]
    if not isinstance(network, PartitionTransformer):
        blocks = (
            2.0 * (weights - head) * tokens + 4.0 * config.width * config.depth * length * tokens
        )
        return Work(steps * (blocks + 2.0 * head * revealed), steps * weights * bytes_each)
    depth, width, _ = network.options.decoder(config)
    encoder = _matrices(network.encoder)
    memory = sum(
        parameter.numel()
        for name, parameter in network.named_parameters()
        if name.endswith("key_value.weight")
    )
    # Over all steps, 0, r, 2r, ... tokens of a row are visible: on average half of its length.
    read = batch * (length - length / steps) / 2
    squares = _mean_square(length, steps)
    encoding = 2.0 * encoder * read + 4.0 * config.width * (config.depth - depth) * batch * squares
    decoding = 2.0 * (weights - encoder - memory) * revealed
    crossing = 4.0 * width * (depth + 1) * (read / batch) * revealed
    flops = steps * (encoding + 2.0 * memory * read + decoding + crossing)
    return Work(flops, steps * weights * bytes_each)


def _mean_square(length: int, steps: int) -> float:
    """The mean of n^2 over steps with n = 0, r, 2r, ... visible tokens."""
    return (length / steps) ** 2 * (steps - 1) * (2 * steps - 1) / 6


def _matrices(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters() if parameter.ndim >= 2)
