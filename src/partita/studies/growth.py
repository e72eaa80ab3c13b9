"""How the time to sample grows with the length, the batch and the steps, one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from partita.networks.options import TransformerOptions
from partita.plotting import picture, plain_numbers
from partita.studies.contestants import sampling_contestants
from partita.studies.speed import Speed, race

AXES = ("lengths", "batches", "steps")
_ENTRANTS = (("mdlm", "ancestral"), ("pgm", "ancestral"))
_ONE = {"lengths": "length", "batches": "batch", "steps": "steps"}  # of them
_LABELS = {"lengths": "tokens of a sequence", "batches": "sequences", "steps": "steps"}


def grown(
    axis: str,
    numbers: Sequence[int],
    network: TransformerOptions,
    tokens: int,
    device: torch.device,
    fixed: dict[str, int],
    speeds: tuple[str, ...],
    **race_options: Any,
) -> Iterator[tuple[str, list[Speed]]]:
    """Yield a table for each number along an axis; `fixed` has the other two numbers."""
    for number in numbers:
        at = {"lengths": network.length, **fixed, axis: number}
        entrants = sampling_contestants(
            replace(network, length=at["lengths"]),
            tokens,
            device,
            batch_size=at["batches"],
            steps=at["steps"],
            speeds=speeds,
            entrants=_ENTRANTS,
        )
        others = ", ".join(f"{_ONE[name]} {at[name]}" for name in AXES if name != axis)
        yield f"{_ONE[axis]} {number} ({others})", race(entrants, device, **race_options)


def draw_growth(results: dict[str, Any], path: Path) -> None:
    """Draw the seconds against each measured axis, on logarithmic scales."""
    tables, network = results["growth"], results["options"]["network"]
    axes = [axis for axis in AXES if _curves(tables, axis)[1]]
    measured = f"{network['depth']} blocks of width {network['width']}"
    with picture(path, 4 * len(axes), 3.6, len(axes)) as (figure, panels):
        figure.suptitle(f"{results['environment']['device']}: {measured}", fontsize="medium")
        for panel, axis in zip(panels, axes, strict=True):
            fixed, curves = _curves(tables, axis)
            for name, points in curves.items():
                panel.plot(*zip(*points, strict=True), marker="o", label=name)
            panel.set_xscale("log", base=2)
            panel.set(yscale="log", xlabel=_LABELS[axis], ylabel="seconds")
            panel.set_title(fixed, fontsize="small")
            plain_numbers(panel.xaxis)
            plain_numbers(panel.yaxis)
            panel.yaxis.set_minor_formatter(_sparsely)
            panel.tick_params(axis="y", which="minor", labelsize="x-small")
            panel.legend(fontsize="small")


def _curves(
    tables: dict[str, list[dict[str, Any]]], axis: str
) -> tuple[str, dict[str, list[tuple[int, float]]]]:
    """The numbers that are fixed along an axis, and the points of each contestant."""
    curves: dict[str, list[tuple[int, float]]] = {}
    same = ""
    for title, rows in tables.items():
        kind, number, fixed = title.split(" ", 2)
        for row in rows if kind == _ONE[axis] else ():
            same = fixed.strip("()")
            name = str(row["name"]).replace(", ancestral", "")
            curves.setdefault(name, []).append((int(number), median(row["seconds"])))
    return same, curves


def _sparsely(value: float, _: float) -> str:
    """Tick labels: between powers of ten, only 2 and 5."""
    return f"{value:g}" if f"{value:e}"[0] in "25" else ""
