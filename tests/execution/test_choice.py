"""Who carries out a sampler's plan, on which device: a GPU is played by a tensor that says so."""

from __future__ import annotations

import pytest
import torch

import partita
from partita.execution import choice
from partita.execution.choice import WORTH_CAPTURING, executor_of
from partita.methods import MD4, MDLM, PGM
from partita.randomness import Noise
from partita.samplers.base import SamplingContext

MANY, FEW = WORTH_CAPTURING, WORTH_CAPTURING - 1


class OnGPU(torch.Tensor):
    """A tensor in the memory of a GPU, as far as it says."""

    is_cuda = True


class Own(MDLM):
    """Somebody's own predictions, which no program knows."""

    def log_probabilities(self, logits):
        return super().log_probabilities(2 * logits)


def build(kind=MDLM, **options):
    sizes = partita.TransformerOptions(length=4, width=8, depth=1, heads=2, **options)
    return kind.build(sizes, 3)


def picked(speed, steps, gpu=False, model=None):
    """Who carries out a plan of so many steps."""
    samples = torch.arange(2)
    noise = Noise(0, samples.as_subclass(OnGPU) if gpu else samples)
    context, executor = SamplingContext(model or build(), noise), executor_of(speed)
    if executor is None or not executor.takes(context, steps):
        return "steps"
    return "compiled program" if executor.speed == "compile" else "program"


@pytest.fixture(autouse=True)
def kernels(monkeypatch):
    """Whether Triton is installed here does not matter."""
    monkeypatch.setattr(choice, "KERNELS", True)


def test_a_cpu_goes_step_by_step_unless_told():
    assert picked("auto", MANY) == "steps"
    assert picked("eager", MANY) == "steps"
    assert picked("cudagraph", FEW) == "program"
    assert picked("compile", FEW) == "compiled program"


@pytest.mark.parametrize("kind", [MDLM, MD4, PGM])
def test_a_gpu_runs_programs_where_there_are_steps_enough(kind):
    model = build(kind)
    assert picked("auto", MANY, gpu=True, model=model) == "program"
    assert picked("auto", FEW, gpu=True, model=model) == "steps"
    assert picked("eager", MANY, gpu=True, model=model) == "steps"
    assert picked("cudagraph", 1, gpu=True, model=model) == "program"
    assert picked("compile", 1, gpu=True, model=model) == "compiled program"


def test_guidance_is_a_program_too():
    pulled = partita.guided(build(classes=2), 1.5)
    assert picked("auto", MANY, gpu=True, model=pulled) == "program"


def test_what_has_no_program_goes_step_by_step():
    for model in (build(Own), build(partita.AR), build(partita.D3PM)):
        assert picked("auto", MANY, gpu=True, model=model) == "steps"


def test_without_kernels_a_gpu_goes_step_by_step(monkeypatch):
    monkeypatch.setattr(choice, "KERNELS", False)
    assert picked("auto", MANY, gpu=True) == "steps"


def test_the_facade_hands_its_choice_on(monkeypatch):
    """What `partita.sample` is told is what carries out the plan."""
    done = []

    def reveal(context, state, plan, visible, steps, *, compiled):  # noqa: ARG001
        done.append((steps, compiled))
        return torch.zeros_like(state.tokens)

    monkeypatch.setattr(choice, "reveal", reveal)
    for speed in ("auto", "eager", "cudagraph", "compile"):
        partita.sample(build(), 1, sampler="ordered", steps=4, speed=speed)
    assert done == [(4, False), (4, True)]
