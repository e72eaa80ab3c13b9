"""The contestants of a speed comparison: sampling and training of methods of equal depth."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from partita.config.training import RunOptions, TrainingOptions
from partita.contracts.batch import Batch
from partita.execution.choice import sample
from partita.methods import METHODS
from partita.networks.kinds import kind_of
from partita.networks.options import TransformerOptions
from partita.parallel import World
from partita.registry import options_of
from partita.studies.speed import Contestant, Work, sampling_work
from partita.training.engine import Engine
from partita.training.throughput import flops_per_token

SAMPLING = (("mdlm", "ancestral"), ("pgm", "ancestral"), ("pgm", "ordered"))
TRAINING = {"mdlm": "mdlm", "mdlm-complementary": "mdlm-complementary", "pgm": "pgm, packed"}
RATE = 1e-4  # learning rate; the time does not depend on it


def sampling_contestants(
    network: TransformerOptions,
    tokens: int,
    device: torch.device,
    *,
    batch_size: int,
    steps: int,
    speeds: tuple[str, ...] = ("eager",),
    entrants: tuple[tuple[str, str], ...] = SAMPLING,
) -> Iterator[Contestant]:
    """MDLM's ancestral sampler, and PGM's ancestral and fixed-count ones, at each of the speeds."""
    half = device.type == "cuda"  # bfloat16 on GPUs, float32 on CPUs, as in training
    for (name, sampler), speed in itertools.product(entrants, speeds):
        method = _method(name, network, tokens, device).eval()  # its own, since it caches
        work = sampling_work(
            method.network,  # type: ignore[arg-type]
            batch_size,
            network.length,
            steps,
            2 if half else 4,
        )

        def draw(method: nn.Module = method, sampler: str = sampler, speed: str = speed) -> int:
            with torch.autocast("cuda", torch.bfloat16) if half else nullcontext():
                drawn = sample(method, batch_size, sampler=sampler, steps=steps, speed=speed)  # type: ignore[arg-type]
            return drawn.numel()

        named = f"{name}, {sampler}" + ("" if speeds == ("eager",) else f", {speed}")
        yield Contestant(named, draw, draw, work, partial(draw, speed="eager"))


def training_contestants(
    network: TransformerOptions,
    tokens: int,
    device: torch.device,
    *,
    batch_size: int,
    steps: int = 2,
    speeds: tuple[str, ...] = ("eager",),
) -> Iterator[Contestant]:
    """Steps of MDLM, of its complementary form, and of PGM.

    "cudagraph" launches the passes of a step as one graph; "compile" adds compiled blocks and a
    loss that never holds all logits.
    """
    rows = torch.randint(tokens, (batch_size, network.length), device=device)
    batch = Batch.of(rows)
    precision = "bfloat16" if device.type == "cuda" else "float32"
    options = TrainingOptions(batch_size=batch_size, precision=precision)
    for speed in speeds:
        for name, shown in TRAINING.items():
            method: Any = _method(name, network, tokens, device)
            method.network.fused = speed == "compile"
            run = RunOptions(cuda_graph=speed != "eager", compile=speed == "compile")
            engine = Engine(method, options, run, World(0, 1, device))
            flops = flops_per_token(method, network.length) * rows.numel() * steps
            yield Contestant(
                shown if speeds == ("eager",) else f"{shown}, {speed}",
                partial(_advance, engine, batch, steps),
                partial(_advance, engine, batch, 2),
                Work(flops, 0.0),
                partial(_advance, engine, batch, steps, capture=False),
            )


def _advance(engine: Engine, batch: Batch, steps: int, capture: bool | None = None) -> int:
    """Take some training steps; return the number of tokens processed."""
    if capture is not None:
        engine.run = replace(engine.run, cuda_graph=capture)
    for _ in range(steps):
        engine.advance(batch, RATE)
    return batch.tokens.numel() * steps


def _method(name: str, network: TransformerOptions, tokens: int, device: torch.device) -> nn.Module:
    entry: Any = METHODS[name]
    known = options_of(kind_of(replace(network, kind=None), entry.reads)[1].options)
    own = {key: value for key, value in network.options.items() if key in known}
    with device:  # drawing the weights on a CPU would take longer than the timed work
        method: nn.Module = entry.build(replace(network, kind=None, options=own), tokens)
    return method
