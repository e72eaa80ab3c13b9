"""Schedules: exact ends, full precision in float32, inverses, names."""

from __future__ import annotations

import mpmath
import pytest
import torch

from partita.errors import InputError
from partita.schedules import (
    GRIDS,
    SCHEDULES,
    discretize,
    make_schedule,
    sampling_grid,
)

mpmath.mp.dps = 160
HALF_PI = mpmath.pi / 2
TIMES = torch.cat(
    [
        torch.logspace(-30, -1, 60),
        torch.linspace(0.1, 0.9, 41),
        1 - torch.logspace(-7, -1, 40),
        torch.tensor([1.0]),
    ]
)


def geometric(t):
    low, high = mpmath.mpf(1e-3), mpmath.mpf(20.0)
    sigma = low ** (1 - t) * high**t
    return (mpmath.exp(-sigma) - mpmath.exp(-high)) / (mpmath.exp(-low) - mpmath.exp(-high))


# Every schedule once more, from its definition, in 160-digit arithmetic.
FORMULAS = {
    "linear": lambda t: 1 - t,
    "log-linear": lambda t: 1 - t,
    "polynomial": lambda t: 1 - t**2,
    "power": lambda t: (1 - t) ** 2,
    "cosine": lambda t: 1 - mpmath.cos(HALF_PI * (1 - t)),
    "arccos": lambda t: 1 - mpmath.acos(1 - t) / HALF_PI,
    "half-cosine": lambda t: mpmath.cos(HALF_PI * t),
    "cosine-squared": lambda t: mpmath.cos(HALF_PI * t) ** 2,
    "exponential": lambda t: (mpmath.exp(-7 * t) - mpmath.exp(-7)) / (1 - mpmath.exp(-7)),
    "geometric": geometric,
}


def test_every_exact_schedule_is_covered():
    assert {name for name in SCHEDULES if ":" not in name} == set(FORMULAS)


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ends_are_exact(name, dtype):
    schedule, ends = make_schedule(name), torch.tensor([0.0, 1.0], dtype=dtype)
    assert schedule.alpha(ends).tolist() == [1, 0]
    assert schedule.one_minus_alpha(ends).tolist() == [0, 1]
    assert schedule.inverse(torch.tensor([1.0, 0.0], dtype=dtype)).tolist() == [0, 1]


@pytest.mark.parametrize("name", FORMULAS)
def test_float32_keeps_full_relative_precision(name):
    """alpha, 1 - alpha, alpha' and the weight to a few units in the last place."""
    schedule, formula = make_schedule(name), FORMULAS[name]
    ours = {
        "alpha": schedule.alpha(TIMES),
        "hidden": schedule.one_minus_alpha(TIMES),
        "slope": schedule.derivative(TIMES),
        "weight": schedule.weight(TIMES),
    }
    assert all(value.dtype == torch.float32 for value in ours.values())
    for index, time in enumerate(TIMES.tolist()):
        t = mpmath.mpf(time)
        alpha = formula(t)
        slope = mpmath.diff(formula, t, h=mpmath.mpf(10) ** -100)
        weight = -slope / (1 - alpha)
        truth = {"alpha": alpha, "hidden": 1 - alpha, "slope": slope, "weight": weight}
        for key, value in truth.items():
            got, true = float(ours[key][index]), float(value)
            assert got == pytest.approx(true, rel=1.5e-6, abs=1e-37), f"{key} at t = {time}"


@pytest.mark.parametrize("name", FORMULAS)
def test_weight_is_positive_before_the_end(name):
    weight = make_schedule(name).weight(TIMES[TIMES < 1])
    assert bool((weight > 0).all())
    assert bool(torch.isfinite(weight).all())


@pytest.mark.parametrize("name", list(SCHEDULES))
def test_inverses(name):
    schedule, t = make_schedule(name), torch.linspace(0, 1, 401, dtype=torch.float64)
    # Where alpha is flat, rounding alpha by 1e-16 moves the time by its square root.
    torch.testing.assert_close(schedule.inverse(schedule.alpha(t)), t, atol=5e-8, rtol=0)
    hidden = schedule.one_minus_alpha(t)
    torch.testing.assert_close(schedule.inverse_one_minus(hidden), t, atol=5e-8, rtol=0)


