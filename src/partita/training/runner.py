"""From a recipe to a trained model in a folder: check, prepare, build, resume, train, sample."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from partita.config.data import NAMES
from partita.config.recipe import Recipe
from partita.contracts.estimate import Estimate
from partita.data.batches import Order
from partita.data.frequencies import corpus_entropy
from partita.data.prepared import Prepared
from partita.errors import naming
from partita.files.names import PREFIX, RUNS
from partita.methods.contracts import TextMethod
from partita.models import checkpoints
from partita.models.assembling import build, model_class
from partita.models.trained import TrainedModel
from partita.parallel import World, joined
from partita.provenance import environment
from partita.training.callbacks import Callback, Callbacks, RunInfo, callbacks_of
from partita.training.checks import CheckedTokens, check_run
from partita.training.data_pipeline import left_out, orders, tokens_of
from partita.training.distillation_loss import distillation_loss, work_of
from partita.training.engine import Engine
from partita.training.journal import Journal, services
from partita.training.loop import Trainer
from partita.training.run_folder import RunFolder, locked
from partita.training.signals import Signals
from partita.training.starting import starting_model
from partita.training.throughput import flops_per_token, peak_flops

# Arguments of the parts of a run, as keys of the recipe.
_NAMES = NAMES | {"device": "run.device", "length": "network.length"}
_ENTROPY_TOKENS = 1 << 24  # tokens of the training text for its unigram entropy


def default_folder(recipe: Recipe) -> Path:
    """The default folder of a run, named after the text and the method."""
    name = recipe.data.path.removeprefix(PREFIX).split("?")[0].rstrip("/")
    stem = Path(name).name.split(".")[0] or "text"
    return RUNS / f"{stem}-{recipe.method.name}"


def train(
    recipe: Recipe,
    out: str | Path | None = None,
    callbacks: Callback | Sequence[Callback] | None = None,
    signals: Signals | None = None,
) -> int:
    """Train a recipe in a folder, resuming if it was begun; return 0, or a signal's number.

    For several runs in a row, the caller passes one `signals` that is entered around all of them.
    """
    folder, recipe = Path(out or default_folder(recipe)), recipe.resolved()
    with naming(_NAMES), joined(recipe.run.device) as world, ExitStack() as held:
        recipe = check_run(recipe, folder, world)
        with world.first_works() as first:
            if first:
                held.enter_context(locked(folder))
        listening = signals or held.enter_context(Signals())
        listeners = callbacks_of(callbacks) if first else []
        return _train(recipe, folder, listeners, world, listening)


def _train(
    recipe: Recipe, folder: Path, callbacks: list[Callback], world: World, signals: Signals
) -> int:
    start = starting_model(recipe)
    prepared = _prepare(recipe, start, folder, world, Callbacks(callbacks))
    rows = orders(recipe, prepared)
    run = RunFolder(folder, recipe, prepared)
    run.provenance = _provenance(recipe, prepared, start, world)
    method = _method(recipe, prepared, start)
    loss = distillation_loss(recipe, method, world)
    engine = Engine(method, recipe.training, recipe.run, world, loss)
    resumed = run.resume(engine)
    reports = services(folder, recipe.run, recipe.to_dict()) if world.first else []
    with world.first_works() as first:
        if first:
            run.open()
    info = _info(run, prepared, engine, resumed)
    journal = [Journal(folder, engine.step, info.unigram_bits)] if first else []
    every = Callbacks([*journal, *reports, *callbacks])
    every.on_start(info)
    with signals.awaited():
        stopped_by = RunTrainer(engine, *rows, every, run, signals).train()
        stopped_by = stopped_by or signals.received  # also a signal after the last step
    every.on_end(stopped_by)
    return stopped_by


def _prepare(
    recipe: Recipe, start: TrainedModel | None, folder: Path, world: World, callback: Callback
) -> Prepared:
    """The tokens: the first process makes or checks them, the others open its files.

    Processes that do not see its files make their own. A model that is trained further keeps its
    tokenizer.
    """
    tokenizer = None if start is None else start.tokenizer
    make = partial(tokens_of, recipe, tokenizer, CheckedTokens(recipe, folder, callback))
    with world.first_works() as first:
        made = make() if first else None
    name = world.first_says(made.folder.name if made else "")
    if made is None and (Path(recipe.data.cache) / name).is_dir():
        made = Prepared.open(Path(recipe.data.cache) / name, verify=False)
    return made or make()


def _method(recipe: Recipe, prepared: Prepared, start: TrainedModel | None) -> nn.Module:
    """The method to train: a new one, or that of the model to start from."""
    if start is not None:
        return start.method
    torch.manual_seed(recipe.training.seed)
    return recipe.method.build(recipe.network, prepared.tokenizer.vocab_size)


def _provenance(
    recipe: Recipe, prepared: Prepared, start: TrainedModel | None, world: World
) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "data": Path(recipe.data.path).name,
        "tokens": prepared.folder.name,
        "processes": world.size,
        **({"classes": prepared.train.classes} if prepared.train.classes else {}),
        **environment(world.device),
    }
    if start is not None:
        origin = {"path": recipe.training.start_from, **start.provenance, "terms": start.terms}
        facts["started_from"] = origin
    return facts


def _info(run: RunFolder, prepared: Prepared, engine: Engine, resumed: Path | None) -> RunInfo:
    recipe, method, world = run.recipe, engine.method, engine.world
    # A divergence, or the bits of texts with their ends, cannot be compared with an entropy.
    apart = recipe.distillation.round > 0 or (isinstance(method, TextMethod) and method.whole_texts)
    counted = min(len(prepared.train), _ENTROPY_TOKENS)
    return RunInfo(
        run.folder,
        prepared,
        parameters=sum(p.numel() for p in method.parameters()),
        unigram_bits=None if apart else corpus_entropy(prepared.train.read(0, counted).numpy()),
        resumed=resumed,
        device=str(world.device),
        processes=world.size,
        left_out=left_out(recipe, prepared),
        bounded=method.is_bounding if isinstance(method, TextMethod) else True,
    )


class RunTrainer(Trainer):
    """A trainer with a run folder: it saves checkpoints, draws previews and obeys signals."""

    def __init__(
        self,
        engine: Engine,
        order: Order,
        validation: Order | None,
        callbacks: Callbacks,
        run: RunFolder,
        signals: Signals,
    ) -> None:
        super().__init__(engine, order, validation, [callbacks])
        self.run, self.signals = run, signals
        work = work_of(run.recipe.distillation)
        self._flops = flops_per_token(engine.method, run.recipe.network.length) * work
        self._peak = peak_flops(engine.world.device)

    def stop_signal(self) -> int:
        return self.signals.received

    def last_checkpoint(self) -> str:
        return str(checkpoints.latest(self.run.folder) or "none yet")

    def utilization(self, tokens_per_second: float) -> float | None:
        if self._peak is None:
            return None
        return tokens_per_second * self._flops / self._peak / self.engine.world.size

    def validated(self, bound: Estimate) -> bool:
        # Every process has the same bound; only the first one knows the best bits so far.
        run, world = self.run, self.engine.world
        record = run.best_bits() if world.first else math.inf
        better = bool(world.largest(float(world.first and bound.bits < record))[0])
        run.metrics = {"valid_bits": bound.bits, "valid_bits_error": bound.bits_error}
        run.provenance["validation"] = f"{bound.bits:.4f} ± {bound.bits_error:.4f} bits per token"
        self._preview()
        return better

    def _preview(self) -> None:
        """Draw some texts or images from the averaged weights, on the first process."""
        run, engine, count = self.run, self.engine, self.run.recipe.run.previews
        if count == 0:
            return
        weights = engine.averaged()
        if engine.world.first:
            method = build(run.recipe, run.tokenizer, weights, run.folder).to(engine.world.device)
            model = model_class(run.tokenizer)(method, run.tokenizer, run.recipe)
            self.callbacks.on_preview(engine.step, model.preview(count))
        engine.world.wait()

    def save(self) -> None:
        folder = self.run.save(self.engine)
        if self.engine.world.first:
            self.callbacks.on_checkpoint(self.engine.step, folder)
