"""A run's folder: its recipe, its checkpoints, its lock.

It contains

    recipe.json                         the resolved recipe, its version and the name of its tokens
    checkpoints/                        the latest few and the best
    metrics.jsonl, curves.png, samples/ the journal
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from partita.config.migration import stamped
from partita.config.recipe import Recipe
from partita.data.prepared import Prepared
from partita.errors import InputError, fits, naming, require, require_int, require_number
from partita.files import format
from partita.files.atomic import WINDOWS, parents_made, remove_folder, remove_partial, write_whole
from partita.models import checkpoints
from partita.models.saved import model_files
from partita.models.tensor_migration import migrated
from partita.training.engine import Engine, state_prefix
from partita.training.journal import CURVES, METRICS, SAMPLES, read_metrics

RECIPE = "recipe.json"
LOCK = ".lock"
# What a run creates in its folder.
_MADE = (LOCK, RECIPE, METRICS, CURVES, SAMPLES, checkpoints.FOLDER, "tensorboard", "wandb")
_LONGEST = 1e12  # seconds of training
# The optimizers' state for each parameter that has had an update.
_KEPT = {"AdamW": ("step", "exp_avg", "exp_avg_sq"), "Muon": ("momentum_buffer",)}


class RunFolder:
    """The folder of one run. Only the run's first process writes to it."""

    def __init__(self, folder: Path, recipe: Recipe, prepared: Prepared) -> None:
        self.folder, self.recipe, self.tokenizer = folder, recipe, prepared.tokenizer
        self.tokens = prepared.folder.name
        self.provenance: dict[str, Any] = {}
        self.metrics: dict[str, float] = {}
        """The newest metrics; they are saved with every checkpoint."""

    def open(self) -> None:
        """Create the folder and save the recipe; temporary files of killed writers are removed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / RECIPE
        content = {"tokens": self.tokens, **stamped(self.recipe.to_dict())}
        write_whole(path, json.dumps(content, indent=1))
        remove_partial(self.folder)
        remove_partial(self.folder / checkpoints.FOLDER)

    def resume(self, engine: Engine) -> Path | None:
        """Load the newest checkpoint into the engine. All processes call this."""
        newest = checkpoints.latest(self.folder)
        if newest is None:
            return None
        try:
            with naming({"model": "out"}):
                return self._resume_from(newest, engine)
        except InputError as error:
            hint = f"to go on from the checkpoint before it, remove the folder {newest}"
            raise InputError(error.argument, error.problem, error.remedy or hint) from error

    def _resume_from(self, newest: Path, engine: Engine) -> Path:
        checksums = format.verify(newest)
        complete = {format.TRAINING, format.STATE} <= set(checksums)
        require(complete, "out", f"{newest} is a model without the state to go on from")
        step, seconds, metrics = _progress(newest)
        version = format.version_of(newest)
        read = (format.read_tensors(newest / name) for name in (format.WEIGHTS, format.TRAINING))
        averaged, training = (migrated(tensors, self.recipe, version) for tensors in read)
        _check_tensors(newest, engine, averaged, training)
        self.metrics = metrics
        engine.restore(averaged, training, step, seconds)
        return newest

    def save(self, engine: Engine) -> Path:
        """Write a checkpoint and delete old ones. All processes call this; the first one writes."""
        averaged, training = engine.averaged(), engine.state()
        place = checkpoints.folder_of(self.folder, engine.step)
        if engine.world.first:
            provenance = self.provenance | {"step": engine.step}
            contents = model_files(self.recipe, self.tokenizer, provenance, averaged)
            state = {"step": engine.step, "seconds": engine.seconds, "metrics": self.metrics}
            state["rows_seen"] = engine.step * engine.options.batch_size
            format.write(place, contents | {format.TRAINING: training, format.STATE: state})
            self._let_go()
        engine.world.wait()
        return place

    def _let_go(self) -> None:
        every = checkpoints.listed(self.folder)
        best = checkpoints.best(self.folder, pass_over_damage=True)
        for old in every[: -self.recipe.run.keep_checkpoints]:
            if old != best:
                remove_folder(old)

    def best_bits(self) -> float:
        """Validation bits of the best checkpoint so far; infinite if there is none."""
        found = checkpoints.best(self.folder, pass_over_damage=True)
        return math.inf if found is None else checkpoints.validation_bits(found)


def _progress(checkpoint: Path) -> tuple[int, float, dict[str, float]]:
    path = checkpoint / format.STATE
    state: Any = format.read_json(path)
    step, seconds, metrics = (state.get(name) for name in ("step", "seconds", "metrics"))
    try:
        require_int(step, "step", 0)
        require_number(seconds, "seconds")
        require(seconds < _LONGEST, "seconds", f"is more than anybody has, got {seconds}")
        require(fits(metrics, dict[str, float]), "metrics", "must hold names and numbers")
    except InputError as error:
        raise InputError("out", f"{path} is damaged: {error}") from error
    same = checkpoint.name == checkpoints.folder_of(Path(), step).name
    require(same, "out", f"{path} is of step {step}, which the folder's name denies")
    return step, float(seconds), metrics


def _check_tensors(
    checkpoint: Path, engine: Engine, averaged: dict[str, Tensor], training: dict[str, Tensor]
) -> None:
    """Refuse tensors that do not fit the engine, before any is loaded."""
    state = engine.method.state_dict()
    expected = {name: (tensor.shape, tensor.dtype) for name, tensor in state.items()}
    format.check_tensors(checkpoint / format.WEIGHTS, averaged, expected, "out")
    parameters = engine.method.named_parameters()
    expected = {f"weights.{name}": (p.shape, p.dtype) for name, p in parameters}
    for number, name, parameter in engine.optimized():
        kind = type(engine.optimizers[number]).__name__
        expected |= _kept(state_prefix(number), name, parameter, kind, training)
    format.check_tensors(checkpoint / format.TRAINING, training, expected, "out")


def _kept(
    prefix: str, name: str, parameter: Tensor, optimizer: str, training: dict[str, Tensor]
) -> dict[str, format.Kind]:
    """The tensors of an optimizer's state for a parameter; none if it never had a gradient."""
    keys = _KEPT.get(optimizer)
    if keys is None:  # an optimizer registered by the user: its state is unknown
        stored = (key for key in training if key.startswith(prefix) and key.endswith(f".{name}"))
        return {key: (training[key].shape, training[key].dtype) for key in stored}
    shapes = {key: torch.Size() if key == "step" else parameter.shape for key in keys}
    kinds = {f"{prefix}{key}.{name}": (shapes[key], parameter.dtype) for key in keys}
    return kinds if kinds.keys() & training.keys() else {}


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder, so that one process at a time trains in it; the lock of a dead one is freed.

    An error before anything has been saved leaves the folder as it was.
    """
    with parents_made(folder / LOCK):
        names = {path.name for path in folder.iterdir()}
        with _alone(folder):
            before = checkpoints.listed(folder)
            try:
                yield
            except BaseException as error:
                # The journal helps to understand a bad loss, not a full disk.
                explained = not isinstance(error, OSError) and bool(read_metrics(folder))
                if checkpoints.listed(folder) == before and not explained:
                    # Windows cannot remove an open file: there the lock goes when it is freed.
                    stays = {LOCK} if WINDOWS else set()
                    for name in set(_MADE) - names - stays:
                        remove_folder(folder / name)
                raise


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder inside the block; fail if another process holds it."""
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise InputError("out", f"another process is training in {folder}") from error
    except NotImplementedError as error:
        problem = f"{folder} lies where files cannot be locked"
        raise InputError("out", problem, "choose another place") from error
    try:
        yield
    finally:
        lock.release()
