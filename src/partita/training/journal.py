"""What a run leaves to look at: a line per report, curves as a picture, previews of samples.

    metrics.jsonl       one JSON object per line; `step` is in each
    curves.png          the same as a picture, drawn anew at every validation (by matplotlib)
    samples/            texts that the model wrote on the way

Weights & Biases and TensorBoard hear the same numbers if asked to.
"""

from __future__ import annotations

import importlib
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from partita.config.training import RunOptions
from partita.data.images.pictures import grid_png
from partita.errors import InputError
from partita.files.atomic import parents_made, write_whole
from partita.plotting import can_plot, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

METRICS = "metrics.jsonl"
CURVES = "curves.png"
SAMPLES = "samples"

Listener = Callable[[int, dict[str, float]], None]


class Journal:
    """The record of one run, which goes on where a resumed run does."""

    def __init__(self, folder: Path, step: int, baseline: float | None = None) -> None:
        """Lines beyond `step` are of work that was lost; `baseline` are bits to compare with."""
        self.folder, self.baseline = folder, baseline
        self.lines = [line for line in read_metrics(folder) if line["step"] <= step]
        write_whole(folder / METRICS, "".join(json.dumps(line) + "\n" for line in self.lines))
        self.listeners: list[Listener] = []

    def record(self, step: int, values: dict[str, float]) -> None:
        """Add a line."""
        line = {"step": step, **values}
        self.lines.append(line)
        _append(self.folder / METRICS, json.dumps(line) + "\n")
        for listener in self.listeners:
            listener(step, values)

    def preview(self, step: int, samples: list[str] | Tensor) -> None:
        """Write down some samples: texts, or images as one picture."""
        if isinstance(samples, Tensor):
            path = self.folder / SAMPLES / f"step-{step:08}.png"
            with parents_made(path):
                grid_png(samples, math.ceil(math.sqrt(len(samples))), path)
            return
        path, texts = self.folder / SAMPLES / f"step-{step:08}.txt", samples
        body = "\n".join(f"--- {number}\n{text}\n" for number, text in enumerate(texts, 1))
        with parents_made(path):
            write_whole(path, body)

    def draw(self) -> None:
        """Draw the curves, where there is what draws them."""
        if len(self.lines) > 1 and can_plot():
            draw_curves(self.lines, self.folder / CURVES, self.baseline)


def _append(path: Path, line: str) -> None:
    """Add a line, all of it or nothing."""
    size = path.stat().st_size
    try:
        with path.open("a") as stream:
            stream.write(line)
    except OSError as error:
        error.filename = str(path)
        os.truncate(path, size)
        raise


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics, without those that are damaged or were cut short."""
    path = folder / METRICS
    if not path.is_file():
        return []
    lines = []
    for text in path.read_bytes().splitlines():
        try:
            line = json.loads(text)
        except ValueError:  # also of bytes that are no text
            continue
        if isinstance(line, dict) and isinstance(line.get("step"), int):
            lines.append(line)
    return lines


def draw_curves(lines: list[dict[str, Any]], path: Path, baseline: float | None = None) -> None:
    """Loss of training and validation, the learning rate below."""
    figure = new_figure(8, 5)
    loss, rate = figure.subplots(2, 1, sharex=True, height_ratios=[4, 1])
    _curve(loss, lines, "bits", "training", alpha=0.5)
    _curve(loss, lines, "valid_bits", "validation", marker="o", markersize=3)
    if baseline is not None:
        loss.axhline(baseline, color="grey", linestyle=":", label="unigram entropy")
    loss.set_ylabel("bits per token")
    loss.legend()
    _curve(rate, lines, "rate", "learning rate")
    rate.set_ylabel("learning rate")
    rate.set_xlabel("step")
    for axes in (loss, rate):
        axes.grid(alpha=0.3)
    save_figure(figure, path)


def _curve(axes: Axes, lines: list[dict[str, Any]], key: str, label: str, **style: Any) -> None:
    points = [(line["step"], line[key]) for line in lines if math.isfinite(line.get(key, math.nan))]
    if points:
        axes.plot(*zip(*points, strict=True), label=label, **style)


def listeners(folder: Path, run: RunOptions, recipe: dict[str, Any]) -> list[Listener]:
    """The services that a run reports to beside its files."""
    found: list[Listener] = []
    if run.tensorboard:
        found.append(_tensorboard(folder))
    if run.wandb is not None:
        found.append(_wandb(folder, run.wandb, recipe))
    return found


def _tensorboard(folder: Path) -> Listener:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError as error:
        raise _missing("run.tensorboard", "tensorboard") from error
    writer = SummaryWriter(str(folder / "tensorboard"))

    def listen(step: int, values: dict[str, float]) -> None:
        for key, value in values.items():
            writer.add_scalar(key, value, step)
        writer.flush()

    return listen


def _wandb(folder: Path, project: str, recipe: dict[str, Any]) -> Listener:
    try:
        wandb = importlib.import_module("wandb")
    except ModuleNotFoundError as error:
        raise _missing("run.wandb", "wandb") from error
    try:
        run = wandb.init(
            project=project,
            dir=folder,
            id=folder.name,
            name=folder.name,
            resume="allow",
            config=recipe,
        )
    except wandb.Error as error:  # no key, no connection, no such project
        why = " ".join(str(error).split())
        raise InputError("run.wandb", why, "log in with: wandb login, or leave it out") from error
    return lambda step, values: run.log(values, step=step)


def _missing(argument: str, package: str) -> InputError:
    return InputError(argument, f"needs the package {package}", f"pip install 'partita[{package}]'")
