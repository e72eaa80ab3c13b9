"""From a recipe to a trained model in a folder: prepare, build, resume, train, leave samples."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from partita.config.data import NAMES
from partita.config.recipe import Recipe
from partita.contracts.estimate import Estimate
from partita.data.frequencies import corpus_entropy
from partita.data.prepared import Prepared
from partita.data.shards import Shards
from partita.errors import naming
from partita.files.atomic import check_folder
from partita.files.names import PREFIX, RUNS
from partita.methods.base import is_flexible
from partita.models.assembling import build, model_class
from partita.models.trained import TrainedModel, load
from partita.parallel import World, joined
from partita.provenance import environment
from partita.signals import ENDING, not_forgotten, stop
from partita.training.engine import Engine
from partita.training.journal import Journal, Listener, listeners
from partita.training.lessons import lesson_of, passes, with_teacher
from partita.training.loop import Hooks, Progress, train
from partita.training.material import left_out, orders, tokens_of
from partita.training.rehearsal import refuse_contradictions, rehearse
from partita.training.retrofit import is_retrofit, retrofitted
from partita.training.run_folder import RunFolder, locked, refuse_changes
from partita.training.throughput import flops_per_token, peak_flops

# Arguments of what a run is made of, as keys of the recipe.
_NAMES = NAMES | {"device": "run.device", "length": "network.length"}
_ENTROPY_TOKENS = 1 << 24  # of the training text, enough for its unigram entropy


@dataclass
class Watcher:
    """Who is told what happens. Every entry is optional; the first process alone calls them."""

    preparing: Callable[[int], None] = field(default=lambda _characters: None)
    checking: Callable[[int, int], None] = field(default=lambda _bytes, _all: None)
    ready: Callable[[Setting], None] = field(default=lambda _setting: None)
    progress: Callable[[Progress, float | None], None] = field(default=lambda _p, _mfu: None)
    validated: Callable[[int, Estimate], None] = field(default=lambda _step, _bound: None)
    previewed: Callable[[int, list[str]], None] = field(default=lambda _step, _texts: None)


@dataclass(frozen=True)
class Setting:
    """A run that is about to start."""

    folder: Path
    prepared: Prepared
    parameters: int
    unigram_bits: float | None
    """Entropy of single tokens of the training text: what a model that looks at nothing needs.

    None where bits are those of a divergence, or of texts with their ends."""
    resumed: Path | None
    device: str
    processes: int
    left_out: int
    """Documents that are longer than a row and skipped."""
    bounded: bool = True
    """Whether the loss of training is a bound, as that of validation is."""


def default_folder(recipe: Recipe) -> Path:
    """A run's folder unless one is given: named after the text and the method."""
    name = recipe.data.path.removeprefix(PREFIX).split("?")[0].rstrip("/")
    stem = Path(name).name.split(".")[0] or "text"
    return RUNS / f"{stem}-{recipe.method.name}"


def run_recipe(
    recipe: Recipe,
    out: str | Path | None = None,
    watcher: Watcher | None = None,
    signals: Signals | None = None,
) -> int:
    """Train a recipe in a folder, from where it stands: 0 at the end, or a signal's number.

    Whoever has several runs to make listens to `signals` around all of them.
    """
    watcher = watcher or Watcher()
    folder, recipe = Path(out or default_folder(recipe)), recipe.resolved()
    with naming(_NAMES), joined(recipe.run.device) as world, ExitStack() as held:
        rehearse(recipe)
        recipe = with_teacher(recipe)
        world.share(recipe.training.batch_size, "training.batch_size")
        check_folder(folder, "out")
        if not Path(recipe.data.cache).is_dir():  # one that is closed may hold the tokens already
            check_folder(Path(recipe.data.cache), "data.cache")
        world.first_does(lambda: held.enter_context(locked(folder)))
        listening = signals or held.enter_context(Signals())
        return _run(recipe, folder, watcher, world, listening)


def _run(recipe: Recipe, folder: Path, watcher: Watcher, world: World, signals: Signals) -> int:
    world.first_does(lambda: refuse_changes(folder, recipe))
    start = _start(recipe)
    prepared = _prepare(recipe, start, folder, world, watcher)
    rows = orders(recipe, prepared)
    run = RunFolder(folder, recipe, prepared)
    run.provenance = _provenance(recipe, prepared, world)
    if start is None:
        torch.manual_seed(recipe.training.seed)
        method = recipe.method.build(recipe.network, prepared.tokenizer.vocab_size)
    else:
        method = start.method
        origin = {"path": recipe.training.start_from, **start.provenance, "terms": start.terms}
        run.provenance["started_from"] = origin
    engine = Engine(method, recipe.training, recipe.run, world, lesson_of(recipe, method, world))
    resumed = run.resume(engine)
    heard = listeners(folder, recipe.run, recipe.to_dict()) if world.first else []
    world.first_does(run.open)
    parameters = sum(p.numel() for p in method.parameters())
    # Bits of a divergence, or of texts with their ends, are not to be compared with an entropy.
    apart = recipe.distillation.round > 0 or is_flexible(method)
    entropy = None if apart else _unigram_bits(prepared.train)
    setting = Setting(
        folder,
        prepared,
        parameters,
        entropy,
        resumed,
        str(world.device),
        world.size,
        left_out(recipe, prepared),
        bounded=getattr(getattr(method, "law", None), "bound", True),
    )
    if world.first:
        watcher.ready(setting)
    hooks = _hooks(engine, run, setting, watcher, signals, heard)
    with signals.awaited():
        stopped_by = train(engine, *rows, hooks)
        return stopped_by or signals.received  # also one that came after the last step


