"""`sample`: check the arguments, then run a sampler by its name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from partita.categorical import Decoding
from partita.contracts.prompt import Prompt
from partita.contracts.shapes import Labels
from partita.errors import InputError, require, require_int, require_seed
from partita.methods.base import check_ids
from partita.methods.contracts import Denoiser, Model
from partita.randomness import Noise
from partita.registry import options_of as _options_in
from partita.samplers.base import (
    SAMPLERS,
    Callback,
    Executor,
    Sampler,
    SamplingContext,
    default_sampler,
)
from partita.samplers.guidance import NO_LABEL, Guided, check_guidable
from partita.samplers.guided_models import guided
from partita.samplers.state import SamplerState


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
    executor: Executor | None = None,
    **options: Any,
) -> Int64[Tensor, "B L"]:
    """Sample sequences from a model, with a prompt or without one.

    An `executor` runs the steps of planned samplers; without one they run one by one.
    `partita.sample` chooses it by `speed`, and describes the other arguments.
    """
    decoding = Decoding(temperature, top_k, top_p)
    problem = f"{type(model).__name__} is no method"
    remedy = "wrap a network in one such as MDLM; a loaded model has its own `sample`, and `method`"
    require(isinstance(model, Model), "model", problem, remedy)
    name = default_sampler(model.family) if sampler is None else sampler
    chosen = _fitting(model, name)
    _check_options(name, chosen, options)
    require_seed(seed, "seed")
    require_int(first, "first", 0)
    state = _initial_state(model, count, prompt, length, slides="block_length" in _options(chosen))
    chosen_model = _with_guidance(model, guidance, guidance_schedule, label)
    if executor is not None:
        executor.check(_inner(chosen, options) or name, chosen_model, state)
    context = SamplingContext(
        chosen_model,
        Noise.for_batch(seed, state.batch, first, state.tokens.device),
        decoding,
        as_labels(label, state.batch, state.tokens.device),
        callback,
        executor,
    )
    with evaluating(model):
        tokens = chosen.run(context, state, **options)
    _check_complete(name, tokens, model)
    return tokens


def _check_complete(name: str, tokens: object, model: Model) -> None:
    """Refuse what a sampler returns if it is not a text, or still has hidden positions.

    A planned sampler leaves none: what its plan does not name is revealed in the last step.
    """
    remedy = "a sampler reveals all of state.remaining, and returns state.tokens"
    problem = f"{name!r} returned {type(tokens).__name__}"
    require(isinstance(tokens, Tensor), "sampler", problem, remedy)
    if model.family == "masked" and not SAMPLERS[name].planned:
        hidden = int((tokens == model.mask_id).sum())  # type: ignore[attr-defined]
        require(hidden == 0, "sampler", f"{name!r} left {hidden} positions hidden", remedy)


def _with_guidance(
    model: Model, weight: float | None, schedule: str, label: int | Tensor | None
) -> Model:
    """The model itself, or its guided form if there is a weight."""
    if weight is None:
        chosen = schedule == "constant"
        remedy = "say how much, for example 2"
        require(chosen, "guidance_schedule", f"is {schedule!r}, but there is no guidance", remedy)
        return model
    check_guidable(model)
    require(label is not None, "label", NO_LABEL, "say which")
    towards_label = guided(model, weight, schedule)
    return towards_label if weight else model


@contextmanager
def evaluating(model: object) -> Iterator[None]:
    """Turn dropout off inside, and restore the model's mode afterwards."""
    model = model.model if isinstance(model, Guided) else model
    module = model if isinstance(model, nn.Module) and model.training else None
    if module:
        module.eval()
    try:
        yield
    finally:
        if module:
            module.train()


def fitting_samplers(family: str) -> list[str]:
    """The samplers of a family of methods, its default first."""
    default = default_sampler(family)
    others = [name for name in SAMPLERS if SAMPLERS[name].family == family and name != default]
    return [default, *others]


def check_sampling(model: Model, sampler: str | None, options: dict[str, Any]) -> None:
    """Refuse a sampler that does not fit a model, and options that it does not take."""
    name = default_sampler(model.family) if sampler is None else sampler
    _check_options(name, _fitting(model, name), options)


def _fitting(model: Model, name: str) -> Sampler:
    chosen = SAMPLERS[name]
    problem = f"{name!r} does not fit a {model.family} model"
    remedy = f"these do: {', '.join(fitting_samplers(model.family))}"
    require(chosen.family == model.family, "sampler", problem, remedy)
    return chosen


