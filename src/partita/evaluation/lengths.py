"""How long texts are: histograms of lengths, and how far two of them are apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from partita.errors import require
from partita.plotting import new_figure, save_figure

WIDTH = 4  # characters of a bar


def shares(lengths: Sequence[int], width: int = WIDTH) -> dict[int, float]:
    """Which share of the texts lies in each bin, by the bin's number; empty bins are left out."""
    require(len(lengths) > 0, "lengths", "there is no text")
    counts = Counter(length // width for length in lengths)
    return {number: counts[number] / len(lengths) for number in sorted(counts)}


def variation(ours: Mapping[int, float], theirs: Mapping[int, float]) -> float:
    """Total variation between two histograms."""
    return sum(abs(ours.get(k, 0.0) - theirs.get(k, 0.0)) for k in {*ours, *theirs}) / 2


def draw_lengths(groups: Mapping[str, Mapping[int, float]], path: Path, width: int = WIDTH) -> None:
    """Histograms as lines, one for each group."""
    figure = new_figure(7, 4)
    axes = figure.subplots()
    last = max(number for histogram in groups.values() for number in histogram)
    edges = [width * number for number in range(last + 2)]
    for name, histogram in groups.items():
        heights = [histogram.get(number, 0.0) for number in range(last + 1)]
        axes.stairs(heights, edges, linewidth=1.5, label=name)
    axes.set_xlabel("characters of a text")
    axes.set_ylabel("share of the texts")
    axes.grid(alpha=0.3)
    axes.legend()
    save_figure(figure, path)