def _start(recipe: Recipe) -> TrainedModel | None:
    """The model to start from, if one is named; its weights must fit the recipe's network."""
    path = recipe.training.start_from
    if path is None:
        return None
    model = load(path, device="cpu")
    refuse_contradictions(recipe, model.recipe, path)
    if is_retrofit(recipe, model.recipe):
        method = retrofitted(recipe, model)
    else:
        weights = model.contents()["model.safetensors"]
        method = build(recipe, model.tokenizer, weights, Path(path))
    kind = type(model)
    return kind(method, model.tokenizer, recipe, model.provenance, model.terms)


def _prepare(
    recipe: Recipe, start: TrainedModel | None, folder: Path, world: World, watcher: Watcher
) -> Prepared:
    """Tokens: the first process makes or checks them, the others open what it says.

    Where they do not see its files, each makes its own. A model that is trained further keeps its
    own tokenizer.
    """
    made: list[Prepared] = []

    def make() -> None:
        tokenizer = None if start is None else start.tokenizer
        accept = partial(refuse_changes, folder, recipe)
        made.append(tokens_of(recipe, tokenizer, accept, watcher.preparing, watcher.checking))

    world.first_does(make)
    name = world.first_says(made[0].folder.name if made else "")
    if not made and (Path(recipe.data.cache) / name).is_dir():
        made.append(Prepared.open(Path(recipe.data.cache) / name, verify=False))
    elif not made:
        make()
    return made[0]


def _provenance(recipe: Recipe, prepared: Prepared, world: World) -> dict[str, Any]:
    return {
        "data": Path(recipe.data.path).name,
        "tokens": prepared.folder.name,
        "processes": world.size,
        **({"classes": prepared.train.classes} if prepared.train.classes else {}),
        **environment(world.device),
    }


def _unigram_bits(tokens: Shards) -> float:
    return corpus_entropy(tokens.read(0, min(len(tokens), _ENTROPY_TOKENS)).numpy())


def _hooks(
    engine: Engine,
    run: RunFolder,
    setting: Setting,
    watcher: Watcher,
    signals: Signals,
    heard: list[Listener],
) -> Hooks:
    """What happens between steps: on every process what all must do, on the first the rest."""
    recipe, world = run.recipe, engine.world
    journal = None
    if world.first:
        journal = Journal(run.folder, engine.step, setting.unigram_bits)
        journal.listeners = heard
    peak = peak_flops(world.device)
    flops = flops_per_token(engine.method, recipe.network) * passes(recipe.distillation)

    def progress(report: Progress) -> None:
        if journal is None:
            return
        mfu = None if peak is None else report.tokens_per_second * flops / peak / world.size
        values = _numbers(report) | ({} if mfu is None else {"mfu": mfu})
        journal.record(report.step, values)
        watcher.progress(report, mfu)

    def validated(step: int, bound: Estimate) -> bool:
        # Every process measures the same; the first one knows what has been kept so far.
        record = run.best_bits() if world.first else math.inf
        better = bool(world.largest(float(world.first and bound.bits < record))[0])
        run.metrics = {"valid_bits": bound.bits, "valid_bits_error": bound.bits_error}
        run.provenance["validation"] = f"{bound.bits:.4f} ± {bound.bits_error:.4f} bits per token"
        samples = _preview(engine, run)
        if journal is not None:
            journal.record(step, run.metrics)
            journal.draw()
            watcher.validated(step, bound)
            if len(samples):
                journal.preview(step, samples)
            if isinstance(samples, list) and samples:
                watcher.previewed(step, samples)
        return better

    return Hooks(
        progress=progress,
        validated=validated,
        save=lambda: run.save(engine),
        stop_signal=lambda: signals.received,
        last_good=run.last_good,
    )


def _numbers(report: Progress) -> dict[str, float]:
    values = {key: value for key, value in vars(report).items() if key not in ("step", "share")}
    return values | {"bits": report.loss / torch.log(torch.tensor(2.0)).item()}


def _preview(engine: Engine, run: RunFolder) -> list[str] | Tensor:
    """Some texts or images, drawn by the first process from the averaged weights of all."""
    count = run.recipe.run.previews
    if count == 0:
        return []
    weights = engine.averaged()
    samples: list[str] | Tensor = []
    if engine.world.first:
        method = build(run.recipe, run.tokenizer, weights, run.folder).to(engine.world.device)
        model = model_class(run.tokenizer)(method, run.tokenizer, run.recipe)
        samples = model.preview(count)
    engine.world.wait()
    return samples


class Signals:
    """SIGTERM, SIGHUP and Ctrl-C ask a run for a checkpoint and an end; a second one ends at once.

    So does the first one as long as there is nothing to save, which is outside of `awaited`.
    """

    WATCHED = (*ENDING, signal.SIGINT)

    def __init__(self, heard: Callable[[int], None] = lambda _number: None) -> None:
        """`heard` is called, in the middle of anything, when a signal is noted."""
        self.received, self._heard, self._awaited = 0, heard, False

    def __enter__(self) -> Signals:
        handlers = {number: signal.getsignal(number) for number in self.WATCHED}
        # What is ignored stays so: nohup makes a run outlive its terminal.
        self._before = {n: handler for n, handler in handlers.items() if handler != signal.SIG_IGN}
        for number in self._before:
            signal.signal(number, self._note)
        self._hearing = not_forgotten()
        self._hearing.__enter__()
        return self

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """Inside, somebody looks at what was received between any two steps."""
        self._awaited = True
        try:
            yield
        finally:
            self._awaited = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received or not self._awaited:
            stop(number, frame)
            return
        self.received = number
        self._heard(number)

    def __exit__(self, *_: object) -> None:
        self._hearing.__exit__(None, None, None)
        for number, handler in self._before.items():
            signal.signal(number, handler)
