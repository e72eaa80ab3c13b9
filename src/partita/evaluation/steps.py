"""Quality against the number of sampling steps, as numbers and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from partita.files import whole_file


@dataclass(frozen=True)
class Quality:
    """Texts that one model wrote in so many steps."""

    model: str
    steps: int
    judge_bits: float
    """Bits per character under an autoregressive judge."""
    judge_bits_error: float
    entropy_nats: float
    """Entropy of a text's own token frequencies, the mean over texts."""
    entropy_nats_error: float
    tokens_per_second: float


def draw_comparison(rows: Sequence[Quality], path: Path) -> None:
    """Judge's bits and entropy, each against the steps, a curve for each model."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True)
    for name in dict.fromkeys(row.model for row in rows):
        own = sorted((row for row in rows if row.model == name), key=lambda row: row.steps)
        steps = [row.steps for row in own]
        bits, entropy = [r.judge_bits for r in own], [r.entropy_nats for r in own]
        style = {"marker": "o", "markersize": 3, "capsize": 2, "label": name}
        panels[0].errorbar(steps, bits, [r.judge_bits_error for r in own], **style)
        panels[1].errorbar(steps, entropy, [r.entropy_nats_error for r in own], **style)
    for axes, label in zip(panels, ("judge's bits per character", "entropy in nats"), strict=True):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_xlabel("sampling steps")
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
    panels[0].legend(fontsize="small")
    with whole_file(path) as partial:
        figure.savefig(partial, dpi=120, format="png")
