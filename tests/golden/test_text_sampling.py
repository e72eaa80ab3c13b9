"""The text family's sampling: whole trajectories with the recorded draws, and their pieces.

Our samplers draw differently (by inversion, from addressed noise), so the reference's draws are
replayed here with our network's predictions and our reverse probabilities.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from partita.methods import MDLM
from partita.networks import Transformer
from partita.processes.draws import low_discrepancy
from partita.processes.masked import reverse
from partita.schedules import make_schedule
from partita.schedules.formulas import Linear
from partita.training.ema import MovingAverage
from tests.golden.cases import load, parts, rule_of
from tests.support.references import LAST_TIME, build, gumbel_argmax

SAMPLERS = ("ddpm", "ddpm_cache")
samplers = pytest.mark.parametrize(
    ("file", "name"), parts("text/mdlm_sampler", lambda case: case.stems(".trace", "out."))
)


def sampler_case(file):
    """The case and its model. The mask is the last id."""
    case = load(file)
    method = MDLM(
        build(case, Transformer),
        mask_id=case.config["vocab_size"] - 1,
        schedule=f"mdlm:{case.config['noise']['type']}",
        corruption="continuous",
        conditioning="sigma" if case.config["time_conditioning"] else "none",
    )
    return case, method


def predicted_mean(method, z_t, t):
    """x_theta at hidden positions, 0 elsewhere."""
    mean = torch.zeros(*z_t.shape, method.network.config.vocab_size)
    revealed = z_t != method.mask_id
    rows, positions = (~revealed).nonzero(as_tuple=True)
    if rows.numel():
        with torch.no_grad():
            log_probs = method.predict(z_t, revealed, rows, positions, t)
        mean[rows, positions] = log_probs.exp()
    return mean


@samplers
def test_trajectories(file, name):
    case, method = sampler_case(file)
    # Their sampler with a cache takes the schedule that ends at alpha = 0.
    schedule = method.schedule if rule_of(name, SAMPLERS) == "ddpm" else Linear()
    draws = [case[key] for key in case.keys(f"in.rand.{name}.")]
    trace, tokens = case[f"out.{name}.trace"], case[f"out.{name}.tokens"]
    assert len(draws) == len(trace) == case.config["sampling"]["steps"]
    times = torch.linspace(1, LAST_TIME, len(draws) + 1)[:, None].expand(-1, len(tokens))
    z_t = torch.full_like(tokens, method.mask_id)
    for step, (u, expected) in enumerate(zip(draws, trace, strict=True)):
        t, s = times[step], times[step + 1]
        p = reverse(predicted_mean(method, z_t, t), z_t, s, t, schedule, method.mask_id)
        ours = gumbel_argmax(p, u)
        torch.testing.assert_close(ours, expected, msg=lambda m, i=step: f"step {i}: {m}")
        z_t = ours
    # What is still hidden in the end gets its most probable token.
    best = predicted_mean(method, z_t, times[-1]).argmax(-1)
    torch.testing.assert_close(torch.where(z_t == method.mask_id, best, z_t), tokens)
    if f"out.{name}.nfe" in case.tensors:
        assert calls_with_a_cache(trace, method) == int(case[f"out.{name}.nfe"])


def calls_with_a_cache(trace, method):
    """A prediction serves until a token changes, in any row of the batch; one call ends the run.

    A network that is told the time is called at every step.
    """
    states = torch.cat([torch.full_like(trace[:1], method.mask_id), trace[:-1]])
    changed = (states[1:] != states[:-1]).flatten(1).any(-1)
    return 1 + (len(changed) if method.timed else int(changed.sum())) + 1


def test_categorical_draws():
    """The rule by which the trajectories above are replayed."""
    case = load("text/sampling_pieces")
    torch.testing.assert_close(gumbel_argmax(case["in.p"], case["in.u"]), case["out.sample"])


def test_times():
    """They squeeze times to start at `sampling_eps`, and each row adds a shift of its own."""
    case = load("text/sampling_pieces")
    u, eps = case["in.u_t"], case.config["training"]["sampling_eps"]
    even = low_discrepancy(u / len(u), torch.arange(len(u)), len(u))
    t = eps + (1 - eps) * even
    case.close(t, "out.t_antithetic")
    case.close(eps + (1 - eps) * u, "out.t_plain")
    schedule = make_schedule("mdlm:loglinear")
    case.close(schedule.alpha(t), "out.alpha_t")
    case.close(schedule.derivative(t[0]), "out.dalpha")


def test_moving_average():
    case = load("text/sampling_pieces")
    module = nn.ParameterDict({"weight": case["in.ema_init"].clone()})
    average = MovingAverage(module)
    shadows = []
    for weight in case["in.ema_params"]:
        with torch.no_grad():
            module["weight"].copy_(weight)
        average.update(module)
        shadows.append(average.shadow["weight"].clone())
    case.close(torch.stack(shadows), "out.ema")
