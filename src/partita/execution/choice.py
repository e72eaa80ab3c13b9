"""`sample` with a choice of how steps run: in eager mode, as a CUDA graph, or compiled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxtyping import Float64, Int64
from torch import Tensor

from partita import samplers
from partita.contracts.prompt import Prompt
from partita.contracts.shapes import Labels
from partita.errors import require
from partita.execution.sampling import has_program, reveal
from partita.kernels import KERNELS
from partita.methods.contracts import Model
from partita.samplers.base import SAMPLERS, Callback, Executor, SamplingContext
from partita.samplers.state import SamplerState

SPEEDS = ("auto", "eager", "cudagraph", "compile")
"""How planned samplers run: step by step, as a captured program, or as one of compiled blocks."""

FORMER_SPEEDS = {"plain": "eager", "captured": "cudagraph", "compiled": "compile"}
"""Names of the version before. They are refused with the new name."""

WORTH_CAPTURING = 16  # steps; with fewer, a capture takes longer than it saves


@dataclass(frozen=True)
class Programs(Executor):
    """Runs the steps of planned samplers as programs of fixed shape."""

    speed: str

    def check(self, name: str, model: Model, state: SamplerState) -> None:
        """Refuse a named speed that cannot be had; "auto" falls back to single steps instead."""
        if self.speed == "auto" or name not in SAMPLERS:
            return
        remedy = "use auto or eager"
        problem = f"is {self.speed!r}, but the sampler {name!r} has no plan that could be captured"
        require(SAMPLERS[name].planned, "speed", problem, remedy)
        problem = f"is {self.speed!r}, but there is no program for this {type(model).__name__}"
        require(has_program(model), "speed", problem, remedy)
        problem = f"is {self.speed!r}, but triton is not installed, which programs need on a GPU"
        require(KERNELS or not state.tokens.is_cuda, "speed", problem, remedy)

    def takes(self, context: SamplingContext[Any], steps: int) -> bool:
        """Whether the model has a program; with "auto", also whether a capture saves time."""
        if not has_program(context.model):
            return False
        worth = context.noise.samples.is_cuda and KERNELS and steps >= WORTH_CAPTURING
        return worth if self.speed == "auto" else True

    def reveal(
        self,
        context: SamplingContext[Any],
        state: SamplerState,
        plan: Int64[Tensor, "B L"],
        visible: Float64[Tensor, "B L"],
        steps: int,
    ) -> Int64[Tensor, "B L"]:
        compiled = self.speed == "compile"
        return reveal(context, state, plan, visible, steps, compiled=compiled)


def executor_of(speed: str) -> Executor | None:
    """The executor of a speed; None in eager mode, where samplers run step by step."""
    check_speed(speed)
    return None if speed == "eager" else Programs(speed)


def check_speed(speed: str, argument: str = "speed", known: tuple[str, ...] = SPEEDS) -> None:
    """Refuse an unknown speed; one by its name of the version before, with the name of today."""
    for former, name in FORMER_SPEEDS.items():
        require(speed != former, argument, f"{former!r} has another name now", f"write {name}")
    require(speed in known, argument, f"unknown name {speed!r}", f"known: {', '.join(known)}")


def sample(
    model: Model,
    count: int | None = None,
    *,
    prompt: Prompt | None = None,
    length: int | None = None,
    sampler: str | None = None,
    seed: int = 0,
    first: int = 0,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    label: int | Labels | None = None,
    guidance: float | None = None,
    guidance_schedule: str = "constant",
    callback: Callback | None = None,
    speed: str = "auto",
    **options: Any,
) -> Int64[Tensor, "B L"]:
    """Sequences from a model, with a prompt or without one.

    The samples are numbered from `first`; sample i of a seed has the same noise in any batch.
    With `guidance`, predictions are pulled towards the label: weight 0 leaves them as they are,
    and `guidance_schedule` says how the weight rises: constant, linear or cosine.
    `speed` is "eager" (step by step), "cudagraph" (a captured program of fixed shape, for planned
    samplers), "compile" (the same with compiled blocks; a minute at first, for long runs), "auto".
    `options` go to the sampler, for example `steps=64, grid="cosine"` for "ancestral".
    """
    return samplers.sample(
        model,
        count,
        prompt=prompt,
        length=length,
        sampler=sampler,
        seed=seed,
        first=first,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        label=label,
        guidance=guidance,
        guidance_schedule=guidance_schedule,
        callback=callback,
        executor=executor_of(speed),
        **options,
    )
