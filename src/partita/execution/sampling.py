"""Planned samplers as captured programs: which models have one, and how it is cached.

`reveal` does what `reveal_as_planned` does: the same tokens for the same noise, up to rounding.
A program is made for a batch size, a length and decoding settings, and cached with its model, so
only the first such run pays for the capture. Its network is an inference copy of the model's, in
the precision of the run; the weights are copied again before each run.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float64, Int64
from torch import Tensor, nn

from partita.categorical import Decoding
from partita.errors import require
from partita.execution.compilation import compile_parts
from partita.execution.program import GraphBuffers, Memory, Program
from partita.execution.step_forward import GuidanceSpec, StepForward
from partita.execution.timetable import Timetable
from partita.kernels.evenness import pad_in_place
from partita.methods.masked_method import MaskedMethod
from partita.networks.partition import PartitionTransformer
from partita.networks.transformer import Transformer
from partita.randomness import Purpose
from partita.samplers.base import SamplingContext
from partita.samplers.guided_models import GuidedDenoiser
from partita.samplers.state import SamplerState

KEPT = 8  # cached programs per model


@dataclass
class KeptPrograms:
    """An inference copy of a model's network, and the programs that run it."""

    network: Transformer | PartitionTransformer
    head: Tensor
    """Its head's weights, padded to an even number of rows."""
    form: Any
    memory: Memory
    programs: dict[Any, Program] = field(default_factory=dict)


_KEPT: WeakKeyDictionary[nn.Module, dict[Any, KeptPrograms]] = WeakKeyDictionary()


def has_program(model: object) -> bool:
    """Whether a model's steps can be captured."""
    model, _ = _unwrapped(model)
    if not isinstance(model, MaskedMethod) or not model.plain_softmax:
        return False
    if type(model).predict is not MaskedMethod.predict:
        return False
    network: object = model.network
    if type(network) is PartitionTransformer:
        return not network.options.aggregates  # which would read empty slots too
    return type(network) is Transformer and not network.options.ordered


def reveal(
    context: SamplingContext[Any],
    state: SamplerState,
    plan: Int64[Tensor, "B L"],
    visible: Float64[Tensor, "B L"],
    steps: int,
    *,
    compiled: bool = False,
) -> Int64[Tensor, "B L"]:
    """Reveal every position at the step that the plan gives for it."""
    model, guidance = _unwrapped(context.model)
    seen = state.revealed & (state.tokens != model.mask_id)
    table = Timetable.of(plan, seen, visible, steps)
    label = _labels(model, context.label, plan)
    with (
        torch.no_grad(),
        _program(model, guidance, state, len(table.steps), context.decoding, compiled) as program,
    ):
        program.buffers.set(
            torch.where(seen, state.tokens, model.mask_id),
            table,
            context.noise.uniforms(Purpose.TOKEN, 0, plan.shape[1]),
            _scalars(model, table),
            label,
        )
        # A network of masks reads all positions at every step: one size will do.
        reads = table.read if model.partitions else [0] * len(table.read)
        sizes = dict(zip(table.steps, zip(reads, table.queried, strict=True), strict=True))
        program.prepare(sizes.values())
        before = state.copy() if context.callback is not None else None
        for step in range(steps):
            if step in sizes:
                program.run(*sizes[step])
            if before is not None:
                rows, positions = (plan == step).nonzero(as_tuple=True)
                before.write(rows, positions, program.buffers.by_row[rows, positions])
                context.report(step, steps, before, rows, positions)
        state.tokens.copy_(torch.where(plan >= 0, program.buffers.by_row, state.tokens))
        broken = int(program.buffers.broken)
    problem = "a prediction holds a NaN, an infinity or no possible token"
    remedy = "the network's weights or inputs are broken"
    require(not broken, "logits", problem, remedy)
    state.revealed |= plan >= 0
    return state.tokens


def _unwrapped(model: Any) -> tuple[Any, GuidanceSpec | None]:  # noqa: ANN401 - whatever it is
    """Split a guided model into the model and its guidance; None without guidance."""
    if not isinstance(model, GuidedDenoiser):
        return model, None
    return model.model, GuidanceSpec(model.weight, model.share_of_weight)


def _scalars(model: MaskedMethod, table: Timetable) -> Tensor | None:
    """The time or noise level that conditions the network, for each step and row."""
    if not model.timed:
        return None
    scalar = model.scalar(model.schedule.inverse(table.shares.flatten()))
    return None if scalar is None else scalar.view(table.shares.shape)


def _labels(model: MaskedMethod, label: Tensor | None, plan: Tensor) -> Tensor:
    """The labels, or the id of "no label"."""
    classes = model.network.config.classes
    require(label is None or classes > 0, "label", "this network has no class labels")
    return torch.full_like(plan[:, 0], classes) if label is None else label


# Programs and copies -----------------------------------------------------------------------------


@contextmanager
def _program(
    model: MaskedMethod,
    guidance: GuidanceSpec | None,
    state: SamplerState,
    steps: int,
    decoding: Decoding,
    compiled: bool,
) -> Iterator[Program]:
    """Take a program from the cache while it runs: a callback may sample from the same model."""
    held = _programs(model, state.tokens.device, compiled)
    batch, length = state.tokens.shape
    times = 1 << steps.bit_length()
    key = (batch, length, times, decoding, guidance)
    program = held.programs.pop(key, None)
    if program is None:
        with torch.inference_mode(False):
            buffers = GraphBuffers.blank(batch, length, times, state.tokens.device)
        forward = StepForward(model.timed, held.network, held.head, guidance)
        program = Program(forward, model.mask_id, buffers, decoding, held.memory, compiled)
    try:
        yield program
    finally:
        held.programs[key] = program  # newest entry: dropped last
        while len(held.programs) > KEPT:
            held.programs.pop(next(iter(held.programs)))


def _programs(model: MaskedMethod, device: torch.device, compiled: bool) -> KeptPrograms:
    """The copy for this precision, with the current weights at the addresses of its graphs."""
    half = torch.is_autocast_enabled(device.type)
    dtype = torch.get_autocast_dtype(device.type) if half else None
    network: Any = model.network
    weights = [*network.parameters()]
    form = network.config, [(x.shape, x.dtype, x.device) for x in weights]
    copies = _KEPT.setdefault(model, {})
    held = copies.get((dtype, compiled))
    if held is None or held.form != form:
        with torch.inference_mode(False):  # its tensors could not be written outside
            copied = _inference_copy(network, dtype, compiled)
            held = KeptPrograms(copied, pad_in_place(copied.head), form, Memory(device))
        copies[dtype, compiled] = held
    torch._foreach_copy_([*held.network.parameters()], weights)
    return held


def _inference_copy(
    network: Any,  # noqa: ANN401 - as given
    dtype: torch.dtype | None,
    compiled: bool,
) -> Any:  # noqa: ANN401
    copied = copy.deepcopy(network).to(dtype=dtype).eval().requires_grad_(False)
    if compiled:
        compile_parts(copied, dynamic=True)
    return copied
