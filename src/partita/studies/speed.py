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
from torch.utils.flop_counter import FlopCounterMode

from partita.studies.roofline import Work


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
