"""The records of a run: metrics as JSON lines, curves as a picture, previews of samples.

    metrics.jsonl       one JSON object per line; `step` is in each
    curves.png          the same as a picture, redrawn at every validation (by matplotlib)
    samples/            texts that the model wrote during training

Weights & Biases and TensorBoard get the same numbers if enabled. All of them are callbacks.
"""

from __future__ import annotations

import importlib
import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from partita.config.training import RunOptions
from partita.contracts.estimate import Estimate
from partita.data.images.pictures import grid_png
from partita.errors import InputError
from partita.files.atomic import parents_made, write_whole
from partita.plotting import can_plot, new_figure, save_figure
from partita.training.callbacks import Callback, Progress

if TYPE_CHECKING:
    from matplotlib.axes import Axes

METRICS = "metrics.jsonl"
CURVES = "curves.png"
SAMPLES = "samples"
_NO_NUMBERS = {"step", "share", "mfu"}  # fields that are recorded otherwise or not always known


class Recorder(Callback, ABC):
    """A callback that records the numbers of every report and of every validation."""

    @abstractmethod
    def record(self, step: int, values: dict[str, float]) -> None:
        """Record the numbers of a step."""

    def on_log(self, progress: Progress) -> None:
        self.record(progress.step, numbers_of(progress))

    def on_validate(self, step: int, bound: Estimate) -> None:
        self.record(step, {"valid_bits": bound.bits, "valid_bits_error": bound.bits_error})


def numbers_of(progress: Progress) -> dict[str, float]:
    """The numbers of a report, under the names of the metrics file."""
    values = {key: value for key, value in vars(progress).items() if key not in _NO_NUMBERS}
    values["bits"] = progress.loss / torch.log(torch.tensor(2.0)).item()
    return values if progress.mfu is None else values | {"mfu": progress.mfu}


class Journal(Recorder):
    """The record of one run; a resumed run continues it."""

    def __init__(self, folder: Path, step: int, baseline: float | None = None) -> None:
        """Drop lines after `step`, whose work was lost; `baseline` is drawn for comparison."""
        self.folder, self.baseline = folder, baseline
        self.lines = [line for line in read_metrics(folder) if line["step"] <= step]
        write_whole(folder / METRICS, "".join(json.dumps(line) + "\n" for line in self.lines))

    def record(self, step: int, values: dict[str, float]) -> None:
        """Add a line."""
        line = {"step": step, **values}
        self.lines.append(line)
        _append(self.folder / METRICS, json.dumps(line) + "\n")

    def on_validate(self, step: int, bound: Estimate) -> None:
        super().on_validate(step, bound)
        self.draw()

    def on_preview(self, step: int, samples: list[str] | Tensor) -> None:
        """Save some samples: texts, or images as one picture."""
        path = self.folder / SAMPLES / f"step-{step:08}"
        with parents_made(path):
            if isinstance(samples, Tensor):
                grid_png(samples, math.ceil(math.sqrt(len(samples))), path.with_suffix(".png"))
                return
            texts = (f"--- {number}\n{text}\n" for number, text in enumerate(samples, 1))
            write_whole(path.with_suffix(".txt"), "\n".join(texts))

    def draw(self) -> None:
        """Draw the curves, if matplotlib is installed."""
        if len(self.lines) > 1 and can_plot():
            draw_curves(self.lines, self.folder / CURVES, self.baseline)


def _append(path: Path, line: str) -> None:
    size = path.stat().st_size
    try:
        with path.open("a") as stream:
            stream.write(line)
    except OSError as error:
        error.filename = str(path)
        os.truncate(path, size)
        raise


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics, without damaged or truncated ones."""
    path, lines = folder / METRICS, []
    for text in path.read_bytes().splitlines() if path.is_file() else []:
        with suppress(ValueError):  # also raised for bytes that are not text
            line = json.loads(text)
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


def services(folder: Path, run: RunOptions, recipe: dict[str, Any]) -> list[Recorder]:
    """The services that a run reports to besides its files."""
    found: list[Recorder] = [TensorBoard(folder)] if run.tensorboard else []
    return found if run.wandb is None else [*found, WeightsAndBiases(folder, run.wandb, recipe)]


class TensorBoard(Recorder):
    """Writes the numbers as TensorBoard's files."""

    def __init__(self, folder: Path) -> None:
        with _needing("run.tensorboard", "tensorboard"):
            from torch.utils.tensorboard import SummaryWriter
        self.writer = SummaryWriter(str(folder / "tensorboard"))

    def record(self, step: int, values: dict[str, float]) -> None:
        for key, value in values.items():
            self.writer.add_scalar(key, value, step)
        self.writer.flush()

    def on_end(self, stopped_by: int) -> None:  # noqa: ARG002 - the same however a run ends
        self.writer.close()


class WeightsAndBiases(Recorder):
    """Sends the numbers to a project of Weights & Biases."""

    def __init__(self, folder: Path, project: str, recipe: dict[str, Any]) -> None:
        with _needing("run.wandb", "wandb"):
            wandb = importlib.import_module("wandb")
        name = {"id": folder.name, "name": folder.name, "dir": folder}
        try:
            self.run = wandb.init(project=project, **name, resume="allow", config=recipe)
        except wandb.Error as error:  # no key, no connection, no such project
            why, remedy = " ".join(str(error).split()), "log in with: wandb login, or leave it out"
            raise InputError("run.wandb", why, remedy) from error

    def record(self, step: int, values: dict[str, float]) -> None:
        self.run.log(values, step=step)


@contextmanager
def _needing(argument: str, package: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        remedy = f"pip install 'partita[{package}]'"
        raise InputError(argument, f"needs the package {package}", remedy) from error
