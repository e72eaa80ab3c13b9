"""How the time to sample grows with the length, the batch and the steps, one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from partita.evaluation.contestants import sampling_contestants
from partita.evaluation.speed import Speed, race
from partita.networks.options import TransformerOptions

AXES = ("lengths", "batches", "steps")
_ENTRANTS = (("mdlm", "ancestral"), ("pgm", "ancestral"))
_LABELS = {"lengths": "tokens of a sequence", "batches": "sequences", "steps": "steps"}


def grown(
    axis: str,
    numbers: Sequence[int],
    network: TransformerOptions,
    tokens: int,
    device: torch.device,
    fixed: dict[str, int],
    speed: str,
    **race_options: Any,
) -> dict[str, list[Speed]]:
    """A table for each number along an axis; `fixed` has the batch size and the steps."""
    tables = {}
    for number in numbers:
        at = {"lengths": network.length, **fixed, axis: number}
        entrants = sampling_contestants(
            replace(network, length=at["lengths"]),
            tokens,
            device,
            batch_size=at["batches"],
            steps=at["steps"],
            speeds=(speed,),
            entrants=_ENTRANTS,
        )
        title = f"{axis}: {number}"
        tables[title] = race(entrants, device, **race_options)
    return tables


def draw_growth(tables: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Seconds against each axis, both on logarithmic scales."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(AXES), figsize=(12, 3.6), layout="constrained")
    for panel, axis in zip(panels, AXES, strict=True):
        curves: dict[str, list[tuple[int, float]]] = {}
        for title, rows in tables.items():
            kind, number = title.split(": ")
            for row in rows if kind == axis else ():
                name = str(row["name"]).split(",")[0]
                curves.setdefault(name, []).append((int(number), median(row["seconds"])))
        for name, points in curves.items():
            panel.plot(*zip(*points, strict=True), marker="o", label=name)
        panel.set(xscale="log", yscale="log", xlabel=_LABELS[axis], ylabel="seconds")
        panel.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)