def options_of(model: Model) -> list[str]:
    """The names of the options that the default sampler of a model takes."""
    return _options(SAMPLERS[default_sampler(model.family)])


def _options(chosen: Sampler) -> list[str]:
    return list(_options_in(chosen.run, keywords=True))


def _check_options(name: str, chosen: Sampler, options: dict[str, Any]) -> None:
    """Refuse unknown options before any work; `blocks` passes further ones on to `inner`."""
    known, inner = _options(chosen), _inner(chosen, options)
    if inner is not None:
        known = known + (_options(SAMPLERS[inner]) if inner in SAMPLERS else list(options))
    for option in options:
        if option not in known:
            takes = ", ".join(known) or "none"
            raise InputError(option, f"is not an option of sampler {name!r}", f"it takes: {takes}")


def _inner(chosen: Sampler, options: dict[str, Any]) -> str | None:
    """The name of the sampler that fills blocks; None for samplers without blocks."""
    inner = _options_in(chosen.run, keywords=True).get("inner")
    return None if inner is None else options.get("inner", inner.default)


def _initial_state(
    model: Model, count: int | None, prompt: Prompt | None, length: int | None, *, slides: bool
) -> SamplerState:
    if count is not None:
        require_int(count, "count")
    if model.whole_texts:
        return _growing(model, count, prompt, length)
    if prompt is None:
        length = _checked_length(model, length, slides)
        return SamplerState.blank(count or 1, length, model.mask_id, _device(model))
    require(length is None, "length", "follows from the prompt", "give one of the two")
    _check_prompt(prompt, model)
    remedy = "leave it out to sample unconditionally"
    require(prompt.tokens.numel() > 0, "prompt", "is empty", remedy)
    _check_length(model, "prompt", prompt.tokens.shape[1], slides)
    return SamplerState.from_prompt(_repeated(prompt, count), model.mask_id)


def _growing(
    model: Model, count: int | None, prompt: Prompt | None, longest: int | None
) -> SamplerState:
    """The initial state of texts that grow up to `longest`, empty or with a prompt."""
    longest = _checked_length(model, longest, slides=False)
    if prompt is None:
        state = SamplerState.blank(count or 1, 0, model.mask_id, _device(model))
        everywhere = torch.ones(count or 1, 1, dtype=torch.bool, device=state.tokens.device)
        return replace(state, open=everywhere, longest=longest)
    _check_prompt(prompt, model)
    held = prompt.tokens.shape[1]
    problem = f"has {held} tokens, but the text may have {longest} at most"
    require(held <= longest, "prompt", problem, "shorten it")
    state = SamplerState.from_prompt(_repeated(prompt, count), model.mask_id)
    return replace(state, longest=longest)


def _repeated(prompt: Prompt, count: int | None) -> Prompt:
    """The prompt with one row per sample."""
    rows = prompt.tokens.shape[0]
    problem = f"is {count}, but the prompt has {rows} rows"
    remedy = "give one row, or as many as samples"
    require(count is None or rows in (1, count), "count", problem, remedy)
    return prompt.expand(count) if rows == 1 and count is not None else prompt


def _check_prompt(prompt: Prompt, model: Model) -> None:
    require(isinstance(prompt, Prompt), "prompt", f"must be a Prompt, got {type(prompt).__name__}")
    check_ids(prompt.tokens[prompt.known], model, "prompt")


def _checked_length(model: Model, length: int | None, slides: bool) -> int:
    length = model.length if length is None else length
    require_int(length, "length")
    _check_length(model, "length", length, slides)
    return length


def _check_length(model: Model, argument: str, length: int, slides: bool) -> None:
    beyond = ", or use the sampler blocks, which goes beyond" if isinstance(model, Denoiser) else ""
    problem = f"{length} positions are more than the model's {model.length}"
    require(slides or length <= model.length, argument, problem, f"shorten it{beyond}")


def as_labels(
    label: int | Tensor | None, rows: int, device: torch.device
) -> Int64[Tensor, "B"] | None:
    """One label for all rows, or a tensor with one for each."""
    if label is None:
        return None
    if isinstance(label, Tensor):
        problem = f"must be a number or an int64 tensor of {rows}, one for each sequence"
        require(label.shape == (rows,) and label.dtype == torch.int64, "label", problem)
        return label.to(device)
    require_int(label, "label", 0)
    return torch.full((rows,), label, device=device)


def _device(model: Model) -> torch.device:
    model = model.model if isinstance(model, Guided) else model
    if isinstance(model, nn.Module):
        for parameter in model.parameters():
            return parameter.device
    return torch.device("cpu")
