"""Quality against the number of sampling steps and against time, as numbers and as a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partita.plotting import label_of, matplotlib, picture, plain_numbers
from partita.schedules import make_schedule, sampling_grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Quality:
    """Quality and speed of the texts that one model wrote in a number of steps."""

    model: str
    steps: int
    judge_bits: float
    """Bits per character under an autoregressive judge."""
    judge_bits_error: float
    entropy_nats: float
    """Entropy of a text's own token frequencies, the mean over texts."""
    entropy_nats_error: float
    tokens_per_second: float
    """Of the median batch, without the first one if there are others."""


def revealed(schedule: str, steps: int) -> list[float]:
    """The fraction of all tokens that each step of the ancestral sampler reveals, on average."""
    visible = make_schedule(schedule).alpha(sampling_grid("uniform", steps))
    visible[0], visible[-1] = 0.0, 1.0  # the end steps get what a truncated schedule leaves out
    return [float(share) for share in visible.diff()]


@dataclass(frozen=True)
class EqualQuality:
    """How much faster one model writes texts of the same quality as another's."""

    model: str
    other: str
    steps: int
    """Steps of the other model."""
    judge_bits: float
    """Bits of the other model, at which the two are compared."""
    times: float | None
    """Speed relative to the other; None if the model does not reach its quality."""
    better: bool = False
    """Whether the model is better in its fewest steps already: `times` is then a lower bound."""
    low: float | None = None
    """`times` at bits that are lower by their error (in `high`: higher); None outside of what was
    measured."""
    high: float | None = None


def equal_quality(rows: Sequence[Quality], others: Sequence[Quality]) -> list[EqualQuality]:
    """The speed of a model beside that of another at each of the other's numbers of steps."""
    found = []
    fewest = min(rows, key=lambda row: row.steps)
    own_error = max(row.judge_bits_error for row in rows)
    for other in others:
        better = fewest.judge_bits < other.judge_bits
        error = math.hypot(other.judge_bits_error, own_error)
        least = fewest.tokens_per_second / other.tokens_per_second
        times, low, high = (
            _times(rows, other, other.judge_bits + shift) for shift in (0.0, -error, error)
        )
        same = fewest.model, other.model, other.steps, other.judge_bits
        found.append(EqualQuality(*same, least if better else times, better, low, high))
    return found


def _times(rows: Sequence[Quality], other: Quality, bits: float) -> float | None:
    """The speed relative to another model's, at its own bits or at bits near them."""
    own = seconds_of_token(rows, bits)
    return None if own is None else 1 / (own * other.tokens_per_second)


def seconds_of_token(rows: Sequence[Quality], bits: float) -> float | None:
    """Seconds per token in which a model writes texts with this many bits under the judge.

    Between two measured numbers of steps, bits are interpolated linearly in the logarithm of time,
    and the fewest steps that reach the bits are used: if more steps gain nothing, bits go up and
    down by their errors. None outside of what was measured.
    """
    rising = sorted(rows, key=lambda row: row.steps)
    if not rising or rising[0].judge_bits < bits:
        return None
    if rising[0].judge_bits == bits:
        return 1 / rising[0].tokens_per_second
    for fewer, more in pairwise(rising):
        if more.judge_bits <= bits < fewer.judge_bits:
            share = (fewer.judge_bits - bits) / (fewer.judge_bits - more.judge_bits)
            slow, fast = math.log(more.tokens_per_second), math.log(fewer.tokens_per_second)
            return math.exp(-(fast + share * (slow - fast)))
    return None


def draw_comparison(rows: Sequence[Quality], path: Path, *, timed: bool = True) -> None:
    """Draw bits and entropy against the steps, a curve for each model, and bits against time."""
    count = 3 if timed else 2
    with picture(path, 4.5 * count, 4, count) as (_, panels):
        _draw_models(rows, panels)
        _name_axes(panels)


def _draw_models(rows: Sequence[Quality], panels: Sequence[Axes]) -> None:
    for name in dict.fromkeys(row.model for row in rows):
        own = sorted((row for row in rows if row.model == name), key=lambda row: row.steps)
        steps = [row.steps for row in own]
        bits, entropy = [r.judge_bits for r in own], [r.entropy_nats for r in own]
        style: dict[str, Any] = {
            "marker": "o",
            "markersize": 3,
            "capsize": 2,
            "label": label_of(name),
        }
        panels[0].errorbar(steps, bits, [r.judge_bits_error for r in own], **style)
        panels[1].errorbar(steps, entropy, [r.entropy_nats_error for r in own], **style)
        for timed in panels[2:]:
            seconds = [1000 / r.tokens_per_second for r in own]
            timed.errorbar(seconds, bits, [r.judge_bits_error for r in own], **style)
    panels[0].legend(fontsize="small")


def _name_axes(panels: Sequence[Axes]) -> None:
    """Label the axes, with plain numbers on logarithmic scales."""
    ticker = matplotlib("ticker")
    under, number, time = "judge's bits per character", "sampling steps", "seconds for 1,000 tokens"
    labels = (under, number), ("entropy in nats", number), (under, time)
    for axes, (label, against) in zip(panels, labels[: len(panels)], strict=True):
        axes.set_xscale("log", base=10 if against == time else 2)
        if against == time:  # numbers at every tick would run into each other
            axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        plain_numbers(axes.xaxis)
        axes.xaxis.set_minor_formatter(ticker.NullFormatter())
        axes.set(xlabel=against, ylabel=label)
        axes.grid(alpha=0.3)
