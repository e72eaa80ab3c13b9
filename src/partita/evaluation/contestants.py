"""Who takes part in a race: samplers and trainings of methods of equal depth."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from partita.evaluation.roofline import Work, sampling_work
from partita.evaluation.speed import Contestant
from partita.fast.compilation import compile_parts
from partita.methods import METHODS
from partita.networks.options import DecoderOptions, TransformerOptions
from partita.randomness import Noise
from partita.samplers import sample
from partita.training.optimisers import OPTIMISERS
from partita.training.throughput import flops_per_token

SAMPLING = (("mdlm", "ancestral"), ("pgm", "ancestral"), ("pgm", "ordered"))
TRAINING = (("mdlm", True), ("mdlm-complementary", True), ("pgm", False), ("pgm", True))
_TRAINING_NAMES = {("pgm", False): "pgm, L x L masks", ("pgm", True): "pgm, packed"}


def sampling_contestants(
    network: TransformerOptions,
    tokens: int,
    device: torch.device,
    *,
    batch_size: int,
    steps: int,
    speeds: tuple[str, ...] = ("plain",),
    entrants: tuple[tuple[str, str], ...] = SAMPLING,
) -> Iterator[Contestant]:
    """MDLM's ancestral sampler, and PGM's ancestral and fixed-count ones, at each of the speeds."""
    for (name, sampler), speed in itertools.product(entrants, speeds):
        method = _method(name, network, tokens, device).eval()  # each with what it keeps for itself
        half = device.type == "cuda"
        work = sampling_work(
            method.network,  # type: ignore[arg-type]
            batch_size,
            network.length,
            steps,
            2 if half else 4,
        )

        def draw(method: nn.Module = method, sampler: str = sampler, speed: str = speed) -> int:
            with _precision(device):
                drawn = sample(method, batch_size, sampler=sampler, steps=steps, speed=speed)  # type: ignore[arg-type]
            return drawn.numel()

        named = f"{name}, {sampler}" + ("" if speeds == ("plain",) else f", {speed}")
        yield Contestant(named, draw, draw, work)


def training_contestants(
    network: TransformerOptions,
    tokens: int,
    device: torch.device,
    *,
    batch_size: int,
    steps: int = 2,
    speeds: tuple[str, ...] = ("plain",),
) -> Iterator[Contestant]:
    """Optimiser steps of MDLM, of its complementary form, and of PGM with masks and packed.

    "compiled" has compiled blocks and a loss that never holds all logits.
    """
    rows = torch.randint(tokens, (batch_size, network.length), device=device)
    for speed in speeds:
        for name, packed in TRAINING:
            if speed == "compiled" and not packed:
                continue  # the oracle is there to be right
            method: Any = _method(name, network, tokens, device)
            if not packed:
                method.network.packed = packed
            method.network.fused = speed == "compiled"
            if speed == "compiled":
                compile_parts(method.network)
            (optimiser,) = OPTIMISERS["adamw"](method, 1e-4, 0.0)
            flops = flops_per_token(method, network) * rows.numel() * steps
            named = _TRAINING_NAMES.get((name, packed), name)
            yield Contestant(
                named if speeds == ("plain",) else f"{named}, {speed}",
                _Advance(method, optimiser, rows, steps),
                _Advance(method, optimiser, rows, 2),
                Work(flops, 0.0),
            )


class _Advance:
    """Some steps of an optimiser."""

    def __init__(
        self,
        method: Any,  # noqa: ANN401 - any method
        optimiser: torch.optim.Optimizer,
        rows: torch.Tensor,
        steps: int,
    ) -> None:
        self.method, self.optimiser, self.rows, self.steps = method, optimiser, rows, steps

    def __call__(self) -> int:
        device = self.rows.device
        for step in range(self.steps):
            with _precision(device):
                noise = Noise.for_batch(0, len(self.rows), 0, device)
                loss = self.method.loss(self.rows, noise, step)
            self.optimiser.zero_grad()
            loss.objective.backward()
            self.optimiser.step()
        return self.rows.numel() * self.steps


def _method(name: str, network: TransformerOptions, tokens: int, device: torch.device) -> nn.Module:
    partitions = getattr(METHODS[name], "partitions", False)
    options = network if partitions else replace(network, decoder=DecoderOptions())
    with device:  # to draw weights on a CPU would take longer than what is timed
        method: nn.Module = METHODS[name].build(options, tokens)  # type: ignore[attr-defined]
    return method


def _precision(device: torch.device) -> Any:  # noqa: ANN401 - of two unrelated types
    """As training does it: bfloat16 on GPUs, float32 on CPUs."""
    return torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext()