@pytest.mark.parametrize("name", FORMULAS)
def test_reveal_probability_survives_small_steps(name):
    """(alpha_s - alpha_t) / (1 - alpha_t) without cancellation, near both ends."""
    schedule, formula = make_schedule(name), FORMULAS[name]
    for t in (0.001, 0.3, 0.7, 0.999, 1.0):
        pair = torch.tensor([t - 0.001 * t, t], dtype=torch.float32)
        s, e = (mpmath.mpf(v) for v in pair.tolist())
        truth = float((formula(s) - formula(e)) / (1 - formula(e)))
        ours = float(schedule.reveal_probability(pair[:1], pair[1:])[0])
        # alpha itself has relative error 1e-7; the difference of two close ones has more.
        assert ours == pytest.approx(truth, rel=1e-3)
        exact = schedule.reveal_probability(pair[:1].double(), pair[1:].double())
        assert float(exact[0]) == pytest.approx(truth, rel=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_where_no_mask_is_left_all_of_them_are_revealed(dtype):
    """1 - alpha = 128^-200 is too small for any number."""
    schedule = make_schedule("polynomial", exponent=200.0)
    t, s = torch.tensor([1 / 128, 1 / 2], dtype=dtype), torch.zeros(2, dtype=dtype)
    assert float(schedule.one_minus_alpha(t)[0]) == 0
    assert schedule.reveal_probability(s, t).tolist() == [1, 1]


@pytest.mark.parametrize("exponent", [0.5, 1.0, 3.7])
def test_polynomial_exponents(exponent):
    schedule, t = make_schedule("polynomial", exponent=exponent), torch.linspace(0.01, 1, 50)
    torch.testing.assert_close(schedule.alpha(t), 1 - t**exponent, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("exponent", [1.0, 1.5, 3.7])
def test_power_exponents(exponent):
    schedule, t = make_schedule("power", exponent=exponent), torch.linspace(0, 0.99, 50).double()
    torch.testing.assert_close(schedule.alpha(t), (1 - t) ** exponent)
    slope = exponent * (1 - t) ** (exponent - 1)
    torch.testing.assert_close(schedule.derivative(t), -slope)
    torch.testing.assert_close(schedule.weight(t[1:]), (slope / (1 - (1 - t) ** exponent))[1:])
    torch.testing.assert_close(schedule.inverse(schedule.alpha(t)), t)


@pytest.mark.parametrize("name", list(GRIDS))
@pytest.mark.parametrize("steps", [1, 3, 64])
def test_grids_fall_from_one_to_zero(name, steps):
    grid = sampling_grid(name, steps)
    assert grid.shape == (steps + 1,)
    assert grid[0] == 1
    assert grid[-1] == 0
    assert bool((grid.diff() < 0).all())


def test_cosine_grid_under_the_linear_schedule_visits_the_alphas_of_the_cosine_schedule():
    linear = make_schedule("linear").alpha(sampling_grid("cosine", 9))
    cosine = make_schedule("cosine").alpha(sampling_grid("uniform", 9))
    torch.testing.assert_close(linear, cosine)


def test_discretize_takes_the_end_of_the_bin():
    t = torch.tensor([0.0, 0.1, 0.25, 0.99, 1.0])
    assert discretize(t, 4).tolist() == [0.25, 0.25, 0.5, 1.0, 1.0]


@pytest.mark.parametrize(
    ("name", "options", "word"),
    [
        ("cosin", {}, "cosine"),
        ("linear", {"exponent": 2}, "exponent"),
        ("polynomial", {"exponent": -1}, "schedule.exponent"),
        ("power", {"exponent": 0.5}, "schedule.exponent"),
        ("geometric", {"sigma_min": 3, "sigma_max": 2}, "sigma_min"),
        ("exponential", {"rate": 0}, "schedule.rate"),
    ],
)
def test_bad_schedules_say_what_is_wrong(name, options, word):
    with pytest.raises(InputError, match=word):
        make_schedule(name, **options)
