"""Plots: the one module that loads matplotlib, which is optional."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from partita.errors import require
from partita.files.atomic import parents_made, whole_file
from partita.files.reading import package

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

EXTRA = "plots"
HOW = f"pip install 'partita[{EXTRA}]'"
NO_PLOTS = f"that needs the package matplotlib ({HOW})."


def can_plot() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def require_plots(argument: str) -> None:
    """Refuse a plot without matplotlib, before anything is computed for it."""
    require(can_plot(), argument, "needs the package matplotlib", f"{HOW}, or leave it out")


def matplotlib(module: str = "") -> ModuleType:
    """A module of matplotlib, or matplotlib itself; an error says how to install it."""
    return package(f"matplotlib.{module}".rstrip("."), "a picture of curves", EXTRA)


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of a size in inches."""
    figure: Figure = matplotlib("figure").Figure(figsize=(width, height), layout="constrained")
    return figure


@contextmanager
def picture(
    path: Path, width: float, height: float, panels: int = 1
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure with panels side by side to draw in; it is written at the end."""
    figure = new_figure(width, height)
    yield figure, list(figure.subplots(1, panels, squeeze=False)[0])
    save_figure(figure, path)


def plain_numbers(axis: Axis) -> None:
    """Write 0.5 and 64 where matplotlib writes powers."""
    axis.set_major_formatter(lambda value, _: f"{value:g}")


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as a PNG, atomically, in a folder that is made if need be."""
    with parents_made(path), whole_file(path) as partial:
        figure.savefig(partial, dpi=120, format="png")


def label_of(text: str) -> str:
    """A text as a legend can show it: in ASCII, which every font has, and never as a formula.

    A legend leaves out what begins with an underscore, so that such a text begins with a space.
    """
    shown = ascii(text)[1:-1].replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown
